"""The two random streams of a lane: the only generators of parbake that decide bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from pipeline.config import Config

__all__ = ["LaneRandom", "lane_seed"]


def lane_seed(base_seed: int, world_size: int, rank: int, num_workers: int, worker: int) -> int:
    """Seed of both streams of worker `worker` of rank `rank` (reference: `PackedDataset.__iter__`).

    Different lanes get different numbers as long as `base_seed * lanes` stays below 2^32.
    """
    return ((base_seed * max(1, world_size) + rank) * max(1, num_workers) + worker) & 0xFFFFFFFF


class LaneRandom:
    """Python's generator and NumPy's legacy generator, seeded with one number, as a lane of the reference holds them.

    Implements `records.Draws`. Sources and packer of a lane share one object, because the *order* of draws is part of
    the stream. A bit of either generator may never be drawn for anything that the reference does not draw.
    """

    def __init__(self, seed: int) -> None:
        self._python = random.Random(seed)
        self._numpy = np.random.RandomState(seed)

    @classmethod
    def of_lane(cls, config: Config, lane: int) -> LaneRandom:
        """The streams of lane `lane` of a configuration."""
        rank, worker = config.lane_rank_and_worker(lane)
        return cls(lane_seed(config.base_seed, config.bake.world_size, rank, config.num_workers, worker))

    def choice(self, count: int) -> int:
        """An index in [0, count), as `random.choice` picks one of `count` things; IndexError if there are none."""
        return self._python.choice(range(count))

    def uniform(self) -> float:
        """A float in [0, 1)."""
        return self._python.random()

    def randint(self, low: int, high: int) -> int:
        """An integer in [low, high) of the NumPy stream; ValueError if there is none."""
        return int(self._numpy.randint(low, high))

    def permutation(self, count: int) -> Sequence[int]:
        """A permutation of range(count) of the NumPy stream."""
        drawn: list[int] = self._numpy.permutation(count).tolist()
        return drawn

    def randn(self) -> float:
        """A standard normal of the NumPy stream (float64): a timestep."""
        return float(self._numpy.randn())
