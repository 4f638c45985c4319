"""Decoding: the reference's pixels without corrections, the right ones with them."""

from __future__ import annotations

import io
import threading

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps

from pipeline.media.colour import to_rgb
from pipeline.media.decode import decode_rgb
from pipeline.media.faults import ImageFault
from pipeline.media.settings import apply_pillow_settings, strict_about_truncation
from tests.media.gallery import HEIGHT, WIDTH, encode, gallery, noise, oriented, png, reference_rgb

GALLERY = gallery()
NOTHING: frozenset[str] = frozenset()


@pytest.mark.parametrize("name", GALLERY)
def test_without_corrections_the_verdict_and_every_pixel_are_the_references(name: str) -> None:
    expected = reference_rgb(GALLERY[name])
    if expected is None:
        with pytest.raises(ImageFault):
            decode_rgb(GALLERY[name], corrections=NOTHING)
    else:
        picture = decode_rgb(GALLERY[name], corrections=NOTHING)
        assert picture.mode == "RGB"
        assert np.array_equal(np.asarray(picture), expected)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("zero_bytes.jpg", "zero_bytes"),
        ("text.png", "not_an_image"),
        ("cut_2_percent.jpg", "truncated"),
        ("cut_before_scan.jpg", "decode_error"),
        ("no_pixels.png", "decode_error"),
        ("cut.webp", "decode_error"),
        ("bomb_500_megapixel.png", "too_many_pixels"),
    ],
)
def test_a_fault_has_a_stable_reason(name: str, reason: str) -> None:
    with pytest.raises(ImageFault) as caught:
        decode_rgb(GALLERY[name], corrections=NOTHING)
    assert caught.value.reason == reason


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_the_picture_as_pillow_would(kind: str, orientation: int) -> None:
    encoded = oriented(orientation, kind)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded))).convert("RGB")
    picture = decode_rgb(encoded, corrections={"exif"})
    np.testing.assert_array_equal(np.asarray(picture), np.asarray(expected))


def test_broken_exif_means_no_orientation() -> None:
    encoded = oriented(6).replace(b"Exif\0\0MM\0*", b"Exif\0\0ZZ\0*")
    assert decode_rgb(encoded, corrections={"exif"}).size == (WIDTH, HEIGHT)


def test_alpha_composites_ink_on_white_that_the_reference_turns_black() -> None:
    assert not np.asarray(decode_rgb(GALLERY["la_ink.png"], corrections=NOTHING)).any()
    picture = np.asarray(decode_rgb(GALLERY["la_ink.png"], corrections={"alpha"}))
    expected = np.full((HEIGHT, WIDTH, 3), 255, dtype=np.uint8)
    expected[10:20, 10:20] = 0
    np.testing.assert_array_equal(picture, expected)


@pytest.mark.parametrize("mode", ["LA", "La", "PA", "RGBa"])
def test_alpha_composites_every_mode_that_loses_it_like_rgba(mode: str) -> None:
    ink = Image.new("RGBA", (4, 3), (0, 0, 0, 0))
    ink.paste((0, 0, 0, 255), (0, 0, 2, 3))
    image = ink.convert("LA").convert("La") if mode == "La" else ink.convert(mode)
    pixels = np.asarray(to_rgb(image, {"alpha"}))
    assert pixels[:, :2].max() == 0
    assert pixels[:, 2:].min() == 255


def test_sixteen_bit_is_divided_by_257_and_rounded() -> None:
    values = np.array([[0, 128, 129, 256, 257, 257 * 77, 65406, 65407, 65535]], dtype=np.uint16)
    encoded = encode(Image.fromarray(values), "PNG")
    picture = np.asarray(decode_rgb(encoded, corrections={"sixteen_bit"}))
    np.testing.assert_array_equal(picture[0, :, 0], [0, 0, 1, 1, 1, 77, 254, 255, 255])
    assert (picture == picture[:, :, :1]).all()
    np.testing.assert_array_equal(np.asarray(decode_rgb(encoded, corrections=NOTHING))[0, :, 0].max(), 255)


