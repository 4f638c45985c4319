"""When a lane ends: a function of the packs so far, so that a longer lane begins with a shorter one's packs."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.config import LengthConfig

__all__ = ["LaneEnd"]


class LaneEnd:
    """Tells the last pack of a lane.

    packs_per_lane   that many packs
    tokens           the first pack with which the lane's tokens (unpadded) reach tokens / lanes
    epochs           the first pack after which every group of positive weight was read that often: every row of the
                     lane's part drawn, whether it is in a pack or not
    """

    def __init__(self, length: LengthConfig, num_lanes: int) -> None:
        self._length = length
        self._num_lanes = num_lanes
        self._packs = 0
        self._tokens = 0

    def reached(self, num_tokens: int, passes: Sequence[int]) -> bool:
        """Whether this pack is the lane's last; `passes` are the complete passes of the groups of positive weight."""
        self._packs += 1
        self._tokens += num_tokens
        if self._length.packs_per_lane is not None:
            return self._packs >= self._length.packs_per_lane
        if self._length.tokens is not None:
            return self._tokens * self._num_lanes >= self._length.tokens
        epochs = self._length.epochs or 1
        return all(count >= epochs for count in passes)
