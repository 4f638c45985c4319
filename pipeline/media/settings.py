"""The reference's Pillow settings, which hold for the whole process.

Reference: the module level of `nemo_automodel.components.datasets.multimodal.datasets`. Cut images are filled with
grey, up to 2·10⁸ pixels pass in silence, up to twice that with a warning (hushed here: it says nothing that a count
would not say better), above that Pillow refuses; a PNG text chunk may inflate to 1 GiB.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, cast

from PIL import Image, ImageFile, PngImagePlugin

__all__ = ["MAX_IMAGE_PIXELS", "apply_pillow_settings", "strict_about_truncation"]

MAX_IMAGE_PIXELS: Final = 200_000_000
MAX_TEXT_CHUNK: Final = 1 << 30

_BLOCK_BYTES: Final = 2**31 - 2**20
"""More than a picture has: Pillow then keeps all its rows in one piece of memory, of just that size, which `resample`
reads in place. Pillow's own 16 MiB would cut pictures above four megapixels into pieces."""

_HUSH_PILLOW: Final = ("ignore", None, Warning, re.compile(r"PIL(\.|$)"), 0)


class _Leniency(threading.local):
    """Truth value of `LOAD_TRUNCATED_IMAGES`: true, except in a thread that is just loading a picture strictly.

    Pillow reads the setting from one global each time it meets the end of the data. A plain bool would have to be
    switched off for all threads at once.
    """

    lenient = True

    def __bool__(self) -> bool:
        return self.lenient


_LENIENCY: Final = _Leniency()


def apply_pillow_settings() -> None:
    """Puts the reference's settings in force for this process; cheap enough to call before every image.

    Warnings that Pillow's own modules raise are hushed: each marks a condition that parbake counts, or a fault.
    """
    Image.MAX_IMAGE_PIXELS = MAX_IMAGE_PIXELS
    ImageFile.LOAD_TRUNCATED_IMAGES = cast("bool", _LENIENCY)
    PngImagePlugin.MAX_TEXT_CHUNK = MAX_TEXT_CHUNK
    core = Image.core  # type: ignore[attr-defined]  # named by Pillow's documentation, not by its types
    if core.get_block_size() != _BLOCK_BYTES:
        core.set_block_size(_BLOCK_BYTES)
    if warnings.filters[:1] != [_HUSH_PILLOW]:
        warnings.filterwarnings("ignore", module=r"PIL(\.|$)")


@contextmanager
def strict_about_truncation() -> Iterator[None]:
    """Inside, and in this thread only, Pillow raises for a picture that is cut or broken instead of filling it."""
    _LENIENCY.lenient = False
    try:
        yield
    finally:
        _LENIENCY.lenient = True
