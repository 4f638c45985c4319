"""A processor's float pixels survive storage as bytes, bit for bit, or are not stored as bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from transformers import CLIPImageProcessor, Qwen2VLImageProcessor

from loaders.vlm_format import PixelTable
from loaders.vlm_pixels import expand_pixels
from pipeline.render.pixel_table import calibrate, encode_pixels


def pixels(processor: Qwen2VLImageProcessor, *sizes: tuple[int, int]) -> npt.NDArray[np.float32]:
    generator = np.random.RandomState(0)
    pictures = [Image.fromarray(generator.randint(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in sizes]
    return np.asarray(processor(images=pictures, return_tensors="np")["pixel_values"], dtype=np.float32)


@pytest.fixture(scope="module")
def processor() -> Qwen2VLImageProcessor:
    return Qwen2VLImageProcessor()


@pytest.fixture(scope="module")
def table(processor: Qwen2VLImageProcessor) -> PixelTable:
    calibrated = calibrate(processor, temporal_repeats=True)
    assert calibrated is not None
    return calibrated


def test_a_pack_of_images_takes_an_eighth_of_its_bytes_and_comes_back_exactly(
    processor: Qwen2VLImageProcessor, table: PixelTable
) -> None:
    values = pixels(processor, (300, 200), (57, 411), (84, 84))
    stored = encode_pixels(values, table)
    assert stored is not None
    assert stored.nbytes * 8 == values.nbytes
    assert np.array_equal(expand_pixels(torch.from_numpy(stored), table).numpy(), values)
    assert torch.equal(expand_pixels(torch.from_numpy(stored), table), torch.from_numpy(values))


def test_a_bfloat16_batch_equals_the_cast_of_the_float_one(processor: Qwen2VLImageProcessor, table: PixelTable) -> None:
    values = pixels(processor, (112, 140))
    stored = encode_pixels(values, table)
    assert stored is not None
    expanded = expand_pixels(torch.from_numpy(stored), table, torch.bfloat16)
    assert torch.equal(expanded, torch.from_numpy(values).to(torch.bfloat16))


def test_a_value_that_no_byte_gives_is_not_stored_as_a_byte(
    processor: Qwen2VLImageProcessor, table: PixelTable
) -> None:
    values = pixels(processor, (84, 84)).copy()
    values[0, 0] = np.nextafter(values[0, 0], np.float32(9))
    assert encode_pixels(values, table) is None


def test_frames_that_differ_are_not_stored_once(processor: Qwen2VLImageProcessor, table: PixelTable) -> None:
    values = pixels(processor, (84, 84)).copy()
    first, second = 0, 14 * 14  # the same pixel of the two frames, in the first channel
    values[0, second] = table.tables[0][0] if values[0, first] > 0 else table.tables[0][255]
    assert encode_pixels(values, table) is None


def test_whole_images_of_other_processors_are_stored_as_bytes_too() -> None:
    processor = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    table = calibrate(processor, temporal_repeats=False)
    assert table is not None
    generator = np.random.RandomState(1)
    picture = Image.fromarray(generator.randint(0, 256, (50, 70, 3), dtype=np.uint8))
    values = np.asarray(processor(images=[picture], return_tensors="np")["pixel_values"], dtype=np.float32)
    stored = encode_pixels(values, table)
    assert stored is not None
    assert stored.nbytes * 4 == values.nbytes
    assert torch.equal(expand_pixels(torch.from_numpy(stored), table), torch.from_numpy(values))


def test_a_processor_without_a_pixel_table_is_recognised() -> None:
    def noisy(images: object, do_resize: bool, return_tensors: str) -> dict[str, npt.NDArray[np.float32]]:
        return {"pixel_values": np.random.RandomState(0).rand(1, 3, 32, 32).astype(np.float32)}

    assert calibrate(noisy, temporal_repeats=False) is None
