"""Parquet in slices, whatever the columns are made of, with pandas' index labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import SourceError
from pipeline.sources import parquet_rows
from pipeline.sources.parquet_rows import (
    INVALID_UTF8,
    ParquetFault,
    RowLabels,
    check_columns,
    iter_slices,
    opened_parquet,
    python_cells,
)
from pipeline.storage import Storage


def labels_of(path: Path) -> list[list[Any]]:
    """Labels of every row group, "" replaced by the row's number."""
    found = []
    with opened_parquet(str(path), Storage()) as parquet:
        labels = RowLabels.of_file(parquet)
        for number in range(parquet.num_row_groups):
            start, texts = 0, []
            num_rows = parquet.metadata.row_group(number).num_rows
            for batch in iter_slices(parquet, number, ["x", *labels.columns]):
                texts += labels.of_slice(batch, start, num_rows)
                start += batch.num_rows
            found.append([json.loads(text) if text else row for row, text in enumerate(texts)])
    return found


@pytest.mark.parametrize(
    "index",
    [
        pd.RangeIndex(6),
        pd.RangeIndex(10, 22, 2),
        pd.Index([5, 3, 3, 9, 0, 1]),
        pd.Index(list("abcdef"), name="letter"),
        pd.Index([0.5, 1.5, 2.5, 3.5, 4.5, 5.5]),
        pd.MultiIndex.from_tuples([(1, "a"), (1, "b"), (2, "a"), (2, "b"), (3, "a"), (3, "b")]),
    ],
)
@pytest.mark.parametrize("rows_per_group", [6, 4, 1])
def test_labels_are_those_of_to_pandas_of_each_row_group(
    tmp_path: Path, index: pd.Index, rows_per_group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_rows, "_MOST_ROWS", 2)
    pd.DataFrame({"x": range(6)}, index=index).to_parquet(tmp_path / "a.parquet", row_group_size=rows_per_group)
    file = pq.ParquetFile(tmp_path / "a.parquet")
    expected = [list(file.read_row_group(number).to_pandas().index) for number in range(file.num_row_groups)]
    file.close()
    assert labels_of(tmp_path / "a.parquet") == json.loads(json.dumps(expected))


def test_a_file_without_pandas_metadata_has_plain_row_numbers(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "a.parquet", row_group_size=2)
    assert labels_of(tmp_path / "a.parquet") == [[0, 1], [0]]


@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        (pa.binary(), [b"a", None, b""]),
        (pa.large_binary(), [b"a", None, b""]),
        (pa.binary_view(), [b"a", None, b""]),
        (pa.struct([("bytes", pa.binary()), ("path", pa.string())]), [{"bytes": b"a", "path": None}, None]),
        (pa.list_(pa.binary()), [[b"a", None], [], None]),
        (pa.list_(pa.struct([("bytes", pa.large_binary())])), [[{"bytes": b"a"}], []]),
        (pa.large_list(pa.binary_view()), [[b"a"], None]),
        (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "a"]),
    ],
)
def test_every_kind_of_column_comes_as_python_objects(tmp_path: Path, kind: pa.DataType, cells: list[Any]) -> None:
    pq.write_table(pa.table({"x": pa.array(cells, kind)}), tmp_path / "a.parquet")
    with opened_parquet(str(tmp_path / "a.parquet"), Storage()) as parquet:
        found = [cell for batch in iter_slices(parquet, 0, ["x"]) for cell in python_cells(batch.column(0))]
    assert found == cells


def test_a_row_group_is_read_in_slices_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_rows, "SLICE_BYTES", 10_000)
    cells = [bytes([number]) * 3000 for number in range(12)]
    pq.write_table(pa.table({"x": cells, "y": range(12)}), tmp_path / "a.parquet", compression="none")
    with opened_parquet(str(tmp_path / "a.parquet"), Storage()) as parquet:
        sizes = [batch.num_rows for batch in iter_slices(parquet, 0, ["x"])]
    assert sum(sizes) == 12
    assert max(sizes) <= 3


def test_text_that_is_no_utf8_is_marked_cell_by_cell(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(pa.string(), 3, pa.array([b"good", b"\xff", b"fine"]).buffers())
    pq.write_table(pa.table({"x": broken}), tmp_path / "a.parquet")
    with opened_parquet(str(tmp_path / "a.parquet"), Storage()) as parquet:
        cells = [cell for batch in iter_slices(parquet, 0, ["x"]) for cell in python_cells(batch.column(0))]
    assert cells == ["good", INVALID_UTF8, "fine"]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all, but long enough to look at"])
def test_a_file_that_is_no_parquet_is_a_fault(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(ParquetFault, match="unreadable_file"), opened_parquet(str(tmp_path / "a.parquet"), Storage()):
        pass


def test_a_missing_column_is_an_error_that_lists_what_there_is(tmp_path: Path) -> None:
    pq.write_table(pa.table({"picture": [b""], "text": ["a"]}), tmp_path / "a.parquet")
    with (
        opened_parquet(str(tmp_path / "a.parquet"), Storage()) as parquet,
        pytest.raises(SourceError, match="no column 'image'; its columns are 'picture', 'text'"),
    ):
        check_columns(parquet, ["image", "captions"], "t2i/one", "a.parquet")
