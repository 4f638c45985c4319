"""The assign unit: the ordered row list of every lane of one group.

    t2i_pretrain   shards files              lane file: the units it reads, whole
    unified_edit   shards (file, row group)  lane file: the rows themselves, in lane order
    vlm_sft        shards raw lines          lane file: the rows themselves, in lane order

Which paths there are, and how often, is `sources.listing`'s to say; which lane reads them, `order`'s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.bake import BakeFolder
from pipeline.config import Config, GroupConfig
from pipeline.errors import BakeConflict, SourceError
from pipeline.fingerprint import fingerprint
from pipeline.plan.assignment import (
    LANE_FILES_SCHEMA,
    AssignedUnit,
    Assignment,
    LaneShare,
    lane_name,
    read_assignment,
)
from pipeline.plan.line_order import sorted_lines
from pipeline.plan.order import Positions, keep_lines, lane_positions, shuffled_positions
from pipeline.plan.scatter import Moves, scatter_rows
from pipeline.records import IndexedUnit, SourceIndex
from pipeline.sources.listing import FileUse, SourceFiles, list_group
from pipeline.storage import Storage

__all__ = ["ASSIGN_VERSION", "AssignUnit", "assign_group"]

ASSIGN_VERSION = 1
"""Raise it when the same inputs would be assigned differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignUnit:
    """One group to assign: picklable.

    Attributes:
        config: The recipe.
        folder: The bake.
        storage: Where everything lies.
        group: Number of the group.
        indexes: Those of the group's sources, in the order of the configuration.
        sealed: Shards were rendered from the assignment that is there: it may not be replaced.
    """

    config: Config
    folder: BakeFolder
    storage: Storage
    group: int
    indexes: tuple[SourceIndex, ...]
    sealed: bool = False


@dataclass(frozen=True, slots=True)
class _Path:
    """One thing that a parquet group shards: rows [first_row, first_row + num_rows) of a unit."""

    spelled: str
    row_group: int
    unit: int
    first_row: int
    num_rows: int


def assign_group(unit: AssignUnit) -> tuple[int, Assignment]:
    """Write every lane's list and `assign.json`, unless they are there already; the group's number comes back with it.

    Raises:
        SourceError: fewer paths than lanes, or a source that changed since it was indexed.
        BakeConflict: the output's shards were made from another assignment.
    """
    group = unit.config.dataset.groups[unit.group]
    files = list_group(group, unit.storage)
    wanted = _fingerprint(unit, group, files)
    found = read_assignment(unit.folder, group.name, unit.storage)
    if found is not None and found.fingerprint == wanted:
        return unit.group, found
    if found is not None and unit.sealed:
        raise BakeConflict(
            f"the sources of group {group.name} are not those that the shards in {unit.folder.url} were made from "
            "(rows, files or their order differ), so more shards would not continue them. Nothing was touched: put the "
            "sources back, or choose another output."
        )
    units = [(index.source, indexed) for index in unit.indexes for indexed in index.units]
    assign = _assign_lines if group.reads_lines else _assign_parquet
    form, lanes, content = assign(unit, group, files, units)
    assignment = Assignment(
        fingerprint=wanted,
        content=content,
        form="files" if form == "files" else "rows",
        units=tuple(
            AssignedUnit(source=source, unit=indexed.unit, path=indexed.path, first_row=indexed.first_row)
            for source, indexed in units
        ),
        lanes=tuple(lanes),
        not_assigned=_not_assigned(unit.indexes, files, lanes),
    )
    unit.storage.publish_bytes(unit.folder.assign(group.name, "assign.json"), assignment.to_json())
    return unit.group, assignment


Assigned = tuple[str, list[LaneShare], str]
"""Form, lanes, content."""


