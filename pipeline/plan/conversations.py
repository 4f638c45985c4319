"""The plan of a VLM bake: all rows are looked at together, because the bins depend on all of them.

    index lengths ─► data set (or one a rank) ─► packs, numbered ─► epoch 0's order ─► lanes round robin ─► shards
                                                                    position p: lane p % W, pack p // W

So epoch 0 reads the shards straight through, and any later epoch is an order of numbers (`loaders.vlm_order`, the one
module that decides it for plan and loader alike). Under `shard_data` each rank has its own data set and its own lane.
Memory is some 60 bytes a row: lengths, no text; lane files are written a batch of packs at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loaders.vlm_format import LENGTHS_PATH
from loaders.vlm_order import LENGTH_HEADROOM
from pipeline.bake import BakeFolder
from pipeline.errors import ConfigError, SourceError
from pipeline.executor import Progress, UnitDone
from pipeline.fingerprint import fingerprint
from pipeline.npy import npy
from pipeline.plan.conversation_accounts import DataSet, not_assigned, plan_statistics, row_accounts
from pipeline.plan.conversation_index import IndexEntries, read_entries
from pipeline.plan.conversation_lanes import LaneWriter, lane_is_there
from pipeline.plan.conversation_packing import PackingRules, pack_data_set
from pipeline.plan.conversation_rows import RowRules
from pipeline.plan.conversation_stream import vlm_config_fingerprint, vlm_stream_id
from pipeline.plan.existing import bake_in_the_way, read_source_index, refuse_other_stream, remove_lanes_beyond
from pipeline.plan_table import LanePlan, PlanManifest, manifest_from_json, manifest_to_json
from pipeline.processor import VlmProcessor
from pipeline.records import SourceIndex
from pipeline.sources.conversations.order import dataset_rows, num_datasets
from pipeline.storage import Storage
from pipeline.versions import pixel_versions
from pipeline.vlm_config import VlmConfig

__all__ = ["run_conversation_plan"]


def run_conversation_plan(
    config: VlmConfig,
    folder: BakeFolder,
    storage: Storage,
    processor: VlmProcessor,
    progress: Progress,
) -> PlanManifest:
    """Plan a VLM bake whose index is finished. A finished plan of the same inputs is left as it is.

    In this process: the bins depend on all rows together, and deciding them takes seconds.

    Args:
        config: The recipe.
        folder: The bake.
        storage: Reads and publishes.
        processor: Of the recipe.
        progress: Told how far it is.

    Raises:
        SourceError: the index is not there, or not one row can be packed.
        ConfigError: `bake.length` asks for something else than one pass.
        BakeConflict: shards of another stream or another `shard_bytes` are in the output; they stay as they are.
    """
    _refuse_other_lengths(config)
    indexes = [read_source_index(folder, storage, source.name) for source in config.sources]
    config_print = vlm_config_fingerprint(config)
    before = bake_in_the_way(folder, storage, config_fingerprint=config_print, shard_bytes=config.bake.shard_bytes)
    stream = vlm_stream_id(config, processor.fingerprint, indexes)
    refuse_other_stream(folder, before, stream)
    storage.sweep(folder.join("plan"))
    finished = _finished(config, folder, storage, stream)
    progress.start("plan", config.num_lanes, config.num_lanes if finished else 0)
    if finished is not None:
        progress.finish()
        return finished
    entries = read_entries(folder, storage, indexes, turn_ends=config.truncation == "turns")
    data_sets = [_pack(config, entries, indexes, rank) for rank in range(num_datasets(config))]
    _refuse_nothing(config, data_sets)
    writer = LaneWriter(config=config, folder=folder, storage=storage, stream=stream, entries=entries)
    lanes: list[LanePlan] = []
    for data_set in data_sets:
        rows = row_accounts(entries, data_set)
        for lane in writer.lanes(data_set):
            lanes.append(LanePlan(shards=lane, rows=rows, not_reached={}))
            rows = {}  # the accounts of a data set are those of its first lane
            progress.advance(UnitDone(packs=lanes[-1].num_packs))
    progress.finish()
    if config.order == "length_grouped":
        lengths = np.concatenate([data_set.packed.order_lengths for data_set in data_sets])
        storage.publish_bytes(folder.join(LENGTHS_PATH), npy(lengths.astype("<i4")))
    elif storage.exists(folder.join(LENGTHS_PATH)):
        storage.remove(folder.join(LENGTHS_PATH))  # of an earlier plan with another order
    manifest = PlanManifest(
        stream=stream,
        fingerprints={
            "config": config_print,
            "tokenizer": processor.fingerprint,
            "plan": fingerprint([[shard.fingerprint for shard in lane.shards] for lane in lanes]),
        },
        world_size=config.bake.world_size,
        num_workers=0,
        lanes=tuple(lanes),
        special_tokens={"pad_token_id": processor.pad_token_id},
        vocab_size=len(processor.tokenizer),
        not_assigned=not_assigned(entries, data_sets),
        statistics=plan_statistics(config, entries, data_sets),
        versions=pixel_versions(),
    )
    storage.publish_bytes(folder.plan, manifest_to_json(manifest))
    remove_lanes_beyond(folder, storage, len(lanes))
    return manifest


def _refuse_other_lengths(config: VlmConfig) -> None:
    length = config.bake.length
    if length is not None and length.epochs != 1:
        raise ConfigError(
            f"bake.length is {length.model_dump(exclude_none=True)}, and a VLM bake is one pass over its data set: "
            "later epochs are other orders of the same packs. Leave bake.length out, or use max_packs."
        )


def _finished(config: VlmConfig, folder: BakeFolder, storage: Storage, stream: str) -> PlanManifest | None:
    """The plan that is there, if it is this stream's, with these shards, and none of its files is missing."""
    if not storage.exists(folder.plan):
        return None
    manifest = manifest_from_json(storage.read_bytes(folder.plan))
    same = manifest.stream == stream and manifest.statistics.get("shard_bytes") == config.bake.shard_bytes
    if not same or manifest.versions != pixel_versions():
        return None
    if config.order == "length_grouped" and not storage.exists(folder.join(LENGTHS_PATH)):
        return None
    there = all(lane_is_there(folder, storage, stream, lane, plan) for lane, plan in enumerate(manifest.lanes))
    return manifest if there else None


