"""Parquet files, read in slices: a row group of 2 GB of images is never one array.

A slice is a batch of rows of one row group whose columns together hold about `SLICE_BYTES`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import SourceError
from pipeline.storage import Storage

__all__ = [
    "INVALID_UTF8",
    "SLICE_BYTES",
    "UNREADABLE",
    "ParquetFault",
    "RowLabels",
    "check_columns",
    "iter_slices",
    "open_parquet",
    "opened_parquet",
    "python_cells",
]

SLICE_BYTES = 32 << 20
_MOST_ROWS = 4096
_BUFFER_BYTES = 4 << 20  # column chunks are streamed, not loaded whole

UNREADABLE = "unreadable_file"


class ParquetFault(Exception):
    """The file or row group cannot be read; the message is the reason."""


class _InvalidText:
    """Stands in a cell for text that is not UTF-8."""


INVALID_UTF8 = _InvalidText()


def open_parquet(url: str, storage: Storage, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """Open a parquet file; only its footer is read, and not even that where it is given.

    Raises:
        ParquetFault: It is no parquet file: empty, cut, or something else.
        FileNotFoundError: It is not there.
    """
    file = storage.open(url)
    try:
        return pq.ParquetFile(file, metadata=footer, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        file.close()
        raise ParquetFault(UNREADABLE) from error


@contextlib.contextmanager
def opened_parquet(url: str, storage: Storage) -> Iterator[pq.ParquetFile]:
    """`open_parquet`, closed again at the end of the block together with the file below it."""
    parquet = open_parquet(url, storage)
    try:
        yield parquet
    finally:
        parquet.close(force=True)


def check_columns(parquet: pq.ParquetFile, columns: Sequence[str], source: str, path: str) -> None:
    """Refuse a file that lacks a column.

    Raises:
        SourceError: It does; the message lists what there is.
    """
    found = parquet.schema_arrow.names
    missing = [name for name in columns if name not in found]
    if missing:
        raise SourceError(
            f"{source}: {path!r} has no column {missing[0]!r}; its columns are {', '.join(map(repr, found))}. Rows of "
            f"this kind are read from {' and '.join(map(repr, columns))}. Rename the column, or correct data_dir."
        )


def iter_slices(parquet: pq.ParquetFile, row_group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a row group, in order, in slices.

    Raises:
        ParquetFault: The row group cannot be read to its end.
    """
    group = parquet.metadata.row_group(row_group)
    wanted = set(columns)
    num_bytes = sum(
        column.total_uncompressed_size
        for column in map(group.column, range(group.num_columns))
        if column.path_in_schema.split(".", 1)[0] in wanted
    )
    row_bytes = max(1, num_bytes // max(1, group.num_rows))
    batch_size = max(1, min(_MOST_ROWS, SLICE_BYTES // row_bytes))
    try:
        yield from parquet.iter_batches(batch_size=batch_size, row_groups=[row_group], columns=list(columns))
    except (pa.ArrowException, OSError) as error:
        raise ParquetFault("unreadable_row_group") from error


def python_cells(array: pa.Array) -> list[Any]:
    """A column as Python objects; a cell whose text is no UTF-8 is `INVALID_UTF8`."""
    try:
        cells: list[Any] = array.to_pylist()
        return cells
    except UnicodeDecodeError:
        return [_cell(scalar) for scalar in array]


def _cell(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return INVALID_UTF8


@dataclass(frozen=True, slots=True)
class RowLabels:
    """pandas index labels of rows, as `to_pandas()` of a row group gives them.

    Attributes:
        columns: Columns of the file that hold index levels and must be read for `of_slice`.
    """

    columns: tuple[str, ...]
    _ranges: tuple[tuple[int, int, int], ...]  # start, stop, step
    _order: tuple[str | int, ...]  # each level: a column, or a number into _ranges

    @classmethod
    def of_file(cls, parquet: pq.ParquetFile) -> RowLabels:
        """What the file's pandas metadata says; nothing where there is none."""
        schema = parquet.schema_arrow
        try:
            descriptors = (schema.pandas_metadata or {}).get("index_columns", [])
        except (ValueError, AttributeError):
            descriptors = []
        columns: list[str] = []
        ranges: list[tuple[int, int, int]] = []
        order: list[str | int] = []
        for descriptor in descriptors:
            if isinstance(descriptor, str) and descriptor in schema.names:
                columns.append(descriptor)
                order.append(descriptor)
            elif isinstance(descriptor, Mapping) and descriptor.get("kind") == "range":
                order.append(len(ranges))
                ranges.append((int(descriptor["start"]), int(descriptor["stop"]), int(descriptor["step"])))
        return cls(tuple(columns), tuple(ranges), tuple(order))

    def of_slice(self, batch: pa.RecordBatch, first_row: int, num_rows: int) -> list[str]:
        """JSON text of each label, "" where it is the row's number in its row group.

        Args:
            batch: A slice that has `columns`.
            first_row: Number of its first row in the row group.
            num_rows: Rows of the row group: a range of another length is not used (the file has several row groups).
        """
        levels: list[Sequence[Any]] = []
        for level in self._order:
            if isinstance(level, str):
                levels.append(python_cells(batch.column(level)))
                continue
            labels = range(*self._ranges[level])
            if len(labels) == num_rows:
                levels.append(labels[first_row : first_row + batch.num_rows])
        if not levels:
            return [""] * batch.num_rows
        if len(levels) == 1:
            return [
                "" if label == first_row + offset and type(label) is int else _label_text(label)
                for offset, label in enumerate(levels[0])
            ]
        return [_label_text(list(label)) for label in zip(*levels, strict=True)]


def _label_text(label: object) -> str:
    return json.dumps(label, default=str)
