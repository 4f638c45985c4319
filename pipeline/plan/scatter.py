"""Write index rows in another order without holding them: an external bucket shuffle.

    index units, each read once, in order          ──►  buckets of consecutive destinations, spilled to local files
    each bucket, read once, sorted in memory        ──►  lane-00000.parquet, lane-00001.parquet, …

A lane file holds PLAN_COLUMNS and three more: `unit` (number in the assignment's list), `index_row` and `ordinal` (the
number that `data_indexes` counts in the worker's own list). Memory: one index batch and one bucket.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.plan.order import Positions
from pipeline.schemas import INDEX_SCHEMA, PLAN_COLUMNS
from pipeline.storage import Storage

__all__ = ["LANE_ROWS_SCHEMA", "ROW_GROUP_SIZE", "Moves", "scatter_rows"]

BUCKET_ROWS = 1 << 15
MAX_BUCKETS = 256
BATCH_ROWS = 1 << 14
ROW_GROUP_SIZE = 4096

LANE_ROWS_SCHEMA = pa.schema(
    [
        *(INDEX_SCHEMA.field(name) for name in PLAN_COLUMNS),
        ("unit", pa.int32()),
        ("index_row", pa.int32()),
        ("ordinal", pa.int64()),
    ]
)
_DESTINATION = "destination"
_SPILL_SCHEMA = LANE_ROWS_SCHEMA.append(pa.field(_DESTINATION, pa.int64()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Where the rows of one index unit go. A row may go to several places or to none.

    Attributes:
        unit: Number of the unit in the assignment's list.
        url: Its index file.
        index_rows: Rows that go somewhere, ascending, int64 [n].
        destinations: Place of each in all lanes' lists one after another, int64 [n].
        ordinals: Number of its path in the lane's list, int64 [n].
    """

    unit: int
    url: str
    index_rows: Positions
    destinations: Positions
    ordinals: Positions


def scatter_rows(units: Iterable[Moves], lane_sizes: Sequence[int], lane_urls: Sequence[str], storage: Storage) -> None:
    """Publish every lane's rows in lane order; every destination below `sum(lane_sizes)` must be named exactly once."""
    bucket_rows = max(BUCKET_ROWS, -(-sum(lane_sizes) // MAX_BUCKETS))
    num_buckets = -(-sum(lane_sizes) // bucket_rows)
    with tempfile.TemporaryDirectory(prefix="parbake-assign-") as temporary:
        paths = [Path(temporary) / f"{number:04d}.arrow" for number in range(num_buckets)]
        _spill(units, paths, bucket_rows, storage)
        _write_lanes(_sorted_buckets(paths), lane_sizes, lane_urls, storage)


def _spill(units: Iterable[Moves], paths: Sequence[Path], bucket_rows: int, storage: Storage) -> None:
    writers = [pa.ipc.new_stream(str(path), _SPILL_SCHEMA) for path in paths]
    try:
        for moves in units:
            for batch in _moved(moves, storage):
                # [n] destinations, ascending: a bucket's rows are one slice
                destinations = batch.column(_DESTINATION).to_numpy()
                bounds = np.searchsorted(destinations // bucket_rows, np.arange(len(paths) + 1))
                for number in np.flatnonzero(np.diff(bounds)).tolist():
                    first, last = int(bounds[number]), int(bounds[number + 1])
                    writers[number].write_batch(batch.slice(first, last - first))
    finally:
        for writer in writers:
            writer.close()


def _moved(moves: Moves, storage: Storage) -> Iterator[pa.RecordBatch]:
    """The unit's moved rows as batches of `_SPILL_SCHEMA`, each sorted by destination."""
    if not len(moves.index_rows):
        return
    with storage.open(moves.url) as file:
        first = 0
        for batch in pq.ParquetFile(file).iter_batches(batch_size=BATCH_ROWS, columns=list(PLAN_COLUMNS)):
            part = slice(*np.searchsorted(moves.index_rows, (first, first + batch.num_rows)).tolist())
            order = np.argsort(moves.destinations[part], kind="stable")
            index_rows = moves.index_rows[part][order]
            columns = batch.take(pa.array(index_rows - first)).columns
            extra = [
                pa.array(np.full(len(order), moves.unit, np.int32)),
                pa.array(index_rows.astype(np.int32)),
                pa.array(moves.ordinals[part][order]),
                pa.array(moves.destinations[part][order]),
            ]
            yield pa.RecordBatch.from_arrays([*columns, *extra], schema=_SPILL_SCHEMA)
            first += batch.num_rows


def _sorted_buckets(paths: Sequence[Path]) -> Iterator[pa.Table]:
    """The buckets in order, their rows sorted by destination and rid of it."""
    for path in paths:
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
            table = stream.read_all()
        path.unlink()
        order = np.argsort(table.column(_DESTINATION).to_numpy())
        yield table.drop_columns(_DESTINATION).take(pa.array(order)).combine_chunks()


def _write_lanes(
    buckets: Iterator[pa.Table], lane_sizes: Sequence[int], lane_urls: Sequence[str], storage: Storage
) -> None:
    bucket = LANE_ROWS_SCHEMA.empty_table()
    for size, url in zip(lane_sizes, lane_urls, strict=True):
        with storage.publishing(url) as file, pq.ParquetWriter(file, LANE_ROWS_SCHEMA) as writer:
            wanted = size
            while wanted:
                if not bucket.num_rows:
                    bucket = next(buckets)
                piece = bucket.slice(0, wanted)
                bucket = bucket.slice(piece.num_rows)
                writer.write_table(piece, row_group_size=ROW_GROUP_SIZE)
                wanted -= piece.num_rows
