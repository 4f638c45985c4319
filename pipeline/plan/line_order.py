"""Sorted order of the JSONL lines of a group: fetches offsets from the index and texts from the files."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from pipeline.bake import BakeFolder
from pipeline.config import SourceConfig
from pipeline.errors import Bug, SourceError
from pipeline.plan.line_sort import Bytes, LineFile, RawLines, sort_lines
from pipeline.plan.order import Positions
from pipeline.records import SourceIndex
from pipeline.storage import Storage

__all__ = ["sorted_lines"]


def sorted_lines(
    folder: BakeFolder,
    storage: Storage,
    indexes: Sequence[SourceIndex],
    sources: Sequence[SourceConfig],
    kept: Sequence[Positions],
) -> Positions:
    """Order of the kept lines of all sources by (raw line, media root), numbered source after source.

    Reference: `sorted(data_paths, key=(raw line, image_dir))`. A remote JSONL is copied to a local temporary file
    first, because the sort looks into it at random.

    Args:
        folder: The bake, for the index.
        storage: Where everything lies.
        indexes: The group's sources.
        sources: Their configuration, in the same order.
        kept: Line numbers of each source that take part, ascending.

    Raises:
        SourceError: a JSONL is shorter than its index says: it changed.
    """
    roots = sorted({source.data_dir for source in sources})
    with contextlib.ExitStack() as stack:
        files = []
        for index, source, lines in zip(indexes, sources, kept, strict=True):
            offsets, num_bytes = _extents(folder, storage, index)
            content = stack.enter_context(_mapped(source, storage))
            if len(offsets) and int((offsets + num_bytes).max()) > len(content):
                raise SourceError(
                    f"{source.name}: {source.jsonl_path} has {len(content)} bytes, fewer than when it was indexed, so "
                    "its lines cannot be told apart; run `parbake index` again and keep the file still."
                )
            rank = roots.index(source.data_dir)
            files.append(LineFile(content=content, offsets=offsets[lines], num_bytes=num_bytes[lines], rank=rank))
        return sort_lines(RawLines(files))


def _extents(folder: BakeFolder, storage: Storage, index: SourceIndex) -> tuple[Positions, Positions]:
    """Offset and length of every line of a source."""
    offsets, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for unit in index.units:
        with storage.open(folder.index_unit(index.source, unit.unit)) as file:
            table = pq.ParquetFile(file).read(columns=["line_offset", "line_num_bytes"])
        offsets.append(table.column("line_offset").to_numpy())
        lengths.append(table.column("line_num_bytes").to_numpy())
    return np.concatenate(offsets), np.concatenate(lengths)


@contextlib.contextmanager
def _mapped(source: SourceConfig, storage: Storage) -> Iterator[Bytes]:
    """The bytes of a source's JSONL, mapped; a remote one through a temporary file."""
    if source.jsonl_path is None:
        raise Bug(f"{source.name} is a vlm_sft source without jsonl_path; the configuration should have refused it.")
    local = storage.local_path(source.jsonl_path)
    if local is not None:
        yield _map(local)
        return
    with tempfile.NamedTemporaryFile(prefix="parbake-lines-") as copy:
        with storage.open(source.jsonl_path) as remote:
            shutil.copyfileobj(remote, copy, 8 << 20)
        copy.flush()
        yield _map(copy.name)


def _map(path: str) -> Bytes:
    if Path(path).stat().st_size == 0:  # an empty file cannot be mapped
        return np.zeros(0, np.uint8)
    return np.memmap(path, np.uint8, mode="r")
