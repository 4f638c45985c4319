"""Encoded bytes to an RGB picture, as the reference would see it or corrected."""

from __future__ import annotations

from collections.abc import Set
from io import BytesIO

from PIL import Image

from .colour import orientation_of, to_rgb, transposition
from .faults import TRUNCATED, ZERO_BYTES, ImageFault
from .opening import faults_of_pillow, open_image
from .settings import apply_pillow_settings, strict_about_truncation

__all__ = ["decode_rgb", "load_rgb", "load_rgb_strictly"]


def decode_rgb(encoded: bytes, *, corrections: Set[str], plain: bool = False) -> Image.Image:
    """The first frame of an encoded picture as a PIL image of mode RGB.

    With no corrections equal, bit for bit, to the reference's `pil_img2rgb(Image.open(...))`.

    Args:
        encoded: The file's content.
        corrections: Of `bake.corrections`: `exif` turns the picture as its orientation says, `alpha` composites LA, La,
            PA and RGBa on white, `sixteen_bit` scales grey values of more than 8 bits, `truncated` refuses a picture
            whose pixels are cut or broken off instead of filling it with grey. Others are ignored.
        plain: `convert("RGB")` without compositing: the reference's rule for the frames of a folder.

    Raises:
        ImageFault: The reference could not use it either, or `truncated` where that correction is in force.
    """
    apply_pillow_settings()
    if not encoded:
        raise ImageFault(ZERO_BYTES)
    file = BytesIO(encoded)
    image = open_image(file)
    turn = transposition(orientation_of(image)) if "exif" in corrections else None
    if "truncated" in corrections:
        picture = load_rgb_strictly(image, file, corrections, plain=plain)
    else:
        picture = load_rgb(image, corrections, plain=plain)
    return picture if turn is None else picture.transpose(turn)


def load_rgb(image: Image.Image, corrections: Set[str], *, plain: bool = False) -> Image.Image:
    """Decodes an opened picture and converts it to RGB; what is missing stays grey or black.

    Raises:
        ImageFault: `decode_error`, `truncated` or `too_many_pixels`.
    """
    with faults_of_pillow():
        image.load()
        return to_rgb(image, corrections, plain=plain)


def load_rgb_strictly(image: Image.Image, file: BytesIO, corrections: Set[str], *, plain: bool = False) -> Image.Image:
    """As `load_rgb`, but a picture that only the reference's lenience makes one is refused.

    Neither verdict contains the other: a PNG whose pixels are followed by rubbish loads strictly, as Pillow then stops
    at the rubbish, and fails leniently, as it then tries to read it.

    Raises:
        ImageFault: `truncated` if the picture loads leniently only; else the fault of `load_rgb`.
    """
    try:
        with strict_about_truncation():
            return load_rgb(image, corrections, plain=plain)
    except ImageFault as fault:
        load_rgb(open_image(file), corrections, plain=plain)
        raise ImageFault(TRUNCATED, fault.detail) from fault
