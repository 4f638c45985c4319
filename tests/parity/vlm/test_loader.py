"""Every tensor of a VLM batch equals what nemo-automodel's builder and collaters make of the same samples."""

from __future__ import annotations

from pathlib import Path
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
from torch.utils.data import DistributedSampler

from loaders import PackedShards
from tests.loaders.vlm_synthetic import PAD_ID, Made, alignment_of, write_vlm_bake
from tests.parity.vlm.test_collation import assert_equal_batches

CASES: dict[str, dict[str, Any]] = {
    "neat, dense mask": {},
    "neat, document numbers": {"mask": "document"},
    "neat, one length": {"collate_max_length": 160},
    "neat, mRoPE": {"mrope": True},
    "neat, no media": {"media": False},
    "neat, pixels stored as float32": {"stored_floats": True},
    "best fit": {"packing": "best_fit", "local_batch_size": 3},
    "thd": {"packing_format": "thd"},
    "thd, context parallel": {"packing_format": "thd", "cp_size": 2, "collate_max_length": 192},
    "thd, mRoPE": {"packing_format": "thd", "mrope": True},
    "unpacked": {"packing": "none", "local_batch_size": 3},
    "unpacked, no media": {"packing": "none", "media": False},
}


def expected_batches(made: Made, epoch: int) -> list[dict[str, Any]]:
    settings = made.settings
    packs = made.samples
    sampler = DistributedSampler(range(len(packs)), num_replicas=1, rank=0)
    sampler.set_epoch(epoch)
    order = list(sampler)
    size = settings.local_batch_size
    return [collated(made, order[first : first + size]) for first in range(0, len(order), size)]


def collated(made: Made, numbers: list[int]) -> dict[str, Any]:
    settings = made.settings
    length = settings.collate_max_length
    if settings.packing == "none":
        processor = SimpleNamespace(tokenizer=SimpleNamespace(pad_token_id=PAD_ID))
        return pad_collate_fn([made.samples[number][0] for number in numbers], processor, max_length=length)
    built = [
        _build_packed_vlm_sample(
            [_shift_sample(sample, has_mrope=settings.mrope) for sample in made.samples[number]],
            settings.pack_size,
            PAD_ID,
            has_mrope=settings.mrope,
            sequence_alignment=alignment_of(settings),
        )
        for number in numbers
    ]
    if settings.packing_format == "thd":
        return packed_sequence_thd_vlm_collater(built, padding_idx=PAD_ID, max_length=length)
    dense = settings.mask == "dense"
    return neat_packed_vlm_collater(built, padding_idx=PAD_ID, max_length=length, materialize_4d_mask=dense)


@pytest.mark.parametrize("case", CASES)
def test_every_batch_of_two_epochs_equals_the_references(case: str, tmp_path: Path) -> None:
    made = write_vlm_bake(tmp_path, 11, world_size=2, **CASES[case])
    loader = PackedShards(made.url, 0, 1, verify=True).loader()
    for epoch in range(2):
        found = list(loader)
        expected = expected_batches(made, epoch)
        assert len(found) == len(expected)
        for batch, wanted in zip(found, expected, strict=True):
            assert_equal_batches(batch, wanted)
            assert all(not value.requires_grad for value in batch.values() if isinstance(value, torch.Tensor))
