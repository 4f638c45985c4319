"""Index rows survive the way through arrow, whole or in slices, with all columns or a few."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.index_table import (
    content_digest,
    iter_rows,
    rows_to_table,
    source_index_from_json,
    source_index_to_json,
)
from pipeline.records import ImageEntry, IndexedUnit, IndexRow, SourceIndex
from pipeline.schemas import INDEX_SCHEMA, PLAN_COLUMNS

texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=8)
small = st.integers(min_value=-1, max_value=1000)
images = st.builds(
    ImageEntry,
    reference=texts,
    width_px=small,
    height_px=small,
    fault=texts,
    conditions=small,
    stamp=st.integers(min_value=0, max_value=(1 << 63) - 1),
)
rows = st.builds(
    IndexRow,
    row=st.integers(min_value=0, max_value=1 << 40),
    row_group=small,
    row_in_group=small,
    label=texts,
    fault=texts,
    fault_after_draws=st.booleans(),
    images=st.lists(images, max_size=3).map(tuple),
    num_frames=small,
    video_is_folder=st.booleans(),
    text_num_tokens=st.lists(small, max_size=3).map(tuple),
    text_ids=st.lists(st.lists(small, max_size=4).map(tuple), max_size=3).map(tuple),
    texts=st.lists(texts, max_size=3).map(tuple),
    text_group_sizes=st.lists(small, max_size=3).map(tuple),
    elements=st.lists(st.integers(0, 4), max_size=4).map(tuple),
    line_offset=st.integers(min_value=-1, max_value=1 << 40),
    line_num_bytes=small,
    conditions=small,
)


@given(st.lists(rows, max_size=12), st.integers(0, 6), st.integers(0, 6))
def test_rows_come_back_as_they_went_in(given_rows: list[IndexRow], start: int, count: int) -> None:
    table = rows_to_table(given_rows)
    assert table.schema == INDEX_SCHEMA
    assert list(iter_rows(table)) == given_rows
    assert list(iter_rows(table.slice(start, count))) == given_rows[start : start + count]
    assert list(iter_rows(pa.concat_tables([table, table.slice(start)]))) == given_rows + given_rows[start:]


@given(st.lists(rows, min_size=1, max_size=6))
def test_columns_left_out_have_their_default(given_rows: list[IndexRow]) -> None:
    expected = [
        replace(row, text_ids=(), images=tuple(replace(image, stamp=0) for image in row.images)) for row in given_rows
    ]
    assert list(iter_rows(rows_to_table(given_rows), PLAN_COLUMNS)) == expected
    assert list(iter_rows(rows_to_table(given_rows), ["row"])) == [IndexRow(row=row.row) for row in given_rows]


def digest_of(given_rows: list[IndexRow]) -> str:
    digest = hashlib.sha256()
    content_digest(rows_to_table(given_rows), digest)
    return digest.hexdigest()


def test_the_content_digest_sees_everything_but_stamps() -> None:
    row = IndexRow(row=1, images=(ImageEntry(width_px=3),), text_ids=((1, 2), (3,)), texts=("ab", "c"))
    assert digest_of([row]) == digest_of([replace(row, images=(ImageEntry(width_px=3, stamp=9),))])
    others = [
        replace(row, row=2),
        replace(row, images=(ImageEntry(width_px=4),)),
        replace(row, images=()),
        replace(row, text_ids=((1,), (2, 3))),
        replace(row, texts=("a", "bc")),
        replace(row, fault_after_draws=True),
    ]
    assert len({digest_of([row]), *(digest_of([other]) for other in others)}) == len(others) + 1


def test_the_content_digest_is_the_same_for_ever() -> None:
    row = IndexRow(row=7, images=(ImageEntry(reference="a.jpg", width_px=3, height_px=2),), text_ids=((5, 6),))
    assert digest_of([row])[:16] == "e88a0a5e3247a673"


def test_source_json_is_read_back_with_what_was_added_to_its_head() -> None:
    units = (
        IndexedUnit(unit="a.parquet", path="a.parquet", first_row=0, num_rows=3, row_group_sizes=(2, 1), content="x"),
        IndexedUnit(unit="ü", path="ü", first_row=0, num_rows=0, fault="unreadable_file"),
    )
    index = SourceIndex(source="t2i/one", units=units, rows_unused=4)
    text = source_index_to_json(index, {"fingerprint": "f"})
    assert source_index_from_json(text) == index
    assert text.count("\n") == 7
    with pytest.raises(ValueError, match="not a source index"):
        source_index_from_json("{}")
