"""The index stage of the VLM recipe: sources cut into units, tars listed first, then as for any source (`stage`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from pipeline.bake import BakeFolder
from pipeline.errors import SourceError
from pipeline.executor import Executor, Progress
from pipeline.fingerprint import fingerprint
from pipeline.index.conversation_unit import ConversationUnit, index_conversation_unit
from pipeline.index.members import ListedTar, list_tars, named_places, unused_members
from pipeline.index.records import NO_FILE
from pipeline.index.stage import index_sources, unit_name
from pipeline.processor import VlmProcessor
from pipeline.records import SourceIndex
from pipeline.sources.conversations import hub, nemotron
from pipeline.sources.conversations.meta import is_jsonl
from pipeline.sources.conversations.nemotron_choice import ChosenRow, JsonlRow, choose
from pipeline.sources.conversations.records import ConversationSettings, FrameRule, settings_of
from pipeline.sources.jsonl_lines import cut_ranges
from pipeline.storage import FileIdentity, Storage
from pipeline.versions import pixel_versions
from pipeline.vlm_config import ConversationSourceConfig, VlmConfig

__all__ = ["CONVERSATION_INDEX_VERSION", "JSONL_RANGE_BYTES", "run_conversation_index"]

CONVERSATION_INDEX_VERSION = 1
"""Part of every unit's fingerprint: raise it whenever a source row would be measured differently."""

JSONL_RANGE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """One source to index."""

    settings: ConversationSettings
    specs: tuple[ConversationUnit, ...]
    tars: tuple[ListedTar, ...] = ()

    @property
    def source(self) -> str:
        return self.settings.source.name

    @property
    def root(self) -> str:
        return self.settings.root

    @property
    def entry(self) -> str:
        return "the 'dataset' section"

    @property
    def fingerprint(self) -> str:
        tars = [[tar.shard, tar.fingerprint] for tar in self.tars]
        return fingerprint([[[spec.unit, spec.fingerprint] for spec in self.specs], tars])

    def extra(self, storage: Storage) -> dict[str, object]:
        """What the tars hold that no row uses, entries that are no files, and tars that break off."""
        if not self.tars:
            return {}
        named = named_places([spec.target for spec in self.specs], storage)
        return {"tars": unused_members(self.tars, named, storage)}

    def rows_unused(self, storage: Storage) -> int:
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Making:
    """What every unit is made with."""

    config: VlmConfig
    folder: BakeFolder
    storage: Storage
    processor: VlmProcessor

    def unit(
        self,
        settings: ConversationSettings,
        *,
        path: str,
        url: str,
        identity: FileIdentity,
        start: int = 0,
        end: int = 0,
        name: str = "",
    ) -> ConversationUnit:
        """A unit of a source, with the fingerprint of all that it depends on."""
        unit = name or unit_name(path, start)
        told = {**asdict(settings), "source": settings.source.model_dump(mode="json", exclude={"sample_ratio"})}
        parts = [
            CONVERSATION_INDEX_VERSION,
            told,
            self.processor.fingerprint,
            self.config.inject_fake_images,
            pixel_versions(),
            [path, url, asdict(identity), start, end],
        ]
        return ConversationUnit(
            settings=settings,
            unit=unit,
            path=path,
            url=url,
            target=self.folder.index_unit(settings.source.name, unit),
            start=start,
            end=end,
            identity=identity,
            fingerprint=fingerprint(parts),
            storage=self.storage,
            processor=self.processor,
            inject_fake_images=self.config.inject_fake_images,
        )


def run_conversation_index(
    config: VlmConfig,
    folder: BakeFolder,
    storage: Storage,
    processor: VlmProcessor,
    executor: Executor,
    progress: Progress,
) -> tuple[SourceIndex, ...]:
    """Index every source of the data set, in its order; what is there with the right fingerprint is skipped.

    Raises:
        SourceError: A source is missing, not one of its rows can be used, or a predicted length is wrong.
        TooManyDrops: More than `max_dropped_fraction` of a source's rows cannot be used.
    """
    making = _Making(config=config, folder=folder, storage=storage, processor=processor)
    sources = [_source(making, source, executor, progress) for source in config.sources]
    return index_sources(
        sources, index_conversation_unit, folder, storage, executor, progress, config.bake.max_dropped_fraction
    )


