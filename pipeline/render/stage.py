"""The render stage as both recipes run it: every planned shard through the executor, then `dataset.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loaders.format import DatasetManifest, LaneEntry, parse_dataset_manifest, sealed, to_json
from pipeline.bake import BakeFolder
from pipeline.errors import RunFailed
from pipeline.executor import Executor, Progress, UnitDone
from pipeline.plan_table import PlanManifest, ShardPlan, manifest_from_json
from pipeline.render.accounts import refuse_too_many_drops, row_accounts
from pipeline.render.conflict import refuse_other_bake, remove_uncommitted
from pipeline.render.unit import RenderedShard, RenderJob, RenderUnit, render_unit
from pipeline.storage import Storage

__all__ = ["Rendered", "read_plan", "refuse_other_maker", "render_bake"]

SHARDS_PER_UNIT = 8
SMALL_UNIT_BYTES = 128 << 20
"""Consecutive shards of a lane go into one unit up to this many raw pixel bytes: their source rows lie together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """What the manifest of a finished bake says of its shards.

    Attributes:
        lanes: Every lane's shards.
        tokens: The recipe's counts over all shards.
        rows: The accounts of every source.
    """

    lanes: tuple[LaneEntry, ...]
    tokens: dict[str, int]
    rows: dict[str, Any]


def read_plan(storage: Storage, folder: BakeFolder) -> PlanManifest:
    """The plan of the bake.

    Raises:
        RunFailed: there is none.
    """
    try:
        return manifest_from_json(storage.read_bytes(folder.plan))
    except FileNotFoundError as error:
        raise RunFailed(
            f"{folder.plan} does not exist. Render makes what the plan decided and has nothing to go by. Run `parbake "
            "plan` first, or `parbake run`, which does all stages."
        ) from error


def refuse_other_maker(plan: PlanManifest, kind: str, path: str, found: str) -> None:
    """Token ids must be those that the plan counted.

    Args:
        plan: The plan.
        kind: "tokenizer" or "processor".
        path: Where it was loaded from.
        found: Its fingerprint.

    Raises:
        RunFailed: it is another one.
    """
    planned = plan.fingerprints["tokenizer"]
    if found != planned:
        raise RunFailed(
            f"the {kind} {path} has fingerprint {found}, the plan was made with {planned}. Its token ids would not be "
            f"the planned ones. Run `parbake plan` again, or restore the {kind}."
        )


def render_bake(
    job: RenderJob,
    plan: PlanManifest,
    executor: Executor,
    progress: Progress,
    max_dropped_fraction: float,
    manifest_of: Callable[[Rendered], DatasetManifest],
) -> DatasetManifest:
    """Render every shard of the plan that is not there yet, then publish `dataset.json`.

    The bytes depend on the plan and the sources alone: not on the executor, the order of the units, or how often the
    run was killed.

    Args:
        job: What all units share.
        plan: The plan.
        executor: Runs the units.
        progress: Told how far it is.
        max_dropped_fraction: Part of a source's rows that may be lost, judged once all units are done.
        manifest_of: Makes the recipe's manifest.

    Raises:
        BakeConflict: the output holds another bake, or a longer one.
        RunFailed: a source changed, a worker's versions differ, or storage failed.
        SourceError: a pack has nothing to learn left.
        TooManyDrops: a source lost more rows than `max_dropped_fraction` allows.
    """
    storage, folder = job.storage, job.folder
    lanes = [lane.shards for lane in plan.lanes]
    refuse_other_bake(storage, folder, stream=plan.stream, pixels=job.pixels, shard_bytes=job.shard_bytes, lanes=lanes)
    storage.sweep(folder.url)
    remove_uncommitted(storage, folder, lanes)
    shards = _render(replace(job, finished=_finished(storage, folder)), lanes, executor, progress)

    rows = row_accounts(plan, (shard.drops for shard in shards.values()))
    refuse_too_many_drops(rows, max_dropped_fraction)
    tokens: Counter[str] = Counter()
    for rendered in shards.values():
        tokens.update(rendered.tokens)
    manifest = sealed(
        manifest_of(
            Rendered(
                lanes=tuple(
                    LaneEntry(shards=tuple(shards[number, shard].entry for shard in range(len(lane))))
                    for number, lane in enumerate(lanes)
                ),
                tokens={name: tokens[name] for name in job.recipe.token_kinds},
                rows=rows,
            )
        )
    )
    storage.sweep(folder.url)  # a worker killed during this run left its own
    content = to_json(manifest, indent=1)
    if not storage.exists(folder.dataset) or storage.read_bytes(folder.dataset) != content:
        storage.publish_bytes(folder.dataset, content)
    return manifest


def _finished(storage: Storage, folder: BakeFolder) -> tuple[tuple[int, ...], ...]:
    """Packs of each shard of each lane of the finished bake that is there; () if there is none."""
    if not storage.exists(folder.dataset):
        return ()
    manifest = parse_dataset_manifest(storage.read_bytes(folder.dataset), folder.dataset)
    return tuple(tuple(shard.num_packs for shard in lane.shards) for lane in manifest.lanes)


def _render(
    job: RenderJob, lanes: Sequence[Sequence[ShardPlan]], executor: Executor, progress: Progress
) -> dict[tuple[int, int], RenderedShard]:
    units = list(_units(job, lanes))
    progress.start("render", len(units))
    shards: dict[tuple[int, int], RenderedShard] = {}
    for done in executor.map(render_unit, units):
        shards |= {(shard.lane, shard.shard): shard for shard in done}
        made = [shard.entry for shard in done if not shard.found]
        progress.advance(
            UnitDone(packs=sum(entry.num_packs for entry in made), num_bytes=sum(entry.num_bytes for entry in made))
        )
    progress.finish()
    return shards


def _units(job: RenderJob, lanes: Sequence[Sequence[ShardPlan]]) -> Iterator[RenderUnit]:
    """Consecutive shards of a lane, as many as are small."""
    for lane, shards in enumerate(lanes):
        first, taken, num_bytes = 0, list[ShardPlan](), 0
        for number, shard in enumerate(shards):
            if taken and (len(taken) == SHARDS_PER_UNIT or num_bytes + shard.pixel_bytes > SMALL_UNIT_BYTES):
                yield RenderUnit(job=job, lane=lane, first_shard=first, shards=tuple(taken))
                first, taken, num_bytes = number, [], 0
            taken.append(shard)
            num_bytes += shard.pixel_bytes
        if taken:
            yield RenderUnit(job=job, lane=lane, first_shard=first, shards=tuple(taken))
