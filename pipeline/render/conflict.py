"""Is the output ours? Nothing is written into a folder that holds another bake."""

from __future__ import annotations

import re
from collections.abc import Sequence

from loaders.format import FormatError, parse_dataset_manifest, parse_sidecar
from pipeline.bake import BakeFolder
from pipeline.configuration.writer import without_secrets
from pipeline.errors import BakeConflict
from pipeline.plan_table import ShardPlan
from pipeline.storage import Storage

__all__ = ["refuse_other_bake", "remove_uncommitted"]

_SHARD_FILE = re.compile(r"lane-(\d+)/(\d+)\.(tar|json)")


def refuse_other_bake(
    storage: Storage,
    folder: BakeFolder,
    *,
    stream: str,
    pixels: str,
    shard_bytes: int,
    lanes: Sequence[Sequence[ShardPlan]],
) -> None:
    """Compare what is committed with what is planned; one sidecar speaks for all, because every run checks first.

    Args:
        storage: Reads.
        folder: The output.
        stream: This run's stream.
        pixels: How it stores pixels.
        shard_bytes: Its shard size.
        lanes: Every lane's planned shards.

    Raises:
        BakeConflict: the output belongs to another stream, to other `pixels` or `shard_bytes`, or is longer.
    """
    if storage.exists(folder.dataset):
        try:
            manifest = parse_dataset_manifest(storage.read_bytes(folder.dataset), folder.dataset)
        except FormatError as error:
            raise BakeConflict(
                f"{without_secrets(folder.dataset)} is there and cannot be read ({error}). It may be another "
                "program's or another version's data set. Choose another output, or remove it."
            ) from error
        theirs = (manifest.stream, manifest.pixels, manifest.settings.get("shard_bytes"))
        _refuse_other(folder, (stream, pixels, shard_bytes), theirs)
    committed = _shard_files(storage, folder, "json")
    for number, lane_and_shard in enumerate(sorted(committed)):
        lane, shard = lane_and_shard
        planned = lanes[lane] if lane < len(lanes) else ()
        if shard >= len(planned):
            raise _shorter(folder, f"shard {shard} of lane {lane} is committed, the plan has {len(planned)} there")
        # The last planned shard may be committed with fewer packs (it is rewritten), never with more.
        if number > 0 and shard < len(planned) - 1:
            continue
        try:
            sidecar = parse_sidecar(storage.read_bytes(folder.sidecar(lane, shard)))
        except FormatError:
            continue  # damaged: the shard is rendered again
        _refuse_other(folder, (stream, pixels, shard_bytes), (sidecar.stream, sidecar.pixels, sidecar.shard_bytes))
        if sidecar.num_packs > planned[shard].num_packs:
            raise _shorter(
                folder,
                f"shard {shard} of lane {lane} has {sidecar.num_packs} packs, the plan {planned[shard].num_packs}",
            )


def remove_uncommitted(storage: Storage, folder: BakeFolder, lanes: Sequence[Sequence[ShardPlan]]) -> None:
    """Remove tars that a killed longer run published but never committed, where this plan has no shard."""
    for lane, shard in _shard_files(storage, folder, "tar"):
        if lane >= len(lanes) or shard >= len(lanes[lane]):
            storage.remove(folder.shard(lane, shard))


def _shard_files(storage: Storage, folder: BakeFolder, suffix: str) -> set[tuple[int, int]]:
    """(lane, shard) of the files below `shards/` with this suffix."""
    try:
        names = storage.list_files(folder.join("shards"), recursive=True)
    except FileNotFoundError:
        return set()
    found = (_SHARD_FILE.fullmatch(name) for name in names)
    return {(int(match[1]), int(match[2])) for match in found if match and match[3] == suffix}


def _refuse_other(folder: BakeFolder, ours_all: Sequence[object], theirs_all: Sequence[object]) -> None:
    for name, theirs, ours in zip(("stream", "pixels", "shard_bytes"), theirs_all, ours_all, strict=True):
        if theirs != ours:
            raise BakeConflict(
                f"{without_secrets(folder.url)} holds a bake with {name} {theirs}, this one has {ours}. "
                "Mixing the two would give a data set that no configuration describes. Choose another bake.output, or "
                "remove the old bake."
            )


def _shorter(folder: BakeFolder, what: str) -> BakeConflict:
    return BakeConflict(
        f"{without_secrets(folder.url)} holds a longer bake of the same stream: {what}. Shards are never "
        "taken back, because loaders may have read them. Ask for at least the old length, or choose another "
        "bake.output."
    )
