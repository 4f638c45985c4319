"""The packer of the improved stream: fill every pack to the brim from a bounded pool, and never lose a sample.

    pool (oldest first)      c0 c1 c2 c3 … c255        every draw about a sample is spent before it enters the pool,
                              │                         so its length is its real length
    1. one candidate of every mandatory group
    2. c0, the oldest: nothing waits for ever (it leaves after at most pool_size packs)
    3. the set of the others whose lengths sum closest to what is left, older ones preferred
    4. the pool is filled up again

Step 3 is the subset-sum problem, solved exactly: bit n of an integer says that n tokens can be reached, and a candidate
of length l adds `reach |= reach << l`. A pool of 64 against 36,864 tokens costs a fraction of a millisecond, and the
walk stops at the first candidate with which the budget is met to the token. Where a vision budget (`max_vit_tokens`,
`max_vae_tokens`, `max_images`) binds, that budget is what is filled, and the tokens left go to samples that need none.

The packs are a function of the sequence of draws alone, so a longer run begins with the same packs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from pipeline.errors import SourceError

__all__ = ["BestFitPacker", "Budgets", "Candidate", "best_subset"]

Payload = TypeVar("Payload")

MANDATORY_WAITING_LIMIT = 64


class Candidate(NamedTuple, Generic[Payload]):
    """A sample whose every draw is spent.

    Attributes:
        num_tokens: Real length in the sequence, marker tokens included.
        payload: Whatever the caller wants back.
        vit_tokens: ViT patches of its kept items; may be 0 where no budget limits them, as the next two.
        vae_tokens: Latent cells of its kept items.
        num_images: Kept images of both towers.
    """

    num_tokens: int
    payload: Payload
    vit_tokens: int = 0
    vae_tokens: int = 0
    num_images: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """What one pack may hold; None: unlimited."""

    num_tokens: int
    vit_tokens: int | None = None
    vae_tokens: int | None = None
    num_images: int | None = None

    @property
    def limits_vision(self) -> bool:
        """Whether anything but tokens is limited."""
        return not (self.vit_tokens is self.vae_tokens is self.num_images is None)

    def first_broken(
        self, chosen: Sequence[Candidate[Payload]]
    ) -> tuple[int, Callable[[Candidate[Payload]], int]] | None:
        """Limit and measure of the first vision budget that `chosen` breaks, None if it keeps them all."""
        measures: tuple[tuple[int | None, Callable[[Candidate[Payload]], int]], ...] = (
            (self.vit_tokens, lambda candidate: candidate.vit_tokens),
            (self.vae_tokens, lambda candidate: candidate.vae_tokens),
            (self.num_images, lambda candidate: candidate.num_images),
        )
        for limit, measure in measures:
            if limit is not None and sum(map(measure, chosen)) > limit:
                return limit, measure
        return None

    def admit(self, candidate: Candidate[Payload]) -> bool:
        """Whether the candidate could ever be packed, alone."""
        return candidate.num_tokens <= self.num_tokens and (
            not self.limits_vision or self.first_broken([candidate]) is None
        )


def best_subset(lengths: Sequence[int], capacity: int) -> list[int]:
    """Indices (ascending) of a subset of `lengths` whose sum is as large as possible without exceeding `capacity`.

    Exact. Among equal sums, a set within a shorter prefix wins, and within it later entries are avoided: with lengths
    in order of age, older samples leave first.

    >>> best_subset([5, 4, 3, 2], 9)
    [0, 1]
    """
    mask = (1 << (capacity + 1)) - 1
    reach = 1
    history = [reach]
    for length in lengths:
        reach |= (reach << length) & mask
        history.append(reach)
        if reach >> capacity & 1:
            break
    target = reach.bit_length() - 1
    chosen: list[int] = []
    for index in range(len(history) - 2, -1, -1):
        if not history[index] >> target & 1:
            chosen.append(index)
            target -= lengths[index]
    return chosen[::-1]


class BestFitPacker(Generic[Payload]):
    """Draws candidates into a pool and yields packs.

    Args:
        draw: Gives the next candidate of the weighted mix, None when there are no more. It must be admissible
            (`Budgets.admit`).
        draw_mandatory: One function per mandatory group: its next candidate.
        budgets: What a pack may hold.
        pool_size: Waiting candidates to choose from.
    """

    def __init__(
        self,
        *,
        draw: Callable[[], Candidate[Payload] | None],
        draw_mandatory: Sequence[Callable[[], Candidate[Payload]]],
        budgets: Budgets,
        pool_size: int,
    ) -> None:
        self._draw = draw
        self._draw_mandatory = tuple(draw_mandatory)
        self._budgets = budgets
        self._limits_vision = budgets.limits_vision
        self._pool_size = pool_size
        self._pool: list[Candidate[Payload]] = []
        self._mandatory_waiting: list[list[Candidate[Payload]]] = [[] for _ in draw_mandatory]

    @property
    def waiting(self) -> tuple[Candidate[Payload], ...]:
        """Candidates drawn and not yet packed."""
        return (*(candidate for queue in self._mandatory_waiting for candidate in queue), *self._pool)

    def __iter__(self) -> Iterator[tuple[Candidate[Payload], ...]]:
        """Packs, each in the order: mandatory groups, then by age; without end unless `draw` comes to one."""
        while pack := self.next_pack():
            yield pack

    def next_pack(self) -> tuple[Candidate[Payload], ...]:
        """Fill one pack; an empty one when everything drawn is packed and there is nothing more to draw.

        Raises:
            SourceError: The mandatory groups' samples do not fit into one pack together.
        """
        while len(self._pool) < self._pool_size and (drawn := self._draw()) is not None:
            self._pool.append(drawn)
        forced = self._take_mandatory()
        if self._pool and self._fits([*forced, self._pool[0]]):
            forced.append(self._pool.pop(0))
        chosen = self._choose(forced)
        rest = set(chosen)
        pack = (*forced, *(self._pool[index] for index in chosen))
        self._pool = [candidate for index, candidate in enumerate(self._pool) if index not in rest]
        return pack

    def _fits(self, chosen: Sequence[Candidate[Payload]]) -> bool:
        total = sum([candidate.num_tokens for candidate in chosen])
        return total <= self._budgets.num_tokens and (
            not self._limits_vision or self._budgets.first_broken(chosen) is None
        )

    def _take_mandatory(self) -> list[Candidate[Payload]]:
        taken: list[Candidate[Payload]] = []
        for group, draw in enumerate(self._draw_mandatory):
            queue = self._mandatory_waiting[group]
            position = next((i for i, candidate in enumerate(queue) if self._fits([*taken, candidate])), None)
            while position is None:
                if len(queue) >= MANDATORY_WAITING_LIMIT:
                    raise SourceError(
                        f"{len(queue)} samples of a mandatory group in a row do not fit beside the other mandatory "
                        f"groups' samples into {self._budgets.num_tokens} tokens and the vision budgets; every pack "
                        "must hold one of each. Lower max_num_tokens_per_sample, raise max_num_tokens, or make fewer "
                        "groups mandatory."
                    )
                queue.append(draw())
                if self._fits([*taken, queue[-1]]):
                    position = len(queue) - 1
            taken.append(queue.pop(position))
        return taken

    def _choose(self, forced: Sequence[Candidate[Payload]]) -> list[int]:
        """Indices into the pool that fill up the pack begun by `forced`: the first rule that keeps every budget."""
        left = self._budgets.num_tokens - sum([candidate.num_tokens for candidate in forced])
        eligible = [index for index, candidate in enumerate(self._pool) if candidate.num_tokens <= left]
        if not self._limits_vision:
            return self._fullest(forced, eligible)
        eligible = [index for index in eligible if self._fits([*forced, self._pool[index]])]
        chosen = self._fullest(forced, eligible)
        broken = self._budgets.first_broken([*forced, *(self._pool[index] for index in chosen)])
        if broken is None:
            return chosen
        chosen = self._fullest_within(forced, eligible, *broken)
        if self._fits([*forced, *(self._pool[index] for index in chosen)]):
            return chosen
        return self._first_fit(forced, eligible)

    def _fullest(self, forced: Sequence[Candidate[Payload]], eligible: Sequence[int]) -> list[int]:
        """The set that comes closest to the token budget."""
        capacity = self._budgets.num_tokens - sum(candidate.num_tokens for candidate in forced)
        return [eligible[i] for i in best_subset([self._pool[index].num_tokens for index in eligible], capacity)]

    def _fullest_within(
        self,
        forced: Sequence[Candidate[Payload]],
        eligible: Sequence[int],
        limit: int,
        measure: Callable[[Candidate[Payload]], int],
    ) -> list[int]:
        """Where a vision budget binds: spend it to the full, then fill up with samples that need none of it."""
        spending = [index for index in eligible if measure(self._pool[index]) > 0]
        capacity = limit - sum(map(measure, forced))
        spent = [spending[i] for i in best_subset([measure(self._pool[index]) for index in spending], capacity)]
        begun = [*forced, *(self._pool[index] for index in spent)]
        if sum(candidate.num_tokens for candidate in begun) > self._budgets.num_tokens:
            return spent
        free = [index for index in eligible if measure(self._pool[index]) == 0]
        return sorted([*spent, *self._fullest(begun, free)])

    def _first_fit(self, forced: Sequence[Candidate[Payload]], eligible: Sequence[int]) -> list[int]:
        """Oldest first, whatever fits: always keeps every budget."""
        chosen: list[int] = []
        for index in eligible:
            if self._fits([*forced, *(self._pool[taken] for taken in chosen), self._pool[index]]):
                chosen.append(index)
        return chosen
