"""One VLM data set from lengths to packs: which row is placed where, and what became of every other. Arrays only.

    rows ──place_row──► placed rows ──longer_than_pack out──► packer ──balance──► max_packs ──► packs, numbered
           own, replaced, dropped     (can never be rendered)   neat │ best_fit │ none

Lengths are true ones, after truncation and the shift by one token, aligned. So nothing overflows when a pack is made,
and a row longer than a pack is known to be lost. Source of the rules of `neat`: nemo-automodel 0.7.0
`vlm.neat_packing_vlm.neat_pack_dataset_vlm`; there an over-long row has a bin of its own and becomes a pack of padding,
here it is dropped, which moves no other row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.plan.best_fit import BestFitPacker, Budgets, Candidate
from pipeline.plan.conversation_rows import RowRules, RowTable, place_row
from pipeline.plan.knapsack import balance_by_media, greedy_knapsack

__all__ = ["CUT", "PACKED", "PackedDataSet", "PackingRules", "keyed_order", "pack_data_set"]

POOL_SIZE = 256
"""Waiting rows from which `best_fit` chooses."""

PACKED = ""
"""Fate of a row that is in a pack in its own right."""

CUT = "cut"
"""Fate of a place that `max_packs` left out."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingRules:
    """How placed rows become packs.

    Attributes:
        rows: Which rows can be used.
        packing: "neat", "best_fit", or "none": one row a pack.
        pack_size: Shifted tokens a pack may hold; unused where packing is "none".
        capacity: Tokens to which packs are filled (`pack_size * packing_ratio`, rounded down).
        alignment: Documents take a multiple of this.
        balance: Sort packs by media tokens.
        max_packs: Packs kept, None for all.
        length_limit: Rows longer than this (true length before truncation) are left out, None for no limit.
        seed: Of the order in which `best_fit` takes rows.
    """

    rows: RowRules
    packing: str
    pack_size: int
    capacity: int
    alignment: int
    balance: bool
    max_packs: int | None
    length_limit: int | None
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedDataSet:
    """The packs of one data set, by number.

    Attributes:
        pack_starts: int64 [packs + 1], where each pack's documents begin in the three arrays below.
        rows: int64 [documents], data-set row that is rendered.
        instead_of: int64 [documents], row whose place it takes, -1: its own.
        keep_tokens: int32 [documents], unshifted tokens kept.
        num_tokens: int32 [packs], stored tokens: shifted and aligned, unless packing is "none".
        num_media_tokens: int32 [packs].
        order_lengths: int32 [packs], what `order: length_grouped` orders by: the true length of the pack's row before
            truncation, or the pack's stored tokens.
        fates: int16 [rows], number in `reasons` of what became of each row.
        reasons: PACKED, CUT, and the reasons of `place_row` and of this module.
    """

    pack_starts: Numbers
    rows: Numbers
    instead_of: Numbers
    keep_tokens: npt.NDArray[np.int32]
    num_tokens: npt.NDArray[np.int32]
    num_media_tokens: npt.NDArray[np.int32]
    order_lengths: npt.NDArray[np.int32]
    fates: npt.NDArray[np.int16]
    reasons: tuple[str, ...]

    @property
    def num_packs(self) -> int:
        """Packs."""
        return len(self.pack_starts) - 1


def pack_data_set(table: RowTable, rules: PackingRules) -> PackedDataSet:
    """Pack the rows of a data set.

    Args:
        table: Their lengths, in the data set's order.
        rules: How.
    """
    places = _Places(table, rules.rows)
    true_lengths = table.num_tokens[places.rows]
    shifted = np.maximum(places.keep - 1, 0)
    stored = places.keep if rules.packing == "none" else _aligned(shifted, rules.alignment)
    usable = np.ones(len(places.rows), dtype=bool)
    if rules.packing != "none":
        usable &= stored <= rules.pack_size
        places.lose(~usable, "longer_than_pack")
    if rules.length_limit is not None:
        within = true_lengths <= rules.length_limit
        places.lose(usable & ~within, "beyond_length_limit")
        usable &= within
    candidates = np.flatnonzero(usable)
    media = table.num_media_tokens[places.rows]
    bins = _bins(np.minimum(stored, rules.capacity)[candidates], media[candidates], rules)
    kept = bins if rules.max_packs is None else bins[: rules.max_packs]
    starts = np.zeros(len(kept) + 1, np.int64)
    np.cumsum([len(members) for members in kept], out=starts[1:])
    chosen = candidates[_flat(kept)]
    cut = np.zeros(len(places.rows), dtype=bool)
    cut[candidates[_flat(bins[len(kept) :])]] = True
    places.lose(cut, CUT)
    pack_tokens = _sums(stored[chosen], starts)
    return PackedDataSet(
        pack_starts=starts,
        rows=places.rows[chosen],
        instead_of=places.instead_of[chosen],
        keep_tokens=places.keep[chosen],
        num_tokens=pack_tokens,
        num_media_tokens=_sums(media[chosen], starts),
        order_lengths=true_lengths[chosen] if rules.packing == "none" else pack_tokens,
        fates=places.fates,
        reasons=tuple(places.reasons),
    )


