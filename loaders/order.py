"""Which pack is read when: functions from integers to integers, the same on every machine, for ever.

Canonical order is round robin over all lanes while all last, then over the lanes that remain. Lanes of 3, 1, 2 packs:

    lane 0   0 3 5        position  0      1      2      3      4      5
    lane 1   1            lane.pack 0.0    1.0    2.0    0.1    2.1    0.2
    lane 2   2 4          band      └──────0──────┘      └──1───┘      2

A *band* is a run of rounds in which the same lanes take part; there are as many as distinct lane lengths, so a position
is found by bisection over bands and one division, for billions of packs and without a table of positions.

Step s of rank r of W starting at position P reads position `P + s·W + r`. Nothing else is needed to resume, at any W.
While every lane lasts, a position names the same pack after lanes have grown: that is why a state survives extension.

Epoch e > 0 may be shuffled: windows of consecutive packs change places, by one keyed permutation for all lanes, so that
packs of one round stay together and each lane still reads runs of neighbouring packs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

__all__ = [
    "CanonicalOrder",
    "Tail",
    "num_steps",
    "packs_per_rank",
    "permute",
    "position_of_step",
    "positions_of_step",
    "shuffled_pack",
    "unpermute",
]

Tail = Literal["drop", "repeat"]
"""What happens to the last packs where they do not fill a step: left out, or filled up from the front of the epoch."""

_MASK64 = (1 << 64) - 1
_NUM_ROUNDS = 8


class CanonicalOrder:
    """Canonical order over lanes of `lane_lengths` packs. Immutable, cheap to pickle, O(log bands) a question."""

    def __init__(self, lane_lengths: Sequence[int]) -> None:
        self._lengths: npt.NDArray[np.int64] = np.asarray(lane_lengths, dtype=np.int64).reshape(-1)
        self._lengths_key = self._lengths.tobytes()
        self._band_ends: list[int] = [int(length) for length in np.unique(self._lengths) if length > 0]  # in rounds
        self._band_rounds = [0, *self._band_ends][:-1]  # first round of each band
        starts, total = [], 0
        for first, end in zip(self._band_rounds, self._band_ends, strict=True):
            starts.append(total)
            total += (end - first) * int(np.count_nonzero(self._lengths >= end))
        self._band_starts = starts  # first position of each band
        self._num_packs = total

    def __len__(self) -> int:
        """Packs of all lanes together."""
        return self._num_packs

    @property
    def num_common(self) -> int:
        """Packs that every lane has: the length of the shortest lane."""
        return int(self._lengths.min()) if len(self._lengths) else 0

    def pack_at(self, position: int) -> tuple[int, int]:
        """(lane, pack number in the lane) at a position.

        Raises:
            IndexError: position outside [0, len(self)).
        """
        if not 0 <= position < self._num_packs:
            raise IndexError(f"position {position} is outside the {self._num_packs} packs of the bake")
        band = bisect_right(self._band_starts, position) - 1
        lanes = _lanes_that_last(self._lengths_key, self._band_ends[band])
        rounds, place = divmod(position - self._band_starts[band], len(lanes))
        return int(lanes[place]), self._band_rounds[band] + rounds

    def position_of(self, lane: int, pack: int) -> int:
        """The inverse of `pack_at`.

        Raises:
            IndexError: no such pack.
        """
        if not (0 <= lane < len(self._lengths) and 0 <= pack < self._lengths[lane]):
            raise IndexError(f"pack {pack} of lane {lane} is not in the bake")
        band = bisect_right(self._band_rounds, pack) - 1
        lanes = _lanes_that_last(self._lengths_key, self._band_ends[band])
        return (
            self._band_starts[band] + (pack - self._band_rounds[band]) * len(lanes) + int(np.searchsorted(lanes, lane))
        )


@lru_cache(maxsize=16)
def _lanes_that_last(lengths: bytes, num_packs: int) -> npt.NDArray[np.int64]:
    """Numbers of the lanes of at least `num_packs` packs, ascending."""
    return np.flatnonzero(np.frombuffer(lengths, dtype=np.int64) >= num_packs)


def packs_per_rank(num_packs: int, world_size: int, *, start: int = 0, tail: Tail = "drop") -> int:
    """Packs that every one of `world_size` ranks reads from position `start` to the end of the epoch."""
    left = max(0, num_packs - start)
    return left // world_size if tail == "drop" else -(-left // world_size)


def num_steps(
    num_packs: int,
    world_size: int,
    *,
    start: int = 0,
    tail: Tail = "drop",
    packs_per_batch: int = 1,
    drop_last: bool = False,
) -> int:
    """Steps that every one of `world_size` ranks makes from position `start` to the end of the epoch.

    With `packs_per_batch` B, the last step's batches may hold fewer than B packs, unless `drop_last`.
    """
    per_rank = packs_per_rank(num_packs, world_size, start=start, tail=tail)
    return per_rank // packs_per_batch if drop_last else -(-per_rank // packs_per_batch)


def position_of_step(step: int, rank: int, world_size: int, *, start: int, num_packs: int) -> int:
    """Position that `rank` reads in step `step` counted from position `start`; a repeated tail wraps to the front."""
    return (start + step * world_size + rank) % num_packs


def positions_of_step(
    step: int,
    rank: int,
    world_size: int,
    *,
    start: int,
    num_packs: int,
    tail: Tail = "drop",
    packs_per_batch: int = 1,
) -> list[int]:
    """Positions of the packs of `rank`'s batch in step `step` counted from position `start`.

    A rank's packs, those at `start + r`, `start + r + W`, …, are cut into batches of `packs_per_batch`, as a DataLoader
    cuts what its DistributedSampler gives it. Positions of two steps and ranks, W = 2, three packs a batch:

        rank 0   0 2 4   6 8 10
        rank 1   1 3 5   7 9 11
    """
    first = step * packs_per_batch
    end = min(first + packs_per_batch, packs_per_rank(num_packs, world_size, start=start, tail=tail))
    return [position_of_step(turn, rank, world_size, start=start, num_packs=num_packs) for turn in range(first, end)]


def shuffled_pack(pack: int, *, num_common: int, window: int, seed: int, epoch: int) -> int:
    """The pack a lane reads in place of `pack` in a shuffled epoch. The same for every lane, a bijection of each lane.

    The first `num_common` packs, those that every lane has, are cut into windows of `window` packs (the last may be
    shorter); windows are put in the order of `permute`. Epoch 0 and packs that only some lanes have keep their place.
    """
    if epoch == 0 or pack >= num_common:
        return pack
    key = _key(seed, epoch)
    num_windows = -(-num_common // window)
    short = num_windows - 1
    short_place = unpermute(short, num_windows, key)
    short_start, short_packs = short_place * window, num_common - short * window
    if pack < short_start:
        place, offset = divmod(pack, window)
    elif pack < short_start + short_packs:
        place, offset = short_place, pack - short_start
    else:
        place, offset = divmod(pack - short_packs + window, window)
    return permute(place, num_windows, key) * window + offset


def permute(index: int, count: int, key: int) -> int:
    """Keyed permutation of range(count): a Feistel network, walked until the result falls into the range.

    May never change: saved states of shuffled epochs depend on it (pinned in tests/loaders/test_order.py).
    """
    half_bits = _half_bits(count)
    mask = (1 << half_bits) - 1
    while True:
        left, right = index >> half_bits, index & mask
        for number in range(_NUM_ROUNDS):
            left, right = right, left ^ (_mix(key + number, right) & mask)
        index = left << half_bits | right
        if index < count:
            return index


def unpermute(index: int, count: int, key: int) -> int:
    """The inverse of `permute`."""
    half_bits = _half_bits(count)
    mask = (1 << half_bits) - 1
    while True:
        left, right = index >> half_bits, index & mask
        for number in reversed(range(_NUM_ROUNDS)):
            left, right = right ^ (_mix(key + number, left) & mask), left
        index = left << half_bits | right
        if index < count:
            return index


def _half_bits(count: int) -> int:
    """Half the width of the smallest even-width integer that holds every index below `count`."""
    return max(1, ((count - 1).bit_length() + 1) // 2)


def _key(seed: int, epoch: int) -> int:
    return _mix(_mix(0, seed), epoch)


def _mix(key: int, value: int) -> int:
    """SplitMix64's finalizer (Steele, Lea, Flood 2014) over key and value: 64 well-mixed bits."""
    bits = (key * 0x9E3779B97F4A7C15 + value + 0x9E3779B97F4A7C15) & _MASK64
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _MASK64
    return bits ^ bits >> 31
