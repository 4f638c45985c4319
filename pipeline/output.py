"""Is the output ours? What can be told before anything is read or written, from what an earlier run left there.

The plan and render stages compare the stream itself; this comes first, so that not even the index or `config.yaml` of
another bake is touched by a configuration that plainly is not its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loaders.format import FormatError, parse_dataset_manifest, parse_sidecar
from pipeline.bake import BakeFolder
from pipeline.committed import shortened
from pipeline.config import LengthConfig
from pipeline.configuration.writer import without_secrets
from pipeline.errors import BakeConflict, RunFailed
from pipeline.plan_table import manifest_from_json
from pipeline.storage import Storage
from pipeline.versions import pixel_versions

__all__ = ["BakeIdentity", "refuse_other_bake", "refuse_other_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BakeIdentity:
    """What a bake with shards says of itself; "" and 0: it does not say.

    Attributes:
        config: Fingerprint of everything in the configuration that decides packs and batches.
        tokenizer: Fingerprint of the tokenizer, or of the whole processor.
        pixels: How pixels are stored.
        shard_bytes: Bound by which shards were cut.
        versions: Versions that pixels depend on; only a finished bake is held to them.
    """

    config: str = ""
    tokenizer: str = ""
    pixels: str = ""
    shard_bytes: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)


def refuse_other_bake(storage: Storage, folder: BakeFolder, wanted: BakeIdentity, length: LengthConfig | None) -> None:
    """Compare the configuration with the shards in the output, if there are any. Reads little and writes nothing.

    Args:
        storage: Reads.
        folder: The output.
        wanted: What this run's bake says of itself.
        length: How long it is to be, None where that is no choice.

    Raises:
        BakeConflict: The shards were made with other settings or another tokenizer, or are more than are asked for.
    """
    found = _identity(storage, folder)
    if found is None:
        return
    for name, theirs, ours in (
        ("another configuration", found.config, wanted.config),
        ("another tokenizer", found.tokenizer, wanted.tokenizer),
        (f"pixels {found.pixels} instead of {wanted.pixels}", found.pixels, wanted.pixels),
        (f"shard_bytes {found.shard_bytes} instead of {wanted.shard_bytes}", found.shard_bytes, wanted.shard_bytes),
    ):
        if theirs and theirs != ours:
            raise _conflict(folder, f"shards of {name}")
    own = pixel_versions() if found.versions else {}
    if differing := [name for name in found.versions if found.versions[name] != own.get(name)]:
        told = ", ".join(f"{name} {found.versions[name]} instead of {own.get(name)}" for name in differing)
        raise _conflict(folder, f"a finished bake whose pixels were made with {told}")
    if length is not None and (longer := shortened(storage, folder, length)):
        raise _conflict(folder, f"a longer bake ({longer})")


def refuse_other_plan(storage: Storage, folder: BakeFolder, config_fingerprint: str) -> None:
    """A plan is rendered with the configuration it was made with. No plan at all is for the render stage to say.

    Raises:
        RunFailed: The plan was made with other settings.
    """
    if not storage.exists(folder.plan):
        return
    found = manifest_from_json(storage.read_bytes(folder.plan)).fingerprints["config"]
    if found != config_fingerprint:
        raise RunFailed(
            f"The plan in {without_secrets(folder.url)} was made with another configuration: its packs would be laid"
            " out by rules they were not planned for; run `parbake plan` again, or `parbake run`, which does all stages"
        )


def _identity(storage: Storage, folder: BakeFolder) -> BakeIdentity | None:
    """From `dataset.json`, or, before it is written, from the plan and the first sidecar; None: no shard is there."""
    try:
        if storage.exists(folder.dataset):
            manifest = parse_dataset_manifest(storage.read_bytes(folder.dataset), folder.dataset)
            return BakeIdentity(
                config=manifest.fingerprints.get("config", ""),
                tokenizer=manifest.fingerprints.get("tokenizer", ""),
                pixels=manifest.pixels,
                shard_bytes=int(manifest.settings.get("shard_bytes", 0)),
                versions=manifest.versions,
            )
        sidecar_url = _any_sidecar(storage, folder)
        if sidecar_url is None:
            return None
        sidecar = parse_sidecar(storage.read_bytes(sidecar_url), sidecar_url)
        prints = manifest_from_json(storage.read_bytes(folder.plan)).fingerprints if storage.exists(folder.plan) else {}
    except FormatError as error:
        raise _conflict(folder, f"files that are not of this version or are damaged ({error})") from error
    return BakeIdentity(
        config=prints.get("config", ""),
        tokenizer=prints.get("tokenizer", ""),
        pixels=sidecar.pixels,
        shard_bytes=sidecar.shard_bytes,
    )


def _any_sidecar(storage: Storage, folder: BakeFolder) -> str | None:
    try:
        names = storage.list_files(folder.join("shards"), recursive=True)
    except FileNotFoundError:
        return None
    return next((folder.join(f"shards/{name}") for name in names if name.endswith(".json")), None)


def _conflict(folder: BakeFolder, what: str) -> BakeConflict:
    return BakeConflict(
        f"The output {without_secrets(folder.url)} holds {what}: the two would not be one data set, and loaders may"
        " have read what is there; nothing was touched; choose another bake.output, or remove the old bake"
    )
