"""Resume at pack 1,000,000 against pack 0: a manifest of a million packs over two real shards."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import fresh_process, report
from tests.datamaker.recipe import small_recipe, write_sources

__all__ = ["run"]

PACKS_PER_SHARD = 40
FAR = 1_000_000


def run(folder: Path) -> bool:
    """Print the ratio."""
    recipe = small_recipe(write_sources(folder / "sources"))
    config = recipe.write(
        folder / "config.yaml",
        output=str(folder / "bake"),
        length={"packs_per_lane": PACKS_PER_SHARD},
        executor="inline",
        max_dropped_fraction=1.0,
    )
    fresh_process("tests.benchmarks.worker", "stage", "run", str(config))
    _stretch(folder / "bake")
    places = [str(place) for place in (3, FAR + 3)]
    measure = fresh_process("tests.benchmarks.worker", "resume", str(folder / "bake"), *places)
    near, far = (measure.result[place] for place in places)
    ratio = far / near
    detail = f"{far * 1e3:.1f} ms against {near * 1e3:.1f} ms, after {measure.cpu_s * 1e3:.0f} ms to open either"
    return report("resume at pack 1,000,000, over pack 0", ratio, "at most 1.25", ratio <= 1.25, detail)


def _stretch(bake: Path) -> None:
    """Let the bake's one lane be a million packs long; only its first shard and the one of pack `FAR` exist."""
    manifest = json.loads((bake / "dataset.json").read_text())
    del manifest["checksum"]  # of what was written
    [shard] = manifest["lanes"][0]["shards"]
    assert shard["num_packs"] == PACKS_PER_SHARD
    number = FAR // PACKS_PER_SHARD
    moved = copy.deepcopy(shard)
    moved.update(_copy_shard(bake / "shards" / "lane-00000", number))
    manifest["lanes"][0]["shards"] = [*[shard] * number, moved]
    (bake / "dataset.json").write_text(json.dumps(manifest))


def _copy_shard(lane: Path, number: int) -> dict[str, Any]:
    """Shard 0 again as shard `number`, its packs renumbered; what changes in its entry."""
    first = number * PACKS_PER_SHARD
    target = io.BytesIO()
    with (
        tarfile.open(lane / "000000.tar") as source,
        tarfile.open(fileobj=target, mode="w", format=tarfile.USTAR_FORMAT) as copied,
    ):
        for member in source:
            key, _, rest = member.name.partition(".")
            member.name = f"{_renumbered(key, first)}.{rest}"
            copied.addfile(member, source.extractfile(member))
    content = target.getvalue()[: (lane / "000000.tar").stat().st_size]
    sidecar = json.loads((lane / "000000.json").read_text())
    sidecar.update(shard=number, first_pack=first, sha256=hashlib.sha256(content).hexdigest())
    for pack in sidecar["packs"]:
        pack["key"] = _renumbered(pack["key"], first)
    (lane / f"{number:06d}.tar").write_bytes(content)
    sidecar_bytes = json.dumps(sidecar).encode()
    (lane / f"{number:06d}.json").write_bytes(sidecar_bytes)
    return {"sha256": sidecar["sha256"], "sidecar_sha256": hashlib.sha256(sidecar_bytes).hexdigest()}


def _renumbered(key: str, first: int) -> str:
    lane, _, number = key.partition("-")
    return f"{lane}-{int(number) + first:08d}"
