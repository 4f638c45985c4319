"""A lane reads the reference's slice, in the reference's order."""

from __future__ import annotations

import random
from unittest import mock

import numpy as np
import pytest
from nemo_automodel.components.datasets.multimodal.distributed_iterable import DistributedIterableDataset

from pipeline.errors import SourceError
from pipeline.plan.order import keep_lines, lane_positions, shuffled_positions


def lanes(count: int, world_size: int, num_workers: int, drop_tail: bool = True, seed: int = 42) -> list[list[int]]:
    shuffled = shuffled_positions(count, seed)
    return [lane.tolist() for lane in lane_positions(shuffled, "g", world_size, num_workers, drop_tail)]


def oracle_lane(count: int, world_size: int, num_workers: int, rank: int, worker: int, seed: int) -> list[int]:
    dataset = DistributedIterableDataset("g", rank, world_size, num_workers)
    dataset.data_paths = [f"{number:06d}" for number in range(count)]
    dataset.set_epoch(seed)
    info = mock.Mock(id=worker, num_workers=num_workers) if num_workers else None
    with mock.patch("torch.utils.data.get_worker_info", return_value=info):
        paths, _ = dataset.get_data_paths_per_worker()
    return [int(path) for path in paths]


def test_seven_paths_on_two_ranks_of_one_worker_are_these() -> None:
    assert shuffled_positions(7, 42).tolist() == [1, 3, 4, 2, 6, 0, 5]
    assert lanes(7, 2, 1) == [[4, 3, 1], [0, 6, 2]]
    assert lanes(7, 2, 0) == [[1, 3, 4], [2, 6, 0]]
    assert lanes(7, 2, 1, drop_tail=False) == [[4, 3, 1], [5, 0, 6, 2]]


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("num_workers", [0, 1, 2, 4])
@pytest.mark.parametrize("count", [12, 25, 47])
def test_lanes_equal_the_oracle_s_slices(count: int, world_size: int, num_workers: int) -> None:
    ours = lanes(count, world_size, num_workers, seed=7)
    for lane, positions in enumerate(ours):
        worker, rank = divmod(lane, world_size)
        assert positions == oracle_lane(count, world_size, num_workers, rank, worker, 7)


@pytest.mark.parametrize(("count", "world_size", "num_workers"), [(12, 3, 2), (13, 3, 2), (101, 7, 4), (28, 7, 4)])
def test_without_drop_tail_every_path_belongs_to_exactly_one_lane(
    count: int, world_size: int, num_workers: int
) -> None:
    cut = lanes(count, world_size, num_workers, drop_tail=False)
    assert sorted(position for lane in cut for position in lane) == list(range(count))
    assert max(map(len, cut)) - min(map(len, cut)) <= 2


def test_fewer_paths_than_lanes_say_how_many_of_which_group() -> None:
    with pytest.raises(SourceError, match=r"group g has 5 paths .* for 6 lanes \(3 ranks of 2 workers\)"):
        lanes(5, 3, 2)
    assert len(lanes(6, 3, 2)) == 6


def test_shuffled_lines_are_cut_as_the_reference_cuts_them() -> None:
    lines = list(range(50))
    random.Random(9).shuffle(lines)
    assert keep_lines(50, 20, 9).tolist() == sorted(lines[:20])
    assert keep_lines(50, 20, None).tolist() == list(range(20))
    assert keep_lines(50, 50, 9).tolist() == list(range(50))
    assert keep_lines(0, 5, None).tolist() == []


def test_positions_take_eight_bytes_each() -> None:
    assert shuffled_positions(1000, 1).dtype == np.int64
