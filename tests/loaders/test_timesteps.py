"""A repeated epoch may draw new noise levels, the same on every machine."""

from __future__ import annotations

import numpy as np

from loaders.timesteps import redraw_timesteps

PLANNED = np.array([0.5, 0.5, -np.inf, -np.inf, -np.inf, 1.5], dtype=np.float32)
SHAPES = [(1, 2), (3, 1), (1, 1)]


def test_the_first_epoch_has_the_planned_timesteps() -> None:
    assert redraw_timesteps(PLANNED, SHAPES, seed=1, epoch=0, lane=0, pack=0) is PLANNED


def test_each_noised_image_gets_one_new_draw_and_conditions_stay() -> None:
    drawn = redraw_timesteps(PLANNED, SHAPES, seed=1, epoch=1, lane=2, pack=3)
    assert drawn.dtype == np.float32
    assert drawn[0] == drawn[1]
    assert np.array_equal(np.isneginf(drawn), np.isneginf(PLANNED))
    assert len({0.5, 1.5, float(drawn[0]), float(drawn[5])}) == 4
    assert PLANNED[0] == 0.5


def test_draws_are_pinned_for_ever() -> None:
    drawn = redraw_timesteps(PLANNED, SHAPES, seed=4396, epoch=1, lane=0, pack=0)
    assert drawn.tolist() == [
        -1.1924705505371094,
        -1.1924705505371094,
        float("-inf"),
        float("-inf"),
        float("-inf"),
        0.08314228057861328,
    ]


def test_seed_epoch_lane_and_pack_each_change_the_draw() -> None:
    keys = [(1, 1, 0, 0), (2, 1, 0, 0), (1, 2, 0, 0), (1, 1, 1, 0), (1, 1, 0, 1), (1, 1, 0, 1 << 40)]
    drawn = {
        float(redraw_timesteps(PLANNED, SHAPES, seed=seed, epoch=epoch, lane=lane, pack=pack)[0])
        for seed, epoch, lane, pack in keys
    }
    assert len(drawn) == len(keys)
