"""The images that the real world sends, each made here, and the reference's own verdict on them."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Set

import numpy as np
from nemo_automodel.components.datasets.multimodal.utils import pil_img2rgb
from PIL import Image

from pipeline.media.decode import decode_rgb
from pipeline.media.faults import ImageFault
from pipeline.media.settings import apply_pillow_settings

WIDTH, HEIGHT = 57, 38


def reference_rgb(encoded: bytes) -> np.ndarray | None:
    """What the reference makes of the bytes: uint8 [h, w, 3], or None if it drops the row."""
    apply_pillow_settings()
    try:
        return np.asarray(pil_img2rgb(Image.open(io.BytesIO(encoded))))
    except Exception:
        return None


def outcome(encoded: bytes, corrections: Set[str]) -> tuple[str, int, int]:
    """What render would make of the bytes: (fault, width, height)."""
    try:
        return "", *decode_rgb(encoded, corrections=corrections).size
    except ImageFault as fault:
        return fault.reason, 0, 0


def noise(channels: int = 3, width: int = WIDTH, height: int = HEIGHT, seed: int = 1) -> np.ndarray:
    """A smooth coloured picture that compresses like a photograph: uint8 [h, w, channels]."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 9, channels), dtype=np.uint8)
    small = Image.fromarray(coarse[:, :, 0] if channels == 1 else coarse)
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    """`image` as a file of format `kind`."""
    file = io.BytesIO()
    image.copy().save(file, kind, **options)  # a copy: JPEG leaves its encoder settings behind
    return file.getvalue()


