"""In which order an epoch of the VLM recipe visits its packs or rows: pure functions of integers.

Both orders are the ones PyTorch and nemo-automodel give, so that a training run that switches to parbake sees the same
sequence. They draw `torch.randperm` from a generator of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["LENGTH_HEADROOM", "distributed_order", "length_grouped_order"]

LENGTH_HEADROOM = 512
"""Rows up to this much longer than `max_length` stay in the length-grouped order, as in the reference."""


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
