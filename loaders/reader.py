"""BakeReader: any pack of a bake by (lane, number), or by position. What the dataset, validate and inspect read with.

Only `dataset.json` is read at the start. A shard's sidecar is read when one of its packs is first asked for; the shards
used last stay open. Pickling and forking carry no open file along.
"""

from __future__ import annotations

import hashlib
import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from loaders.errors import BakeUnfinished, FormatError, ShardDamaged
from loaders.format import DatasetManifest, Sidecar, pack_key, parse_dataset_manifest, parse_sidecar
from loaders.format import shard_path as path_of_shard
from loaders.format import sidecar_path as path_of_sidecar
from loaders.order import CanonicalOrder
from loaders.recipes import form_of
from loaders.shard import Shard, StoredPack
from loaders.shard_cache import ShardCache
from loaders.storage import BakeStorage, LocalBytes

__all__ = ["BakeReader"]

_MAX_OPEN_SHARDS = 128


class BakeReader:
    """Random access into a finished bake.

    Args:
        url: The bake's folder, any fsspec URL.
        verify: Check CRC-32 of each member on first touch, and SHA-256 of each shard that goes through the cache.
        cache_dir: Keep whole shards of a remote bake in this local folder.
        cache_bytes: Bound of the cache in bytes.
        storage_options: Options of the fsspec file system.

    Attributes:
        manifest: `dataset.json`.
        order: Canonical order of its packs.
        form: How its recipe stores packs; decides which header `read` gives.

    Raises:
        BakeUnfinished: there is no `dataset.json`.
        FormatError: it is not one of format version 1, or of a recipe that these loaders do not know.
    """

    def __init__(
        self,
        url: str,
        *,
        verify: bool = False,
        cache_dir: str | None = None,
        cache_bytes: int = 256 << 30,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.storage = BakeStorage(url, storage_options)
        self._verify = verify
        self._cache = None if cache_dir is None else ShardCache(cache_dir, cache_bytes)
        try:
            content = self.storage.read_bytes("dataset.json")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise BakeUnfinished(
                f"{self.storage.url} holds no dataset.json; the bake is not finished or lies elsewhere, so nothing "
                f"can be read from it; let `parbake run` finish (the same command resumes it), or check the path."
            ) from error
        self.manifest: DatasetManifest = parse_dataset_manifest(content, f"{self.storage.url}/dataset.json")
        self.form = form_of(self.manifest)
        self.order = CanonicalOrder([lane.num_packs for lane in self.manifest.lanes])
        self._first_packs = [[0, *accumulate(shard.num_packs for shard in lane.shards)] for lane in self.manifest.lanes]
        self._open_shards: OrderedDict[tuple[int, int], Shard[Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._process = os.getpid()

    def read(self, lane: int, pack: int, fields: frozenset[str] | None = None) -> StoredPack[Any]:
        """Pack number `pack` of `lane`, without what belongs to a field that `fields` lacks (None: everything).

        Raises:
            IndexError: the bake has no such pack.
            ShardDamaged: its bytes, or its shard's sidecar, are missing or wrong.
        """
        shard, index = self.locate(lane, pack)
        return self.shard(lane, shard).read(index, fields)

    def locate(self, lane: int, pack: int) -> tuple[int, int]:
        """(shard in the lane, pack in the shard) of a pack.

        Raises:
            IndexError: the bake has no such pack.
        """
        if not (0 <= lane < len(self._first_packs) and 0 <= pack < self._first_packs[lane][-1]):
            raise IndexError(f"pack {pack} of lane {lane} is not in the bake {self.storage.url}")
        shard = bisect_right(self._first_packs[lane], pack) - 1
        return shard, pack - self._first_packs[lane][shard]

    def shard(self, lane: int, shard: int) -> Shard[Any]:
        """A shard, opened or still open.

        Raises:
            ShardDamaged: the shard or its sidecar is missing, or the sidecar is not the one that `dataset.json` names.
        """
        if self._process != os.getpid():  # forked: another thread may have held the lock
            self._open_shards, self._lock, self._process = OrderedDict(), threading.Lock(), os.getpid()
        with self._lock:
            found = self._open_shards.get((lane, shard))
            if found is not None:
                self._open_shards.move_to_end((lane, shard))
                return found
        opened = self._open(lane, shard)
        with self._lock:
            self._open_shards[lane, shard] = opened
            if len(self._open_shards) > _MAX_OPEN_SHARDS:
                self._open_shards.popitem(last=False)
        return opened

    def sidecar(self, lane: int, shard: int) -> Sidecar:
        """A shard's sidecar, checked against `dataset.json`.

        Raises:
            ShardDamaged: it is missing or is not the one that `dataset.json` names.
        """
        relative = path_of_sidecar(lane, shard)
        entry = self.manifest.lanes[lane].shards[shard]
        try:
            content = self.storage.read_bytes(relative)
        except FileNotFoundError as error:
            raise self._damaged(relative, "is missing") from error
        if hashlib.sha256(content).hexdigest() != entry.sidecar_sha256:
            raise self._damaged(relative, "is not the one that dataset.json was written for")
        try:
            sidecar = parse_sidecar(content, f"{self.storage.url}/{relative}")
        except FormatError as error:
            raise ShardDamaged(str(error)) from error
        first = self._first_packs[lane][shard]
        keys = [pack_key(lane, number) for number in range(first, first + entry.num_packs)]
        found = (sidecar.lane, sidecar.shard, sidecar.first_pack, sidecar.num_bytes, sidecar.sha256)
        if found != (lane, shard, first, entry.num_bytes, entry.sha256) or [p.key for p in sidecar.packs] != keys:
            raise self._damaged(relative, "names other packs, bytes or digests than dataset.json")
        return sidecar

    def _open(self, lane: int, shard: int) -> Shard[Any]:
        sidecar = self.sidecar(lane, shard)
        relative = path_of_shard(lane, shard)
        try:
            if self._cache is None or self.storage.is_local:
                source = self.storage.open(relative)
            else:
                source = LocalBytes(self._cache.fetch(self.storage, relative, sidecar.sha256, sidecar.num_bytes))
        except FileNotFoundError as error:
            raise self._damaged(relative, "is missing") from error
        except EOFError as error:
            raise self._damaged(relative, f"is not whole, {error} instead of {sidecar.num_bytes}") from error
        return Shard(
            f"{self.storage.url}/{relative}",
            sidecar,
            source,
            form=self.form,
            verify=self._verify,
        )

    def _damaged(self, relative: str, complaint: str) -> ShardDamaged:
        return ShardDamaged(
            f"{self.storage.url}/{relative} {complaint}; its packs cannot be read; "
            f"copy it again, or rerun the bake, which renders what is missing."
        )

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_open_shards"], state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open_shards, self._lock, self._process = OrderedDict(), threading.Lock(), os.getpid()