def _assign_parquet(
    unit: AssignUnit, group: GroupConfig, files: Sequence[SourceFiles], units: Sequence[tuple[str, IndexedUnit]]
) -> Assigned:
    by_path = {(source, indexed.path): number for number, (source, indexed) in enumerate(units)}
    paths: list[_Path] = []
    for use in (use for source in files for use in source.uses):
        number = by_path.get((use.source, use.path))
        if number is None:
            raise SourceError(
                f"{use.source}: {use.path} is there now but was not when the source was indexed, so its rows are "
                "unknown; run `parbake index` again."
            )
        paths.extend(_paths_of(use, group, number, units[number][1]))
    paths.sort(key=lambda path: (path.spelled, path.row_group))
    lanes = _cut(unit, group, len(paths))
    lane_paths = [[paths[position] for position in lane.tolist()] for lane in lanes]
    shares = [_share(units, [(path.unit, path.num_rows) for path in lane]) for lane in lane_paths]
    if group.kind == "t2i_pretrain":
        for lane, lane_files in enumerate(lane_paths):
            _write_files(unit, group, lane, [path.unit for path in lane_files])
        form = "files"
    else:
        moves = _row_group_moves(unit, units, lane_paths)
        urls = [unit.folder.assign(group.name, lane_name(lane)) for lane in range(len(lanes))]
        scatter_rows(moves, [share.num_rows for share in shares], urls, unit.storage)
        form = "rows"
    listed = [[[path.unit, path.row_group] for path in lane] for lane in lane_paths]
    return form, shares, fingerprint([_contents(unit), listed])


def _contents(unit: AssignUnit) -> list[list[object]]:
    return [[index.source, [[indexed.path, indexed.content] for indexed in index.units]] for index in unit.indexes]


def _paths_of(use: FileUse, group: GroupConfig, number: int, indexed: IndexedUnit) -> Iterator[_Path]:
    """What the group shards of one use of a file: the file, or each of its row groups."""
    if group.kind == "t2i_pretrain":
        yield _Path(use.spelled, -1, number, 0, indexed.num_rows)
        return
    sizes = indexed.row_group_sizes
    first_row = 0
    # A row group that parquet_info promises and the file lacks is a path of no rows, as it is in the reference.
    for row_group in range(len(sizes) if use.num_row_groups is None else use.num_row_groups):
        num_rows = sizes[row_group] if row_group < len(sizes) else 0
        yield _Path(use.spelled, row_group, number, first_row, num_rows)
        first_row += num_rows


def _row_group_moves(
    unit: AssignUnit, units: Sequence[tuple[str, IndexedUnit]], lane_paths: Sequence[Sequence[_Path]]
) -> Iterator[Moves]:
    """Per index unit, where the rows of its row groups go."""
    by_unit: dict[int, list[tuple[_Path, int, int]]] = {}
    destination = 0
    for lane in lane_paths:
        for ordinal, path in enumerate(lane):
            by_unit.setdefault(path.unit, []).append((path, destination, ordinal))
            destination += path.num_rows
    for number in sorted(by_unit):
        source, indexed = units[number]
        pieces = by_unit[number]
        rows = np.concatenate([np.arange(path.first_row, path.first_row + path.num_rows) for path, _, _ in pieces])
        places = np.concatenate([np.arange(start, start + path.num_rows) for path, start, _ in pieces])
        ordinals = np.repeat([ordinal for *_, ordinal in pieces], [path.num_rows for path, *_ in pieces])
        yield _moves(unit, number, source, indexed, rows, places, ordinals)


def _assign_lines(
    unit: AssignUnit, group: GroupConfig, files: Sequence[SourceFiles], units: Sequence[tuple[str, IndexedUnit]]
) -> Assigned:
    counts = [sum(indexed.num_rows for indexed in index.units) for index in unit.indexes]
    seed = group.shuffle_seed if group.shuffle_lines else None
    kept = [keep_lines(count, file.source.num_used_data, seed) for count, file in zip(counts, files, strict=True)]
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    # [n] numbers of the kept lines over all sources, in sorted order of their texts
    lines = np.concatenate([start + part for start, part in zip(starts[:-1], kept, strict=True)])
    lines = lines[sorted_lines(unit.folder, unit.storage, unit.indexes, [file.source for file in files], kept)]
    lanes = _cut(unit, group, len(lines))
    destinations = np.full(int(starts[-1]), -1, np.int64)
    ordinals = np.zeros(len(destinations), np.int64)
    placed = 0
    for lane in lanes:
        destinations[lines[lane]] = np.arange(placed, placed + len(lane))
        ordinals[lines[lane]] = np.arange(len(lane))
        placed += len(lane)
    shares = [
        LaneShare(rows=_rows_by_source(unit.indexes, np.searchsorted(starts, lines[lane], side="right") - 1))
        for lane in lanes
    ]
    moves = _line_moves(unit, units, destinations, ordinals)
    urls = [unit.folder.assign(group.name, lane_name(lane)) for lane in range(len(lanes))]
    scatter_rows(moves, [len(lane) for lane in lanes], urls, unit.storage)
    digest = hashlib.sha256(destinations.astype("<i8").tobytes()).hexdigest()
    return "rows", shares, fingerprint([_contents(unit), digest])


