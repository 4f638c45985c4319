"""The lengths of all rows of a VLM bake, as arrays: what the plan needs of the index, some 30 bytes a row.

    index/<source>/<unit>.parquet, columns VLM_PLAN_COLUMNS      source 0 │ unit 0 │ row 0, row 1, …
                                                                          │ unit 1 │ …
    concatenated in the order of sources and units:              source 1 │ …

A row's number in these arrays is called its *entry*; units and sources are runs of entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.bake import BakeFolder
from pipeline.errors import SourceError
from pipeline.plan.conversation_rows import RowTable
from pipeline.records import IndexedUnit, RowId, SourceIndex
from pipeline.sources.conversations.order import DatasetRows
from pipeline.storage import Storage

__all__ = ["IndexEntries", "read_entries"]

CONNECTIONS = 16
COLUMNS = ("row", "fault", "num_tokens", "num_media_tokens", "media_end", "turn_ends", "reference_length", "conditions")

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntries:
    """Every row of every source, measured.

    Attributes:
        sources: Names, in the order of the data set.
        source_starts: int64 [sources + 1], first entry of each source.
        units_per_source: Of each source.
        units: Source name and unit, in the order of the entries.
        unit_starts: int64 [units + 1], first entry of each unit.
        row: int64 [entries], number in the unit's own count.
        reference_length: int32 [entries].
        conditions: int32 [entries].
        table: The lengths.
    """

    sources: tuple[str, ...]
    source_starts: Numbers
    units_per_source: tuple[int, ...]
    units: tuple[tuple[str, IndexedUnit], ...]
    unit_starts: Numbers
    row: Numbers
    reference_length: npt.NDArray[np.int32]
    conditions: npt.NDArray[np.int32]
    table: RowTable

    def __len__(self) -> int:
        return len(self.row)

    def entries_of(self, rows: DatasetRows) -> Numbers:
        """int64 [rows]: the entry of every row of a data set."""
        first_units = np.cumsum([0, *self.units_per_source])[:-1]
        return self.unit_starts[first_units[rows.source] + rows.unit] + rows.index_row

    def source_of(self, entries: Numbers) -> Numbers:
        """int64 [entries]: number of each entry's source."""
        return np.searchsorted(self.source_starts, entries, side="right") - 1

    def row_ids(self, entries: Numbers) -> list[RowId]:
        """The stable ids of entries."""
        units = np.searchsorted(self.unit_starts, entries, side="right") - 1
        ids = []
        for unit_number, row, index_row in zip(
            units.tolist(),
            self.row[entries].tolist(),
            (entries - self.unit_starts[units]).tolist(),
            strict=True,
        ):
            source, unit = self.units[unit_number]
            ids.append(
                RowId(source=source, path=unit.path, row=unit.first_row + row, unit=unit.unit, index_row=index_row)
            )
        return ids

    def selected(self, entries: Numbers) -> RowTable:
        """The lengths of a data set made of these entries, in their order."""
        table = self.table
        starts, ends = table.turn_end_offsets[entries], table.turn_end_offsets[entries + 1]
        counts = ends - starts
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        places = np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])
        return RowTable(
            num_tokens=table.num_tokens[entries],
            num_media_tokens=table.num_media_tokens[entries],
            media_end=table.media_end[entries],
            fault=table.fault[entries],
            reasons=table.reasons,
            turn_end_offsets=offsets,
            turn_ends=table.turn_ends[places],
        )


def read_entries(
    folder: BakeFolder, storage: Storage, indexes: Sequence[SourceIndex], *, turn_ends: bool
) -> IndexEntries:
    """Read all index units, several at a time.

    Args:
        folder: The bake.
        storage: Reads.
        indexes: Of the sources, in the order of the data set.
        turn_ends: Read the ends of turns too (only `truncation: turns` needs them).

    Raises:
        SourceError: an index file is missing or holds another number of rows than `source.json` says.
    """
    units = tuple((index.source, unit) for index in indexes for unit in index.units)
    columns = [name for name in COLUMNS if turn_ends or name != "turn_ends"]

    def read(unit: tuple[str, IndexedUnit]) -> pa.Table:
        return _read_unit(folder, storage, unit, columns)

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        tables = list(pool.map(read, units))
    rows_per_source = [sum(unit.num_rows for unit in index.units) for index in indexes]
    joined = pa.concat_tables(tables).combine_chunks() if tables else None
    reasons, fault = _faults(joined)
    offsets, ends = _turn_ends(joined, turn_ends=turn_ends)
    return IndexEntries(
        sources=tuple(index.source for index in indexes),
        source_starts=_starts(rows_per_source),
        units_per_source=tuple(len(index.units) for index in indexes),
        units=units,
        unit_starts=_starts([unit.num_rows for _, unit in units]),
        row=_numbers(joined, "row").astype(np.int64),
        reference_length=_numbers(joined, "reference_length").astype(np.int32),
        conditions=_numbers(joined, "conditions").astype(np.int32),
        table=RowTable(
            num_tokens=_numbers(joined, "num_tokens").astype(np.int32),
            num_media_tokens=_numbers(joined, "num_media_tokens").astype(np.int32),
            media_end=_numbers(joined, "media_end").astype(np.int32),
            fault=fault,
            reasons=reasons,
            turn_end_offsets=offsets,
            turn_ends=ends,
        ),
    )


def _read_unit(folder: BakeFolder, storage: Storage, unit: tuple[str, IndexedUnit], columns: list[str]) -> pa.Table:
    source, indexed = unit
    url = folder.index_unit(source, indexed.unit)
    try:
        with storage.open(url) as file:
            table = pq.read_table(file, columns=columns, use_threads=False)
    except (FileNotFoundError, pa.ArrowInvalid, KeyError) as error:
        raise SourceError(
            f"{url} cannot be read ({error}), so nobody knows the lengths of its rows; run `parbake index` again."
        ) from error
    if table.num_rows != indexed.num_rows:
        raise SourceError(
            f"{url} has {table.num_rows} rows and source.json says {indexed.num_rows}; rows would be numbered wrongly; "
            "run `parbake index` again."
        )
    return table


def _numbers(table: pa.Table | None, column: str) -> npt.NDArray[np.integer]:
    return np.zeros(0, np.int64) if table is None else table.column(column).to_numpy()


def _faults(table: pa.Table | None) -> tuple[tuple[str, ...], npt.NDArray[np.int16]]:
    """Names of the reasons, sorted, and each row's number among them, -1 for none."""
    if table is None:
        return (), np.zeros(0, np.int16)
    column = table.column("fault")
    reasons = sorted(reason for reason in pc.unique(column).to_pylist() if reason)
    numbers = pc.fill_null(pc.index_in(column, value_set=pa.array(reasons, pa.string())), -1)
    return tuple(reasons), numbers.to_numpy().astype(np.int16)


def _turn_ends(table: pa.Table | None, *, turn_ends: bool) -> tuple[Numbers, npt.NDArray[np.int32]]:
    num_rows = 0 if table is None else table.num_rows
    if table is None or not turn_ends or not num_rows:
        return np.zeros(num_rows + 1, np.int64), np.zeros(0, np.int32)
    column = table.column("turn_ends")
    return _starts(pc.list_value_length(column).to_numpy()), pc.list_flatten(column).to_numpy().astype(np.int32)


def _starts(lengths: Sequence[int] | npt.NDArray[np.integer]) -> Numbers:
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts
