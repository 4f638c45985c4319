"""Law 5: every row of every source is packed, dropped for a reason, discarded, waiting, not reached or in no lane.

The plan's accounts, render's drops, the packs and the index are four witnesses; none may contradict another. A VLM row
that was replaced counts as dropped; what stands in its place is a *replacement*, a further copy of another row. Where
render had to leave one of those out, a sidecar does not say which kind it was: then samples are held to the accounts in
sum, and rows of a source only within the drops.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loaders.format import DatasetManifest, Drop
from pipeline.bake import BakeFolder
from pipeline.errors import RunFailed
from pipeline.fingerprint import fingerprint
from pipeline.index_table import source_index_from_json
from pipeline.law_report import LawResult, Violation, judge
from pipeline.plan_table import PlanManifest, manifest_from_json
from pipeline.storage import Storage

__all__ = ["NO_PLAN", "check_rows", "read_plan"]

NO_PLAN = "plan/plan.json is not here, cannot be read, or plans a longer bake that is not rendered yet"

REPLACED = "replaced: "
"""Begins the reasons of rows in whose place another row is packed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Witnesses:
    """What each witness says of one source."""

    account: Mapping[str, Any]  # dataset.json
    plan: list[list[dict[str, Any]]]  # plan.json: per lane, per pass
    not_reached: int
    not_assigned: int
    rendered_drops: Mapping[str, int]
    rows_in_packs: int | None
    rows_in_index: int | None
    num_replaced: int  # rows of all sources that another stands in for


def read_plan(
    storage: Storage, folder: BakeFolder, manifest: DatasetManifest
) -> tuple[PlanManifest | None, list[Violation]]:
    """`plan.json`, None where only the shards were copied or a longer bake is planned and not yet rendered (then the
    finished bake is what it was); and what is wrong with it.
    """
    try:
        plan = manifest_from_json(storage.read_bytes(folder.plan))
    except FileNotFoundError:
        return None, []
    except RunFailed as error:
        return None, [Violation(law=7, subject="plan.json", complaint=str(error))]
    if _continues(plan, manifest):
        return None, []
    complaints = [
        f"has {name} {theirs}, dataset.json {ours}"
        for name, theirs, ours in (
            ("special_tokens", plan.special_tokens, manifest.special_tokens),
            ("vocab_size", plan.vocab_size, manifest.vocab_size),
            ("versions", plan.versions, manifest.versions),
        )
        if theirs != ours
    ]
    if fingerprint([[shard.fingerprint for shard in lane.shards] for lane in plan.lanes]) != plan.fingerprints["plan"]:
        complaints.append("lists other shards than its fingerprint was made of")
    return plan, [Violation(law=7, subject="plan.json", complaint=complaint) for complaint in complaints]


def _continues(plan: PlanManifest, manifest: DatasetManifest) -> bool:
    """Whether another plan of this stream has all closed shards of the bake and more packs."""
    theirs, ours = ({**prints, "plan": ""} for prints in (plan.fingerprints, manifest.fingerprints))
    if plan.fingerprints["plan"] == manifest.fingerprints["plan"] or plan.stream != manifest.stream or theirs != ours:
        return False
    lanes = list(zip(plan.lanes, manifest.lanes, strict=False))
    closed = all(
        [shard.num_packs for shard in planned.shards[: len(baked.shards) - 1]]
        == [shard.num_packs for shard in baked.shards[:-1]]
        for planned, baked in lanes
    )
    longer = [planned.num_packs - baked.num_packs for planned, baked in lanes]
    return closed and len(plan.lanes) == len(manifest.lanes) and min(longer) >= 0 and max(longer) > 0


