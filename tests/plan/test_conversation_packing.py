"""A VLM data set becomes packs: true lengths, every row with one fate, packs filled to the brim where asked."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.plan.conversation_packing import CUT, PACKED, PackedDataSet, PackingRules, keyed_order, pack_data_set
from pipeline.plan.conversation_rows import RowRules, RowTable

FAULTS = ("missing_file",)


def table(lengths: list[int], *, media: list[int] | None = None, faulty: set[int] | None = None) -> RowTable:
    count = len(lengths)
    faults = [0 if row in (faulty or ()) else -1 for row in range(count)]
    return RowTable(
        num_tokens=np.array(lengths, np.int32),
        num_media_tokens=np.array(media or [0] * count, np.int32),
        media_end=np.zeros(count, np.int32),
        fault=np.array(faults, np.int16),
        reasons=FAULTS,
        turn_end_offsets=np.zeros(count + 1, np.int64),
        turn_ends=np.zeros(0, np.int32),
    )


def rules(packing: str = "neat", *, pack_size: int = 10, on_bad_row: str = "drop", **changes: object) -> PackingRules:
    settings: dict[str, object] = {
        "rows": RowRules(max_length=None, truncation="off", on_bad_row=on_bad_row),  # type: ignore[arg-type]
        "packing": packing,
        "pack_size": pack_size,
        "capacity": pack_size,
        "alignment": 1,
        "balance": False,
        "max_packs": None,
        "length_limit": None,
        "seed": 0,
    }
    return PackingRules(**{**settings, **changes})  # type: ignore[arg-type]


def members(packed: PackedDataSet) -> list[list[int]]:
    return [
        packed.rows[start:end].tolist() for start, end in zip(packed.pack_starts, packed.pack_starts[1:], strict=False)
    ]


def fates(packed: PackedDataSet) -> list[str]:
    return [packed.reasons[fate] for fate in packed.fates]


def test_rows_are_shifted_by_one_token_before_they_are_packed() -> None:
    # 6 and 6 tokens are 5 and 5 shifted: one pack of 10.
    packed = pack_data_set(table([6, 6]), rules())
    assert members(packed) == [[0, 1]]
    assert packed.num_tokens.tolist() == [10]


def test_documents_take_a_multiple_of_the_alignment() -> None:
    packed = pack_data_set(table([6, 6]), rules(alignment=4))
    assert members(packed) == [[0], [1]]
    assert packed.num_tokens.tolist() == [8, 8]


def test_a_row_that_no_pack_can_hold_is_counted() -> None:
    packed = pack_data_set(table([12, 11, 3]), rules())
    assert members(packed) == [[1], [2]]
    assert fates(packed) == ["longer_than_pack", PACKED, PACKED]


def test_a_row_between_capacity_and_pack_size_has_a_pack_of_its_own() -> None:
    packed = pack_data_set(table([10, 3, 3]), rules(capacity=7))
    assert members(packed) == [[0], [1, 2]]


def test_balanced_packs_come_by_media_tokens_and_the_heaviest_are_cut() -> None:
    packed = pack_data_set(table([9, 9, 9], media=[5, 0, 2]), rules(balance=True, max_packs=2))
    assert members(packed) == [[1], [2]]
    assert fates(packed) == [CUT, PACKED, PACKED]


def test_a_faulty_row_is_replaced_by_its_keyed_stand_in() -> None:
    packed = pack_data_set(table([4] * 6, faulty={2}), rules("none", on_bad_row="replace"))
    stand_in = int(packed.rows[2])
    assert stand_in != 2
    assert packed.instead_of.tolist() == [-1, -1, 2, -1, -1, -1]
    assert fates(packed)[2] == "replaced: missing_file"


def test_unpacked_samples_are_stored_whole_and_ordered_by_their_true_length() -> None:
    settings = rules("none", rows=RowRules(max_length=5, truncation="tokens", on_bad_row="drop"), length_limit=8)
    packed = pack_data_set(table([4, 7, 9]), settings)
    assert packed.keep_tokens.tolist() == [4, 5]
    assert packed.num_tokens.tolist() == [4, 5]
    assert packed.order_lengths.tolist() == [4, 7]
    assert fates(packed) == [PACKED, PACKED, "beyond_length_limit"]


def test_best_fit_fills_packs_to_the_brim() -> None:
    generator = random.Random(3)
    lengths = [generator.randint(60, 1600) for _ in range(4000)]
    packed = pack_data_set(table(lengths), rules("best_fit", pack_size=4096))
    full = packed.num_tokens[:-1]  # the last packs hold what is left
    assert full[: int(0.95 * len(full))].min() > 0.99 * 4096
    assert packed.num_tokens.sum() / (packed.num_packs * 4096) > 0.99
    assert sorted(packed.rows.tolist()) == list(range(4000))


def test_neat_packing_is_not_best_fit() -> None:
    lengths = [1201 + row * 400 // 999 for row in range(1000)]
    filled = {
        packing: pack_data_set(table(lengths), rules(packing, pack_size=4096)).num_packs
        for packing in ("neat", "best_fit")
    }
    assert filled["best_fit"] < filled["neat"]


@pytest.mark.parametrize("count", [0, 1, 7, 1000])
def test_the_keyed_order_is_a_permutation_of_its_seed(count: int) -> None:
    assert sorted(keyed_order(count, 5).tolist()) == list(range(count))
    assert keyed_order(count, 5).tolist() == keyed_order(count, 5).tolist()
    assert count < 7 or keyed_order(count, 5).tolist() != keyed_order(count, 6).tolist()


def test_the_keyed_order_is_written_down() -> None:
    # It decides bins: another order would be another stream.
    assert keyed_order(8, 42).tolist() == KEYED_ORDER


KEYED_ORDER = [6, 3, 7, 0, 1, 2, 5, 4]


@given(
    lengths=st.lists(st.integers(0, 40), max_size=60),
    packing=st.sampled_from(["neat", "best_fit", "none"]),
    on_bad_row=st.sampled_from(["replace", "drop"]),
    max_packs=st.none() | st.integers(0, 5),
    alignment=st.sampled_from([1, 4]),
    data=st.data(),
)
def test_every_row_has_one_fate_and_no_pack_is_too_full(
    lengths: list[int], packing: str, on_bad_row: str, max_packs: int | None, alignment: int, data: st.DataObject
) -> None:
    faulty = data.draw(st.sets(st.integers(0, max(0, len(lengths) - 1)), max_size=5)) if lengths else set()
    settings = rules(packing, pack_size=24, on_bad_row=on_bad_row, max_packs=max_packs, alignment=alignment)
    packed = pack_data_set(table(lengths, faulty=faulty), settings)
    own = packed.rows[packed.instead_of < 0]
    assert sorted(own.tolist()) == np.flatnonzero(packed.fates == packed.reasons.index(PACKED)).tolist()
    assert len(packed.fates) == len(lengths)
    assert not faulty & set(packed.rows.tolist())
    if packing != "none":
        assert (packed.num_tokens <= 24).all()