def _packing_rules(config: VlmConfig) -> PackingRules:
    pack_size = config.pack_size or 0
    limited = config.order == "length_grouped" and config.max_length is not None
    return PackingRules(
        rows=RowRules(
            max_length=config.max_length,
            truncation=config.truncation,
            on_bad_row=config.bake.on_bad_row,
            max_retries=config.max_retries,
        ),
        packing=config.packing,
        pack_size=pack_size,
        capacity=int(pack_size * config.packing_ratio),
        alignment=config.sequence_alignment,
        balance=config.balance_media_tokens,
        max_packs=config.max_packs,
        length_limit=(config.max_length or 0) + LENGTH_HEADROOM if limited else None,
        seed=config.seed or 0,
    )


def _pack(config: VlmConfig, entries: IndexEntries, indexes: Sequence[SourceIndex], rank: int) -> DataSet:
    chosen = entries.entries_of(dataset_rows(config, indexes, rank))
    return DataSet(entries=chosen, packed=pack_data_set(entries.selected(chosen), _packing_rules(config)))


def _refuse_nothing(config: VlmConfig, data_sets: Sequence[DataSet]) -> None:
    for rank, data_set in enumerate(data_sets):
        if data_set.packed.num_packs == 0:
            of_rank = f" of rank {rank}" if config.shard_data else ""
            raise SourceError(
                f"The data set{of_rank} has {len(data_set.entries)} rows and not one of them is in a pack; there would "
                "be nothing to train on. See the index's faults, and max_length and pack_size."
            )
