"""Bins and orders of the VLM recipe equal those of nemo-automodel and PyTorch, live."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from nemo_automodel.components.datasets.llm.neat_packing import greedy_knapsack as reference_knapsack
from nemo_automodel.components.datasets.vlm.neat_packing_vlm import greedy_knapsack_vt_balanced
from nemo_automodel.components.datasets.vlm.samplers import LengthGroupedSampler
from torch.utils.data import DistributedSampler

from loaders.vlm_order import distributed_order, length_grouped_order
from pipeline.plan.knapsack import aligned_length, balance_by_media, greedy_knapsack


@pytest.mark.parametrize("seed", range(6))
def test_bins_equal_the_references(seed: int) -> None:
    generator = random.Random(seed)
    lengths = [generator.randint(1, 1200) for _ in range(400)]
    assert greedy_knapsack(np.array(lengths), 1000) == reference_knapsack(lengths, 1000)


@pytest.mark.parametrize("seed", range(3))
def test_bins_balanced_by_media_equal_the_references(seed: int) -> None:
    generator = random.Random(seed)
    lengths = [generator.randint(1, 900) for _ in range(300)]
    media = [generator.choice([0, 64, 64, 256]) for _ in lengths]
    ours = balance_by_media(greedy_knapsack(np.array(lengths), 1000), np.array(media))
    assert ours == greedy_knapsack_vt_balanced(lengths, 1000, media)


@pytest.mark.parametrize(("length", "alignment", "expected"), [(0, 8, 0), (1, 8, 8), (8, 8, 8), (9, 8, 16), (5, 1, 5)])
def test_lengths_round_up_to_the_alignment(length: int, alignment: int, expected: int) -> None:
    assert aligned_length(length, alignment) == expected


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("epoch", [0, 3])
def test_every_rank_reads_what_distributed_sampler_gives_it(shuffle: bool, world_size: int, epoch: int) -> None:
    order = distributed_order(17, world_size, epoch=epoch, shuffle=shuffle)
    for rank in range(world_size):
        sampler = DistributedSampler(range(17), num_replicas=world_size, rank=rank, shuffle=shuffle)
        sampler.set_epoch(epoch)
        assert order[rank::world_size].tolist() == list(sampler)


class Rows(list[dict[str, int]]):
    """Rows whose lengths the reference's sampler takes from `_text_tokens`."""


@pytest.mark.parametrize("seed", [42, 7])
@pytest.mark.parametrize("epoch", [0, 1, 5])
@pytest.mark.parametrize("max_length", [None, 800])
def test_length_grouped_order_equals_the_references(seed: int, epoch: int, max_length: int | None) -> None:
    generator = random.Random(1)
    lengths = [generator.randint(1, 2000) for _ in range(101)]
    sampler = LengthGroupedSampler(
        Rows({"_text_tokens": length} for length in lengths), seed=seed, max_length=max_length, batch_size=4
    )
    sampler.set_epoch(epoch)
    ours = length_grouped_order(lengths, 4, epoch=epoch, seed=seed, max_length=max_length)
    assert ours.tolist() == [int(row) for row in sampler]
    assert torch.tensor(ours).dtype == torch.int64
