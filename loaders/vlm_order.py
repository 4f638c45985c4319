"""In which order an epoch of the VLM recipe visits its packs or rows: pure functions of integers.

Both orders are the ones PyTorch and nemo-automodel give, so that a training run that switches to parbake sees the same
sequence. They draw `torch.randperm` from a generator of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["LENGTH_HEADROOM", "OrderRule", "distributed_order", "epoch_order", "length_grouped_order"]

LENGTH_HEADROOM = 512
"""Rows up to this much longer than `max_length` stay in the length-grouped order, as in the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderRule:
    """Which order the epochs of a bake have.

    Attributes:
        order: "distributed" (DistributedSampler), "length_grouped" (LengthGroupedSampler), "shuffled" (a permutation
            from the recipe's own seed), "sequential" (by number, every epoch).
        shuffle: Of "distributed".
        seed: The epoch is added to it.
        batch_size: Of "length_grouped": packs of one batch of one rank.
    """

    order: str
    shuffle: bool
    seed: int
    batch_size: int


def epoch_order(
    rule: OrderRule,
    num_items: int,
    world_size: int,
    *,
    epoch: int,
    lengths: npt.NDArray[np.integer] | None = None,
) -> npt.NDArray[np.int64]:
    """Number of the pack at every position of an epoch; rank r of `world_size` reads positions r, r + world_size, …

    A multiple of `world_size` by starting over, except for "length_grouped", which ends where the packs end. There a
    chunk holds one batch of every rank, so that all ranks' batches of a step are of like length; for one rank it is the
    reference's order.

    Args:
        rule: The bake's rule.
        num_items: Packs.
        world_size: Data-parallel ranks that share them.
        epoch: Epoch.
        lengths: [num_items], needed by "length_grouped".

    Returns:
        int64 [positions].
    """
    if rule.order == "length_grouped":
        if lengths is None or len(lengths) != num_items:
            raise ValueError(f"order length_grouped needs the lengths of all {num_items} packs")
        return length_grouped_order(lengths, rule.batch_size * world_size, epoch=epoch, seed=rule.seed)
    shuffle = rule.order == "shuffled" or (rule.order == "distributed" and rule.shuffle)
    return distributed_order(num_items, world_size, epoch=epoch, seed=rule.seed, shuffle=shuffle)


def distributed_order(
    num_items: int, world_size: int, *, epoch: int, seed: int = 0, shuffle: bool = True
) -> npt.NDArray[np.int64]:
    """Item at every position of an epoch; rank r of `world_size` reads positions r, r + world_size, …

    The order of `torch.utils.data.DistributedSampler(num_replicas=world_size, seed=seed, drop_last=False)`: a
    permutation from the seed `seed + epoch`, or the identity, padded to a multiple of `world_size` by starting over.

    Returns:
        int64 [positions], positions = num_items rounded up to a multiple of `world_size`.
    """
    if shuffle:
        generator = torch.Generator()
        generator.manual_seed(seed + epoch)
        order = torch.randperm(num_items, generator=generator).numpy()
    else:
        order = np.arange(num_items, dtype=np.int64)
    num_positions = math.ceil(num_items / world_size) * world_size
    return np.resize(order, num_positions) if num_items else order


def length_grouped_order(
    lengths: Sequence[int] | npt.NDArray[np.integer],
    batch_size: int,
    *,
    epoch: int,
    seed: int = 42,
    max_length: int | None = None,
) -> npt.NDArray[np.int64]:
    """Row numbers in the order of nemo-automodel's `LengthGroupedSampler`.

    Rows by descending length (equal lengths in row order), those above `max_length + LENGTH_HEADROOM` left out, cut
    into chunks of `batch_size`, the chunks permuted from the seed `seed + epoch`.

    Returns:
        int64 [rows kept].
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    longest_first = np.argsort(-sizes, kind="stable")
    if max_length is not None:
        longest_first = longest_first[sizes[longest_first] <= max_length + LENGTH_HEADROOM]
    starts = range(0, len(longest_first), batch_size)
    generator = torch.Generator()
    generator.manual_seed(seed + epoch)
    chunks = [
        longest_first[starts[i] : starts[i] + batch_size] for i in torch.randperm(len(starts), generator=generator)
    ]
    return np.concatenate(chunks) if chunks else longest_first
