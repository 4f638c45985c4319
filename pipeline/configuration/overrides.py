"""`--set dotted.key=value` and the explicit flags, applied to the sections before they are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.configuration.document import parse_yaml, with_environment
from pipeline.configuration.errors import Origin, suggestion, unknown_key
from pipeline.errors import ConfigError

__all__ = ["Flags", "Overrides"]

_TABLES = ("dataset.grouped_datasets.", "dataset.dataset_info.")
_LENGTH = "bake.length."


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """Values of the flags that have a name of their own; None: not given."""

    output: str | None = None
    world_size: int | None = None
    packs_per_lane: int | None = None
    executor: str | None = None

    def changes(self) -> tuple[Override, ...]:
        """The given flags as overrides; a length given by flag replaces the file's, whatever it counted in."""
        length = None if self.packs_per_lane is None else {"packs_per_lane": self.packs_per_lane}
        named = (
            ("bake.output", self.output, "--output"),
            ("bake.world_size", self.world_size, "--world-size"),
            ("bake.length", length, "--packs-per-lane"),
            ("bake.executor", self.executor, "--executor"),
        )
        return tuple(Override(key=key, value=value, flag=flag) for key, value, flag in named if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One value from the command line."""

    key: str
    value: object
    flag: str

    @property
    def late(self) -> bool:
        """Whether it lies inside a table that may first have to be read from its own file."""
        return self.key.startswith(_TABLES)


@dataclass(frozen=True, slots=True)
class Overrides:
    """All values from the command line, in the order in which they are applied."""

    changes: tuple[Override, ...]

    @classmethod
    def parse(cls, overrides: Sequence[str], flags: Flags) -> Overrides:
        """Read `dotted.key=value` strings, values as YAML, and put the flags behind them.

        Raises:
            ConfigError: A string has no `=` or no key, or its value is no YAML.
        """
        changes = []
        for text in overrides:
            key, equals, value = text.partition("=")
            if not equals or not key.strip(" ."):
                raise ConfigError(
                    f"--set {text!r} cannot be read: it must say which key gets which value; write --set"
                    " dotted.key=value"
                )
            content = parse_yaml(value, f"--set {key}").content
            changes.append(Override(key=key.strip(), value=content, flag="--set"))
        return cls((*changes, *flags.changes()))

    def labels(self) -> dict[str, str]:
        """Dotted key → the flag that set it."""
        return {change.key: change.flag for change in self.changes}

    def apply(self, sections: dict[str, object], known: Sequence[str], origin: Origin, *, late: bool) -> None:
        """Put the values into `sections`: first (late=False) all but those inside the two tables, then those.

        Raises:
            ConfigError: A key leads into a section that parbake does not read, or through something that has no keys.
        """
        for change in self.changes:
            if change.late == late:
                value = with_environment(change.value, change.key, origin) if late else change.value
                _put(sections, change, value, known, origin)


def _put(sections: dict[str, object], change: Override, value: object, known: Sequence[str], origin: Origin) -> None:
    first, *rest = change.key.split(".")
    if first not in known:
        raise (
            unknown_key(first, value, known, origin)
            if rest == []
            else ConfigError(
                f"{change.flag} {change.key} names no section that parbake reads: the value would have no effect;"
                f" {suggestion(first, known)}"
            )
        )
    holder: object = sections
    path = [first, *rest]
    for depth, part in enumerate(path[:-1]):
        holder = _step(holder, part, ".".join(path[: depth + 1]), change)
    if change.key.startswith(_LENGTH) and isinstance(holder, dict):
        holder.clear()  # a lane has one end: the command line's replaces the file's
    if isinstance(holder, list):
        holder[_entry(holder, path[-1], change)] = value
    elif isinstance(holder, dict):
        holder[path[-1]] = value
    else:
        raise _no_keys(".".join(path[:-1]), holder, change)


def _step(holder: object, part: str, key: str, change: Override) -> object:
    """The value under `part`, made an empty mapping where there is none."""
    if isinstance(holder, list):
        return holder[_entry(holder, part, change)]
    if not isinstance(holder, dict):
        raise _no_keys(key, holder, change)
    if holder.get(part) is None:
        holder[part] = {}
    return holder[part]


def _entry(entries: Sequence[object], part: str, change: Override) -> int:
    if part.isdecimal() and int(part) < len(entries):
        return int(part)
    raise ConfigError(
        f"{change.flag} {change.key} asks for entry {part!r} of a list of {len(entries)}: there is no such entry; count"
        " from 0"
    )


def _no_keys(key: str, value: object, change: Override) -> ConfigError:
    kind = "mapping" if isinstance(value, Mapping) else type(value).__name__
    return ConfigError(
        f"{change.flag} {change.key} looks for a key inside '{key}', which is a {kind}: it has no keys; check the"
        " dotted key"
    )
