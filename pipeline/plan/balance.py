"""Order the packs of a lane so that the packs of one step cost nearly the same on every rank.

    lane 0   window of 256 packs ── sort by cost ── shuffle by σ(seed, window)
    lane 1   window of 256 packs ── sort by cost ── shuffle by σ(seed, window)      the same σ

The k-th cheapest of 256 packs costs nearly the same in every lane, and the common permutation σ puts the k-th of every
lane at the same place: no lane has to know another. Shuffling keeps cheap and dear steps from forming a sawtooth.

With `length: packs_per_lane` or `tokens` a lane always packs whole windows and is cut after they are ordered, so that
the order of a window never depends on how many packs are asked for: a longer lane begins with the shorter one's packs.
What the last window holds beyond the cut is not handed out; its samples count as `waiting`. With `length: epochs` the
lane ends where the data do, and its last, incomplete window is ordered by itself: another number of epochs hands that
window out in another order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

__all__ = ["balanced_order", "window_permutation"]


def window_permutation(seed: int, window: int, size: int) -> list[int]:
    """The permutation of `size` places common to all lanes for window number `window`.

    NumPy's legacy generator: its sequences are frozen for ever, those of `Generator` are not.
    """
    digest = hashlib.sha256(f"balance/{seed}/{window}".encode("ascii")).digest()
    state = np.random.RandomState(np.frombuffer(digest, dtype="<u4").astype(np.uint32))
    return [int(place) for place in state.permutation(size)]


def balanced_order(costs: Sequence[float], seed: int, window: int) -> list[int]:
    """Which pack of the window comes at each place, given the packs' costs in packing order.

    Ties keep packing order. Deterministic in (costs, seed, window).
    """
    cheapest_first = sorted(range(len(costs)), key=lambda pack: costs[pack])
    return [cheapest_first[place] for place in window_permutation(seed, window, len(costs))]
