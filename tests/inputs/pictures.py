"""The images of inputs.md, each made here: what the reference makes of it, and what an improved stream should."""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from tests.media.gallery import encode, ico_of_another_size, png

__all__ = ["CASES", "PictureCase"]

WIDTH, HEIGHT = 56, 42
Pixels = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class PictureCase:
    """One image.

    Attributes:
        encoded: The file.
        improved: What the improved stream shows (uint8 [h, w, 3], before resizing), or the reason why it drops the row;
            None: what the reference shows.
        reference: The reason why the reference drops the row, "" if it shows what it decodes.
        conditions: What the reference stream counts, and so does the improved one if it shows the image.
    """

    encoded: bytes
    improved: Pixels | str | None = None
    reference: str = ""
    conditions: frozenset[str] = frozenset()


def _noise(channels: int = 3, seed: int = 1) -> Pixels:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, channels), dtype=np.uint8)
    small = Image.fromarray(coarse[:, :, 0] if channels == 1 else coarse)
    return np.asarray(small.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))


RGB = Image.fromarray(_noise())
DEEP = np.random.default_rng(2).integers(0, 65536, (HEIGHT, WIDTH), dtype=np.uint16)
JPEG = encode(RGB, "JPEG", quality=92)
PHOTO = encode(Image.fromarray(np.random.default_rng(3).integers(0, 256, (140, 140, 3), dtype=np.uint8)), "JPEG")


def _rgb(grey: Pixels) -> Pixels:
    return np.repeat(grey[:, :, None], 3, axis=2)


def _decoded(encoded: bytes) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))


def _ink() -> tuple[bytes, Pixels]:
    """Black ink on transparency, and what it looks like on white paper."""
    values = np.zeros((HEIGHT, WIDTH, 2), dtype=np.uint8)
    values[10:20, 10:20, 1] = 255
    paper = np.full((HEIGHT, WIDTH, 3), 255, dtype=np.uint8)
    paper[10:20, 10:20] = 0
    return encode(Image.fromarray(values), "PNG"), paper


def _on_white(rgba: Image.Image) -> Pixels:
    white = Image.new("RGB", rgba.size, (255, 255, 255))
    white.paste(rgba.convert("RGBA"), mask=rgba.convert("RGBA").getchannel("A"))
    return np.asarray(white)


def _palette() -> tuple[bytes, Pixels]:
    image = RGB.quantize(17)
    encoded = encode(image, "PNG", transparency=3)
    shown = np.asarray(image.convert("RGB")).copy()
    shown[np.asarray(image) == 3] = 255
    return encoded, shown


def _float_tiff() -> tuple[bytes, Pixels]:
    values = DEEP.astype(np.float32) / 65535
    return encode(Image.fromarray(values), "TIFF"), _rgb(np.rint(values.astype(np.float64) * 255).astype(np.uint8))


def _ycck() -> bytes:
    cmyk = encode(RGB.convert("CMYK"), "JPEG")
    adobe = cmyk.index(b"Adobe")
    return cmyk[: adobe + 11] + b"\x02" + cmyk[adobe + 12 :]


TURNS = {  # orientation → what undoes it, on [h, w, 3]
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.transpose(1, 0, 2),
    6: lambda p: np.rot90(p, -1),
    7: lambda p: p[::-1, ::-1].transpose(1, 0, 2),
    8: lambda p: np.rot90(p),
}


def _oriented(orientation: int) -> PictureCase:
    exif = Image.Exif()
    exif[0x0112] = orientation
    encoded = encode(RGB, "JPEG", exif=exif, quality=92)
    return PictureCase(encoded, TURNS[orientation](_decoded(encoded)), conditions=frozenset({"EXIF"}))


def _animated(kind: str) -> PictureCase:
    """The first of two frames."""
    first, second = (RGB.quantize(17), RGB.rotate(90).quantize(17)) if kind == "GIF" else (RGB, RGB.rotate(180))
    options: dict[str, object] = {"lossless": True} if kind == "WEBP" else {}
    encoded = encode(first, kind, save_all=True, append_images=[second.copy()], **options)
    return PictureCase(encoded, np.asarray(first.convert("RGB")), conditions=frozenset({"ANIMATED"}))


def _one_bit_png(width: int, height: int, *, whole: bool = True) -> bytes:
    rows = bytes(height * (1 + (width + 7) // 8)) if whole else bytes(1000)
    return png(width, height, 1, 0, (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))


RGBA = Image.fromarray(_noise(4, seed=4))

CASES: dict[str, PictureCase] = {
    "a 16-bit grey PNG is scaled, not clipped to white": PictureCase(
        encode(Image.fromarray(DEEP), "PNG"),
        _rgb(np.rint(DEEP / 257).astype(np.uint8)),
        conditions=frozenset({"SIXTEEN_BIT"}),
    ),
    "black ink on a transparent LA PNG stays black on white": PictureCase(*_ink(), conditions=frozenset({"ALPHA"})),
    "an RGBA PNG is composited on white": PictureCase(encode(RGBA, "PNG"), _on_white(RGBA)),
    "a transparent palette entry is composited on white": PictureCase(*_palette()),
    "a float TIFF is scaled": PictureCase(*_float_tiff(), conditions=frozenset({"SIXTEEN_BIT"})),
    "a CMYK JPEG": PictureCase(encode(RGB.convert("CMYK"), "JPEG")),
    "a YCCK JPEG": PictureCase(_ycck()),
    **{f"EXIF orientation {number} is applied": _oriented(number) for number in TURNS},
    "the first frame of an animated GIF": _animated("GIF"),
    "the first frame of an animated WebP": _animated("WEBP"),
    "the first frame of an animated PNG": _animated("PNG"),
    "a JPEG cut in the middle is not filled with grey": PictureCase(
        PHOTO[: len(PHOTO) // 2], "truncated", conditions=frozenset({"TRUNCATED"})
    ),
    "a JPEG cut after two percent": PictureCase(PHOTO[: len(PHOTO) // 50], "truncated", "truncated"),
    "an image of zero bytes": PictureCase(b"", "zero_bytes", "zero_bytes"),
    "a text saved as PNG": PictureCase(b"<html>404 not found</html>\n" * 40, "not_an_image", "not_an_image"),
    "a 45-megapixel PNG of five kilobytes": PictureCase(_one_bit_png(9000, 5000)),
    "a 500-megapixel PNG is refused from its header": PictureCase(
        _one_bit_png(25_000, 20_000, whole=False), "too_many_pixels", "too_many_pixels"
    ),
    "a progressive JPEG": PictureCase(encode(RGB, "JPEG", progressive=True)),
    "an image of one pixel": PictureCase(encode(Image.new("RGB", (1, 1), (9, 8, 7)), "PNG")),
    "an image of 1 by 4000": PictureCase(encode(Image.new("RGB", (1, 4000), (9, 8, 7)), "PNG")),
    "an image of 10000 by 1": PictureCase(encode(Image.new("RGB", (10_000, 1), (9, 8, 7)), "PNG")),
    "an icon whose directory claims another size than its picture has": PictureCase(ico_of_another_size(64, 42)),
}
