"""The index stage: units of all sources through the executor, then one `source.json` per source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import pyarrow.parquet as pq

from pipeline.bake import BakeFolder
from pipeline.config import LINE_KINDS, Config, GroupConfig
from pipeline.executor import Executor, Progress
from pipeline.fingerprint import fingerprint
from pipeline.index.members import ListedTar, list_tars, unused_members
from pipeline.index.records import INDEX_VERSION, UnitResult, UnitSpec, file_identity
from pipeline.index.stage import index_sources, side_by_side, unit_name
from pipeline.index.unit import count_lines, index_unit
from pipeline.index_table import source_index_to_json
from pipeline.records import SourceIndex
from pipeline.sources.conversations.nemotron import MISSING_MEMBER, list_shards
from pipeline.sources.jsonl_lines import cut_ranges
from pipeline.sources.listing import SourceFiles, join_media, list_group
from pipeline.sources.nemotron_vlm import place_of
from pipeline.sources.parquet_rows import ParquetFault, opened_parquet
from pipeline.sources.settings import MeasureSettings, settings_of
from pipeline.storage import Storage
from pipeline.tokenizer import Tokenizer
from pipeline.versions import pixel_versions

__all__ = ["JSONL_RANGE_BYTES", "run_index"]

JSONL_RANGE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """One source to index: its units, and the fingerprint of all of them together."""

    settings: MeasureSettings
    files: SourceFiles
    specs: tuple[UnitSpec, ...]
    tars: tuple[ListedTar, ...] = ()

    @property
    def source(self) -> str:
        return self.settings.source

    @property
    def root(self) -> str:
        return self.settings.root

    @property
    def entry(self) -> str:
        return "the source's entry in dataset_info"

    @property
    def fingerprint(self) -> str:
        return fingerprint([[spec.unit, spec.fingerprint] for spec in self.specs] + [list(self.files.unused)])

    def extra(self, storage: Storage) -> dict[str, object]:
        """Nemotron: what the tars hold that no row uses, entries that are no files, and tars that break off."""
        if not self.tars:
            return {}
        return {"tars": unused_members(self.tars, _named_members(self.specs, storage), storage)}

    def rows_unused(self, storage: Storage) -> int:
        urls = [join_media(self.settings.root, name) for name in self.files.unused]
        return sum(side_by_side(_num_rows, urls, storage))


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
    sources = [_with_tars(source, folder, storage, executor, progress) for source in sources]
    sources = _limited(sources, config, executor)
    used = [source for source in sources if source.specs]  # parquet_info may leave out all files of a source
    fraction = config.bake.max_dropped_fraction
    indexes = iter(index_sources(used, _index_unit_of, folder, storage, executor, progress, fraction))
    return tuple(
        next(indexes) if source.specs else _publish_without_units(source, folder, storage) for source in sources
    )


def _publish_without_units(source: _Source, folder: BakeFolder, storage: Storage) -> SourceIndex:
    """The index of a source of which nothing is used: the plan looks for it all the same."""
    index = SourceIndex(source=source.source, units=(), rows_unused=source.rows_unused(storage))
    url, content = folder.source_index(source.source), source_index_to_json(index, {}).encode()
    if not storage.exists(url) or storage.read_bytes(url) != content:
        storage.publish_bytes(url, content)
    return index


def _index_unit_of(spec: UnitSpec) -> tuple[str, UnitResult]:
    return spec.source, index_unit(spec)


def _source(
    config: Config, group: GroupConfig, files: SourceFiles, folder: BakeFolder, storage: Storage, tokenizer: Tokenizer
) -> _Source:
    """The units of a source: each used file once, however often it is used."""
    settings = settings_of(config, group, files.source)
    paths = {use.path: use.spelled for use in files.uses}
    common = {"settings": asdict(settings), "tokenizer": tokenizer.fingerprint, "versions": pixel_versions()}
    specs: list[UnitSpec] = []
    identities = side_by_side(file_identity, list(paths.values()), storage)
    for (path, url), identity in sorted(zip(paths.items(), identities, strict=True), key=lambda entry: entry[0]):
        ranges = [(0, 0)]
        if group.reads_lines:
            ranges = cut_ranges(identity.num_bytes, JSONL_RANGE_BYTES)
        for start, end in ranges:
            unit = unit_name(path, start if group.reads_lines else None)
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


def _with_tars(
    source: _Source, folder: BakeFolder, storage: Storage, executor: Executor, progress: Progress
) -> _Source:
    """A Nemotron source with its subset's tars, whose headers are listed once; any other source as it is."""
    if source.settings.kind != "nemotron_vlm":
        return source
    name, root = source.source, source.root.rstrip("/")
    subset = name.rpartition("/")[2]
    tars = list_tars(
        name, root, {subset: list_shards(name, root, subset, storage)}, folder, storage, executor, progress
    )
    members, told = tuple(tar.target for tar in tars), [[tar.shard, tar.fingerprint] for tar in tars]
    specs = (replace(spec, members=members, fingerprint=fingerprint([spec.fingerprint, told])) for spec in source.specs)
    return replace(source, specs=tuple(specs), tars=tuple(tars))


def _named_members(specs: Sequence[UnitSpec], storage: Storage) -> set[tuple[str, int]]:
    """(tar, offset) of every picture of the index."""
    named = set()
    for spec in specs:
        with storage.open(spec.target) as file:
            table = pq.read_table(file, columns=["image_references", "image_faults"])
        for references, faults in zip(*(column.to_pylist() for column in table.columns), strict=True):
            for reference, fault in zip(references, faults, strict=True):
                if fault != MISSING_MEMBER:
                    named.add(place_of(reference)[:2])
    return named


def _limited(sources: Sequence[_Source], config: Config, executor: Executor) -> list[_Source]:
    """JSONL sources with the limit that `num_used_data` sets on each of their ranges.

    With `shuffle_lines` the used lines lie anywhere, so all of them are measured. A file of several ranges is counted
    first: a range does not know how many lines come before it.
    """
    shuffled = {source.name for group in config.dataset.groups if group.shuffle_lines for source in group.sources}
    limited = [source for source in sources if source.settings.kind in LINE_KINDS and source.source not in shuffled]
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
    return spec.source, start, num_lines


def _with_limits(source: _Source, counts: dict[tuple[str, int], int]) -> _Source:
    left = max(0, source.files.source.num_used_data)
    specs: list[UnitSpec] = []
    for spec in source.specs:
        num_lines = counts.get((source.source, spec.start))
        if len(source.specs) > 1 and (num_lines is None or num_lines <= left):
            specs.append(spec)  # every line of the range is used
        else:
            specs.append(replace(spec, limit=left, fingerprint=fingerprint([spec.fingerprint, left])))
        left -= min(left, num_lines or 0)
    return replace(source, specs=tuple(specs))


def _num_rows(url: str, storage: Storage) -> int:
    """Rows of an unused parquet file, from its footer; none if it cannot be read."""
    try:
        with opened_parquet(url, storage) as parquet:
            return int(parquet.metadata.num_rows)
    except (ParquetFault, FileNotFoundError):
        return 0
