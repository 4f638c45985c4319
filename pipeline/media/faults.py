"""Why an image cannot be used: one exception, a few stable reason names.

Reason names are counted and reported; they never change their meaning.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "DECODE_ERROR",
    "NOT_AN_IMAGE",
    "TOO_MANY_PIXELS",
    "TRUNCATED",
    "ZERO_BYTES",
    "ImageFault",
]

ZERO_BYTES: Final = "zero_bytes"
"""The file or cell is empty."""

NOT_AN_IMAGE: Final = "not_an_image"
"""No image format recognises the bytes."""

TOO_MANY_PIXELS: Final = "too_many_pixels"
"""More than twice `MAX_IMAGE_PIXELS`: refused as a decompression bomb."""

TRUNCATED: Final = "truncated"
"""Cut inside the header; with the correction `truncated`, also cut inside the pixels."""

DECODE_ERROR: Final = "decode_error"
"""The format was recognised, but header, pixels or the conversion to RGB fail."""


class ImageFault(Exception):
    """One image of one row cannot be used; the row is dropped and counted under `reason`."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
