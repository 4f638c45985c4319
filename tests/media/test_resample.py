"""The resampling of our own against Pillow's, byte for byte, and when it stands aside."""

from __future__ import annotations

import hashlib
import logging
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from pipeline.media import resample as module
from pipeline.media.decode import decode_rgb
from pipeline.media.resample import resample
from pipeline.media.settings import apply_pillow_settings
from tests.media.gallery import encode, noise

needs_extension = pytest.mark.skipif(module._built() is None, reason="the extension was not built, or lacks AVX2 here")

sides = st.one_of(st.integers(1, 200), st.sampled_from([1, 2, 3, 199, 200]))
contents = st.sampled_from(["noise", "smooth", "harsh", "stripes across", "stripes down", "black", "white"])


@pytest.fixture(autouse=True)
def own_conviction() -> Iterator[None]:
    """What a process convinced itself of once is asked anew in every test."""
    module._proven.cache_clear()
    yield
    module._proven.cache_clear()


def painted(content: str, width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    if content == "harsh":
        pixels = np.where(pixels > 127, 255, 0).astype(np.uint8)
    elif content == "smooth":
        pixels = noise(3, width, height)
    elif content == "stripes across":
        pixels[:] = 255 * (np.arange(height) // 3 % 2)[:, None, None]
    elif content == "stripes down":
        pixels[:] = 255 * (np.arange(width) // 2 % 2)[:, None]
    elif content in ("black", "white"):
        pixels[:] = 0 if content == "black" else 255
    return Image.fromarray(pixels)


def pillows(image: Image.Image, width: int, height: int) -> NDArray[np.uint8]:
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


@needs_extension
def test_this_process_resamples_by_the_extension() -> None:
    assert module._proven() is not None


@given(width=sides, height=sides, new_width=sides, new_height=sides, content=contents)
@example(width=1, height=1, new_width=200, new_height=200, content="white")
@example(width=200, height=1, new_width=1, new_height=200, content="harsh")
@example(width=40, height=50, new_width=30, new_height=30, content="noise")
@example(width=40, height=51, new_width=30, new_height=30, content="noise")
@settings(max_examples=400, deadline=None)
def test_every_size_and_content_gives_pillows_bytes(
    width: int, height: int, new_width: int, new_height: int, content: str
) -> None:
    image = painted(content, width, height)
    pixels = resample(image, new_width, new_height)
    assert (pixels.dtype, pixels.flags.c_contiguous) == (np.uint8, True)
    np.testing.assert_array_equal(pixels, pillows(image, new_width, new_height))


@pytest.mark.parametrize(
    ("size", "new_size"),
    [
        ((9000, 3), (14, 14)),
        ((3, 9000), (14, 14)),
        ((1, 5000), (1024, 16)),
        ((5000, 1), (16, 1024)),
        ((2, 2), (1400, 700)),
    ],
)
def test_extreme_shapes_give_pillows_bytes(size: tuple[int, int], new_size: tuple[int, int]) -> None:
    image = painted("harsh", *size)
    np.testing.assert_array_equal(resample(image, *new_size), pillows(image, *new_size))


@pytest.mark.parametrize("new_size", [(1024, 688), (518, 350), (980, 644), (2400, 16)])
def test_a_photograph_of_six_megapixels_gives_pillows_bytes(new_size: tuple[int, int]) -> None:
    image = decode_rgb(encode(painted("smooth", 3000, 2000), "JPEG", quality=90), corrections=frozenset())
    np.testing.assert_array_equal(resample(image, *new_size), pillows(image, *new_size))


@needs_extension
def test_a_photograph_above_pillows_block_size_is_read_in_place() -> None:
    apply_pillow_settings()
    image = Image.new("RGB", (3000, 2000), (10, 20, 30))
    own = module._proven()
    assert own is not None
    assert module._by_extension(own, image, 30, 20) is not None


@needs_extension
def test_rows_in_several_blocks_of_memory_are_left_to_pillow() -> None:
    before = Image.core.get_block_size()
    Image.core.set_block_size(1 << 12)
    try:
        image = painted("noise", 200, 150)
    finally:
        Image.core.set_block_size(before)
    own = module._proven()
    assert own is not None
    assert module._by_extension(own, image, 64, 48) is None
    np.testing.assert_array_equal(resample(image, 64, 48), pillows(image, 64, 48))


def test_without_the_extension_the_bytes_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    image = painted("noise", 190, 170)
    expected = resample(image, 60, 44)
    monkeypatch.setattr(module, "_built", lambda: None)
    module._proven.cache_clear()
    assert module._proven() is None
    np.testing.assert_array_equal(resample(image, 60, 44), expected)


@needs_extension
def test_a_pillow_that_disagrees_keeps_the_work_and_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A Pillow that always goes across first, as those before 13 do."""

    def across_first(image: Image.Image, width: int, height: int) -> Image.Image:
        by_width = image.resize((width, image.height), Image.Resampling.BICUBIC)
        return by_width.resize((width, height), Image.Resampling.BICUBIC)

    monkeypatch.setattr(module, "resize", across_first)
    image = painted("noise", 60, 190)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            np.testing.assert_array_equal(resample(image, 50, 40), np.asarray(across_first(image, 50, 40)))
    assert module._proven() is None
    assert len(caplog.records) == 1
    assert "does not resize 40x51 px to 30x30 px" in caplog.text


@needs_extension
def test_sources_sent_to_a_node_use_what_is_installed_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = Path(module.__file__).parent
    (tmp_path / "sent").mkdir()
    installed = tmp_path / "site-packages" / "pipeline" / "media"
    installed.mkdir(parents=True)
    for extension in sources.glob("_resample*.so"):
        shutil.copy(extension, installed)
    monkeypatch.setattr(module, "__file__", str(tmp_path / "sent" / "resample.py"))
    monkeypatch.setattr(sys, "path", [])
    assert module._built() is None
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages")])
    assert module._built() is not None
    monkeypatch.setattr(module, "REVISION", module.REVISION + 1)
    assert module._built() is None


def test_a_change_of_the_extension_raises_its_revision() -> None:
    """Both numbers, in `_resample.c` and in `resample.py`: a node's older build is then left alone."""
    folder = Path(module.__file__).parent
    source, header = ((folder / name).read_bytes() for name in ("_resample.c", "_resample_passes.h"))
    assert f"#define REVISION {module.REVISION}\n".encode() in source
    assert (module.REVISION, hashlib.sha256(source + header).hexdigest()) == (
        1,
        "e27a431696158a42b33ab35375205f9302b2523e8135b2c6786cb289edab2b29",
    )


@needs_extension
def test_what_is_no_picture_of_the_size_named_is_refused() -> None:
    own = module._proven()
    assert own is not None
    _, array = painted("noise", 6, 5).__arrow_c_array__()
    with pytest.raises(ValueError, match="of an RGB picture of this size"):
        own(array, (6, 6), (3, 3), np.empty((3, 3, 3), np.uint8))
    with pytest.raises(ValueError, match="sizes must be positive"):
        own(array, (6, 5), (3, 3), np.empty((3, 2, 3), np.uint8))
