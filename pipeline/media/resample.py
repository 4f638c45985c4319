"""Pillow's bicubic resampling, by machine code of our own where that gives the same bytes several times as fast.

`_resample.c` holds the rule. It is optional: no compiler at installation, another processor, or a Pillow with another
rule leave the work to Pillow, and no bit of a bake tells the difference. Each process convinces itself of that once,
before the first picture. What is built does not travel with sources (`ray job submit --working-dir .`), so it is looked
for in the parbake that is installed on the node, too.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Final

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image

from .resize import resize

__all__ = ["REVISION", "resample"]

REVISION: Final = 1
"""Of `_resample.c`; raised together."""

_ACROSS_FIRST: Final = ((40, 50), (30, 30))  # the height shrinks by just twice what the width does
_DOWN_FIRST: Final = ((40, 51), (30, 30))
_PROOF_SIZES: Final = (
    _ACROSS_FIRST,
    _DOWN_FIRST,
    ((23, 31), (57, 30)),
    ((23, 31), (57, 90)),
    ((64, 48), (64, 31)),
    ((64, 48), (45, 48)),
    ((64, 48), (64, 48)),
    ((301, 9), (16, 14)),
    ((1, 64), (14, 28)),
    ((64, 1), (1, 1)),
)
"""Sizes (width, height) before and after: both orders of the passes and where they change over, one pass, none."""

_logger = logging.getLogger(__name__)

_Resize = Callable[[object, tuple[int, int], tuple[int, int], NDArray[np.uint8]], None]


def resample(image: Image.Image, width_px: int, height_px: int) -> NDArray[np.uint8]:
    """The pixels of `resize(image, width_px, height_px)`, byte for byte: uint8 [height, width, 3].

    Args:
        image: A picture of mode RGB.
        width_px: Its new width.
        height_px: Its new height.
    """
    own = _proven()
    pixels = _by_extension(own, image, width_px, height_px) if own is not None and image.mode == "RGB" else None
    return _by_pillow(image, width_px, height_px) if pixels is None else pixels


def _by_pillow(image: Image.Image, width_px: int, height_px: int) -> NDArray[np.uint8]:
    return np.asarray(resize(image, width_px, height_px))


def _by_extension(own: _Resize, image: Image.Image, width_px: int, height_px: int) -> NDArray[np.uint8] | None:
    """None if the picture's rows do not lie back to back in memory (see `settings`)."""
    try:
        _, array = image.__arrow_c_array__()
    except ValueError:
        return None
    pixels = np.empty((height_px, width_px, 3), np.uint8)
    own(array, image.size, (width_px, height_px), pixels)
    return pixels


@cache
def _proven() -> _Resize | None:
    """The extension's function if it is there and agrees with this process's Pillow (a few milliseconds)."""
    own = _built()
    if own is None or not hasattr(Image.Image, "__arrow_c_array__"):
        return None
    for number, (size, new_size) in enumerate(_PROOF_SIZES):
        picture = _proof_picture(size, harsh=number % 2 == 0)
        found = _by_extension(own, picture, *new_size)
        if found is None or not np.array_equal(found, _by_pillow(picture, *new_size)):
            _logger.warning(
                "Pillow %s does not resize %dx%d px to %dx%d px as parbake's own code does; "
                "the pixels would differ from the reference's, so Pillow resizes, which takes longer; "
                "install the Pillow that parbake is tested with to have it fast.",
                PIL.__version__,
                *size,
                *new_size,
            )
            return None
    return own


def _built() -> _Resize | None:
    """The extension's function, of these sources' revision, if this interpreter and processor can run it."""
    for folder in (Path(__file__).parent, *(Path(entry, *__name__.split(".")[:-1]) for entry in sys.path)):
        spec = PathFinder.find_spec("_resample", [str(folder)])
        if spec is None or spec.loader is None:
            continue
        try:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
        except ImportError:  # built against another C library
            continue
        if getattr(module, "REVISION", 0) == REVISION:
            own: _Resize | None = getattr(module, "resize", None)
            return own
    return None


def _proof_picture(size: tuple[int, int], *, harsh: bool) -> Image.Image:
    """Noise of a linear congruence; `harsh`: black and white only, which makes sums leave 0..255 and be clipped."""
    width, height = size
    index = np.arange(width * height * 3, dtype=np.uint32)
    noise = ((index * np.uint32(2654435761) >> np.uint32(7)) * np.uint32(40503) >> np.uint32(13)).astype(np.uint8)
    if harsh:
        noise = np.where(noise > 127, np.uint8(255), np.uint8(0))
    return Image.fromarray(noise.reshape(height, width, 3))