def check_rows(
    storage: Storage,
    folder: BakeFolder,
    manifest: DatasetManifest,
    plan: PlanManifest | None,
    rows_in_packs: Counter[str] | None,
    drops: list[Drop],
    num_replacements: int = 0,
) -> LawResult:
    """The accounts of every source, to the last row.

    Args:
        storage: Where the bake lies.
        folder: The bake.
        manifest: Its `dataset.json`.
        plan: Its `plan.json`, if it is there.
        rows_in_packs: Source → rows found in the shards in their own right; None where not every pack could be read.
        drops: Samples that render had to remove, from all sidecars.
        num_replacements: Samples found in the shards that stand in for another row.
    """
    notes = [] if plan is not None else [f"{NO_PLAN}: the accounts of dataset.json stand alone"]
    violations: list[Violation] = []
    dropped: dict[str, Counter[str]] = {}
    for drop in drops:
        dropped.setdefault(drop.source, Counter())[drop.reason] += 1
    if rows_in_packs is None:
        notes.append("some packs cannot be read (law 6): their samples were not counted again")
    num_replaced = sum(_num_replaced(account) for account in manifest.rows.values())
    sources = manifest.rows.keys() | (rows_in_packs or {}).keys() | dropped.keys() | _sources_of(plan)
    for source in sorted(sources):
        rows_in_index = _rows_in_index(storage, folder, source)
        if rows_in_index is None:
            notes.append(f"the index of {source} is not here: its rows were not counted again")
        witnesses = _Witnesses(
            account=manifest.rows.get(source, {}),
            plan=[] if plan is None else [lane.rows.get(source, []) for lane in plan.lanes],
            not_reached=0 if plan is None else sum(lane.not_reached.get(source, 0) for lane in plan.lanes),
            not_assigned=0 if plan is None else plan.not_assigned.get(source, 0),
            rendered_drops=dropped.get(source, Counter()),
            rows_in_packs=None if rows_in_packs is None else rows_in_packs[source],
            rows_in_index=rows_in_index,
            num_replaced=num_replaced,
        )
        complaints = _contradictions(witnesses, has_plan=plan is not None)
        violations += [Violation(law=5, subject=f"source {source}", complaint=complaint) for complaint in complaints]
    if rows_in_packs is not None and (num_replaced or num_replacements):
        packed = sum(once["packed"] for account in manifest.rows.values() for once in account["passes"])
        held = sum(rows_in_packs.values()) + num_replacements
        if packed + num_replaced - len(drops) != held:
            complaint = (
                f"{packed} rows were packed and {num_replaced} replaced, {len(drops)} dropped in render, and the "
                f"shards hold {held}"
            )
            violations.append(Violation(law=5, subject="all sources", complaint=complaint))
    return judge(5, len(sources), violations, notes)


def _num_replaced(account: Mapping[str, Any]) -> int:
    """Rows of a source in whose place another row is packed."""
    return sum(
        count for once in account["passes"] for reason, count in once["dropped"].items() if reason.startswith(REPLACED)
    )


def _sources_of(plan: PlanManifest | None) -> set[str]:
    if plan is None:
        return set()
    return {source for lane in plan.lanes for source in (*lane.rows, *lane.not_reached)} | plan.not_assigned.keys()


def _rows_in_index(storage: Storage, folder: BakeFolder, source: str) -> int | None:
    """Rows of a source's files, each file once."""
    try:
        index = source_index_from_json(storage.read_bytes(folder.source_index(source)))
    except FileNotFoundError:
        return None
    return sum(unit.num_rows for unit in index.units) + index.rows_unused


def _contradictions(witnesses: _Witnesses, *, has_plan: bool) -> Iterator[str]:
    account = witnesses.account
    if not account:
        yield "dataset.json has no account of it"
        return
    passes = account["passes"]
    for number, once in enumerate(passes):
        fates = once["packed"] + sum(once["dropped"].values()) + once["discarded"] + once["waiting"]
        if fates != once["drawn"]:
            yield f"pass {number} drew {once['drawn']} rows and knows the fate of {fates}"
    packed = sum(once["packed"] for once in passes)
    in_render = sum(witnesses.rendered_drops.values())
    most = packed if witnesses.num_replaced else packed - in_render
    held = witnesses.rows_in_packs
    if held is not None and not packed - in_render <= held <= most:
        yield f"{packed} rows were packed and {in_render} dropped in render, the shards hold {held}"
    if account["dropped_in_render"] != dict(witnesses.rendered_drops):
        yield f"dataset.json counts the drops {account['dropped_in_render']}, sidecars {dict(witnesses.rendered_drops)}"
    first = passes[0]["drawn"] if passes else 0
    known = first + account["not_reached"] + account["not_assigned"]
    if witnesses.rows_in_index is not None and known < witnesses.rows_in_index:
        # more than the index has is right where num_used_data takes a file several times: each use counts
        yield f"its files hold {witnesses.rows_in_index} rows, {known} are accounted for"
    if has_plan:
        yield from _contradictions_of_plan(witnesses)


def _contradictions_of_plan(witnesses: _Witnesses) -> Iterator[str]:
    account = witnesses.account
    num_passes = max((len(passes) for passes in witnesses.plan), default=0)
    summed = []
    for number in range(num_passes):
        total: dict[str, Any] = {"drawn": 0, "packed": 0, "dropped": Counter(), "discarded": 0, "waiting": 0}
        for once in (passes[number] for passes in witnesses.plan if number < len(passes)):
            total["dropped"].update(once["dropped"])
            for fate in ("drawn", "packed", "discarded", "waiting"):
                total[fate] += once[fate]
        summed.append({**total, "dropped": dict(total["dropped"])})
    if summed != account["passes"]:
        yield f"the plan's accounts are {json.dumps(summed)}, those of dataset.json {json.dumps(account['passes'])}"
    left = (witnesses.not_reached, witnesses.not_assigned)
    if left != (account["not_reached"], account["not_assigned"]):
        yield (
            f"the plan leaves {left} rows not reached and not assigned, dataset.json "
            f"{(account['not_reached'], account['not_assigned'])}"
        )
