"""What the index needs to know of a picture, from its header alone wherever the header decides.

Which pictures can still fail once Pillow has parsed their header, under the reference's settings (found by feeding
damaged files, see `tests/media/test_header_fuzz.py`):

    JPEG, MPO    only one that ends before its first scan: Pillow opens it by its frame header, and has nothing to load.
                 From there on never: errors of libjpeg and missing data end the decoding, the rest stays black or grey
    PNG          grey or colour without tRNS, with one IDAT run that covers the picture and nothing but IEND behind it:
                 never (broken zlib data ends the decoding too). Without IDAT, with an animation's frame box, with
                 chunks behind the pixels, cut: may, and a cut one mostly does ("Truncated File Read")
    everything   may: palettes and tRNS in PNG; WebP and AVIF, which fail on the payload of a container that opened;
    else         TIFF and ICO, which hold further headers; EPS, which asks for a program that may not be there
"""

from __future__ import annotations

from collections.abc import Set
from io import BytesIO
from typing import BinaryIO, Final

from PIL import Image, ImageFile

from pipeline.records import Condition, ImageEntry

from .colour import colour_conditions, orientation_of
from .completeness import Ending, jpeg_ending, png_ending
from .decode import load_rgb, load_rgb_strictly
from .faults import ZERO_BYTES, ImageFault
from .opening import open_image
from .prefixed import HeadFirst
from .settings import apply_pillow_settings, strict_about_truncation

__all__ = ["inspect_image"]

_JPEG_FORMATS: Final = frozenset({"JPEG", "MPO"})
_SURE_PNG_MODES: Final = frozenset({"1", "L", "LA", "I;16", "RGB", "RGBA"})
_EAGER_FORMATS: Final = frozenset({"JPEG", "PNG", "WEBP"})  # know how many frames they have once they are opened
_KNOWN_ENDINGS: Final = frozenset({"JPEG", "MPO", "PNG", "WEBP", "AVIF"})  # the last two are never filled, but refused
_UNRELIABLE_SIZES: Final = frozenset({"CUR", "EPS", "ICNS", "ICO", "PCD", "WMF"})  # the decoded size may differ
_TAIL_BYTES: Final = 1 << 12


def inspect_image(source: bytes | BinaryIO, *, corrections: Set[str], decode: bool, plain: bool = False) -> ImageEntry:
    """Size, conditions and fault of one picture. Never raises for a bad picture.

    Args:
        source: The content, or a seekable binary file: of that, the first 64 KiB are read, and all of it only where
            they do not decide (WebP, long EXIF, `decode` of anything but JPEG).
        corrections: Names of corrections in force (`bake.corrections`): `exif` swaps width and height where the
            orientation says so, `truncated` makes a cut picture a fault.
        decode: Make sure that a picture without fault will not fail in `decode_rgb`. What cannot fail is not decoded.
        plain: As for `decode_rgb`.

    Returns:
        An entry without `reference` and `stamp`. `TRUNCATED` is looked for where it is cheap: in JPEG and PNG if the
        content is at hand, in a JPEG file if `decode` or the correction asks for it, and in whatever is decoded.

    Raises:
        OSError: `source` could not be read.
    """
    apply_pillow_settings()
    file = BytesIO(source) if isinstance(source, bytes) else HeadFirst(source)
    try:
        entry = _inspected(file, corrections, decode=decode, plain=plain)
    except ImageFault as fault:
        entry = ImageEntry(fault=fault.reason)
    if isinstance(file, HeadFirst) and file.error is not None:
        raise file.error  # Pillow took the storage's failure for the image's
    return entry


def _inspected(file: BytesIO, corrections: Set[str], *, decode: bool, plain: bool) -> ImageEntry:
    if not file.read(1):
        raise ImageFault(ZERO_BYTES)
    image = open_image(file)
    pixels_offset = file.tell()
    width, height = image.size
    conditions = colour_conditions(image)
    orientation = orientation_of(image)
    if orientation != 1:
        conditions |= Condition.EXIF
    strict = "truncated" in corrections
    ending = _ending(image, file, pixels_offset, thorough=decode or strict)
    cannot_fail = _is_sure(image) and ending is Ending.PLAIN and not strict
    if _is_animated(image, file):
        conditions |= Condition.ANIMATED
    suspicious = ending is Ending.CUT or image.format in _UNRELIABLE_SIZES or _lacks_pixels(image)
    if suspicious or (decode and not cannot_fail):
        if strict:
            picture = load_rgb_strictly(image, file, corrections, plain=plain)
        else:
            picture = load_rgb(image, corrections, plain=plain)
            if _may_be_filled(image, ending) and not _loads_strictly(file):
                conditions |= Condition.TRUNCATED
        if picture.size != (width, height):
            conditions |= Condition.SIZE_DIFFERS
            width, height = picture.size
    if "exif" in corrections and orientation >= 5:
        width, height = height, width
    return ImageEntry(width_px=width, height_px=height, conditions=int(conditions))


def _ending(image: ImageFile.ImageFile, file: BytesIO, pixels_offset: int, *, thorough: bool) -> Ending:
    """How the file ends; `MIXED` where that is unknown or would take reading a whole file only to count it."""
    if image.format in _JPEG_FORMATS:
        if not isinstance(file, HeadFirst):
            return jpeg_ending(file.getvalue(), pixels_offset)
        if not thorough:
            return Ending.PLAIN
        tail, tail_offset = file.tail(_TAIL_BYTES)
        if jpeg_ending(tail, max(0, pixels_offset - tail_offset)) is Ending.PLAIN:
            return Ending.PLAIN
        return jpeg_ending(file.whole(), pixels_offset)
    if image.format == "PNG" and image.tile and (thorough or not isinstance(file, HeadFirst)):
        encoded = file.whole() if isinstance(file, HeadFirst) else file.getvalue()
        return png_ending(encoded, image.tile[0].offset)
    return Ending.MIXED


def _lacks_pixels(image: ImageFile.ImageFile) -> bool:
    """Whether the file ended before the pixels began (other plugins than these name their pixels only when loading)."""
    return (image.format == "PNG" or image.format in _JPEG_FORMATS) and not image.tile


def _is_sure(image: ImageFile.ImageFile) -> bool:
    """Whether a picture can be decoded whatever its pixel data are (see the module's table)."""
    if len(image.tile) != 1:
        return False
    if image.format in _JPEG_FORMATS:
        return True
    return (
        image.format == "PNG"
        and image.mode in _SURE_PNG_MODES
        and image.tile[0].extents == (0, 0, *image.size)
        and "transparency" not in image.info
        and not _is_animated_once_open(image)
    )


def _is_animated_once_open(image: ImageFile.ImageFile) -> bool:
    return bool(getattr(image, "is_animated", False))


def _is_animated(image: ImageFile.ImageFile, file: BytesIO) -> bool:
    """Whether there are several frames. Most plugins seek to find out, so they do it on an image of their own."""
    if image.format in _EAGER_FORMATS:
        return _is_animated_once_open(image)
    try:
        return _is_animated_once_open(Image.open(file))
    except Exception:  # noqa: BLE001  a broken second frame raises anything, and does not matter to the first
        return False


def _may_be_filled(image: ImageFile.ImageFile, ending: Ending) -> bool:
    """Whether a picture that was decoded may have been filled with grey: told by its ending where that is known."""
    return ending is Ending.CUT or image.format not in _KNOWN_ENDINGS


def _loads_strictly(file: BytesIO) -> bool:
    try:
        with strict_about_truncation():
            load_rgb(open_image(file), frozenset())
    except ImageFault:
        return False
    return True
