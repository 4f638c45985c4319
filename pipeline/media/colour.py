"""Any decoded picture to RGB, as the reference does it or as the named corrections would have it.

Source of the uncorrected rule: `pil_img2rgb`. RGBA, and any mode with a transparent colour, is composited on white;
everything else is converted plainly, which clips 16-bit greys to white and turns ink on transparent LA black.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from pipeline.records import Condition

__all__ = ["colour_conditions", "orientation_of", "to_rgb", "transposition"]

_LOST_ALPHA_MODES: Final = frozenset({"LA", "La", "PA", "RGBa"})
_DEEP_MODES: Final = frozenset({"I;16", "I;16L", "I;16B", "I;16N", "I", "F"})
_EXIF_KEYS: Final = ("exif", "xmp", "Raw profile type exif", "XML:com.adobe.xmp")

_TRANSPOSITIONS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def orientation_of(image: Image.Image) -> int:
    """EXIF orientation 1..8 of a picture just opened; 1 if there is none or it cannot be read.

    Only what stands before the pixels counts, so that a header tells the same as a decoded file (a PNG may carry `eXIf`
    behind them). 1 for a TIFF: Pillow itself turns it when it is loaded, and reports the turned size.
    """
    if image.format == "TIFF" or not any(key in image.info for key in _EXIF_KEYS):
        return 1
    try:
        # not the PNG plugin's override, which decodes the whole picture to find late chunks
        orientation = Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)
    except Exception:  # noqa: BLE001  broken EXIF raises nearly anything; such a picture has no orientation
        return 1
    return orientation if isinstance(orientation, int) and orientation in _TRANSPOSITIONS else 1


def transposition(orientation: int) -> Image.Transpose | None:
    """The turn that orientation 2..8 asks for; None for 1."""
    return _TRANSPOSITIONS.get(orientation)


def colour_conditions(image: Image.Image) -> Condition:
    """What of the mode of a picture just opened the reference handles badly: `ALPHA`, `SIXTEEN_BIT`."""
    conditions = Condition.NONE
    if image.mode in _LOST_ALPHA_MODES and image.info.get("transparency") is None:
        conditions |= Condition.ALPHA
    if image.mode in _DEEP_MODES:
        conditions |= Condition.SIXTEEN_BIT
    return conditions


def to_rgb(image: Image.Image, corrections: Set[str], *, plain: bool = False) -> Image.Image:
    """A loaded picture as RGB; itself if it is RGB already.

    Args:
        image: The picture, in any mode.
        corrections: Names of corrections in force; `alpha` and `sixteen_bit` matter here.
        plain: The reference's `convert("RGB")` without compositing, which it uses for the frames of a folder.

    Raises:
        Exception: Whatever Pillow raises where it knows no conversion.
    """
    composite = image.mode == "RGBA" or image.info.get("transparency") is not None
    if plain and "alpha" not in corrections:
        composite = False
    if "alpha" in corrections and image.mode in _LOST_ALPHA_MODES:
        composite = True
        if image.mode == "La":  # Pillow knows no direct way from La to RGBA
            image = image.convert("LA")
    if "sixteen_bit" in corrections and image.mode in _DEEP_MODES:
        image = _to_eight_bit(image, keep_transparency=composite)
    if composite:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, (255, 255, 255))
        white.paste(image, mask=image.getchannel("A"))
        return white
    return image if image.mode == "RGB" else image.convert("RGB")


def _to_eight_bit(image: Image.Image, *, keep_transparency: bool) -> Image.Image:
    """A grey picture of 16 or 32 bits as L (or LA, if its transparent grey is to be kept), scaled by `_scaled_grey`."""
    values = np.asarray(image)
    grey = Image.fromarray(_scaled_grey(values))
    transparent = image.info.get("transparency")
    if not keep_transparency or transparent is None:
        return grey
    opacity = np.where(values == transparent, 0, 255).astype(np.uint8)
    return Image.merge("LA", (grey, Image.fromarray(opacity)))


def _scaled_grey(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Grey values to 8 bits.

    16-bit modes: v / 257, rounded to nearest, so that 65535 is white and an 8-bit picture stored as v·257 comes back
    exactly. 32-bit integers and floats have no agreed white, so their largest finite value m decides: floats with
    m <= 1 are times 255; m <= 255 is 8 bits already; m <= 65535 is 16 bits; beyond, m is white. Negative values and NaN
    are black, infinity is white.
    """
    if values.dtype.kind == "u" and values.dtype.itemsize == 2:
        # exact in integers: round(v / 257) = (v + 128) // 257, no halves occur as 257 is odd
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    numbers = values.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    largest = float(finite.max()) if finite.size else 0.0
    if values.dtype.kind == "f" and largest <= 1:
        factor = 255.0
    elif largest <= 255:
        factor = 1.0
    elif largest <= 65535:
        factor = 1 / 257
    else:
        factor = 255 / largest
    scaled = np.nan_to_num(numbers * factor, nan=0.0, posinf=255.0, neginf=0.0)
    return np.asarray(np.rint(scaled.clip(0, 255)), dtype=np.uint8)
