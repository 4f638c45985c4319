"""What the index learns of a picture, and how little it reads to learn it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageFile

from pipeline.media import header
from pipeline.media.header import inspect_image
from pipeline.media.prefixed import HEAD_BYTES
from pipeline.records import Condition, ImageEntry
from tests.media.gallery import HEIGHT, WIDTH, encode, gallery, oriented, outcome, reference_rgb

GALLERY = gallery()
NOTHING: frozenset[str] = frozenset()
CORRECTIONS = frozenset({"exif", "alpha", "sixteen_bit", "truncated"})

EXPECTED_CONDITIONS = {
    "cut_middle.jpg": Condition.TRUNCATED,
    "without_end_mark.jpg": Condition.TRUNCATED,
    "cut_middle.png": Condition.TRUNCATED,
    "several.mpo": Condition.ANIMATED,
    "la_ink.png": Condition.ALPHA,
    "sixteen_bit.png": Condition.SIXTEEN_BIT,
    "sixteen_bit_trns.png": Condition.SIXTEEN_BIT,
    "exif_6.png": Condition.EXIF,
    "exif_8.webp": Condition.EXIF,
    "animated.png": Condition.ANIMATED,
    "animated.gif": Condition.ANIMATED,
    "animated.webp": Condition.ANIMATED,
    "pages.tiff": Condition.ANIMATED,
    "float_unit.tiff": Condition.SIXTEEN_BIT,
    "float_wide.tiff": Condition.SIXTEEN_BIT,
    "int32.tiff": Condition.SIXTEEN_BIT,
    "sixteen_bit.tiff": Condition.SIXTEEN_BIT,
    "cut.bmp": Condition.TRUNCATED,
} | {f"exif_{number}.jpg": Condition.EXIF for number in range(2, 9)}

PHOTOGRAPH = encode(
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (400, 500, 3), dtype=np.uint8)), "JPEG", quality=95
)


class CountingFile(io.BytesIO):
    """A remote file: counts what is read of it."""

    num_bytes_read = 0
    num_reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size)
        self.num_bytes_read += len(content)
        self.num_reads += 1
        return content


@pytest.mark.parametrize("name", GALLERY)
@pytest.mark.parametrize("as_file", [False, True])
def test_with_decode_the_verdict_and_size_are_the_references(name: str, as_file: bool) -> None:
    source = io.BytesIO(GALLERY[name]) if as_file else GALLERY[name]
    entry = inspect_image(source, corrections=NOTHING, decode=True)
    expected = reference_rgb(GALLERY[name])
    assert (entry.fault == "") == (expected is not None)
    if expected is not None:
        assert (entry.height_px, entry.width_px) == expected.shape[:2]
        assert Condition(entry.conditions) == EXPECTED_CONDITIONS.get(name, Condition.NONE)


@pytest.mark.parametrize("name", GALLERY)
@pytest.mark.parametrize("corrections", [NOTHING, CORRECTIONS])
def test_the_index_promises_what_render_keeps(name: str, corrections: frozenset[str]) -> None:
    entry = inspect_image(GALLERY[name], corrections=corrections, decode=True)
    assert (entry.fault, entry.width_px, entry.height_px) == outcome(GALLERY[name], corrections)


@pytest.mark.parametrize("name", GALLERY)
def test_without_decode_a_picture_that_works_has_its_size_and_no_fault(name: str) -> None:
    checked = inspect_image(GALLERY[name], corrections=NOTHING, decode=True)
    entry = inspect_image(GALLERY[name], corrections=NOTHING, decode=False)
    if not checked.fault:
        assert (entry.width_px, entry.height_px, entry.fault) == (checked.width_px, checked.height_px, "")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("decode", [False, True])
def test_exif_swaps_the_planned_edges_only_where_the_correction_is_on(orientation: int, decode: bool) -> None:
    turned = (HEIGHT, WIDTH) if orientation >= 5 else (WIDTH, HEIGHT)
    corrected = inspect_image(oriented(orientation), corrections={"exif"}, decode=decode)
    as_it_is = inspect_image(oriented(orientation), corrections=NOTHING, decode=decode)
    assert (corrected.width_px, corrected.height_px) == turned
    assert (as_it_is.width_px, as_it_is.height_px) == (WIDTH, HEIGHT)
    assert corrected.conditions == as_it_is.conditions == (Condition.EXIF if orientation > 1 else 0)


@pytest.mark.parametrize("name", ["cut_middle.jpg", "without_end_mark.jpg", "cut_middle.png"])
@pytest.mark.parametrize("decode", [False, True])
def test_a_cut_picture_is_counted_and_a_fault_only_with_the_correction(name: str, decode: bool) -> None:
    counted = inspect_image(GALLERY[name], corrections=NOTHING, decode=decode)
    refused = inspect_image(GALLERY[name], corrections={"truncated"}, decode=decode)
    assert counted == ImageEntry(width_px=WIDTH, height_px=HEIGHT, conditions=int(Condition.TRUNCATED))
    assert refused.fault == "truncated"


def test_an_end_mark_inside_the_header_is_not_taken_for_the_end() -> None:
    cut = GALLERY["cut_middle.jpg"]
    comment = b"\xff\xfe\x00\x06\xff\xd9\xff\xd9"
    entry = inspect_image(cut[:2] + comment + cut[2:], corrections=NOTHING, decode=False)
    assert entry.conditions == Condition.TRUNCATED


def test_a_jpeg_header_costs_one_small_read() -> None:
    assert len(PHOTOGRAPH) > 2 * HEAD_BYTES
    file = CountingFile(PHOTOGRAPH)
    entry = inspect_image(file, corrections=NOTHING, decode=False)
    assert (entry.width_px, entry.height_px, entry.fault) == (500, 400, "")
    assert (file.num_reads, file.num_bytes_read) == (1, HEAD_BYTES)


def test_a_whole_jpeg_is_checked_by_its_two_ends() -> None:
    file = CountingFile(PHOTOGRAPH)
    inspect_image(file, corrections=NOTHING, decode=True)
    assert file.num_bytes_read < HEAD_BYTES + 5000


def test_a_cut_jpeg_file_is_found_by_its_missing_end() -> None:
    cut = PHOTOGRAPH[: len(PHOTOGRAPH) * 2 // 3]
    entry = inspect_image(io.BytesIO(cut), corrections=NOTHING, decode=True)
    assert (entry.fault, entry.conditions) == ("", Condition.TRUNCATED)
    assert inspect_image(io.BytesIO(cut), corrections={"truncated"}, decode=False).fault == "truncated"


def test_a_header_longer_than_the_head_fetches_the_rest_once() -> None:
    exif = Image.Exif()
    exif[0x010F] = "x" * 60_000
    encoded = encode(Image.open(io.BytesIO(PHOTOGRAPH)), "JPEG", exif=exif, comment=b"y" * 60_000, quality=95)
    file = CountingFile(encoded)
    entry = inspect_image(file, corrections=NOTHING, decode=False)
    assert (entry.width_px, entry.height_px, entry.fault) == (500, 400, "")
    assert file.num_bytes_read == len(encoded)


class BrokenFile(io.BytesIO):
    """A remote file whose connection breaks behind the head."""

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() >= HEAD_BYTES:
            raise TimeoutError("the connection broke")
        return super().read(size)


def test_a_storage_failure_is_not_mistaken_for_a_bad_image() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    for encoded in (encode(Image.fromarray(noise), "PNG"), encode(Image.fromarray(noise), "WEBP", lossless=True)):
        with pytest.raises(TimeoutError):
            inspect_image(BrokenFile(encoded), corrections=NOTHING, decode=True)


def test_a_500_megapixel_picture_is_refused_without_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    entry = inspect_image(GALLERY["bomb_500_megapixel.png"], corrections=NOTHING, decode=True)
    assert entry.fault == "too_many_pixels"


@pytest.mark.parametrize(
    "name", ["baseline.jpg", "progressive.jpg", "cmyk.jpg", "rgb.png", "rgba.png", "sixteen_bit.png"]
)
def test_what_cannot_fail_is_not_decoded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    assert inspect_image(GALLERY[name], corrections=NOTHING, decode=True).fault == ""


@pytest.mark.parametrize("decode", [False, True])
def test_where_header_and_pixels_disagree_the_decoded_size_is_used(
    decode: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EPS, which does differ, needs a program: an icon whose pixels come out smaller stands in for it."""
    monkeypatch.setattr(header, "load_rgb", lambda *_, **__: Image.new("RGB", (20, 10)))
    entry = inspect_image(GALLERY["lies.ico"], corrections=NOTHING, decode=decode)
    assert (entry.width_px, entry.height_px) == (20, 10)
    assert entry.conditions == Condition.SIZE_DIFFERS


def test_an_icon_is_as_large_as_its_picture_whatever_its_directory_claims() -> None:
    entry = inspect_image(GALLERY["lies.ico"], corrections=NOTHING, decode=False)
    assert (entry.width_px, entry.height_px) == (48, 48)
