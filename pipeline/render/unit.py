"""One unit of work, for any recipe: a few consecutive shards of a lane, each a pure function of its plan rows and the
source bytes.

A shard streams through: one pack's pixels are in memory at a time, whatever the shard's size. The tar becomes visible
when it is whole; the sidecar follows and is the commit mark. A shard whose sidecar has the right fingerprint is left as
it is, so running the same units again is resume.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loaders.format import Drop, FormatError, PackHeader, ShardEntry, Sidecar, pack_key, parse_sidecar, to_json
from loaders.vlm_format import VlmPackHeader
from pipeline.bake import BakeFolder
from pipeline.errors import BakeConflict, RunFailed
from pipeline.fingerprint import fingerprint
from pipeline.plan_table import ShardPlan
from pipeline.render.shard_writer import ShardWriter
from pipeline.storage import Storage
from pipeline.versions import pixel_versions

__all__ = [
    "MadePack",
    "PackMaker",
    "RenderJob",
    "RenderRecipe",
    "RenderUnit",
    "RenderedShard",
    "committed_sidecar",
    "render_unit",
]


class MadePack(Protocol):
    """What `ShardWriter.add_pack` takes, and what became of the samples."""

    @property
    def header(self) -> PackHeader | VlmPackHeader:
        """The `.json` member."""

    @property
    def arrays(self) -> Mapping[str, NDArray[np.generic]]:
        """Array name → array."""

    @property
    def pictures(self) -> Mapping[str, bytes]:
        """Short name ("vit_000") → lossless WebP; empty with raw pixels."""

    @property
    def tokens(self) -> Mapping[str, int]:
        """Counts that are summed over the bake: the recipe's `token_kinds`."""

    @property
    def drops(self) -> tuple[Drop, ...]:
        """Samples that had to be left out."""


class PackMaker(Protocol):
    """Makes the packs of a recipe; one per unit of work."""

    def packs(self, lane: int, shard: int, plan: ShardPlan) -> Iterator[tuple[int, MadePack]]:
        """The packs of a shard in order, each with its number in the lane."""

    def close(self) -> None:
        """Let go of files."""


