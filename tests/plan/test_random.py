"""A lane's streams are the reference's global generators after its reseed."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pipeline.plan.random import LaneRandom, lane_seed


def test_lane_seeds_are_these_numbers() -> None:
    assert [lane_seed(4396, 2, rank, 3, worker) for rank in range(2) for worker in range(3)] == [
        26376,
        26377,
        26378,
        26379,
        26380,
        26381,
    ]
    assert lane_seed(4396, 1, 0, 0, 0) == 4396
    assert lane_seed(1 << 31, 4, 1, 1, 0) == 1


def test_draws_interleave_like_the_two_global_generators() -> None:
    random.seed(77)
    np.random.seed(77)
    draws = LaneRandom(77)
    for _ in range(200):
        assert draws.uniform() == random.random()
        assert draws.choice(5) == random.choice(range(5))
        assert draws.randint(8, 17) == np.random.randint(8, 17)
        assert draws.randn() == np.random.randn()
        assert draws.permutation(6) == np.random.permutation(6).tolist()
        assert draws.choice(1) == random.choice([0])


def test_a_choice_of_nothing_is_an_index_error_that_spends_nothing() -> None:
    draws = LaneRandom(3)
    with pytest.raises(IndexError):
        draws.choice(0)
    assert draws.uniform() == random.Random(3).random()