def _source(making: _Making, source: ConversationSourceConfig, executor: Executor, progress: Progress) -> _Source:
    settings = settings_of(making.config, source, _frame_rule(making.processor))
    if source.kind == "nemotron":
        return _nemotron_source(making, settings, executor, progress)
    if source.kind == "mock":
        unit = making.unit(settings, path="mock", url="", identity=NO_FILE, name="mock")
        return _Source(settings=settings, specs=(unit,))
    if source.kind == "meta":
        return _Source(settings=settings, specs=_file_units(making, settings, source.path))
    identity, num_rows = hub.hub_identity(source), hub.num_rows(source)
    ranges = cut_ranges(num_rows, hub.ROWS_PER_UNIT)
    specs = [
        making.unit(settings, path=source.split, url=source.path, identity=identity, start=start, end=end)
        for start, end in ranges
    ]
    return _Source(settings=settings, specs=tuple(specs))


def _file_units(
    making: _Making, settings: ConversationSettings, url: str, path: str = ""
) -> tuple[ConversationUnit, ...]:
    """A JSONL in byte ranges, any other file whole."""
    try:
        identity = making.storage.identity(url)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        raise SourceError(
            f"{settings.source.name}: the file {url!r} cannot be read ({type(error).__name__}), so the source has no "
            "rows. Correct its path in the 'dataset' section or in the file that it names."
        ) from error
    num_bytes = identity.num_bytes
    ranges = cut_ranges(num_bytes, JSONL_RANGE_BYTES) if is_jsonl(url) else [(0, num_bytes)]
    path = path or url.rstrip("/").rpartition("/")[2]
    return tuple(
        making.unit(settings, path=path, url=url, identity=identity, start=start, end=end) for start, end in ranges
    )


def _nemotron_source(
    making: _Making, settings: ConversationSettings, executor: Executor, progress: Progress
) -> _Source:
    """Tars first: their headers are listed once, rows are looked up in the lists."""
    source, storage = settings.source, making.storage
    told = source.nemotron
    assert told is not None
    shards = {
        subset: nemotron.list_shards(source.name, source.path, subset, storage, told.max_shards)
        for subset in told.subsets
    }
    listed = list_tars(source.name, source.path, shards, making.folder, storage, executor, progress)
    tars = {subset: [tar for tar in listed if tar.shard in set(shards[subset])] for subset in told.subsets}
    units = {
        subset: _file_units(
            making, settings, f"{source.path}/{nemotron.jsonl_path(subset)}", nemotron.jsonl_path(subset)
        )
        for subset in told.subsets
    }
    if told.sampling == "reference":
        by_shard = {tar.shard: tar for tar in listed}
        chosen = choose(
            told,
            dict(shards),
            lambda shard: by_shard[shard].members(storage),
            partial(_choice_rows, source, storage),
        )
        specs = [_chosen_unit(units[subset][0], rows, tars[subset], making.folder) for subset, rows in chosen.items()]
    else:
        specs = [_joined_unit(unit, tars[subset]) for subset in told.subsets for unit in units[subset]]
    return _Source(settings=settings, specs=tuple(specs), tars=tuple(listed))


def _choice_rows(source: ConversationSourceConfig, storage: Storage, subset: str) -> Iterator[JsonlRow]:
    return nemotron.choice_rows(source, subset, storage)


def _joined_unit(unit: ConversationUnit, tars: Sequence[ListedTar]) -> ConversationUnit:
    told = [unit.fingerprint, [[tar.shard, tar.fingerprint] for tar in tars]]
    return replace(unit, members=tuple(tar.target for tar in tars), fingerprint=fingerprint(told))


def _chosen_unit(
    unit: ConversationUnit, rows: Sequence[ChosenRow], tars: Sequence[ListedTar], folder: BakeFolder
) -> ConversationUnit:
    name = unit_name(unit.path, None)
    told = [unit.fingerprint, [asdict(row) for row in rows], [[tar.shard, tar.fingerprint] for tar in tars]]
    target = folder.index_unit(unit.source, name)
    return replace(unit, unit=name, target=target, start=0, end=0, chosen=tuple(rows), fingerprint=fingerprint(told))


def _frame_rule(processor: VlmProcessor) -> FrameRule:
    """What the video processor says of frames, with the reference's defaults (`vlm.utils._read_video_frames`)."""
    video = getattr(processor.processor, "video_processor", None)
    default = FrameRule()
    if video is None:
        return default
    fps, least, most = (getattr(video, name, None) for name in ("fps", "min_frames", "max_frames"))
    return FrameRule(
        fps=fps,
        min_frames=default.min_frames if least is None else least,
        max_frames=most,
        multiple=getattr(video, "temporal_patch_size", default.multiple),
    )
