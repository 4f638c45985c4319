"""Pictures that decode to something different everywhere, so that a flip, a crop or a wrong mode shows."""

from __future__ import annotations

import io
import random

import numpy as np
from PIL import Image

__all__ = ["broken_gallery", "encode", "gallery", "picture"]


def picture(seed: int, width_px: int, height_px: int, mode: str = "RGB") -> Image.Image:
    """A smooth random picture: a colour gradient with coarse noise on it (photo-like for a JPEG encoder)."""
    draws = np.random.RandomState(seed)
    rows = np.linspace(0, 1, height_px)[:, None, None]
    columns = np.linspace(0, 1, width_px)[None, :, None]
    corners = draws.randint(0, 256, size=(3, 3)).astype(np.float64)
    plane = corners[0] * (1 - rows) + corners[1] * rows * (1 - columns) + corners[2] * rows * columns
    coarse = draws.randint(0, 96, size=(max(1, height_px // 6), max(1, width_px // 6), 3), dtype=np.uint8)
    noise = np.asarray(Image.fromarray(coarse).resize((width_px, height_px), Image.Resampling.BICUBIC))
    image = Image.fromarray(np.clip(plane + noise, 0, 255).astype(np.uint8))
    if mode == "RGB":
        return image
    alpha = Image.fromarray(draws.randint(0, 256, size=(height_px, width_px), dtype=np.uint8))
    if mode in {"RGBA", "LA"}:
        image = image.convert(mode)
        image.putalpha(alpha)
        return image
    if mode == "I;16":
        grey = np.asarray(image.convert("L")).astype(np.uint16) * 257
        return Image.fromarray(grey)
    return image.convert(mode)


def encode(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    """The picture as a file of the given kind."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)  # type: ignore[arg-type]
    return stream.getvalue()


def _palette_with_transparency(seed: int, width_px: int, height_px: int) -> bytes:
    image = picture(seed, width_px, height_px).quantize(16)
    return encode(image, "PNG", transparency=3)


def _oriented(seed: int, width_px: int, height_px: int, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(picture(seed, width_px, height_px), "JPEG", exif=exif)


def _animated(seed: int, width_px: int, height_px: int, kind: str) -> bytes:
    frames = [picture(seed + number, width_px, height_px) for number in range(3)]
    return encode(frames[0], kind, save_all=True, append_images=frames[1:])


def gallery(seed: int = 0) -> dict[str, bytes]:
    """Awkward pictures that the reference accepts, by name."""
    sizes = random.Random(seed)

    def size() -> tuple[int, int]:
        return sizes.randint(24, 150), sizes.randint(24, 150)

    jpeg = encode(picture(seed + 1, 120, 90), "JPEG", quality=92)
    return {
        "rgb.jpg": encode(picture(seed + 2, *size()), "JPEG", quality=90),
        "rgb.png": encode(picture(seed + 3, *size()), "PNG"),
        "grey.jpg": encode(picture(seed + 4, *size(), mode="L"), "JPEG"),
        "grey.png": encode(picture(seed + 5, *size(), mode="L"), "PNG"),
        "one_bit.png": encode(picture(seed + 6, *size(), mode="1"), "PNG"),
        "palette.png": encode(picture(seed + 7, *size(), mode="P"), "PNG"),
        "palette_transparent.png": _palette_with_transparency(seed + 8, *size()),
        "grey_alpha.png": encode(picture(seed + 9, *size(), mode="LA"), "PNG"),
        "rgb_alpha.png": encode(picture(seed + 10, *size(), mode="RGBA"), "PNG"),
        "rgb_alpha.webp": encode(picture(seed + 11, *size(), mode="RGBA"), "WEBP", lossless=True),
        "rgb_colour_key.png": encode(picture(seed + 12, *size()), "PNG", transparency=(10, 20, 30)),
        "grey_colour_key.png": encode(picture(seed + 13, *size(), mode="L"), "PNG", transparency=40),
        "cmyk.jpg": encode(picture(seed + 14, *size(), mode="CMYK"), "JPEG"),
        "cmyk.tif": encode(picture(seed + 15, *size(), mode="CMYK"), "TIFF"),
        "sixteen_bit.png": encode(picture(seed + 16, *size(), mode="I;16"), "PNG"),
        "float.tif": encode(picture(seed + 17, *size(), mode="F"), "TIFF"),
        "lossy.webp": encode(picture(seed + 18, *size()), "WEBP", quality=70),
        "progressive.jpg": encode(picture(seed + 19, *size()), "JPEG", progressive=True),
        "oriented.jpg": _oriented(seed + 20, *size(), orientation=6),
        "animated.gif": _animated(seed + 21, *size(), kind="GIF"),
        "animated.webp": _animated(seed + 24, *size(), kind="WEBP"),
        "animated.png": _animated(seed + 27, *size(), kind="PNG"),
        "bitmap.bmp": encode(picture(seed + 30, *size()), "BMP"),
        "icon.ico": encode(picture(seed + 31, 48, 48, mode="RGBA"), "ICO", sizes=[(16, 16), (48, 48)]),
        "cut_in_the_middle.jpg": jpeg[: len(jpeg) // 2],
        "cut_in_the_middle_of_progressive.jpg": (
            lambda whole: whole[: len(whole) // 2]  # the first scans only
        )(encode(picture(seed + 32, 120, 90), "JPEG", progressive=True)),
        "cut_in_the_middle.png": (lambda whole: whole[: len(whole) // 2])(encode(picture(seed + 33, 90, 70), "PNG")),
        "one_pixel.png": encode(picture(seed + 34, 1, 1), "PNG"),
        "line.png": encode(picture(seed + 35, 1, 300), "PNG"),
        "wide.png": encode(picture(seed + 36, 700, 3), "PNG"),
    }


def broken_gallery(seed: int = 0) -> dict[str, bytes]:
    """Files that the reference refuses, or may refuse only once it decodes them, by name."""
    jpeg = encode(picture(seed + 50, 120, 90), "JPEG", quality=92)
    png = encode(picture(seed + 51, 90, 70), "PNG")
    webp = encode(picture(seed + 52, 90, 70), "WEBP")
    gif = encode(picture(seed + 53, 90, 70), "GIF")
    tiff = encode(picture(seed + 54, 90, 70), "TIFF", compression="tiff_lzw")
    bmp = encode(picture(seed + 55, 90, 70), "BMP")
    middle = len(png) // 2
    return {
        "zero_bytes.jpg": b"",
        "text.png": b"this is not a picture\n",
        "cut_after_two_percent.jpg": jpeg[: len(jpeg) // 50],
        "cut_after_forty_bytes.png": png[:40],
        "damaged_body.png": png[:middle] + bytes(40) + png[middle + 40 :],
        "damaged_body.jpg": jpeg[: len(jpeg) // 2] + bytes(range(256)) + jpeg[len(jpeg) // 2 + 256 :],
        "cut.webp": webp[: len(webp) // 2],
        "damaged.webp": webp[:60] + bytes(60) + webp[120:],
        "cut.gif": gif[: len(gif) // 2],
        "damaged.gif": gif[:900] + bytes(200) + gif[1100:],
        "cut.tif": tiff[: len(tiff) // 2],
        "damaged.tif": tiff[:100] + bytes(200) + tiff[300:],
        "cut.bmp": bmp[: len(bmp) // 2],
        "huge_header.png": _png_of_declared_size(30_000, 30_000),
    }


def _png_of_declared_size(width_px: int, height_px: int) -> bytes:
    """A PNG of a few bytes that declares a huge picture (refused by Pillow before it decodes anything)."""
    import struct
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width_px, height_px, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