def test_sixteen_bit_keeps_the_transparent_grey_white() -> None:
    values = np.array([[0, 1000, 30000]], dtype=np.uint16)
    encoded = encode(Image.fromarray(values), "PNG", transparency=1000)
    picture = np.asarray(decode_rgb(encoded, corrections={"sixteen_bit"}))
    np.testing.assert_array_equal(picture[0, :, 0], [0, 255, 117])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0.0, 0.5, 1.0, -1.0, np.nan, np.inf]], dtype=np.float32), [0, 128, 255, 0, 0, 255]),
        (np.array([[0.0, 7.4, 255.0]], dtype=np.float32), [0, 7, 255]),
        (np.array([[0.0, 257.0, 65535.0]], dtype=np.float32), [0, 1, 255]),
        (np.array([[0.0, 1e6, 2e6]], dtype=np.float32), [0, 128, 255]),
        (np.array([[-5, 0, 200]], dtype=np.int32), [0, 0, 200]),
        (np.array([[0, 257 * 9, 65535]], dtype=np.int32), [0, 9, 255]),
        (np.array([[0, 1 << 20, 1 << 21]], dtype=np.int32), [0, 128, 255]),
    ],
)
def test_wide_greys_are_scaled_by_their_largest_value(values: np.ndarray, expected: list[int]) -> None:
    picture = np.asarray(decode_rgb(encode(Image.fromarray(values), "TIFF"), corrections={"sixteen_bit"}))
    np.testing.assert_array_equal(picture[0, :, 0], expected)


@pytest.mark.parametrize(
    "name", ["cut_middle.jpg", "without_end_mark.jpg", "cut_middle.png", "broken_pixels.png", "cut.bmp"]
)
def test_truncated_refuses_what_the_reference_fills_with_grey(name: str) -> None:
    decode_rgb(GALLERY[name], corrections=NOTHING)
    with pytest.raises(ImageFault) as caught:
        decode_rgb(GALLERY[name], corrections={"truncated"})
    assert caught.value.reason == "truncated"


@pytest.mark.parametrize("name", ["baseline.jpg", "trailing_garbage.jpg", "rgb.png", "cut_between_chunks.png"])
def test_truncated_lets_whole_pictures_pass(name: str) -> None:
    picture = decode_rgb(GALLERY[name], corrections={"truncated"})
    np.testing.assert_array_equal(np.asarray(picture), reference_rgb(GALLERY[name]))


def test_a_thread_that_loads_strictly_does_not_make_another_one_strict() -> None:
    apply_pillow_settings()
    seen: list[bool] = []
    with strict_about_truncation():
        thread = threading.Thread(target=lambda: seen.append(bool(ImageFile.LOAD_TRUNCATED_IMAGES)))
        thread.start()
        thread.join()
        assert not ImageFile.LOAD_TRUNCATED_IMAGES
    assert seen == [True]
    assert ImageFile.LOAD_TRUNCATED_IMAGES


@pytest.mark.parametrize("name", ["rgba.png", "palette_alphas.png", "trns_rgb.png", "la_ink.png", "cmyk.jpg"])
def test_plain_is_the_references_rule_for_frames_of_a_folder(name: str) -> None:
    apply_pillow_settings()  # hushes what Pillow says about such a conversion
    expected = Image.open(io.BytesIO(GALLERY[name])).convert("RGB")
    picture = decode_rgb(GALLERY[name], corrections=NOTHING, plain=True)
    np.testing.assert_array_equal(np.asarray(picture), np.asarray(expected))


def test_a_picture_between_the_two_pixel_limits_makes_no_noise() -> None:
    # 15000 x 14000 = 210 megapixels of one bit: above the limit of the warning, below that of the error
    encoded = png(15000, 14000, 1, 0, (b"IDAT", b""), (b"IEND", b""))
    with pytest.warns(Image.DecompressionBombWarning):  # what Pillow says where nobody hushes it
        Image.open(io.BytesIO(encoded))
    apply_pillow_settings()
    Image.open(io.BytesIO(encoded))


def test_an_rgb_picture_is_not_copied() -> None:
    image = Image.fromarray(noise())
    assert to_rgb(image, NOTHING) is image
