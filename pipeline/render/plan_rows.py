"""Reads what a shard is made from, for either recipe: its packs in the plan, and the index rows that these name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.bake import BakeFolder
from pipeline.errors import RunFailed
from pipeline.plan_table import ShardPlan
from pipeline.records import RowId
from pipeline.storage import Storage

__all__ = ["SAMPLES_PER_PORTION", "read_index_rows", "read_packs"]

PACKS_PER_READ = 32
SAMPLES_PER_PORTION = 2048
"""Samples that are looked up and held in memory at once."""


class NamedSample(Protocol):
    """A sample of a planned pack."""

    @property
    def row(self) -> RowId:
        """Its source row."""


class NumberedPack(Protocol):
    """A planned pack of any recipe."""

    @property
    def lane(self) -> int:
        """Its lane."""

    @property
    def pack(self) -> int:
        """Its number in the lane."""

    @property
    def shard(self) -> int:
        """The lane's shard that holds it."""

    @property
    def samples(self) -> Sequence[NamedSample]:
        """Its samples."""


Pack = TypeVar("Pack", bound=NumberedPack)
Row = TypeVar("Row")


def read_packs(
    storage: Storage,
    folder: BakeFolder,
    lane: int,
    shard: int,
    plan: ShardPlan,
    decode: Callable[[pa.RecordBatch], Iterable[Pack]],
) -> Iterator[Pack]:
    """The packs of one shard in order, read in small batches.

    Args:
        storage: Reads.
        folder: The bake.
        lane: Lane number.
        shard: Shard number in the lane.
        plan: What `plan.json` says of it.
        decode: The recipe's codec of plan rows.

    Raises:
        RunFailed: the lane's plan does not hold the packs that `plan.json` says it holds.
    """
    url = folder.plan_lane(lane)
    expected = iter(range(plan.first_pack, plan.first_pack + plan.num_packs))
    with storage.open(url) as file:
        parquet = pq.ParquetFile(file)
        for batch in _batches(parquet, plan.first_pack, plan.num_packs):
            for pack in decode(batch):
                if (pack.lane, pack.pack, pack.shard) != (lane, next(expected, None), shard):
                    raise _plan_disagrees(url, f"pack {pack.pack} of shard {pack.shard}", lane, shard)
                yield pack
    missing = next(expected, None)
    if missing is not None:
        raise _plan_disagrees(url, f"no pack {missing}", lane, shard)


def _batches(parquet: pq.ParquetFile, first: int, count: int) -> Iterator[pa.RecordBatch]:
    """Rows [first, first + count) of a parquet file, of which only the row groups that hold them are read."""
    groups: list[int] = []
    group_start, skip = 0, 0
    for group in range(parquet.num_row_groups):
        group_end = group_start + parquet.metadata.row_group(group).num_rows
        if group_start < first + count and group_end > first:
            skip = skip if groups else first - group_start
            groups.append(group)
        group_start = group_end
    if not groups:
        return
    for batch in parquet.iter_batches(PACKS_PER_READ, row_groups=groups, use_threads=False):
        wanted = batch.slice(skip, count)
        skip = max(0, skip - len(batch))
        count -= len(wanted)
        if len(wanted):
            yield wanted


def _plan_disagrees(url: str, found: str, lane: int, shard: int) -> RunFailed:
    return RunFailed(
        f"{url} has {found} where plan.json expects shard {shard} of lane {lane}. A shard made of it would belong to "
        "another plan. Run `parbake plan` again, then render."
    )


def read_index_rows(
    storage: Storage,
    folder: BakeFolder,
    packs: Sequence[NumberedPack],
    columns: Sequence[str],
    decode: Callable[[pa.Table], Iterable[Row]],
) -> dict[RowId, Row]:
    """The index rows of all samples of `packs`, with the given columns, as the recipe's codec reads them.

    A lane's rows lie scattered over the index, so each unit is opened once and each of its row groups read once.
    """
    wanted: defaultdict[tuple[str, str], dict[int, RowId]] = defaultdict(dict)
    for pack in packs:
        for sample in pack.samples:
            wanted[sample.row.source, sample.row.unit][sample.row.index_row] = sample.row
    rows: dict[RowId, Row] = {}
    for (source, unit), row_ids in sorted(wanted.items()):
        numbers = sorted(row_ids)
        url = folder.index_unit(source, unit)
        with storage.open(url) as file:
            found = [row for table in _tables_at(pq.ParquetFile(file), numbers, columns) for row in decode(table)]
        if len(found) != len(numbers):
            raise RunFailed(
                f"{url} ends before row {numbers[len(found)]}, which the plan refers to. The plan was made from "
                "another index. Run `parbake plan` again, then render."
            )
        rows.update((row_ids[number], row) for number, row in zip(numbers, found, strict=True))
    return rows


def _tables_at(parquet: pq.ParquetFile, numbers: Sequence[int], columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows with the given ascending numbers, a table per row group."""
    group_start, position = 0, 0
    for group in range(parquet.num_row_groups):
        group_end = group_start + parquet.metadata.row_group(group).num_rows
        first = position
        while position < len(numbers) and numbers[position] < group_end:
            position += 1
        if position > first:
            table = parquet.read_row_group(group, columns=list(columns), use_threads=False)
            yield table.take([number - group_start for number in numbers[first:position]])
        group_start = group_end
