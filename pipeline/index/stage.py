"""The index stage as both recipes run it: finished units stay, the others are measured, `source.json` comes last."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Protocol, TypeVar
from urllib.parse import quote

from pipeline.bake import BakeFolder
from pipeline.executor import Executor, Progress, UnitDone
from pipeline.fingerprint import fingerprint
from pipeline.index.judge import JudgedSource, refuse_many_drops, refuse_unusable
from pipeline.index.records import Unit, UnitResult, UnitSummary
from pipeline.index_table import source_index_from_json, source_index_to_json
from pipeline.records import SourceIndex
from pipeline.storage import Storage

__all__ = ["IndexableSource", "index_sources", "side_by_side", "unit_name"]

_LONGEST_UNIT_NAME = 160
_CONNECTIONS = 16

Spec = TypeVar("Spec", bound=Unit)
SpecOf = TypeVar("SpecOf", bound=Unit, covariant=True)
Answer = TypeVar("Answer")


class IndexableSource(JudgedSource, Protocol[SpecOf]):
    """One source to index."""

    @property
    def specs(self) -> Sequence[SpecOf]:
        """Its units."""

    @property
    def fingerprint(self) -> str:
        """Of everything that its index depends on."""

    def extra(self, storage: Storage) -> dict[str, object]:
        """What `source.json` says besides; called when all units are there."""

    def rows_unused(self, storage: Storage) -> int:
        """Rows of files that no unit covers."""


def index_sources(
    sources: Sequence[IndexableSource[Spec]],
    measure: Callable[[Spec], tuple[str, UnitResult]],
    folder: BakeFolder,
    storage: Storage,
    executor: Executor,
    progress: Progress,
    max_dropped_fraction: float,
) -> tuple[SourceIndex, ...]:
    """Index every source; units and sources that are there with the right fingerprint are skipped.

    Args:
        sources: In the order of the result.
        measure: Measures a unit, unless it is finished; gives the source's name too. Importable at module level.
        folder: The bake.
        storage: Storage.
        executor: Runs the units.
        progress: Told how far it is.
        max_dropped_fraction: Part of a source's rows that may be lost.

    Raises:
        SourceError: Not one row of a source can be used.
        TooManyDrops: More than `max_dropped_fraction` of a source's rows cannot be used.
    """
    finished = {source.source: found for source in sources if (found := _read_source(source, folder, storage))}
    specs = [spec for source in sources if source.source not in finished for spec in source.specs]
    if specs:
        storage.sweep(folder.join("index"))
    num_units = sum(len(source.specs) for source in sources)
    progress.start("index", num_units, num_units - len(specs))
    by_name = {source.source: source for source in sources}
    results: defaultdict[str, list[UnitResult]] = defaultdict(list)
    for name, result in executor.map(measure, specs):
        progress.advance(UnitDone(rows=result.summary.rows))
        results[name].append(result)
        if len(results[name]) == len(by_name[name].specs):
            finished[name] = _publish_source(by_name[name], results[name], folder, storage)
            refuse_unusable(by_name[name], finished[name][1])
    progress.finish()
    for source in sources:
        if source.source not in finished:  # it has no unit at all
            finished[source.source] = _publish_source(source, (), folder, storage)
        refuse_unusable(source, finished[source.source][1])
        refuse_many_drops(source, finished[source.source][1], max_dropped_fraction)
    return tuple(finished[source.source][0] for source in sources)


def side_by_side(function: Callable[[str, Storage], Answer], urls: Sequence[str], storage: Storage) -> list[Answer]:
    """`function` of each URL; requests to an object store wait for each other's answers, so several run at once."""
    if all(storage.local_path(url) is not None for url in urls):
        return [function(url, storage) for url in urls]
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        return list(pool.map(lambda url: function(url, storage), urls))


def unit_name(path: str, start: int | None) -> str:
    """A file name for a unit: the path with everything unusual quoted, and where its range starts."""
    name = quote(path, safe="")
    if len(name) > _LONGEST_UNIT_NAME:
        name = f"{name[:_LONGEST_UNIT_NAME]}-{fingerprint(path)}"
    return name if start is None else f"{name}@{start}"


def _publish_source(
    source: IndexableSource[Spec], results: Sequence[UnitResult], folder: BakeFolder, storage: Storage
) -> tuple[SourceIndex, UnitSummary]:
    """Put the units in order, number their rows, and write `source.json`."""
    summary = UnitSummary()
    order = {spec.unit: number for number, spec in enumerate(source.specs)}
    units = []
    path, first_row = "", 0
    for result in sorted(results, key=lambda result: order[result.indexed.unit]):
        first_row = first_row if result.indexed.path == path else 0
        path = result.indexed.path
        units.append(replace(result.indexed, first_row=first_row))
        summary.add(result.summary, first_row)
        first_row += result.indexed.num_rows
    unused = summary.unused + source.rows_unused(storage)
    index = SourceIndex(source=source.source, units=tuple(units), rows_unused=unused)
    head = {"fingerprint": source.fingerprint, "summary": asdict(summary), **source.extra(storage)}
    storage.publish_bytes(folder.source_index(source.source), source_index_to_json(index, head).encode())
    return index, summary


def _read_source(
    source: IndexableSource[Spec], folder: BakeFolder, storage: Storage
) -> tuple[SourceIndex, UnitSummary] | None:
    """The finished index of a source, if it is there, of these inputs, and none of its files is missing."""
    url = folder.source_index(source.source)
    try:
        text = storage.read_bytes(url)
        head = json.loads(text)["source_index"]
        if head["fingerprint"] != source.fingerprint:
            return None
        there = set(storage.list_files(url.rpartition("/")[0]))
        if any(f"{spec.unit}.parquet" not in there for spec in source.specs):
            return None
        return source_index_from_json(text), UnitSummary(**head["summary"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
