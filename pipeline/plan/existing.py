"""What the plan of either recipe finds in the output: the index, a bake in the way, lanes that are no more."""

from __future__ import annotations

from pipeline.bake import BakeFolder
from pipeline.errors import BakeConflict, SourceError
from pipeline.index_table import source_index_from_json
from pipeline.plan_table import PlanManifest, manifest_from_json
from pipeline.records import SourceIndex
from pipeline.storage import Storage

__all__ = ["bake_in_the_way", "read_source_index", "refuse_other_stream", "remove_lanes_beyond"]


def read_source_index(folder: BakeFolder, storage: Storage, source: str) -> SourceIndex:
    """The index of a source.

    Raises:
        SourceError: it is not finished.
    """
    try:
        return source_index_from_json(storage.read_bytes(folder.source_index(source)))
    except (FileNotFoundError, ValueError) as error:
        raise SourceError(
            f"{source} has no finished index in {folder.url} ({error}), so nobody knows its rows; "
            "run `parbake index` (or `parbake run`) first."
        ) from error


def bake_in_the_way(
    folder: BakeFolder, storage: Storage, *, config_fingerprint: str, shard_bytes: int
) -> PlanManifest | None:
    """The plan in the output if shards were rendered from it; then nothing of it may change but its length.

    Raises:
        BakeConflict: they are of another configuration or of another `shard_bytes`.
    """
    if not storage.exists(folder.plan):
        return None
    manifest = manifest_from_json(storage.read_bytes(folder.plan))
    if not any(storage.exists(folder.sidecar(lane, 0)) for lane in range(len(manifest.lanes))):
        return None
    written = manifest.statistics.get("shard_bytes")
    if written != shard_bytes:
        raise BakeConflict(
            f"{folder.url} holds shards of {written} bytes and shard_bytes is now {shard_bytes}; "
            "shards cut elsewhere would not continue them. Set shard_bytes back, or choose another output."
        )
    if manifest.fingerprints["config"] != config_fingerprint:
        raise _conflict(folder, manifest.stream, "another configuration")
    return manifest


def refuse_other_stream(folder: BakeFolder, before: PlanManifest | None, stream: str) -> None:
    """Compare the streams, once the sources are known.

    Raises:
        BakeConflict: shards of another stream are in the output.
    """
    if before is not None and before.stream != stream:
        raise _conflict(folder, before.stream, stream)


def remove_lanes_beyond(folder: BakeFolder, storage: Storage, num_lanes: int) -> None:
    """Lane files of an earlier plan that had more lanes."""
    expected = {folder.plan_lane(lane) for lane in range(num_lanes)}
    for name in storage.list_files(folder.join("plan")):
        url = folder.join(f"plan/{name}")
        if name.startswith("lane-") and url not in expected:
            storage.remove(url)


def _conflict(folder: BakeFolder, found: str, wanted: str) -> BakeConflict:
    return BakeConflict(
        f"{folder.url} holds shards of stream {found}, and this configuration with these sources is {wanted}; "
        "they would not be one data set. Nothing was touched: choose another output, or remove that one."
    )
