"""The plan stage: assign every group, plan every lane, write `plan.json` last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.bake import BakeFolder
from pipeline.config import Config
from pipeline.executor import Executor, Progress, UnitDone
from pipeline.fingerprint import fingerprint
from pipeline.plan.assign import AssignUnit, assign_group
from pipeline.plan.assignment import Assignment
from pipeline.plan.existing import bake_in_the_way, read_source_index, refuse_other_stream, remove_lanes_beyond
from pipeline.plan.lane import LanePlanned, LaneUnit, plan_lane, read_lane
from pipeline.plan.statistics import added
from pipeline.plan.step_costs import imbalance
from pipeline.plan.stream_id import config_fingerprint, stream_id
from pipeline.plan_table import PlanManifest, manifest_to_json
from pipeline.records import SourceIndex
from pipeline.storage import Storage
from pipeline.tokenizer import Tokenizer
from pipeline.versions import pixel_versions

__all__ = ["run_plan"]


def run_plan(
    config: Config,
    folder: BakeFolder,
    storage: Storage,
    tokenizer: Tokenizer,
    executor: Executor,
    progress: Progress,
) -> PlanManifest:
    """Plan a bake whose index is finished.

    What is there with the right fingerprint is kept: assignments, lanes. A longer `length` plans every lane anew from
    its beginning, which gives the same packs and closed shards as before, and more.

    Raises:
        SourceError: the index is not there; fewer paths than lanes; a lane without one usable row.
        ConfigError: the budgets cannot hold what the groups give.
        BakeConflict: shards of another stream, or of another `shard_bytes`, are in the output; they stay as they are.
    """
    indexes = {source: read_source_index(folder, storage, source) for source in _source_names(config)}
    before = bake_in_the_way(
        folder, storage, config_fingerprint=config_fingerprint(config), shard_bytes=config.bake.shard_bytes
    )
    storage.sweep(folder.join("plan"))
    assignments = _assign(config, folder, storage, executor, progress, indexes, sealed=before is not None)
    stream = stream_id(config, tokenizer, assignments)
    refuse_other_stream(folder, before, stream)
    lanes = _plan_lanes(config, folder, storage, tokenizer, executor, progress, stream)
    manifest = PlanManifest(
        stream=stream,
        fingerprints={
            "config": config_fingerprint(config),
            "tokenizer": tokenizer.fingerprint,
            "plan": fingerprint([[shard.fingerprint for shard in lane.plan.shards] for lane in lanes]),
        },
        world_size=config.bake.world_size,
        num_workers=config.num_workers,
        lanes=tuple(lane.plan for lane in lanes),
        special_tokens=dict(tokenizer.special_tokens),
        vocab_size=tokenizer.vocab_size,
        not_assigned=dict(item for assignment in assignments for item in assignment.not_assigned.items()),
        statistics={
            **added(lane.statistics for lane in lanes),
            **_settings(config),
            "steps": _steps(config, lanes),
            "unreadable_files": _unreadable_files(indexes),
        },
        versions=pixel_versions(),
    )
    content = manifest_to_json(manifest)
    if not storage.exists(folder.plan) or storage.read_bytes(folder.plan) != content:
        storage.publish_bytes(folder.plan, content)
    remove_lanes_beyond(folder, storage, len(lanes))
    return manifest


def _assign(
    config: Config,
    folder: BakeFolder,
    storage: Storage,
    executor: Executor,
    progress: Progress,
    indexes: dict[str, SourceIndex],
    *,
    sealed: bool,
) -> list[Assignment]:
    units = [
        AssignUnit(
            config=config,
            folder=folder,
            storage=storage,
            group=number,
            indexes=tuple(indexes[source.name] for source in group.sources),
            sealed=sealed,
        )
        for number, group in enumerate(config.dataset.groups)
    ]
    progress.start("assign", len(units))
    found: dict[int, Assignment] = {}
    for number, assignment in executor.map(assign_group, units):
        found[number] = assignment
        progress.advance(UnitDone(rows=sum(lane.num_rows for lane in assignment.lanes)))
    progress.finish()
    return [found[number] for number in range(len(units))]


def _plan_lanes(
    config: Config,
    folder: BakeFolder,
    storage: Storage,
    tokenizer: Tokenizer,
    executor: Executor,
    progress: Progress,
    stream: str,
) -> list[LanePlanned]:
    length = config.bake.length.model_dump(mode="json")
    units = [
        LaneUnit(
            config=config,
            folder=folder,
            storage=storage,
            tokenizer=tokenizer,
            lane=lane,
            fingerprint=fingerprint([stream, lane, length, config.num_lanes, config.bake.shard_bytes]),
        )
        for lane in range(config.num_lanes)
    ]
    done = {unit.lane: lane for unit in units if (lane := read_lane(unit)) is not None}
    todo = [unit for unit in units if unit.lane not in done]
    progress.start("plan", len(units), len(done))
    for lane in executor.map(plan_lane, todo):
        done[lane.lane] = lane
        progress.advance(_unit_done(lane))
    progress.finish()
    return [done[unit.lane] for unit in units]


def _unit_done(lane: LanePlanned) -> UnitDone:
    rows = sum(account["drawn"] for accounts in lane.plan.rows.values() for account in accounts)
    return UnitDone(rows=rows, packs=lane.plan.num_packs)


def _source_names(config: Config) -> Iterable[str]:
    return (source.name for group in config.dataset.groups for source in group.sources)


def _unreadable_files(indexes: Mapping[str, SourceIndex]) -> dict[str, dict[str, list[str]]]:
    """Source → reason → files of which not one row is known."""
    files: dict[str, dict[str, list[str]]] = {}
    for source, index in indexes.items():
        for unit in index.units:
            if unit.fault:
                files.setdefault(source, {}).setdefault(unit.fault, []).append(unit.path)
    return files


def _steps(config: Config, lanes: list[LanePlanned]) -> dict[str, Any]:
    """How unevenly the packs of a step cost its ranks: as the lanes hand them out, and as they were packed."""
    world_size = config.bake.world_size
    return {
        "world_size": world_size,
        "imbalance": round(imbalance([lane.costs.handed_out() for lane in lanes], world_size), 6),
        "imbalance_as_packed": round(imbalance([lane.costs.as_packed() for lane in lanes], world_size), 6),
    }


def _settings(config: Config) -> dict[str, Any]:
    """Facts of the recipe that a report needs beside the counts."""
    rules = config.dataset
    return {
        "expected_num_tokens": rules.expected_num_tokens,
        "max_num_tokens": rules.max_num_tokens,
        "shard_bytes": config.bake.shard_bytes,
        "weights": {group.name: group.weight for group in rules.groups},
        "mandatory": [group.name for group in rules.groups if group.is_mandatory],
    }
