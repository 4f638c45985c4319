"""Groups are dealt in proportion to their weights."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from pipeline.plan.deck import DECK_SIZE, deal_groups


class PythonDraws:
    """Just enough of `records.Draws`."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choice(self, count: int) -> int:
        return self._random.choice(range(count))

    def uniform(self) -> float:
        return self._random.random()

    def randint(self, low: int, high: int) -> int:
        raise NotImplementedError

    def permutation(self, count: int) -> Sequence[int]:
        raise NotImplementedError


def test_after_every_deck_each_group_is_within_one_card_of_its_share() -> None:
    weights = [0.5, 0.3, 0.17, 0.03]
    dealt = list(islice(deal_groups(weights, PythonDraws(1)), 40 * DECK_SIZE))
    for decks in range(1, 41):
        counts = Counter(dealt[: decks * DECK_SIZE])
        for group, weight in enumerate(weights):
            assert abs(counts[group] - weight * decks * DECK_SIZE) <= 1


def test_a_group_of_weight_zero_is_never_dealt() -> None:
    assert set(islice(deal_groups([2.0, 0.0, 1.0], PythonDraws(2)), 2000)) == {0, 2}


def test_the_order_within_a_deck_is_shuffled() -> None:
    dealt = list(islice(deal_groups([1.0, 1.0], PythonDraws(3)), DECK_SIZE))
    assert dealt != sorted(dealt)
    assert Counter(dealt) == {0: DECK_SIZE // 2, 1: DECK_SIZE // 2}
