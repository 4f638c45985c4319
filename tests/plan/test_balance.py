"""Packs of one step cost nearly the same on every rank, and nobody has to talk to anybody for it."""

from __future__ import annotations

import random

import pytest

from pipeline.plan.balance import balanced_order, window_permutation
from pipeline.plan.cost import PAIR_COST, VAE_TOKEN_COST, imbalance, sample_cost
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
    lanes = [[generator.gauss(40_000, 5_000) for _ in range(256)] for _ in range(ranks)]
    before = imbalance(lanes)
    after = imbalance([[costs[pack] for pack in balanced_order(costs, 1, 0)] for costs in lanes])
    assert after <= limit < before


def test_a_noise_split_is_invisible_to_what_follows() -> None:
    target = PlannedItem(item=Item(kind=ItemKind.VAE, loss=True, num_tokens=98))
    text = PlannedItem(item=Item(kind=ItemKind.TEXT, num_tokens=8))
    # noise: 100 tokens, 100² pairs; text: 10 tokens, 10·11/2 pairs, nothing before it is visible.
    expected = 110 + PAIR_COST * (100 * 100 + 55) + VAE_TOKEN_COST * 98
    assert sample_cost([target, text]) == pytest.approx(expected)


def test_a_dropped_item_costs_nothing() -> None:
    text = PlannedItem(item=Item(kind=ItemKind.TEXT, num_tokens=8), kept=False)
    assert sample_cost([text]) == 0
