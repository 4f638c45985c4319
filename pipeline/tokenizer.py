"""The tokenizer as the recipe has it: its ids, the four marker tokens, and a fingerprint of what it does.

Reference: `add_special_tokens` of nemo_automodel's multimodal `utils.py`, and `tokenizer.encode(text)` everywhere.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pipeline.errors import ConfigError
from pipeline.fingerprint import fingerprint

__all__ = ["MARKERS", "Tokenizer", "is_encodable", "load_tokenizer"]

MARKERS = {
    "bos_token_id": "<|im_start|>",
    "eos_token_id": "<|im_end|>",
    "start_of_image": "<|vision_start|>",
    "end_of_image": "<|vision_end|>",
}


def is_encodable(text: str) -> bool:
    """Whether a tokenizer can read the text: a lone surrogate (half an emoji) has no UTF-8 form."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokenizer:
    """A loaded tokenizer. Pickles as its path: a worker loads it once and keeps it.

    Attributes:
        path: What it was loaded from; never part of a fingerprint.
        special_tokens: bos_token_id, eos_token_id, start_of_image, end_of_image.
        vocab_size: Every id is below it.
        fingerprint: Of the content: equal tokenizers in different places have equal ones.
        control_tokens: Every added or special token's spelling.
    """

    path: str
    special_tokens: dict[str, int]
    vocab_size: int
    fingerprint: str
    control_tokens: tuple[str, ...]
    _model: Any = field(repr=False)
    _spelled: re.Pattern[str] = field(repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return load_tokenizer, (self.path,)

    def encode(self, text: str, *, keep_control_text: bool = False) -> list[int]:
        """Token ids of one text, as `transformers`' `tokenizer.encode(text)` gives them.

        With `keep_control_text` (correction `control_tokens`) a special token that is spelled out in the text stays
        text: no id of an added token comes of it.
        """
        return self.encode_batch([text], keep_control_text=keep_control_text)[0]

    def encode_batch(self, texts: Sequence[str], *, keep_control_text: bool = False) -> list[list[int]]:
        """Token ids of many texts, each exactly as `encode` gives it. The texts must be `is_encodable`."""
        if not texts:
            return []
        encoded = [encoding.ids for encoding in self._model.encode_batch_fast(list(texts))]
        if keep_control_text:
            for number, text in enumerate(texts):
                if self.spells_control_token(text):
                    encoded[number] = _plain_model(self).encode(text).ids
        return encoded

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids, control tokens spelled out."""
        return str(self._model.decode(list(token_ids), skip_special_tokens=False))

    def spells_control_token(self, text: str) -> bool:
        """Whether the text spells out an added or special token."""
        return self._spelled.search(text) is not None


@lru_cache(maxsize=4)
def load_tokenizer(path: str) -> Tokenizer:
    """Load a tokenizer (a folder, or a hub name that is already in the local cache) and give it the marker tokens.

    Marker tokens that are not among the special tokens are added as plain added tokens, as the reference does.

    Raises:
        ConfigError: There is no such tokenizer, or it has no fast (Rust) form.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # units are the parallelism; a fork must not deadlock
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(
            f"The tokenizer {path!r} cannot be loaded ({_first_line(error)}). Without it no text has a length, so "
            "nothing can be packed. Name a folder with tokenizer.json, or a hub name that this machine can reach."
        ) from error
    if not getattr(loaded, "is_fast", False):
        raise ConfigError(
            f"The tokenizer {path!r} has no fast form. parbake counts tokens through it millions of times. "
            "Save it with a tokenizer.json."
        )
    known = {spelling for value in loaded.special_tokens_map.values() for spelling in _spellings(value)}
    loaded.add_tokens([marker for marker in MARKERS.values() if marker not in known])
    model: Any = loaded.backend_tokenizer
    special_tokens = {name: int(model.token_to_id(marker)) for name, marker in MARKERS.items()}
    model.encode_special_tokens = bool(loaded.split_special_tokens)
    model.no_truncation()
    model.no_padding()
    control_tokens = tuple(sorted({str(token.content) for token in model.get_added_tokens_decoder().values()}))
    return Tokenizer(
        path=path,
        special_tokens=special_tokens,
        vocab_size=len(loaded),
        fingerprint=fingerprint({"model": json.loads(model.to_str()), "special": special_tokens}),
        control_tokens=control_tokens,
        _model=model,
        _spelled=re.compile("|".join(re.escape(token) for token in control_tokens)),
    )


@lru_cache(maxsize=4)
def _plain_model(tokenizer: Tokenizer) -> Any:
    """The same tokenizer without its added tokens: what they spell is text like any other."""
    from tokenizers import Tokenizer as RustTokenizer

    content = json.loads(tokenizer._model.to_str())
    content["added_tokens"] = []
    return RustTokenizer.from_str(json.dumps(content))


def _spellings(value: object) -> list[str]:
    """The token spellings of one entry of `special_tokens_map`: a string or a list of them."""
    if isinstance(value, str):
        return [value]
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
