"""The index stage: units of all sources through the executor, then one `source.json` per source."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import TypeVar
from urllib.parse import quote

from pipeline.bake import BakeFolder
from pipeline.config import Config, GroupConfig
from pipeline.executor import Executor, Progress, UnitDone
from pipeline.fingerprint import fingerprint
from pipeline.index.judge import refuse_many_drops, refuse_unusable
from pipeline.index.records import INDEX_VERSION, NO_FILE, UnitResult, UnitSpec, UnitSummary
from pipeline.index.unit import count_lines, index_unit
from pipeline.index_table import source_index_from_json, source_index_to_json
from pipeline.records import SourceIndex
from pipeline.sources.jsonl_lines import cut_ranges
from pipeline.sources.listing import SourceFiles, join_media, list_group
from pipeline.sources.parquet_rows import ParquetFault, opened_parquet
from pipeline.sources.settings import MeasureSettings, settings_of
from pipeline.storage import FileIdentity, Storage
from pipeline.tokenizer import Tokenizer
from pipeline.versions import pixel_versions

__all__ = ["JSONL_RANGE_BYTES", "run_index"]

JSONL_RANGE_BYTES = 64 << 20
_LONGEST_UNIT_NAME = 160
_CONNECTIONS = 16

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """One source to index: its units, and the fingerprint of all of them together."""

    settings: MeasureSettings
    files: SourceFiles
    specs: tuple[UnitSpec, ...]

    @property
    def name(self) -> str:
        return self.settings.source

    @property
    def fingerprint(self) -> str:
        return fingerprint([[spec.unit, spec.fingerprint] for spec in self.specs] + [list(self.files.unused)])


def run_index(
    config: Config,
    folder: BakeFolder,
    storage: Storage,
    tokenizer: Tokenizer,
    executor: Executor,
    progress: Progress,
) -> tuple[SourceIndex, ...]:
    """Index every source of every group, in the order of the configuration.

    Units that are there with the right fingerprint are skipped. `source.json` of a source is written when all its units
    are there.

    Raises:
        SourceError: A source is missing, lacks a column, or not one of its rows can be used.
        TooManyDrops: More than `max_dropped_fraction` of a source's rows cannot be used.
    """
    sources = [
        _source(config, group, files, folder, storage, tokenizer)
        for group in config.dataset.groups
        for files in list_group(group, storage)
    ]
    sources = _limited(sources, config, executor)
    finished = {source.name: found for source in sources if (found := _read_source(source, folder, storage))}
    specs = [spec for source in sources if source.name not in finished for spec in source.specs]
    if specs:
        storage.sweep(folder.join("index"))
    num_units = sum(len(source.specs) for source in sources)
    progress.start("index", num_units, num_units - len(specs))
    by_name = {source.name: source for source in sources}
    results: defaultdict[str, list[UnitResult]] = defaultdict(list)
    for name, result in executor.map(_index_unit_of, specs):
        progress.advance(UnitDone(rows=result.summary.rows))
        results[name].append(result)
        if len(results[name]) == len(by_name[name].specs):
            finished[name] = _publish_source(by_name[name], results[name], folder, storage)
            refuse_unusable(by_name[name].settings, finished[name][1])
    progress.finish()
    for source in sources:
        refuse_unusable(source.settings, finished[source.name][1])
        refuse_many_drops(source.settings, finished[source.name][1], config.bake.max_dropped_fraction)
    return tuple(finished[source.name][0] for source in sources)


def _index_unit_of(spec: UnitSpec) -> tuple[str, UnitResult]:
    return spec.settings.source, index_unit(spec)


def _source(
    config: Config, group: GroupConfig, files: SourceFiles, folder: BakeFolder, storage: Storage, tokenizer: Tokenizer
) -> _Source:
    """The units of a source: each used file once, however often it is used."""
    settings = settings_of(config, group, files.source)
    paths = {use.path: use.spelled for use in files.uses}
    common = {"settings": asdict(settings), "tokenizer": tokenizer.fingerprint, "versions": pixel_versions()}
    specs: list[UnitSpec] = []
    identities = _side_by_side(_identity, list(paths.values()), storage)
    for (path, url), identity in sorted(zip(paths.items(), identities, strict=True), key=lambda entry: entry[0]):
        ranges = [(0, 0)]
        if group.kind == "vlm_sft":
            ranges = cut_ranges(identity.num_bytes, JSONL_RANGE_BYTES)
        for start, end in ranges:
            unit = _unit_name(path, start if group.kind == "vlm_sft" else None)
            specs.append(
                UnitSpec(
                    settings=settings,
                    unit=unit,
                    path=path,
                    url=url,
                    target=folder.index_unit(settings.source, unit),
                    start=start,
                    end=end,
                    identity=identity,
                    fingerprint=fingerprint([INDEX_VERSION, common, path, url, asdict(identity), start, end]),
                    storage=storage,
                    tokenizer_path=tokenizer.path,
                )
            )
    return _Source(settings=settings, files=files, specs=tuple(specs))


def _side_by_side(function: Callable[[str, Storage], Answer], urls: Sequence[str], storage: Storage) -> list[Answer]:
    """`function` of each URL; requests to an object store wait for each other's answers, so several run at once."""
    if all(storage.local_path(url) is not None for url in urls):
        return [function(url, storage) for url in urls]
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        return list(pool.map(lambda url: function(url, storage), urls))


