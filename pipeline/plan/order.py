"""Which paths a lane reads, and in which order: a pure function of the number of paths.

    sorted paths ──shuffle(data_seed)──► cut into world_size slices ──► each into num_workers ──► reversed (1+ workers)

A *path* is whatever the group shards: a file, a (file, row group) pair, or a line. Reference:
`DistributedIterableDataset.set_epoch` and `get_data_paths_per_worker`.
"""

from __future__ import annotations

import random
from array import array

import numpy as np
import numpy.typing as npt

from pipeline.errors import SourceError

__all__ = ["Positions", "keep_lines", "lane_positions", "shuffled_positions"]

Positions = npt.NDArray[np.int64]
"""Positions in a list of paths, [n]."""


def shuffled_positions(count: int, seed: int) -> Positions:
    """The permutation that `random.Random(seed).shuffle` makes of a list of `count` things, 8 bytes each.

    The element at place i of the shuffled list is the one that was at place `result[i]`.
    """
    positions = array("q", range(count))
    random.Random(seed).shuffle(positions)  # any sequence that can be indexed will do
    return np.frombuffer(positions, dtype=np.int64) if count else np.zeros(0, np.int64)


def keep_lines(count: int, num_used: int, shuffle_seed: int | None) -> Positions:
    """Lines of one JSONL that the group uses, ascending: the first `num_used`, after a shuffle if one is asked for.

    What is kept is sorted with the group's other lines afterwards, so the order of the shuffle decides nothing else.
    """
    if num_used >= count:
        return np.arange(count, dtype=np.int64)
    if shuffle_seed is None:
        return np.arange(num_used, dtype=np.int64)
    return np.sort(shuffled_positions(count, shuffle_seed)[:num_used])


def lane_positions(
    shuffled: Positions, group: str, world_size: int, num_workers: int, drop_tail: bool
) -> list[Positions]:
    """The part of a shuffled list that each lane reads, in reading order; entry `w * world_size + r` is a lane.

    `drop_tail` true: equal slices, remainders belong to no lane (the reference). False: every path belongs to a lane;
    slices stay contiguous and differ by at most one path a rank, then a worker: `n` things into `k` parts are cut at
    `i * n // k`. Where everything divides, the two are the same.

    Raises:
        SourceError: there are fewer paths than lanes.
    """
    count = len(shuffled)
    workers = max(1, num_workers)
    num_lanes = world_size * workers
    if count < num_lanes:
        raise SourceError(
            f"group {group} has {count} paths (files, row groups or lines) for {num_lanes} lanes "
            f"({world_size} ranks of {workers} workers), so at least one lane would have nothing to read; "
            "lower bake.world_size or dataloader.num_workers, or split the group's files."
        )
    lanes: list[Positions] = []
    for worker in range(workers):
        for rank in range(world_size):
            start, end = _slice(count, world_size, rank, drop_tail)
            first, last = _slice(end - start, workers, worker, drop_tail)
            part = shuffled[start + first : start + last]
            lanes.append(part[::-1] if num_workers >= 1 else part)
    return lanes


def _slice(count: int, parts: int, part: int, drop_tail: bool) -> tuple[int, int]:
    if drop_tail:
        size = count // parts
        return part * size, (part + 1) * size
    return part * count // parts, (part + 1) * count // parts
