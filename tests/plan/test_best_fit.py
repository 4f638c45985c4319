"""The best-fit packer: full packs, nothing lost, nothing waits for ever, the same packs however many are asked for."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import combinations, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import SourceError
from pipeline.plan.best_fit import BestFitPacker, Budgets, Candidate, best_subset


def candidates(seed: int, low: int, high: int, vit_share: float = 0.0) -> Callable[[], Candidate[int]]:
    """A draw function whose payloads number the draws 0, 1, 2, …"""
    generator = random.Random(seed)
    numbers = iter(range(10**9))

    def draw() -> Candidate[int]:
        length = generator.randint(low, high)
        return Candidate(num_tokens=length, vit_tokens=int(length * vit_share), payload=next(numbers))

    return draw


def packer(
    draw: Callable[[], Candidate[int]],
    budgets: Budgets,
    mandatory: tuple[Callable[[], Candidate[int]], ...] = (),
    pool_size: int = 32,
) -> BestFitPacker[int]:
    return BestFitPacker(draw=draw, draw_mandatory=mandatory, budgets=budgets, pool_size=pool_size)


def payloads(packs: Iterator[tuple[Candidate[int], ...]], count: int) -> list[list[int]]:
    return [[candidate.payload for candidate in pack] for pack in islice(packs, count)]


@given(st.lists(st.integers(1, 30), max_size=9), st.integers(0, 100))
def test_best_subset_is_the_largest_sum_that_fits(lengths: list[int], capacity: int) -> None:
    chosen = best_subset(lengths, capacity)
    sums = [sum(subset) for size in range(len(lengths) + 1) for subset in combinations(lengths, size)]
    assert sum(lengths[index] for index in chosen) == max(total for total in sums if total <= capacity)
    assert chosen == sorted(set(chosen))


def test_best_subset_prefers_the_older_of_two_equals() -> None:
    # 4 + 4 and 4 + 4 and 8 all give 8; the first two entries are the oldest.
    assert best_subset([4, 4, 4, 4, 8], 8) == [0, 1]


def test_every_draw_is_in_a_pack_or_still_waiting() -> None:
    fitted = packer(candidates(1, 50, 900), Budgets(num_tokens=4096))
    packed = [number for pack in payloads(iter(fitted), 200) for number in pack]
    waiting = [candidate.payload for candidate in fitted.waiting]
    assert sorted(packed + waiting) == list(range(len(packed) + len(waiting)))
    assert len(waiting) <= 32


def test_no_pack_exceeds_a_budget_and_packs_are_full() -> None:
    fitted = packer(candidates(2, 50, 900), Budgets(num_tokens=4096))
    totals = [sum(candidate.num_tokens for candidate in pack) for pack in islice(iter(fitted), 200)]
    assert max(totals) <= 4096
    assert min(totals) >= 0.97 * 4096
    assert sum(totals) >= 0.995 * 200 * 4096


def test_samples_that_fill_a_third_of_a_pack_still_fill_it() -> None:
    fitted = packer(candidates(3, 6_000, 16_000), Budgets(num_tokens=36_864), pool_size=64)
    totals = [sum(candidate.num_tokens for candidate in pack) for pack in islice(iter(fitted), 100)]
    assert max(totals) <= 36_864
    assert sum(totals) >= 0.99 * 100 * 36_864


def test_nothing_waits_longer_than_the_pool_is_large() -> None:
    fitted = packer(candidates(4, 50, 2000), Budgets(num_tokens=4096), pool_size=16)
    for number, pack in enumerate(payloads(iter(fitted), 300)):
        oldest_waiting = min(candidate.payload for candidate in fitted.waiting)
        assert oldest_waiting >= number - 16, (number, pack)


def test_a_longer_run_begins_with_the_same_packs() -> None:
    short = payloads(iter(packer(candidates(5, 50, 900), Budgets(num_tokens=4096))), 20)
    long = payloads(iter(packer(candidates(5, 50, 900), Budgets(num_tokens=4096))), 50)
    assert long[:20] == short


def test_a_vision_budget_is_kept_and_spent() -> None:
    pictures, texts = candidates(6, 200, 900, vit_share=0.9), candidates(7, 50, 400)
    turn = random.Random(8)

    def draw() -> Candidate[int]:
        return pictures() if turn.random() < 0.2 else texts()

    fitted = packer(draw, Budgets(num_tokens=4096, vit_tokens=2000), pool_size=64)
    packs = list(islice(iter(fitted), 100))
    assert max(sum(candidate.vit_tokens for candidate in pack) for pack in packs) <= 2000
    assert sum(candidate.num_tokens for pack in packs for candidate in pack) >= 0.99 * 100 * 4096


def test_a_vision_budget_that_every_sample_needs_is_what_gets_filled() -> None:
    fitted = packer(candidates(9, 200, 900, vit_share=1.0), Budgets(num_tokens=4096, vit_tokens=2000), pool_size=64)
    packs = list(islice(iter(fitted), 50))
    spent = [sum(candidate.vit_tokens for candidate in pack) for pack in packs]
    assert max(spent) <= 2000
    assert min(spent) >= 0.97 * 2000


def test_a_mandatory_group_is_in_every_pack() -> None:
    mandatory = candidates(10, 500, 2500)
    fitted = packer(candidates(11, 50, 900), Budgets(num_tokens=4096), mandatory=(mandatory,))
    packs = list(islice(iter(fitted), 50))
    assert all(500 <= pack[0].num_tokens <= 2500 for pack in packs)
    assert [pack[0].payload for pack in packs] == list(range(50))
    assert sum(candidate.num_tokens for pack in packs for candidate in pack) >= 0.995 * 50 * 4096


def test_mandatory_samples_that_do_not_fit_together_wait_for_a_better_partner() -> None:
    first, second = candidates(12, 1000, 2600), candidates(13, 1000, 2600)
    fitted = packer(candidates(14, 50, 300), Budgets(num_tokens=4096), mandatory=(first, second))
    packs = list(islice(iter(fitted), 50))
    assert all(sum(candidate.num_tokens for candidate in pack) <= 4096 for pack in packs)
    assert all(pack[0].num_tokens >= 1000 and pack[1].num_tokens >= 1000 for pack in packs)


def test_mandatory_groups_that_can_never_share_a_pack_end_with_a_sentence() -> None:
    big = candidates(15, 3000, 3000)
    fitted = packer(candidates(16, 50, 300), Budgets(num_tokens=4096), mandatory=(big, big))
    with pytest.raises(SourceError, match="make fewer groups mandatory"):
        fitted.next_pack()
