"""Collated VLM batches equal nemo-automodel's collaters, every tensor, on packs its own builder made."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nemo_automodel.components.datasets.vlm.collate_fns import (
    neat_packed_vlm_collater,
    packed_sequence_thd_vlm_collater,
    pad_collate_fn,
)
from nemo_automodel.components.datasets.vlm.neat_packing_vlm import _build_packed_vlm_sample, _shift_sample

from loaders.vlm_batch import VlmPack, neat_batch, padded_batch, thd_batch

MEDIA = ("pixel_values", "pixel_values_videos", "image_grid_thw", "video_grid_thw", "second_per_grid_ts")
PAD = 7


def sample(generator: random.Random, *, images: int, videos: int, mrope: bool) -> dict[str, Any]:
    length = generator.randint(5, 40)
    torch.manual_seed(generator.randint(0, 10**6))
    made: dict[str, Any] = {
        "input_ids": torch.randint(8, 100, (length,)),
        "labels": torch.randint(-100, 100, (length,)),
        "attention_mask": torch.ones(length, dtype=torch.int64),
        "mm_token_type_ids": torch.randint(0, 2, (1, length)),
    }
    if mrope:
        made["position_ids"] = torch.randint(0, 50, (3, length))
    if images:
        made["pixel_values"] = torch.randn(images * 4, 24)
        made["image_grid_thw"] = torch.tensor([[1, 2, 2]] * images)
    if videos:
        made["pixel_values_videos"] = torch.randn(videos * 8, 24)
        made["video_grid_thw"] = torch.tensor([[2, 2, 2]] * videos)
        made["second_per_grid_ts"] = torch.tensor([1.0] * videos)
    return made


def packs(seed: int, *, mrope: bool, alignment: int = 1, media: bool = True) -> list[dict[str, Any]]:
    generator = random.Random(seed)
    built = []
    for number in range(3):
        documents = [
            _shift_sample(
                sample(generator, images=media * generator.randint(0, 2), videos=media * (number % 2), mrope=mrope),
                has_mrope=mrope,
            )
            for _ in range(generator.randint(1, 3))
        ]
        built.append(_build_packed_vlm_sample(documents, 200, PAD, has_mrope=mrope, sequence_alignment=alignment))
    return built


def ours(pack: dict[str, Any]) -> VlmPack:
    return VlmPack(
        input_ids=pack["input_ids"],
        labels=pack["labels"],
        document_ids=pack["attention_mask"],
        position_ids=pack["position_ids"],
        mm_token_type_ids=pack["mm_token_type_ids"],
        seq_lens=tuple(pack["seq_lens"]),
        seq_lens_padded=tuple(pack["seq_lens_padded"]),
        media={key: pack[key] for key in MEDIA if pack.get(key) is not None},
    )


def assert_equal_batches(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(actual) == set(expected)
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert actual[key].dtype == value.dtype, key
            assert torch.equal(actual[key], value), key
        else:
            assert actual[key] == value, key


@pytest.mark.parametrize("mrope", [False, True])
@pytest.mark.parametrize("dense_mask", [False, True])
@pytest.mark.parametrize("max_length", [None, 160])
@pytest.mark.parametrize("media", [False, True])
def test_neat_batches_equal_the_references(mrope: bool, dense_mask: bool, max_length: int | None, media: bool) -> None:
    built = packs(1, mrope=mrope, media=media)
    expected = neat_packed_vlm_collater(built, padding_idx=PAD, max_length=max_length, materialize_4d_mask=dense_mask)
    actual = neat_batch([ours(pack) for pack in built], pad_token_id=PAD, max_length=max_length, dense_mask=dense_mask)
    assert_equal_batches(actual, expected)


def test_a_batch_of_single_document_packs_has_no_packed_seq_ids() -> None:
    generator = random.Random(3)
    one = _build_packed_vlm_sample(
        [_shift_sample(sample(generator, images=1, videos=0, mrope=False))], 200, PAD, has_mrope=False
    )
    actual = neat_batch([ours(one)], pad_token_id=PAD)
    assert_equal_batches(actual, neat_packed_vlm_collater([one], padding_idx=PAD))
    assert "_packed_seq_ids" not in actual


@pytest.mark.parametrize(("mrope", "alignment"), [(False, 1), (False, 4), (True, 1)])
@pytest.mark.parametrize("max_length", [None, 160])
def test_thd_batches_equal_the_references(mrope: bool, alignment: int, max_length: int | None) -> None:
    built = packs(2, mrope=mrope, alignment=alignment)
    expected = packed_sequence_thd_vlm_collater(built, padding_idx=PAD, max_length=max_length)
    assert_equal_batches(thd_batch([ours(pack) for pack in built], pad_token_id=PAD, max_length=max_length), expected)


def test_a_thd_pack_is_never_cut() -> None:
    built = packs(2, mrope=False)
    with pytest.raises(ValueError, match="never cut"):
        thd_batch([ours(pack) for pack in built], pad_token_id=PAD, max_length=10)


@pytest.mark.parametrize("max_length", [None, 50, 20])
@pytest.mark.parametrize("media", [False, True])
def test_padded_batches_equal_the_references(max_length: int | None, media: bool) -> None:
    generator = random.Random(4)
    samples = [
        sample(generator, images=media * number, videos=media * (number % 2), mrope=False) for number in range(3)
    ]
    processor = SimpleNamespace(tokenizer=SimpleNamespace(pad_token_id=PAD))
    expected = pad_collate_fn(samples, processor, max_length=max_length)
    unpacked = [
        VlmPack(
            input_ids=made["input_ids"],
            labels=made["labels"],
            document_ids=made["attention_mask"],
            position_ids=torch.arange(made["input_ids"].shape[0]),
            mm_token_type_ids=made["mm_token_type_ids"][0],
            seq_lens=(made["input_ids"].shape[0],),
            seq_lens_padded=(made["input_ids"].shape[0],),
            media={key: made[key] for key in MEDIA if key in made},
        )
        for made in samples
    ]
    assert_equal_batches(padded_batch(unpacked, pad_token_id=PAD, max_length=max_length), expected)