def _line_moves(
    unit: AssignUnit, units: Sequence[tuple[str, IndexedUnit]], destinations: Positions, ordinals: Positions
) -> Iterator[Moves]:
    first = 0
    for number, (source, indexed) in enumerate(units):
        part = slice(first, first + indexed.num_rows)
        rows = np.flatnonzero(destinations[part] >= 0)
        yield _moves(unit, number, source, indexed, rows, destinations[part][rows], ordinals[part][rows])
        first += indexed.num_rows


def _moves(
    unit: AssignUnit,
    number: int,
    source: str,
    indexed: IndexedUnit,
    index_rows: Positions,
    destinations: Positions,
    ordinals: Positions,
) -> Moves:
    order = np.argsort(index_rows, kind="stable")
    return Moves(
        unit=number,
        url=unit.folder.index_unit(source, indexed.unit),
        index_rows=index_rows[order].astype(np.int64),
        destinations=destinations[order].astype(np.int64),
        ordinals=ordinals[order].astype(np.int64),
    )


def _cut(unit: AssignUnit, group: GroupConfig, num_paths: int) -> list[Positions]:
    config = unit.config
    shuffled = shuffled_positions(num_paths, config.dataset.data_seed)
    return lane_positions(shuffled, group.name, config.bake.world_size, config.num_workers, config.bake.drop_tail)


def _write_files(unit: AssignUnit, group: GroupConfig, lane: int, numbers: Sequence[int]) -> None:
    table = pa.table([pa.array(numbers, pa.int32())], schema=LANE_FILES_SCHEMA)
    with unit.storage.publishing(unit.folder.assign(group.name, lane_name(lane))) as file:
        pq.write_table(table, file)


def _share(units: Sequence[tuple[str, IndexedUnit]], pieces: Sequence[tuple[int, int]]) -> LaneShare:
    rows: dict[str, int] = {}
    for number, num_rows in pieces:
        source = units[number][0]
        rows[source] = rows.get(source, 0) + num_rows
    return LaneShare(rows=rows)


def _rows_by_source(indexes: Sequence[SourceIndex], numbers: Positions) -> dict[str, int]:
    """How often each source number occurs, by name, those that do occur."""
    counts = np.bincount(numbers, minlength=len(indexes)).tolist()
    return {index.source: count for index, count in zip(indexes, counts, strict=True) if count}


def _not_assigned(
    indexes: Sequence[SourceIndex], files: Sequence[SourceFiles], lanes: Sequence[LaneShare]
) -> dict[str, int]:
    """Rows of each source, once per use of their file, that no lane reads; rows of unused files once."""
    left: dict[str, int] = {}
    for index, source in zip(indexes, files, strict=True):
        rows: dict[str, int] = {}
        for indexed in index.units:
            rows[indexed.path] = rows.get(indexed.path, 0) + indexed.num_rows
        total = index.rows_unused + sum(rows[use.path] for use in source.uses)
        left[index.source] = total - sum(lane.rows.get(index.source, 0) for lane in lanes)
    return left


def _fingerprint(unit: AssignUnit, group: GroupConfig, files: Sequence[SourceFiles]) -> str:
    """Everything that decides the lists, the place where the data lies left out.

    Paths count by their order alone: the rank of a use among the group's spelled paths, or of a media root among roots.
    """
    if group.reads_lines:
        spelled = [source.source.data_dir for source in files]
    else:
        spelled = [use.spelled for source in files for use in source.uses]
    ranks = {path: rank for rank, path in enumerate(sorted(set(spelled)))}
    config = unit.config
    return fingerprint(
        {
            "version": ASSIGN_VERSION,
            "kind": group.kind,
            "data_seed": config.dataset.data_seed,
            "lanes": [config.bake.world_size, config.num_workers, config.bake.drop_tail],
            "shuffle": [group.shuffle_lines, group.shuffle_seed],
            "num_used": [source.source.num_used_data for source in files],
            "uses": [[use.source, use.path, use.num_row_groups] for source in files for use in source.uses],
            "ranks": [ranks[path] for path in spelled],
            "units": [[index.source, [[i.unit, i.path, i.content] for i in index.units]] for index in unit.indexes],
        }
    )
