"""Tokens of the white picture that is shown to text-only rows: they must not be attended to.

Which tokens belong to pictures is found as nemo-automodel 0.7.0 `vlm.fake_image` finds it: attributes of the processor
and its configuration, known spellings, and added tokens whose name tells.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["runs", "vision_token_ids"]

_ATTRIBUTES = (
    *(f"{name}_token_id" for name in ("image", "video", "vision", "vision_start", "vision_end")),
    *(f"{name}_token_id" for name in ("image_break", "image_end", "media_placeholder", "boi", "eoi")),
    *(f"{name}_token_index" for name in ("image", "video", "boi", "eoi")),
)
_SPELLINGS = (
    *(f"<|{name}|>" for name in ("vision_start", "vision_end", "image_pad", "video_pad", "image", "video")),
    *(f"<|media_{name}|>" for name in ("start", "content", "end", "pad")),
    *("<image>", "<video>", "[IMG]", "[IMG_END]", "[IMG_BREAK]"),
)
_TELLING = ("image", "video", "media", "vision", "img_pad", "vid_pad")


def vision_token_ids(processor: Any) -> npt.NDArray[np.int64]:
    """int64, ascending: every id that stands for a picture or for a mark around one."""
    found: set[int] = set()
    for owner in (processor, getattr(processor, "config", None)):
        values = (getattr(owner, name, None) for name in _ATTRIBUTES)
        found.update(value for value in values if isinstance(value, int))
    tokenizer = getattr(processor, "tokenizer", processor)
    unknown = getattr(tokenizer, "unk_token_id", None)
    ids = (tokenizer.convert_tokens_to_ids(spelling) for spelling in _SPELLINGS)
    found.update(token for token in ids if isinstance(token, int) and token != unknown)
    for token, added in getattr(tokenizer, "added_tokens_decoder", {}).items():
        if any(word in str(getattr(added, "content", added)).lower() for word in _TELLING):
            found.add(int(token))
    return np.array(sorted(found), dtype=np.int64)


def runs(places: npt.NDArray[np.bool_]) -> tuple[tuple[int, int], ...]:
    """(first, count) of every run of True.

    >>> runs(np.array([0, 1, 1, 0, 1], dtype=bool))
    ((1, 2), (4, 1))
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], places, [False]]).astype(np.int8)))
    return tuple((int(first), int(end - first)) for first, end in zip(edges[::2], edges[1::2], strict=True))
