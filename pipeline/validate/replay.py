"""Laws 7 and 8, as far as one bake can show them: whole lanes in one order, and states that name the next step.

That any executor and any interruption give these bytes is for the tests; here it is checked that what is there is one
stream: lanes as the plan cut them, every position a pack and every pack a position, and at a few places of the stream
that a saved state resumes with the pack that comes next, for several world sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch

from loaders.batch import PackedBatch
from loaders.dataset import PackedShards
from loaders.errors import LoaderError
from loaders.format import DatasetManifest
from loaders.order import CanonicalOrder, positions_of_step
from loaders.reader import BakeReader
from pipeline.law_report import LawResult, Violation, judge
from pipeline.plan_table import PlanManifest
from pipeline.validate.rows import NO_PLAN

__all__ = ["check_order", "check_resume"]

_PLACES = 5


def check_order(
    manifest: DatasetManifest,
    order: CanonicalOrder,
    plan: PlanManifest | None,
    of_recipe: Sequence[Violation] = (),
) -> LawResult:
    """Law 7: lanes hold what was planned, canonical order is a bijection of them, and what the recipe adds."""
    lanes = _lanes(manifest, plan)
    violations = [Violation(law=7, subject=subject, complaint=complaint) for subject, complaint in lanes]
    violations += of_recipe
    for position in _places(len(order)):
        lane, pack = order.pack_at(position)
        if order.position_of(lane, pack) != position:
            violations.append(
                Violation(law=7, subject=f"position {position}", complaint=f"is not where pack {pack} of {lane} is")
            )
    notes = [] if plan is not None else [f"{NO_PLAN}: lanes were not compared with it"]
    return judge(7, len(manifest.lanes), violations, notes)


def _lanes(manifest: DatasetManifest, plan: PlanManifest | None) -> Iterator[tuple[str, str]]:
    num_lanes = manifest.world_size * max(1, manifest.num_workers)
    if len(manifest.lanes) != num_lanes:
        yield "dataset.json", f"lists {len(manifest.lanes)} lanes, world_size and num_workers make {num_lanes}"
    if plan is None:
        return
    if plan.stream != manifest.stream or plan.fingerprints != manifest.fingerprints:
        yield "dataset.json", f"is of stream {manifest.stream} or plan that plan.json ({plan.stream}) is not"
    if len(plan.lanes) != len(manifest.lanes):
        yield "dataset.json", f"lists {len(manifest.lanes)} lanes, the plan has {len(plan.lanes)}"
    for number, (planned, baked) in enumerate(zip(plan.lanes, manifest.lanes, strict=False)):
        wanted, found = [s.num_packs for s in planned.shards], [s.num_packs for s in baked.shards]
        if wanted != found:
            held, promised = f"{sum(found)} packs in {len(found)} shards", f"{sum(wanted)} in {len(wanted)}"
            yield f"lane {number}", f"has {held}, planned {promised}"


def _places(count: int) -> list[int]:
    """A few numbers below `count`, ends included."""
    return sorted({(count - 1) * place // _PLACES for place in range(_PLACES + 1)}) if count else []


def check_resume(bake: str, reader: BakeReader, storage_options: dict[str, object]) -> LawResult:
    """Law 8: from a few positions on, for several world sizes, a loaded state gives the packs that come next."""
    num_packs = len(reader.order)
    violations: list[Violation] = []
    num_checked = 0
    for world_size in sorted({1, 2, 3, reader.manifest.world_size}):
        if world_size > num_packs:
            continue
        dataset = PackedShards(bake, world_size - 1, world_size, fields=(), storage_options=storage_options)
        for position in _places(num_packs - world_size + 1):
            num_checked += 1
            wanted = [_packs_of_step(dataset, step, position) for step in range(min(2, dataset.steps_from(position)))]
            if complaint := _difference(dataset, position, wanted):
                violations.append(
                    Violation(law=8, subject=f"position {position} of {world_size} ranks", complaint=complaint)
                )
    return judge(8, num_checked, violations)


def _packs_of_step(dataset: PackedShards, step: int, position: int) -> list[tuple[int, int]]:
    """(lane, pack) of what the dataset's rank should read in a step counted from a position of epoch 0."""
    turns = positions_of_step(
        step,
        dataset.rank,
        dataset.world_size,
        start=position,
        num_packs=len(dataset.reader.order),
        tail=dataset.recipe.tail,
        packs_per_batch=dataset.recipe.packs_per_batch,
    )
    return [dataset.pack_at(0, turn) for turn in turns]


def _difference(dataset: PackedShards, position: int, wanted: list[list[tuple[int, int]]]) -> str:
    """What is wrong with the batches that a state at a position of epoch 0 gives, "" if they are of these packs."""
    loader = dataset.loader()
    try:
        loader.load_state_dict({"version": 1, "stream": dataset.stream, "epoch": 0, "position": position})
        found = list(islice(loader, 2))
        read = dataset.reader.read
        batches = [dataset.recipe.batch(0, [read(*place, frozenset()) for place in places]) for places in wanted]
    except LoaderError as error:
        return str(error)
    same = len(found) == len(batches) and all(map(_are_equal, found, batches))
    return "" if same else f"the next packs should be {wanted}, the loader gives others"


def _are_equal(found: object, wanted: object) -> bool:
    """Whether two batches hold the same packs."""
    if isinstance(found, PackedBatch) and isinstance(wanted, PackedBatch):
        return (found.lane, found.pack) == (wanted.lane, wanted.pack)
    assert isinstance(found, dict)
    assert isinstance(wanted, dict)
    return found.keys() == wanted.keys() and all(
        torch.equal(value, wanted[key]) if isinstance(value, torch.Tensor) else value == wanted[key]
        for key, value in found.items()
    )
