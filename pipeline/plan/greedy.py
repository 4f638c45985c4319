"""`packer: greedy`: the reference's packing, draw for draw.

    specification (bagel-semantics, Packing; reference `PackedDataset.__iter__`): if this file disagrees, it is a bug

    1. at length 0: every mandatory group gives its next sample *below* max_num_tokens_per_sample; packed, whatever fits
    2. length < prefer_buffer_before and the buffer holds one: its oldest; else a group by weight gives its next sample
    3. above max_num_tokens_per_sample: dropped
    4. does not fit: buffered if it is fresh and there is room; else the pack is emitted *and the sample is lost*
    5. packed; emitted when the length reaches expected_num_tokens

The estimate that rule 4 adds counts every item of a sample, dropped by dropout or not; the length it is added to counts
kept items only. A pack whose first samples lost all their items still has length 0, so rule 1 applies to it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pipeline.config import DatasetConfig
from pipeline.errors import ConfigError
from pipeline.plan.packer import TOO_LONG, Draw, Drawn, Drop, GroupChoice, Placed, SpinGuard, count_drop, spend
from pipeline.plan.random import LaneRandom

__all__ = ["GreedyPacker"]


class GreedyPacker:
    """Implements `Packer`. Holds at most `max_buffer_size` samples and one pack."""

    def __init__(self, rules: DatasetConfig, draw: Draw, random: LaneRandom, drop: Drop = count_drop) -> None:
        self._rules = rules
        self._draw = draw
        self._count_drop = drop
        self._random = random
        self._choice = GroupChoice([group.weight for group in rules.groups])
        self._mandatory = [number for number, group in enumerate(rules.groups) if group.is_mandatory]
        self._weighted = [number for number, group in enumerate(rules.groups) if group.weight > 0]
        self._guard = SpinGuard([group.name for group in rules.groups], rules.max_num_tokens_per_sample)
        self._buffer: deque[Drawn] = deque()
        self._pack: list[Placed] = []
        self._length = 0
        self.draws = [0] * len(rules.groups)
        self.mandatory_draws = [0] * len(rules.groups)

    def next_pack(self) -> list[Placed]:
        """See `Packer.next_pack`."""
        rules = self._rules
        while True:
            if self._length == 0:
                for group in self._mandatory:
                    self._place(self._draw_mandatory(group))
            fresh = not (self._length < rules.prefer_buffer_before and self._buffer)
            drawn = self._draw_by_weight() if fresh else self._buffer.popleft()
            estimate = drawn.sample.num_tokens_estimated
            if estimate > rules.max_num_tokens_per_sample:
                self._drop(drawn, self._weighted)
                continue
            self._guard.placed()
            if self._length + estimate > rules.max_num_tokens:
                if fresh and len(self._buffer) < rules.max_buffer_size:
                    self._buffer.append(drawn)
                    continue
                drawn.counts.discarded += 1
                return self._emit()
            self._place(drawn)
            if self._length >= rules.expected_num_tokens:
                return self._emit()

    def waiting(self) -> list[Drawn]:
        """See `Packer.waiting`."""
        return [*(placed.drawn for placed in self._pack), *self._buffer]

    def comparison(self) -> dict[str, int]:
        """See `Packer.comparison`: this packer is what others are compared with."""
        return {}

    def _draw_mandatory(self, group: int) -> Drawn:
        while True:
            drawn = self._draw(group)
            self.mandatory_draws[group] += 1
            if drawn.sample.num_tokens_estimated < self._rules.max_num_tokens_per_sample:
                self._guard.placed()
                return drawn
            self._drop(drawn, (group,))

    def _draw_by_weight(self) -> Drawn:
        group = self._choice.pick(self._random)
        self.draws[group] += 1
        return self._draw(group)

    def _drop(self, drawn: Drawn, groups: Sequence[int]) -> None:
        self._count_drop(drawn, TOO_LONG)
        self._guard.dropped(drawn, groups)

    def _place(self, drawn: Drawn) -> None:
        items, num_tokens = spend(drawn.sample.items, self._rules, self._random)
        self._pack.append(Placed(drawn, items, num_tokens))
        self._length += num_tokens

    def _emit(self) -> list[Placed]:
        pack, self._pack, self._length = self._pack, [], 0
        if not pack:
            raise ConfigError(
                f"max_num_tokens ({self._rules.max_num_tokens}) is below max_num_tokens_per_sample "
                f"({self._rules.max_num_tokens_per_sample}) and a sample between them fits no pack, which leaves an "
                "empty one; lower max_num_tokens_per_sample."
            )
        return pack
