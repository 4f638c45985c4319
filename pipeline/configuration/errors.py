"""How a configuration error speaks: the key, its value, where it was written, and the nearest valid spelling.

'dataset.max_num_token' is no known key (value 36864; recipe.yaml, line 12): parbake would bake with another setting
than was meant; write 'dataset.max_num_tokens', or remove it
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.errors import ConfigError

__all__ = ["Origin", "config_error", "nearest", "shown", "suggestion", "unknown_key"]

_SECRET_KEYS = ("bake.storage_options",)
_SHOWN_CHARACTERS = 80
_LISTED_KEYS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where values were written: the file's name, the line of each dotted key, and the keys a flag has set.

    Attributes:
        name: The file as the user named it.
        lines: Dotted key → line, counted from 1.
        flags: Dotted key → the flag that set it, such as "--set" or "--world-size".
    """

    name: str
    lines: Mapping[str, int] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)

    def flag(self, key: str) -> str:
        """The flag that set the key or the section around it, "" if the file did."""
        return next((self.flags[parent] for parent in _self_and_parents(key) if parent in self.flags), "")

    def where(self, key: str) -> str:
        """The place of the key, or of the innermost section around it that is there: `recipe.yaml, line 12`."""
        if flag := self.flag(key):
            return flag
        for parent in _self_and_parents(key):
            if parent in self.lines:
                return f"{self.name}, line {self.lines[parent]}"
        return self.name


def _self_and_parents(key: str) -> Iterable[str]:
    parts = key.split(".")
    return (".".join(parts[:length]) for length in range(len(parts), 0, -1))


def shown(key: str, value: object) -> str:
    """The value as a message may show it: short, and never a secret."""
    if any(key == secret or key.startswith(f"{secret}.") for secret in _SECRET_KEYS):
        return "not shown"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def nearest(word: str, valid: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The valid word most like `word`, "" if none is alike."""
    matches = difflib.get_close_matches(word.lower(), list(valid), n=1, cutoff=cutoff)
    return matches[0] if matches else ""


def suggestion(word: str, valid: Sequence[str], *, prefix: str = "") -> str:
    """What to write instead of `word`: the nearest valid word, or the list to choose from."""
    if near := nearest(word, valid):
        return f"write '{prefix}{near}'"
    listed = ", ".join(valid[:_LISTED_KEYS]) + (", …" if len(valid) > _LISTED_KEYS else "")
    return f"choose from {listed}" if valid else "remove it"


def config_error(key: str, value: object, origin: Origin, *, wrong: str, why: str, remedy: str) -> ConfigError:
    """A sentence of three clauses about one value: `wrong` continues "'key' is <value> (<where>)"."""
    return ConfigError(f"'{key}' is {shown(key, value)} ({origin.where(key)}) {wrong}: {why}; {remedy}")


def unknown_key(key: str, value: object, valid: Sequence[str], origin: Origin) -> ConfigError:
    """A key that parbake does not know, with the nearest one that it does."""
    parent, _, last = key.rpartition(".")
    remedy = suggestion(last, valid, prefix=f"{parent}." if parent else "")
    return ConfigError(
        f"'{key}' is no known key (value {shown(key, value)}; {origin.where(key)}): parbake would bake with another"
        f" setting than was meant; {remedy}"
    )
