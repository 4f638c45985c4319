"""Single cells of parquet files for a reader that mostly moves forward.

A row group is streamed in slices (`parquet_rows`); recent slices of all row groups stay in a cache of bounded size, so
a row that comes a little late (it waited in the packer's buffer) is found there.

    row group 0   [slice 0][slice 1][slice 2]…      cursor: after slice 2; slices 1 and 2 cached
                                ▲ late row           found in the cache; a row of slice 0 would start the stream again
"""

from __future__ import annotations

import contextlib
import json
from collections import OrderedDict
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.bake import BakeFolder
from pipeline.errors import RunFailed
from pipeline.records import IndexRow, RowId
from pipeline.sources.parquet_rows import ParquetFault, iter_slices, open_parquet
from pipeline.storage import FileIdentity, Storage

__all__ = ["ParquetCells"]

_MOST_CURSORS = 8
_MOST_FOOTERS = 64
_METADATA_KEY = b"parbake"  # of an index file, see `index.records`

_Place = tuple[str, int]
"""URL and row group."""


@dataclass(slots=True)
class _Cursor:
    """A row group that is being streamed: what is left of it, and the row the next slice begins at."""

    parquet: pq.ParquetFile
    slices: Iterator[pa.RecordBatch]
    next_row: int = 0

    def close(self) -> None:
        if isinstance(self.slices, Generator):
            self.slices.close()
        self.parquet.close(force=True)


class ParquetCells:
    """Reads cells of one column. Not shared between threads."""

    def __init__(self, storage: Storage, folder: BakeFolder, cache_bytes: int) -> None:
        self._storage = storage
        self._folder = folder
        self._cache_bytes = cache_bytes
        self._cached_bytes = 0
        self._slices: OrderedDict[tuple[_Place, int], pa.RecordBatch] = OrderedDict()
        self._cursors: OrderedDict[_Place, _Cursor] = OrderedDict()
        self._footers: OrderedDict[str, pq.FileMetaData] = OrderedDict()
        self._identities: dict[tuple[str, str], FileIdentity] = {}

    def cell(self, url: str, column: str, row_id: RowId, row: IndexRow) -> object:
        """The cell of a row as a Python object.

        Raises:
            RunFailed: The file is gone, changed since it was indexed, or cannot be read.
        """
        place = (url, row.row_group)
        for key in [key for key in self._slices if key[0] == place]:
            start, batch = key[1], self._slices[key]
            if start <= row.row_in_group < start + batch.num_rows:
                self._slices.move_to_end(key)
                return batch.column(0)[row.row_in_group - start].as_py()
        try:
            start, batch = self._advance(place, column, row_id, row.row_in_group)
        except (ParquetFault, OSError) as error:
            raise RunFailed(
                f"{row_id.source}: {url} could be read when it was indexed and cannot be read now ({error}). Row "
                f"{row_id.row} cannot be rendered. See to the file and run the same command again."
            ) from error
        return batch.column(0)[row.row_in_group - start].as_py()

    def close(self) -> None:
        """Close the files that are open and forget what was read."""
        for cursor in self._cursors.values():
            cursor.close()
        self._cursors.clear()
        self._slices.clear()
        self._cached_bytes = 0

    def _advance(self, place: _Place, column: str, row_id: RowId, row: int) -> tuple[int, pa.RecordBatch]:
        """Stream the row group up to the slice that holds the row."""
        cursor = self._cursors.get(place)
        if cursor is None or cursor.next_row > row:
            cursor = self._start(place, column, row_id)
        self._cursors.move_to_end(place)
        for batch in cursor.slices:
            start = cursor.next_row
            cursor.next_row += batch.num_rows
            self._remember((place, start), batch)
            if row < cursor.next_row:
                return start, batch
        raise RunFailed(
            f"{row_id.source}: {place[0]} has no row {row} in row group {place[1]}, though it had when it was indexed. "
            "Run the same command again, so that the file is indexed again."
        )

    def _start(self, place: _Place, column: str, row_id: RowId) -> _Cursor:
        """A new cursor at the beginning of a row group; the least recently used ones are closed."""
        if place in self._cursors:
            self._cursors.pop(place).close()
        while len(self._cursors) >= _MOST_CURSORS:
            self._cursors.popitem(last=False)[1].close()
        url, row_group = place
        self._refuse_changed(url, row_id)
        parquet = open_parquet(url, self._storage, self._footers.get(url))
        self._footers[url] = parquet.metadata
        if len(self._footers) > _MOST_FOOTERS:
            self._footers.popitem(last=False)
        cursor = self._cursors[place] = _Cursor(parquet, iter_slices(parquet, row_group, [column]))
        return cursor

    def _remember(self, key: tuple[_Place, int], batch: pa.RecordBatch) -> None:
        replaced = self._slices.pop(key, None)
        self._cached_bytes += batch.nbytes - (replaced.nbytes if replaced is not None else 0)
        self._slices[key] = batch
        while self._cached_bytes > self._cache_bytes and len(self._slices) > 1:
            self._cached_bytes -= self._slices.popitem(last=False)[1].nbytes

    def _refuse_changed(self, url: str, row_id: RowId) -> None:
        """Stop unless the file is the one that was indexed."""
        key = (row_id.source, row_id.unit)
        if key not in self._identities:
            self._identities[key] = self._indexed_identity(row_id)
        if self._storage.identity(url) != self._identities[key]:
            raise RunFailed(
                f"{row_id.source}: {url} changed since it was indexed, so its rows are no longer the ones that were "
                "planned. Put the old file back, or run the same command again to index and plan the new one."
            )

    def _indexed_identity(self, row_id: RowId) -> FileIdentity:
        url = self._folder.index_unit(row_id.source, row_id.unit)
        with contextlib.suppress(OSError, pa.ArrowException, ValueError, KeyError, TypeError):
            with self._storage.open(url) as file:
                metadata = pq.read_metadata(file).metadata or {}
            return FileIdentity(**json.loads(metadata[_METADATA_KEY])["identity"])
        raise RunFailed(
            f"{url} cannot be read, so nobody can say whether {row_id.path} is still the file that was indexed. "
            "Run the same command again from the index on."
        )
