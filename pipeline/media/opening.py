"""Pillow's verdict on a header, with its exceptions turned into reason names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

from PIL import Image, ImageFile, UnidentifiedImageError

from .faults import DECODE_ERROR, NOT_AN_IMAGE, TOO_MANY_PIXELS, TRUNCATED, ImageFault

__all__ = ["faults_of_pillow", "open_image"]


@contextmanager
def faults_of_pillow() -> Iterator[None]:
    """Turns whatever Pillow raises inside into an `ImageFault`.

    A plugin may raise nearly anything for bad bytes, and the reference drops the row for every `Exception`. Running out
    of memory is the machine's fault, not the image's, and passes through.
    """
    try:
        yield
    except (ImageFault, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise ImageFault(NOT_AN_IMAGE, "no format recognises the bytes") from error
    except Image.DecompressionBombError as error:
        raise ImageFault(TOO_MANY_PIXELS, str(error)) from error
    except Exception as error:
        cut = isinstance(error, OSError) and "truncated" in str(error).lower()
        raise ImageFault(TRUNCATED if cut else DECODE_ERROR, f"{type(error).__name__}: {error}") from error


def open_image(file: BytesIO) -> ImageFile.ImageFile:
    """`PIL.Image.open` of a file in memory: the header is parsed, no pixel is decoded.

    Raises:
        ImageFault: `not_an_image`, `too_many_pixels`, `truncated` (inside the header) or `decode_error`.
    """
    with faults_of_pillow():
        return Image.open(file)
