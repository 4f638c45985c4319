"""How full the reference's packer would have made packs of the samples that `best_fit` drew: an estimate for reports.

The rules are `greedy`'s, on lengths alone. It is an estimate because `greedy` would have chosen groups by independent
draws, and because a mandatory group gives its samples at best_fit's pace: where greedy begins a pack sooner, the last
one counts again.
"""

from __future__ import annotations

from collections import deque

from pipeline.config import DatasetConfig

__all__ = ["GreedyEstimate"]

_Lengths = tuple[int, int]
"""A sample's length as the greedy packer budgets it, and as it is."""


class GreedyEstimate:
    """Fed with samples as they are drawn.

    Attributes:
        packs: Packs that greedy would have emitted.
        tokens: Tokens in them.
        discarded: Samples that it would have lost.
    """

    def __init__(self, rules: DatasetConfig, num_mandatory: int) -> None:
        self._rules = rules
        self._mandatory: list[deque[_Lengths]] = [deque() for _ in range(num_mandatory)]
        self._buffer: deque[_Lengths] = deque()
        self._length = 0
        self.packs = self.tokens = self.discarded = 0

    def add_mandatory(self, place: int, estimate: int, num_tokens: int) -> None:
        """A sample of the mandatory group number `place`."""
        if estimate >= self._rules.max_num_tokens_per_sample:
            return
        queue = self._mandatory[place]
        if len(queue) > 1:
            queue.popleft()
        queue.append((estimate, num_tokens))

    def add(self, estimate: int, num_tokens: int) -> None:
        """A sample drawn by weight."""
        rules = self._rules
        self._begin()
        while self._length < rules.prefer_buffer_before and self._buffer:
            buffered = self._buffer.popleft()
            if self._length + buffered[0] > rules.max_num_tokens:
                self.discarded += 1
                self._emit()
            else:
                self._place(buffered[1])
            self._begin()
        if estimate > rules.max_num_tokens_per_sample:
            return
        if self._length + estimate <= rules.max_num_tokens:
            self._place(num_tokens)
        elif len(self._buffer) < rules.max_buffer_size:
            self._buffer.append((estimate, num_tokens))
        else:
            self.discarded += 1
            self._emit()

    def _begin(self) -> None:
        """A new pack begins with one sample of every mandatory group."""
        if self._length:
            return
        for queue in self._mandatory:
            if queue:
                self._length += (queue.popleft() if len(queue) > 1 else queue[0])[1]

    def _place(self, num_tokens: int) -> None:
        self._length += num_tokens
        if self._length >= self._rules.expected_num_tokens:
            self._emit()

    def _emit(self) -> None:
        self.packs += 1
        self.tokens += self._length
        self._length = 0