class RenderRecipe(Protocol):
    """What differs from recipe to recipe: picklable, travels to every worker."""

    @property
    def token_kinds(self) -> tuple[str, ...]:
        """Names of the counts of `MadePack.tokens`."""

    def open(self, folder: BakeFolder, storage: Storage) -> PackMaker:
        """A maker for one unit of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderJob:
    """What all units of a bake share.

    Attributes:
        recipe: Makes packs.
        folder: The bake.
        storage: Reads and publishes.
        stream: The plan's stream.
        versions: Versions of the plan; a worker's own must be equal.
        settings: Fingerprint of everything but the plan rows that decides a shard's bytes.
        pixels: How pixels are stored.
        shard_bytes: Bound by which shards were cut.
        finished: Packs of each shard of each lane of the finished bake that this one continues; () if there is none.
    """

    recipe: RenderRecipe
    folder: BakeFolder
    storage: Storage
    stream: str
    versions: dict[str, str]
    settings: str
    pixels: str
    shard_bytes: int
    finished: tuple[tuple[int, ...], ...] = ()

    def shard_fingerprint(self, plan: ShardPlan) -> str:
        """Equal fingerprint, equal bytes."""
        return fingerprint({"rows": plan.fingerprint, "settings": self.settings})


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderUnit:
    """Consecutive shards of a lane, from `first_shard` on."""

    job: RenderJob
    lane: int
    first_shard: int
    shards: tuple[ShardPlan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedShard:
    """A committed shard: its entry of `dataset.json`, and its part of the totals.

    Attributes:
        lane: Lane number.
        shard: Shard number in the lane.
        entry: Packs, bytes and checksums.
        tokens: The recipe's counts.
        drops: (source, reason) → samples left out.
        found: It was there already.
    """

    lane: int
    shard: int
    entry: ShardEntry
    tokens: dict[str, int]
    drops: dict[tuple[str, str], int]
    found: bool


def render_unit(unit: RenderUnit) -> tuple[RenderedShard, ...]:
    """Render the unit's shards, or find them committed.

    Raises:
        RunFailed: this worker's versions differ from the plan's; a source file changed; storage failed.
        SourceError: a pack has nothing to learn left.
        BakeConflict: a shard of another bake is in the way.
    """
    job = unit.job
    _refuse_other_versions(job.versions)
    maker = job.recipe.open(job.folder, job.storage)
    try:
        return tuple(
            _find_or_render(job, unit.lane, shard, plan, maker)
            for shard, plan in enumerate(unit.shards, unit.first_shard)
        )
    finally:
        maker.close()


def _find_or_render(job: RenderJob, lane: int, shard: int, plan: ShardPlan, maker: PackMaker) -> RenderedShard:
    sidecar = committed_sidecar(job.storage, job.folder, lane, shard)
    if sidecar is not None and _is_current(job, sidecar, plan):
        return _rendered(sidecar, found=True)
    if sidecar is not None:
        _refuse_rewriting(job, sidecar, plan)
    return _rendered(_render_shard(job, lane, shard, plan, maker), found=False)


def committed_sidecar(storage: Storage, folder: BakeFolder, lane: int, shard: int) -> Sidecar | None:
    """The sidecar of a committed shard; None if there is none, it is damaged, or the tar beside it is not its own."""
    try:
        sidecar = parse_sidecar(storage.read_bytes(folder.sidecar(lane, shard)))
        num_bytes = storage.identity(folder.shard(lane, shard)).num_bytes
    except (FileNotFoundError, FormatError):
        return None
    return sidecar if sidecar.num_bytes == num_bytes else None


def _is_current(job: RenderJob, sidecar: Sidecar, plan: ShardPlan) -> bool:
    if sidecar.stream != job.stream:
        raise BakeConflict(
            f"shard {sidecar.shard} of lane {sidecar.lane} in {job.folder.url} belongs to stream {sidecar.stream}, "
            f"this bake is {job.stream}. Mixing the two would give a data set that no configuration describes. Choose "
            "another output, or remove the old bake."
        )
    return sidecar.fingerprint == job.shard_fingerprint(plan)


def _refuse_rewriting(job: RenderJob, sidecar: Sidecar, plan: ShardPlan) -> None:
    """A finished bake's shards stay as they are; only a lane's last one may grow."""
    lane = job.finished[sidecar.lane] if sidecar.lane < len(job.finished) else ()
    if sidecar.shard < len(lane) and (sidecar.shard < len(lane) - 1 or plan.num_packs <= lane[-1]):
        raise BakeConflict(
            f"shard {sidecar.shard} of lane {sidecar.lane} in {job.folder.url} is finished, and this plan has other "
            "packs in its place. Loaders may have read it, and states saved with it would name other packs. Its shards "
            "and dataset.json were left as they are: choose another output for this length."
        )


def _render_shard(job: RenderJob, lane: int, shard: int, plan: ShardPlan, maker: PackMaker) -> Sidecar:
    """Write one tar, then its sidecar."""
    drops: list[Drop] = []
    tokens: Counter[str] = Counter(dict.fromkeys(job.recipe.token_kinds, 0))
    with job.storage.publishing(job.folder.shard(lane, shard)) as file:
        writer = ShardWriter(file)
        for pack, made in maker.packs(lane, shard, plan):
            writer.add_pack(pack_key(lane, pack), made.header, made.arrays, made.pictures)
            drops += made.drops
            tokens.update(made.tokens)
        content = writer.finish()
    sidecar = Sidecar(
        lane=lane,
        shard=shard,
        first_pack=plan.first_pack,
        num_packs=plan.num_packs,
        num_bytes=content.num_bytes,
        sha256=content.sha256,
        fingerprint=job.shard_fingerprint(plan),
        packs=content.packs,
        drops=tuple(drops),
        tokens=dict(tokens),
        stream=job.stream,
        pixels=job.pixels,
        shard_bytes=job.shard_bytes,
    )
    job.storage.publish_bytes(job.folder.sidecar(lane, shard), to_json(sidecar))
    return sidecar


def _rendered(sidecar: Sidecar, *, found: bool) -> RenderedShard:
    return RenderedShard(
        lane=sidecar.lane,
        shard=sidecar.shard,
        entry=ShardEntry(
            num_packs=sidecar.num_packs,
            num_bytes=sidecar.num_bytes,
            sha256=sidecar.sha256,
            sidecar_sha256=hashlib.sha256(to_json(sidecar)).hexdigest(),
        ),
        tokens=dict(sidecar.tokens),
        drops=dict(Counter((drop.source, drop.reason) for drop in sidecar.drops)),
        found=found,
    )


def _refuse_other_versions(planned: dict[str, str]) -> None:
    own = pixel_versions()
    differing = [name for name in planned.keys() | own.keys() if planned.get(name) != own.get(name)]
    if differing:
        shown = ", ".join(f"{name} {own.get(name)} instead of {planned.get(name)}" for name in sorted(differing))
        raise RunFailed(
            f"this worker has {shown}. Pixels and token ids depend on these, so its shards would differ from the "
            "others'. Give all workers the image the plan was made with, or plan again with this one."
        )
