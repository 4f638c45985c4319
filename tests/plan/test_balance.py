"""Packs of one step cost nearly the same on every rank, and nobody has to talk to anybody for it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pipeline.plan.balance import balanced_order, window_permutation
from pipeline.plan.cost import PAIR_COST, VAE_TOKEN_COST, sample_cost
from pipeline.plan.step_costs import LaneCosts, imbalance
from pipeline.records import Item, ItemKind, PlannedItem

PINNED = [4, 2, 6, 3, 1, 0, 5, 7]


def test_the_common_permutation_is_pinned() -> None:
    # Changing this list changes the order of every balanced bake: a new stream, never a patch release.
    assert window_permutation(4396, 0, 8) == PINNED
    assert window_permutation(4396, 1, 8) != PINNED


def test_each_place_holds_the_pack_of_the_same_rank_in_cost() -> None:
    costs = [5.0, 1.0, 4.0, 2.0, 3.0]
    order = balanced_order(costs, seed=1, window=0)
    assert sorted(order) == [0, 1, 2, 3, 4]
    assert [costs[pack] - 1 for pack in order] == window_permutation(1, 0, 5)


@pytest.mark.parametrize(("ranks", "limit"), [(8, 1.03), (64, 1.05)])
def test_balanced_steps_are_nearly_even(ranks: int, limit: float) -> None:
    generator = random.Random(7)
    packed = [[generator.gauss(40_000, 5_000) for _ in range(256)] for _ in range(ranks)]
    lanes = []
    for costs in packed:
        lanes.append(LaneCosts())
        for pack in balanced_order(costs, 1, 0):
            lanes[-1].add(costs[pack], pack)
    before = imbalance([lane.as_packed() for lane in lanes], ranks)
    after = imbalance([lane.handed_out() for lane in lanes], ranks)
    assert after <= limit < before


def costs(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_a_step_is_as_slow_as_its_dearest_pack() -> None:
    # steps (1, 3) and (2, 2): 3 / 2 and 2 / 2, 1.25 on average
    assert imbalance([costs(1, 2), costs(3, 2)], 2) == pytest.approx(1.25)


def test_lanes_of_unequal_length_take_turns_while_they_last() -> None:
    # canonical order 1 3 | 2 4 6, of which 2 4 | 6 are steps of two ranks; the ragged tail counts for nothing
    assert imbalance([costs(1, 2, 6), costs(3, 4)], 2) == pytest.approx((3 / 2 + 4 / 3) / 2)
    assert imbalance([costs(1)], 2) == 1.0


def test_costs_of_a_lane_survive_being_written_down() -> None:
    lane = LaneCosts()
    lane.add(3.5, 1)
    lane.add(1.25, 0)
    again = LaneCosts.from_json(lane.to_json())
    assert again == lane
    assert again.as_packed().tolist() == [1.25, 3.5]


def test_a_noise_split_is_invisible_to_what_follows() -> None:
    target = PlannedItem(item=Item(kind=ItemKind.VAE, loss=True, num_tokens=98))
    text = PlannedItem(item=Item(kind=ItemKind.TEXT, num_tokens=8))
    # noise: 100 tokens, 100² pairs; text: 10 tokens, 10·11/2 pairs, nothing before it is visible.
    expected = 110 + PAIR_COST * (100 * 100 + 55) + VAE_TOKEN_COST * 98
    assert sample_cost([target, text]) == pytest.approx(expected)


def test_a_dropped_item_costs_nothing() -> None:
    text = PlannedItem(item=Item(kind=ItemKind.TEXT, num_tokens=8), kept=False)
    assert sample_cost([text]) == 0
