"""Would a length take packs back? Answered before anything is written, from the shards and the plan that are there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from loaders.format import DatasetManifest, FormatError, parse_dataset_manifest, parse_sidecar
from pipeline.bake import BakeFolder
from pipeline.config import LengthConfig
from pipeline.errors import RunFailed
from pipeline.plan_table import LanePlan, PlanManifest, manifest_from_json
from pipeline.storage import Storage

__all__ = ["packs_committed", "shortened"]

_SIDECAR = re.compile(r"lane-(\d+)/(\d+)\.json")


def shortened(storage: Storage, folder: BakeFolder, length: LengthConfig) -> str:
    """What of the committed packs a bake of this length would not have, in words; "" if it has them all.

    Exact for packs and tokens. Where a lane of the plan ends is known and where in it the last epoch ended is not, so a
    number of epochs that the bake has reached is taken for shorter, unless it is the number that it was made with.
    A plan that has gone, or has lanes that were never rendered, answers less; then the render stage refuses.
    """
    committed = packs_committed(storage, folder)
    if length.packs_per_lane is not None:
        return _first(
            f"lane {lane} has {packs} packs, packs_per_lane is now {length.packs_per_lane}"
            for lane, packs in committed.items()
            if packs > length.packs_per_lane
        )
    plan = _plan(storage, folder)
    if plan is None:
        return ""
    if length.tokens is not None:
        return _first(
            f"lane {lane} has {packs} packs and would end before the last of them with tokens {length.tokens:g}"
            for lane, packs in committed.items()
            if _tokens_before(storage, folder.plan_lane(lane), packs - 1) * len(plan.lanes) >= length.tokens
        )
    epochs = length.epochs or 1
    if _written_length(storage, folder).get("epochs") == epochs:
        return ""
    return _first(
        f"lane {lane} has {packs} packs, and they hold all that epochs {epochs} asks for"
        for lane, packs in committed.items()
        if lane < len(plan.lanes)
        and plan.lanes[lane].num_packs == packs
        and _complete_passes(plan.lanes[lane], plan.statistics.get("weights", {})) >= epochs
    )


def packs_committed(storage: Storage, folder: BakeFolder) -> dict[int, int]:
    """Lane → packs up to the end of its last committed shard, for every lane that has one, in order."""
    try:
        names = storage.list_files(folder.join("shards"), recursive=True)
    except FileNotFoundError:
        return {}
    last: dict[int, int] = {}
    for match in filter(None, map(_SIDECAR.fullmatch, names)):
        lane, shard = int(match[1]), int(match[2])
        last[lane] = max(shard, last.get(lane, 0))
    manifest = _dataset(storage, folder)
    packs = {}
    for lane, shard in sorted(last.items()):
        if manifest is not None and lane < len(manifest.lanes) and len(manifest.lanes[lane].shards) == shard + 1:
            packs[lane] = manifest.lanes[lane].num_packs  # as many files as lanes need not be opened
            continue
        try:
            sidecar = parse_sidecar(storage.read_bytes(folder.sidecar(lane, shard)))
        except (FileNotFoundError, FormatError):
            continue  # damaged: it will be rendered again
        packs[lane] = sidecar.first_pack + sidecar.num_packs
    return packs


def _dataset(storage: Storage, folder: BakeFolder) -> DatasetManifest | None:
    try:
        return parse_dataset_manifest(storage.read_bytes(folder.dataset), folder.dataset)
    except (FileNotFoundError, FormatError):
        return None


def _plan(storage: Storage, folder: BakeFolder) -> PlanManifest | None:
    try:
        return manifest_from_json(storage.read_bytes(folder.plan))
    except (FileNotFoundError, RunFailed):
        return None


def _tokens_before(storage: Storage, url: str, packs: int) -> int:
    """Tokens of the first `packs` packs of a planned lane; 0 where they are not all there."""
    try:
        with storage.open(url) as file:
            table = pq.read_table(file, columns=["sequence_length"])
    except (FileNotFoundError, pa.ArrowException):
        return 0
    if not table.column_names:
        return 0  # a VLM plan: its length is not counted in tokens
    lengths = table.column("sequence_length").to_numpy()
    return int(lengths[:packs].sum()) if packs <= len(lengths) else 0


def _complete_passes(lane: LanePlan, weights: Mapping[str, float]) -> int:
    """How often every group of positive weight was read to its end when the lane ended."""
    passes = []
    for source, accounts in lane.rows.items():
        assigned = lane.not_reached.get(source, 0) + (accounts[0]["drawn"] if accounts else 0)
        if assigned and any(weight > 0 and source.startswith(f"{group}/") for group, weight in weights.items()):
            passes.append(sum(account["drawn"] == assigned for account in accounts))
    return min(passes, default=0)


def _written_length(storage: Storage, folder: BakeFolder) -> Mapping[str, object]:
    """The length in the `config.yaml` of the bake."""
    try:
        length = yaml.safe_load(storage.read_bytes(folder.config))["bake"]["length"]
    except (FileNotFoundError, yaml.YAMLError, KeyError, TypeError):
        return {}
    return length if isinstance(length, dict) else {}


def _first(found: Iterable[str]) -> str:
    return next(iter(found), "")
