"""A bake read with nothing but json, tarfile and numpy: the laws must not be judged by the code they judge."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["RawPack", "raw_manifest", "raw_packs", "shard_files", "snapshot"]

NOT_PART_OF_THE_BAKE = ("config.yaml", "report/")
"""The resolved configuration names the output folder; a report holds times."""


@dataclass(frozen=True, slots=True)
class RawPack:
    """One pack as its tar members say."""

    key: str
    lane: int
    number: int
    header: dict[str, Any]
    arrays: dict[str, np.ndarray[Any, Any]]

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """An array, empty where the modality is absent."""
        return self.arrays.get(name, np.zeros(0, dtype=np.int32))


def raw_manifest(folder: Path) -> dict[str, Any]:
    """`dataset.json`."""
    manifest: dict[str, Any] = json.loads((folder / "dataset.json").read_bytes())
    return manifest


def shard_files(folder: Path) -> list[tuple[int, int, Path]]:
    """Every shard as (lane, shard, tar)."""
    return [
        (int(path.parent.name.removeprefix("lane-")), int(path.stem), path)
        for path in sorted((folder / "shards").glob("lane-*/*.tar"))
    ]


def raw_packs(folder: Path) -> Iterator[RawPack]:
    """Every pack, lane by lane."""
    for _, _, path in shard_files(folder):
        yield from _packs_of(path)


def _packs_of(path: Path) -> Iterator[RawPack]:
    members: dict[str, dict[str, bytes]] = {}
    with tarfile.open(path, "r:") as archive:
        for member in archive:
            stream = archive.extractfile(member)
            assert stream is not None
            key, _, name = member.name.partition(".")
            members.setdefault(key, {})[name] = stream.read()
    for key, parts in members.items():
        lane, _, number = key.partition("-")
        arrays = {
            name.removesuffix(".npy"): np.load(io.BytesIO(content), allow_pickle=False)
            for name, content in parts.items()
            if name.endswith(".npy")
        }
        yield RawPack(key, int(lane), int(number), json.loads(parts["json"]), arrays)


def snapshot(folder: Path) -> dict[str, str]:
    """Relative path → SHA-256 of every file of the bake, hidden and temporary ones too."""
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not (name := path.relative_to(folder).as_posix()).startswith(NOT_PART_OF_THE_BAKE)
    }