def png(width: int, height: int, bit_depth: int, colour_type: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG put together by hand from the chunks behind its header."""
    header = struct.pack(">IIBBBBB", width, height, bit_depth, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, body) for name, body in ((b"IHDR", header), *chunks))


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def oriented(orientation: int, kind: str = "JPEG", **options: object) -> bytes:
    """A picture with an EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(Image.fromarray(noise()), kind, exif=exif, **options)


def ico_of_another_size(claimed: int, real: int) -> bytes:
    """An icon whose directory claims another size than its PNG has."""
    picture = encode(Image.fromarray(noise(4, real, real)), "PNG")
    directory = struct.pack("<BBBBHHII", claimed, claimed, 0, 0, 1, 32, len(picture), 22)
    return struct.pack("<HHH", 0, 1, 1) + directory + picture


def gallery() -> dict[str, bytes]:
    """Every image by name."""
    rgb = Image.fromarray(noise())
    rgba = Image.fromarray(noise(4))
    grey = Image.fromarray(noise(1))
    turned = rgb.rotate(90)
    palette = rgb.quantize(17)
    deep = np.random.default_rng(2).integers(0, 65536, (HEIGHT, WIDTH), dtype=np.uint16)
    ink = np.zeros((HEIGHT, WIDTH, 2), dtype=np.uint8)
    ink[10:20, 10:20, 1] = 255  # black ink on transparency
    jpeg = encode(rgb, "JPEG", quality=92)
    cmyk = encode(rgb.convert("CMYK"), "JPEG")
    adobe = cmyk.index(b"Adobe")
    assert cmyk[adobe + 11] == 0
    rows = zlib.compress(bytes(5000 * (1 + 9000 // 8)), 9)
    images = {
        "baseline.jpg": jpeg,
        "progressive.jpg": encode(rgb, "JPEG", progressive=True),
        "grey.jpg": encode(grey, "JPEG"),
        "cmyk.jpg": cmyk,
        "ycck.jpg": cmyk[: adobe + 11] + b"\x02" + cmyk[adobe + 12 :],
        "restarts.jpg": encode(rgb, "JPEG", restart_marker_blocks=2),
        "trailing_garbage.jpg": jpeg + bytes(100),
        "cut_middle.jpg": jpeg[: len(jpeg) // 2 + 200],
        "cut_2_percent.jpg": jpeg[: len(jpeg) // 50],
        "cut_before_scan.jpg": jpeg[: jpeg.index(b"\xff\xda")],
        "without_end_mark.jpg": jpeg[:-2],
        "several.mpo": encode(rgb, "MPO", save_all=True, append_images=[turned.copy()]),
        "rgb.png": encode(rgb, "PNG"),
        "rgba.png": encode(rgba, "PNG"),
        "la_ink.png": encode(Image.fromarray(ink), "PNG"),
        "one_bit.png": encode(rgb.convert("1"), "PNG"),
        "palette.png": encode(palette, "PNG"),
        "palette_transparent.png": encode(palette, "PNG", transparency=3),
        "palette_alphas.png": encode(palette, "PNG", transparency=bytes(range(0, 170, 10))),
        "trns_rgb.png": encode(rgb, "PNG", transparency=rgb.getpixel((3, 3))),
        "trns_grey.png": encode(grey, "PNG", transparency=grey.getpixel((3, 3))),
        "sixteen_bit.png": encode(Image.fromarray(deep), "PNG"),
        "sixteen_bit_trns.png": encode(Image.fromarray(deep), "PNG", transparency=int(deep[4, 4])),
        "exif_6.png": oriented(6, "PNG"),
        "cut_middle.png": encode(rgb, "PNG")[:2000],
        "cut_between_chunks.png": encode(rgb, "PNG")[:-12],
        "broken_pixels.png": png(40, 30, 8, 2, (b"IDAT", b"this is no zlib stream"), (b"IEND", b"")),
        "no_pixels.png": png(40, 30, 8, 2, (b"IEND", b"")),
        "late_text.png": encode(rgb, "PNG")[:-12] + _chunk(b"tEXt", b"a\0b") + _chunk(b"IEND", b""),
        "late_exif.png": encode(rgb, "PNG")[:-12] + _chunk(b"eXIf", b"II*\0\x08\0\0\0\0\0") + _chunk(b"IEND", b""),
        "animated.png": encode(rgb, "PNG", save_all=True, append_images=[turned]),
        "bomb_45_megapixel.png": png(9000, 5000, 1, 0, (b"IDAT", rows), (b"IEND", b"")),
        "bomb_500_megapixel.png": png(25000, 20000, 1, 0, (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")),
        "text.png": b"<html>404 not found</html>\n" * 40,
        "zero_bytes.jpg": b"",
        "only_magic.png": b"\x89PNG\r\n\x1a\n",
        "animated.gif": encode(palette, "GIF", save_all=True, append_images=[turned.quantize(17)]),
        "still.gif": encode(palette, "GIF"),
        "transparent.gif": encode(palette, "GIF", transparency=2),
        "lossy.webp": encode(rgb, "WEBP"),
        "alpha.webp": encode(rgba, "WEBP", lossless=True),
        "animated.webp": encode(rgb, "WEBP", save_all=True, append_images=[turned]),
        "cut.webp": encode(rgb, "WEBP")[:300],
        "exif_8.webp": oriented(8, "WEBP"),
        "float_unit.tiff": encode(Image.fromarray(deep.astype(np.float32) / 65535), "TIFF"),
        "float_wide.tiff": encode(Image.fromarray(deep.astype(np.float32) * 3 - 9), "TIFF"),
        "int32.tiff": encode(Image.fromarray(deep.astype(np.int32) * 5), "TIFF"),
        "sixteen_bit.tiff": encode(Image.fromarray(deep), "TIFF"),
        "exif_6.tiff": oriented(6, "TIFF"),
        "pages.tiff": encode(rgb, "TIFF", save_all=True, append_images=[turned]),
        "cut.tiff": encode(rgb, "TIFF", compression="tiff_lzw")[:900],
        "lies.ico": ico_of_another_size(64, 48),
        "plain.bmp": encode(rgb, "BMP"),
        "cut.bmp": encode(rgb, "BMP")[:3000],
        "1x1.png": encode(Image.new("RGB", (1, 1), (9, 8, 7)), "PNG"),
        "1x4000.png": encode(Image.new("RGB", (1, 4000), (9, 8, 7)), "PNG"),
        "10000x1.jpg": encode(Image.new("RGB", (10000, 1), (9, 8, 7)), "JPEG"),
    }
    images |= {f"exif_{number}.jpg": oriented(number) for number in range(1, 9)}
    return images