def _identity(url: str, storage: Storage) -> FileIdentity:
    """Identity of a listed file; NO_FILE for one that is no file after all (a broken link)."""
    try:
        return storage.identity(url)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
        return NO_FILE


def _unit_name(path: str, start: int | None) -> str:
    """A file name for a unit: the path with everything unusual quoted, and where its range starts."""
    name = quote(path, safe="")
    if len(name) > _LONGEST_UNIT_NAME:
        name = f"{name[:_LONGEST_UNIT_NAME]}-{fingerprint(path)}"
    return name if start is None else f"{name}@{start}"


def _limited(sources: Sequence[_Source], config: Config, executor: Executor) -> list[_Source]:
    """JSONL sources with the limit that `num_used_data` sets on each of their ranges.

    With `shuffle_lines` the used lines lie anywhere, so all of them are measured. A file of several ranges is counted
    first: a range does not know how many lines come before it.
    """
    shuffled = {source.name for group in config.dataset.groups if group.shuffle_lines for source in group.sources}
    limited = [source for source in sources if source.settings.kind == "vlm_sft" and source.name not in shuffled]
    to_count = [
        spec
        for source in limited
        if len(source.specs) > 1 and source.files.source.num_used_data < source.specs[-1].end
        for spec in source.specs
    ]
    counts: dict[tuple[str, int], int] = {}
    for name, start, num_lines in executor.map(_count_lines_of, to_count):
        counts[name, start] = num_lines
    return [_with_limits(source, counts) if source in limited else source for source in sources]


def _count_lines_of(spec: UnitSpec) -> tuple[str, int, int]:
    _, start, num_lines = count_lines(spec)
    return spec.settings.source, start, num_lines


def _with_limits(source: _Source, counts: dict[tuple[str, int], int]) -> _Source:
    left = max(0, source.files.source.num_used_data)
    specs: list[UnitSpec] = []
    for spec in source.specs:
        num_lines = counts.get((source.name, spec.start))
        if len(source.specs) > 1 and (num_lines is None or num_lines <= left):
            specs.append(spec)  # every line of the range is used
        else:
            specs.append(replace(spec, limit=left, fingerprint=fingerprint([spec.fingerprint, left])))
        left -= min(left, num_lines or 0)
    return replace(source, specs=tuple(specs))


def _publish_source(
    source: _Source, results: Sequence[UnitResult], folder: BakeFolder, storage: Storage
) -> tuple[SourceIndex, UnitSummary]:
    """Put the units in order, number their rows, and write `source.json`."""
    summary = UnitSummary()
    units = []
    path, first_row = "", 0
    for result in sorted(results, key=lambda result: (result.indexed.path, result.start)):
        first_row = first_row if result.indexed.path == path else 0
        path = result.indexed.path
        units.append(replace(result.indexed, first_row=first_row))
        summary.add(result.summary, first_row)
        first_row += result.indexed.num_rows
    unused_urls = [join_media(source.settings.root, name) for name in source.files.unused]
    unused = summary.unused + sum(_side_by_side(_num_rows, unused_urls, storage))
    index = SourceIndex(source=source.name, units=tuple(units), rows_unused=unused)
    text = source_index_to_json(index, {"fingerprint": source.fingerprint, "summary": asdict(summary)})
    storage.publish_bytes(folder.source_index(source.name), text.encode())
    return index, summary


def _num_rows(url: str, storage: Storage) -> int:
    """Rows of an unused parquet file, from its footer; none if it cannot be read."""
    try:
        with opened_parquet(url, storage) as parquet:
            return int(parquet.metadata.num_rows)
    except (ParquetFault, FileNotFoundError):
        return 0


def _read_source(source: _Source, folder: BakeFolder, storage: Storage) -> tuple[SourceIndex, UnitSummary] | None:
    """The finished index of a source, if it is there, of these inputs, and none of its files is missing."""
    url = folder.source_index(source.name)
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
