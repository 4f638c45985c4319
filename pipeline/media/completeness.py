"""Is the picture all there? Told from marker positions, without decoding.

JPEG: entropy-coded data never contains the bytes FF D9 (an FF in it is followed by 00 or a restart marker), so a file
has lost its end if no FF D9 follows its first scan. PNG: the chunks name their lengths.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["Ending", "jpeg_ending", "png_ending"]

_END_OF_IMAGE: Final = b"\xff\xd9"


class Ending(Enum):
    """What follows the start of the pixels."""

    PLAIN = 0  # pixels, whole, and the end mark
    MIXED = 1  # something besides pixels in between, which the decoder parses
    CUT = 2  # the end mark is missing


def jpeg_ending(encoded: bytes, scan_offset: int = 0) -> Ending:
    """Whether an end-of-image marker stands after byte `scan_offset` (the start of the first scan's data).

    Looked for from the back: at once where the file is whole, even with bytes behind the picture; a cut file is
    searched through once.
    """
    return Ending.PLAIN if encoded.rfind(_END_OF_IMAGE, scan_offset) >= 0 else Ending.CUT


def png_ending(encoded: bytes, pixels_offset: int) -> Ending:
    """`PLAIN` if from the IDAT data at `pixels_offset` on there is nothing but whole IDAT chunks and then IEND.

    Args:
        encoded: The whole file.
        pixels_offset: Offset of the first IDAT chunk's data, behind its length and name.
    """
    position = pixels_offset - 8
    ending = Ending.PLAIN
    while (name := encoded[position + 4 : position + 8]) != b"IEND":
        if len(name) < 4:
            return Ending.CUT
        if name != b"IDAT":
            ending = Ending.MIXED
        position += 12 + int.from_bytes(encoded[position : position + 4], "big")
    return ending
