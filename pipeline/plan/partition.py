"""A lane's part of a group, read once over: index rows in lane order with their ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.bake import BakeFolder
from pipeline.index_table import iter_rows
from pipeline.plan.assignment import Assignment, lane_name
from pipeline.records import IndexRow, RowId
from pipeline.schemas import PLAN_COLUMNS
from pipeline.storage import Storage

__all__ = ["LaneRow", "Partition"]

BATCH_ROWS = 1024
KEPT_ROWS = 2048
"""A part of no more rows than this is read from storage once and kept for the next passes."""

LaneRow = tuple[IndexRow, RowId, int]
"""A row, its id, and the number of its path in the lane's list."""


@dataclass(slots=True, kw_only=True)
class Partition:
    """Streams the part of one lane, one record batch at a time."""

    folder: BakeFolder
    storage: Storage
    group: str
    lane: int
    assignment: Assignment
    _kept: list[LaneRow] | None = None

    @property
    def num_rows(self) -> int:
        """Rows of one pass."""
        return self.assignment.lanes[self.lane].num_rows

    def read(self) -> Iterator[LaneRow]:
        """Every row of the part, in order: one pass."""
        if self._kept is None and self.num_rows <= KEPT_ROWS:
            self._kept = list(self._read())
        return iter(self._kept) if self._kept is not None else self._read()

    def _read(self) -> Iterator[LaneRow]:
        with self.storage.open(self.folder.assign(self.group, lane_name(self.lane))) as file:
            if self.assignment.form == "files":
                for ordinal, unit in enumerate(pq.ParquetFile(file).read().column("unit").to_pylist()):
                    yield from self._unit_rows(unit, ordinal)
            else:
                for batch in pq.ParquetFile(file).iter_batches(batch_size=BATCH_ROWS):
                    yield from self._batch_rows(batch)

    def _unit_rows(self, number: int, ordinal: int) -> Iterator[LaneRow]:
        unit = self.assignment.units[number]
        index_row = 0
        with self.storage.open(self.folder.index_unit(unit.source, unit.unit)) as file:
            for batch in pq.ParquetFile(file).iter_batches(batch_size=BATCH_ROWS, columns=list(PLAN_COLUMNS)):
                for row in iter_rows(batch):
                    yield row, self._row_id(number, row, index_row), ordinal
                    index_row += 1

    def _batch_rows(self, batch: pa.RecordBatch) -> Iterator[LaneRow]:
        extra = [batch.column(name).to_numpy().tolist() for name in ("unit", "index_row", "ordinal")]
        for row, unit, index_row, ordinal in zip(iter_rows(batch, PLAN_COLUMNS), *extra, strict=True):
            yield row, self._row_id(unit, row, index_row), ordinal

    def _row_id(self, number: int, row: IndexRow, index_row: int) -> RowId:
        unit = self.assignment.units[number]
        return RowId(
            source=unit.source, path=unit.path, row=unit.first_row + row.row, unit=unit.unit, index_row=index_row
        )
