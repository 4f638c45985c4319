"""Rows that cannot be used are replaced by the keyed formula or dropped, and cut without tearing media."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from nemo_automodel.components.datasets.vlm.datasets import _replacement_rng

from pipeline.plan.conversation_rows import PlacedRow, RowRules, RowTable, place_rows, replacement_random


def table(
    num_tokens: list[int],
    faults: dict[int, str] | None = None,
    media_end: dict[int, int] | None = None,
    turn_ends: dict[int, list[int]] | None = None,
) -> RowTable:
    count = len(num_tokens)
    reasons = tuple(dict.fromkeys((faults or {}).values()))
    ends = [(turn_ends or {}).get(row, []) for row in range(count)]
    return RowTable(
        num_tokens=np.array(num_tokens, dtype=np.int32),
        num_media_tokens=np.zeros(count, dtype=np.int32),
        media_end=np.array([(media_end or {}).get(row, 0) for row in range(count)], dtype=np.int32),
        fault=np.array(
            [reasons.index(faults[row]) if faults and row in faults else -1 for row in range(count)], np.int16
        ),
        reasons=reasons,
        turn_end_offsets=np.cumsum([0, *map(len, ends)]),
        turn_ends=np.array([end for row in ends for end in row], dtype=np.int32),
    )


def place(rows: RowTable, rules: RowRules) -> tuple[list[PlacedRow], Counter[str]]:
    drops: Counter[str] = Counter()
    return list(place_rows(rows, rules, drops)), drops


def test_a_usable_row_is_itself() -> None:
    rules = RowRules(max_length=None, truncation="off", on_bad_row="replace")
    placed, drops = place(table([5, 6]), rules)
    assert placed == [
        PlacedRow(row=0, instead_of=-1, keep_tokens=5),
        PlacedRow(row=1, instead_of=-1, keep_tokens=6),
    ]
    assert not drops


@pytest.mark.parametrize("row", [0, 1, 17, 10**9])
def test_replacements_are_drawn_as_the_reference_draws_them(row: int) -> None:
    ours, theirs = replacement_random(row), _replacement_rng(row)
    assert [ours.randint(0, 99) for _ in range(5)] == [theirs.randint(0, 99) for _ in range(5)]


def test_a_faulty_row_is_replaced_by_the_first_usable_draw() -> None:
    rules = RowRules(max_length=None, truncation="off", on_bad_row="replace")
    count = 40
    faults = dict.fromkeys(range(0, count, 2), "decode_error")
    placed, drops = place(table([9] * count, faults), rules)
    for entry in placed:
        if entry.instead_of >= 0:
            generator = _replacement_rng(entry.instead_of)
            drawn = [generator.randint(0, count - 1) for _ in range(9)]
            assert entry.row == next(row for row in drawn if row not in faults)
    assert sum(drops.values()) == len(faults)


def test_a_data_set_without_one_usable_row_gives_up() -> None:
    rules = RowRules(max_length=None, truncation="off", on_bad_row="replace")
    placed, drops = place(table([9, 9], {0: "decode_error", 1: "decode_error"}), rules)
    assert placed == []
    assert drops == {"no_replacement": 2}


def test_a_dropped_row_leaves_its_reason() -> None:
    rules = RowRules(max_length=8, truncation="off", on_bad_row="drop")
    placed, drops = place(table([5, 9, 7], {2: "missing_file"}), rules)
    assert [entry.row for entry in placed] == [0]
    assert drops == {"too_long": 1, "missing_file": 1}


def test_the_reference_cuts_at_the_token_unless_media_would_be_torn() -> None:
    rules = RowRules(max_length=8, truncation="tokens", on_bad_row="drop")
    placed, drops = place(table([12, 12], media_end={0: 8, 1: 9}), rules)
    assert placed == [PlacedRow(row=0, instead_of=-1, keep_tokens=8)]
    assert drops == {"media_cut": 1}


def test_turns_are_never_cut_where_asked() -> None:
    rules = RowRules(max_length=8, truncation="turns", on_bad_row="drop")
    ends = {0: [3, 7, 12], 1: [9, 12], 2: [3, 12]}
    placed, drops = place(table([12, 12, 12], turn_ends=ends, media_end={2: 5}), rules)
    assert placed == [PlacedRow(row=0, instead_of=-1, keep_tokens=7)]
    assert drops == {"first_turn_too_long": 1, "media_cut": 1}