def keyed_order(count: int, seed: int) -> Numbers:
    """A permutation of `range(count)` that depends on the seed alone: by the SplitMix64 hash of each number."""
    with np.errstate(over="ignore"):
        state = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        state += np.uint64(seed & 0xFFFFFFFFFFFFFFFF) * np.uint64(0xD1342543DE82EF95)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return np.argsort(state, kind="stable")


class _Places:
    """The places of a data set: what is rendered in each, and the fate of the row it belongs to."""

    def __init__(self, table: RowTable, rules: RowRules) -> None:
        self.reasons = [PACKED]
        self.fates = np.zeros(len(table), np.int16)
        fits = table.fault < 0
        if rules.max_length is not None:
            fits = fits & (table.num_tokens <= rules.max_length)
        rows = np.arange(len(table), dtype=np.int64)
        instead_of = np.full(len(table), -1, np.int64)
        keep = table.num_tokens.copy()
        for row in np.flatnonzero(~fits).tolist():
            placed, reason = place_row(table, row, rules)
            self.fates[row] = self._number(reason)
            rows[row] = -1 if placed is None else placed.row
            if placed is not None:
                instead_of[row], keep[row] = placed.instead_of, placed.keep_tokens
        self._owners = np.flatnonzero(rows >= 0)  # the row whose place it is
        self.rows, self.instead_of, self.keep = rows[self._owners], instead_of[self._owners], keep[self._owners]

    def lose(self, places: npt.NDArray[np.bool_], reason: str) -> None:
        """Nothing is rendered at these places."""
        if places.any():
            self.fates[self._owners[places]] = self._number(reason)

    def _number(self, reason: str) -> int:
        if reason not in self.reasons:
            self.reasons.append(reason)
        return self.reasons.index(reason)


def _bins(lengths: npt.NDArray[np.int32], media: npt.NDArray[np.int32], rules: PackingRules) -> list[list[int]]:
    if rules.packing == "none":
        return [[place] for place in range(len(lengths))]
    bins = greedy_knapsack(lengths, rules.capacity) if rules.packing == "neat" else _best_fit(lengths, rules)
    return balance_by_media(bins, media) if rules.balance and (media > 0).any() else bins


def _best_fit(lengths: npt.NDArray[np.int32], rules: PackingRules) -> list[list[int]]:
    waiting = iter(keyed_order(len(lengths), rules.seed).tolist())

    def draw() -> Candidate[int] | None:
        place = next(waiting, None)
        return None if place is None else Candidate(num_tokens=int(lengths[place]), payload=place)

    packer: BestFitPacker[int] = BestFitPacker(
        draw=draw, draw_mandatory=(), budgets=Budgets(num_tokens=rules.capacity), pool_size=POOL_SIZE
    )
    return [[candidate.payload for candidate in pack] for pack in packer]


def _aligned(lengths: npt.NDArray[np.int32], alignment: int) -> npt.NDArray[np.int32]:
    return lengths if alignment == 1 else (-(-lengths // alignment) * alignment).astype(np.int32)


def _flat(bins: Sequence[Sequence[int]]) -> Numbers:
    return np.fromiter((member for members in bins for member in members), dtype=np.int64)


def _sums(values: npt.NDArray[np.int32], starts: Numbers) -> npt.NDArray[np.int32]:
    """Sum of each pack's run; no run is empty."""
    if len(starts) == 1:
        return np.zeros(0, np.int32)
    return np.add.reduceat(values, starts[:-1]).astype(np.int32)
