"""Canonical order is arithmetic: these tests are its specification."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.order import CanonicalOrder, num_steps, permute, position_of_step, shuffled_pack, unpermute

lane_lengths = st.lists(st.integers(0, 12), min_size=1, max_size=9)


def round_robin(lengths: list[int]) -> list[tuple[int, int]]:
    rounds = range(max(lengths, default=0))
    return [(lane, pack) for pack in rounds for lane, length in enumerate(lengths) if pack < length]


@given(lane_lengths)
def test_the_order_is_round_robin_over_the_lanes_that_last(lengths: list[int]) -> None:
    order = CanonicalOrder(lengths)
    assert [order.pack_at(position) for position in range(len(order))] == round_robin(lengths)


@given(lane_lengths)
def test_a_pack_knows_its_position(lengths: list[int]) -> None:
    order = CanonicalOrder(lengths)
    assert [order.position_of(*order.pack_at(position)) for position in range(len(order))] == list(range(len(order)))


def test_lanes_of_three_one_and_two_packs_as_drawn() -> None:
    order = CanonicalOrder([3, 1, 2])
    assert [order.pack_at(p) for p in range(6)] == [(0, 0), (1, 0), (2, 0), (0, 1), (2, 1), (0, 2)]


def test_billions_of_packs_need_no_table() -> None:
    order = CanonicalOrder([10**12, 10**12 + 7])
    assert order.pack_at(2 * 10**12 + 3) == (1, 10**12 + 3)
    assert order.position_of(1, 10**12 + 3) == 2 * 10**12 + 3


@pytest.mark.parametrize("position", [-1, 6])
def test_a_position_outside_the_bake_is_an_error(position: int) -> None:
    with pytest.raises(IndexError, match="outside the 6 packs"):
        CanonicalOrder([3, 1, 2]).pack_at(position)


def test_no_such_pack_is_an_error() -> None:
    with pytest.raises(IndexError, match="pack 1 of lane 1"):
        CanonicalOrder([3, 1, 2]).position_of(1, 1)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 20))
def test_ranks_together_read_every_position_once_but_for_the_tail(num_packs: int, world: int, start: int) -> None:
    start = min(start, num_packs)
    steps = num_steps(num_packs, world, start=start)
    read = [
        position_of_step(step, rank, world, start=start, num_packs=num_packs)
        for step in range(steps)
        for rank in range(world)
    ]
    assert read == list(range(start, start + steps * world))
    assert num_packs - start - len(read) < world


@given(st.integers(1, 40), st.integers(1, 50))
def test_a_repeated_tail_reads_everything_and_fills_up_from_the_front(num_packs: int, world: int) -> None:
    steps = num_steps(num_packs, world, tail="repeat")
    read = [
        position_of_step(step, rank, world, start=0, num_packs=num_packs)
        for step in range(steps)
        for rank in range(world)
    ]
    assert read[:num_packs] == list(range(num_packs))
    assert read[num_packs:] == [position % num_packs for position in range(num_packs, steps * world)]
    assert len(read) - num_packs < world


def test_a_rank_stays_in_its_own_lanes_when_the_world_size_divides_the_lanes() -> None:
    order, world = CanonicalOrder([5] * 6), 3
    for rank in range(world):
        lanes = {order.pack_at(rank + step * world)[0] for step in range(10)}
        assert lanes == {rank, rank + world}


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_while_all_lanes_last_longer_lanes_change_no_position(lengths: list[int], data: st.DataObject) -> None:
    longer = [length + data.draw(st.integers(0, 5)) for length in lengths]
    before, after = CanonicalOrder(lengths), CanonicalOrder(longer)
    for position in range(before.num_common * len(lengths)):
        assert before.pack_at(position) == after.pack_at(position)


@given(st.integers(1, 300), st.integers(0, 2**64 - 1))
def test_permute_is_a_bijection_and_unpermute_its_inverse(count: int, key: int) -> None:
    image = [permute(index, count, key) for index in range(count)]
    assert sorted(image) == list(range(count))
    assert [unpermute(index, count, key) for index in image] == list(range(count))


def test_permute_is_pinned_for_ever() -> None:
    """Saved states of shuffled epochs depend on these numbers; they may change only with the state version."""
    assert [permute(index, 16, 7) for index in range(16)] == [14, 13, 5, 4, 11, 2, 0, 1, 6, 7, 3, 9, 10, 8, 15, 12]
    assert [permute(index, 10**12, 7) for index in range(3)] == [726829759750, 901207395862, 268516062730]


def test_shuffled_epochs_are_pinned_for_ever() -> None:
    shuffled = [shuffled_pack(pack, num_common=15, window=2, seed=4396, epoch=1) for pack in range(17)]
    assert shuffled == [8, 9, 0, 1, 12, 13, 10, 11, 2, 3, 6, 7, 4, 5, 14, 15, 16]
    assert shuffled[15:] == [15, 16]  # packs that only longer lanes have


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 99), st.integers(0, 3))
def test_a_shuffled_epoch_reads_every_pack_once_in_runs_of_a_window(
    num_common: int, window: int, seed: int, epoch: int
) -> None:
    shuffled = [
        shuffled_pack(pack, num_common=num_common, window=window, seed=seed, epoch=epoch) for pack in range(num_common)
    ]
    assert sorted(shuffled) == list(range(num_common))
    windows = [list(range(first, min(first + window, num_common))) for first in range(0, num_common, window)]
    starts = [place for place, pack in enumerate(shuffled) if pack % window == 0]
    runs = [shuffled[first:end] for first, end in zip(starts, [*starts[1:], num_common], strict=True)]
    assert list(chain(*runs)) == shuffled
    assert sorted(runs) == windows


def test_epochs_differ_from_each_other_and_epoch_zero_is_the_plan() -> None:
    epochs = [
        tuple(shuffled_pack(pack, num_common=64, window=4, seed=1, epoch=epoch) for pack in range(64))
        for epoch in range(4)
    ]
    assert epochs[0] == tuple(range(64))
    assert len(set(epochs)) == 4
