"""Which rows of a VLM data set are used, in whose place, and how much of each: decided from lengths and faults alone.

    row i of the data set ── usable? ──► itself
                          └─ not ─────► on_bad_row: drop      nothing, counted
                                        on_bad_row: replace   row Random(0x9E3779B9 + 2654435761·i).randint(0, n - 1),
                                                              and again from the same generator, up to max_retries

The replacement is keyed by the row, so every rank and every rerun finds the same one (nemo-automodel 0.7.0
`vlm.datasets._replacement_rng`). Over-long rows are cut, replaced or dropped; a cut never goes through media: the
reference cuts at the token and replaces a row whose media it tore, `turns` cuts at the end of a turn.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

__all__ = ["PlacedRow", "RowRules", "RowTable", "place_row", "place_rows", "replacement_random"]

BadRow = Literal["replace", "drop"]
Truncation = Literal["off", "tokens", "turns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTable:
    """What the plan knows of every row, in data-set order.

    Attributes:
        num_tokens: int32 [rows], unshifted, media expanded.
        num_media_tokens: int32 [rows].
        media_end: int32 [rows], tokens up to and including the last media token.
        fault: int16 [rows], number of the reason in `reasons`, -1 if usable.
        reasons: Names of the faults.
        turn_end_offsets: int64 [rows + 1], where the row's entries of `turn_ends` lie.
        turn_ends: int32, token counts at which a turn has just ended.
    """

    num_tokens: npt.NDArray[np.int32]
    num_media_tokens: npt.NDArray[np.int32]
    media_end: npt.NDArray[np.int32]
    fault: npt.NDArray[np.int16]
    reasons: tuple[str, ...]
    turn_end_offsets: npt.NDArray[np.int64]
    turn_ends: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.num_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """What happens to rows that cannot be used as they are.

    Attributes:
        max_length: Longest unshifted sample, None for no limit.
        truncation: Cut over-long rows at the token (the reference), at the end of a turn, or not at all.
        on_bad_row: Replace or drop what cannot be used.
        max_retries: Attempts, the row itself included.
    """

    max_length: int | None
    truncation: Truncation
    on_bad_row: BadRow
    max_retries: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRow:
    """A row that will be rendered.

    Attributes:
        row: Its number in the data set.
        instead_of: The row whose place it takes, -1 if it is there in its own right.
        keep_tokens: Unshifted tokens to keep.
    """

    row: int
    instead_of: int
    keep_tokens: int


def replacement_random(row: int) -> random.Random:
    """The generator that draws the replacements of row `row`."""
    return random.Random(0x9E3779B9 + 2654435761 * row)


def place_rows(table: RowTable, rules: RowRules, drops: Counter[str]) -> Iterator[PlacedRow]:
    """The rows to pack, in data-set order; what is dropped or replaced is counted in `drops`.

    A dropped row counts under its reason, a replaced one under "replaced: <reason>", one for which no usable
    replacement was found under "no_replacement".
    """
    for row in range(len(table)):
        placed, reason = place_row(table, row, rules)
        if reason:
            drops[reason] += 1
        if placed is not None:
            yield placed


def place_row(table: RowTable, row: int, rules: RowRules) -> tuple[PlacedRow | None, str]:
    """What is rendered in the place of a row, and why that is not the row itself ("" if it is)."""
    keep, reason = _usable_tokens(table, row, rules)
    if not reason:
        return PlacedRow(row=row, instead_of=-1, keep_tokens=keep), ""
    if rules.on_bad_row == "drop":
        return None, reason
    placed = _replacement(table, row, rules)
    return placed, f"replaced: {reason}" if placed else "no_replacement"


def _replacement(table: RowTable, row: int, rules: RowRules) -> PlacedRow | None:
    generator = replacement_random(row)
    for _ in range(rules.max_retries - 1):
        candidate = generator.randint(0, len(table) - 1)
        keep, reason = _usable_tokens(table, candidate, rules)
        if not reason:
            return PlacedRow(row=candidate, instead_of=row, keep_tokens=keep)
    return None


def _usable_tokens(table: RowTable, row: int, rules: RowRules) -> tuple[int, str]:
    """Tokens of the row to keep, or why it cannot be used."""
    if table.fault[row] >= 0:
        return 0, table.reasons[table.fault[row]]
    num_tokens = int(table.num_tokens[row])
    if rules.max_length is None or num_tokens <= rules.max_length:
        return num_tokens, ""
    if rules.truncation == "off":
        return 0, "too_long"
    if rules.truncation == "tokens":
        cut = rules.max_length
    else:
        ends = table.turn_ends[table.turn_end_offsets[row] : table.turn_end_offsets[row + 1]]
        fitting = ends[ends <= rules.max_length]
        cut = int(fitting.max()) if len(fitting) else 0
    if cut == 0:
        return 0, "first_turn_too_long"
    if cut < table.media_end[row]:
        return 0, "media_cut"
    return cut, ""
