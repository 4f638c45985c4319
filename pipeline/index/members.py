"""Tars listed once: a unit reads one tar's headers and writes names and places of its members beside the index.

index/<source>/members/<tar>.parquet      MEMBERS_SCHEMA, cached by the tar's identity
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.bake import BakeFolder
from pipeline.errors import RunFailed
from pipeline.executor import Executor, Progress, UnitDone
from pipeline.fingerprint import fingerprint
from pipeline.index.records import METADATA_KEY, file_identity
from pipeline.index.stage import side_by_side, unit_name
from pipeline.sources.conversations.nemotron import MEMBERS_SCHEMA, member_key, members_of, members_table
from pipeline.sources.tar_members import TarMember, TarReader, list_members
from pipeline.storage import FileIdentity, Storage

__all__ = ["ListedTar", "list_tars", "named_places", "unused_members"]

MEMBERS_VERSION = 1
_ROW_GROUP_SIZE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTar:
    """A tar whose members are listed at `target`; `shard` is its path relative to the source's root."""

    source: str
    shard: str
    url: str
    target: str
    identity: FileIdentity
    fingerprint: str
    storage: Storage

    def members(self, storage: Storage) -> list[TarMember]:
        """Its regular files, in its order."""
        with storage.open(self.target) as file:
            return members_of(pq.read_table(file))

    def told(self, storage: Storage) -> Mapping[str, object]:
        """Number of members, skipped entries by kind, and fault."""
        with storage.open(self.target) as file:
            written: dict[str, object] = json.loads(pq.read_metadata(file).metadata[METADATA_KEY])
        return written


def list_tars(
    source: str,
    root: str,
    shards: Mapping[str, Sequence[str]],
    folder: BakeFolder,
    storage: Storage,
    executor: Executor,
    progress: Progress,
) -> list[ListedTar]:
    """Every tar of every subset, listed, in the order of subsets and shards; lists that are still right stay.

    Raises:
        RunFailed: A tar changed while it was read, or the storage failed.
    """
    names = [shard for subset in shards.values() for shard in subset]
    urls = [f"{root}/{shard}" for shard in names]
    tars = [
        ListedTar(
            source=source,
            shard=shard,
            url=url,
            target=folder.index_members(source, unit_name(shard, None)),
            identity=identity,
            fingerprint=fingerprint([MEMBERS_VERSION, shard, url, asdict(identity)]),
            storage=storage,
        )
        for shard, url, identity in zip(names, urls, side_by_side(file_identity, urls, storage), strict=True)
    ]
    missing = [tar for tar in tars if not _is_listed(tar)]
    progress.start("tars", len(tars), len(tars) - len(missing))
    for num_members in executor.map(_list_tar, missing):
        progress.advance(UnitDone(rows=num_members))
    progress.finish()
    return tars


def unused_members(tars: Sequence[ListedTar], named: Set[tuple[str, int]], storage: Storage) -> dict[str, object]:
    """What the full account of the tars says: members by use, entries that are no files, tars that break off.

    Args:
        tars: All tars of the source.
        named: (tar, offset) of every member that a row uses.
        storage: Reads the lists.
    """
    counts: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    faults = {}
    seen: set[str] = set()
    subset = ""
    for tar in tars:
        told = tar.told(storage)
        kinds = told["skipped"]
        assert isinstance(kinds, dict)
        skipped.update(kinds)
        if told["fault"]:
            faults[tar.shard] = told["fault"]
        if tar.shard.split("/", 1)[0] != subset:
            subset, seen = tar.shard.split("/", 1)[0], set()
        for member in tar.members(storage):
            key = member_key(member.name)
            if (tar.shard, member.offset) in named:
                counts["used"] += 1
            else:
                counts["same_name_twice" if key in seen else "without_row"] += 1
            seen.add(key)
    return {"members": dict(counts), "skipped": dict(skipped), "faults": faults}


def named_places(index_files: Sequence[str], storage: Storage) -> set[tuple[str, int]]:
    """(tar, offset) of every medium of the index."""
    places: set[tuple[str, int]] = set()
    for url in index_files:
        with storage.open(url) as file:
            media = pc.list_flatten(pq.read_table(file, columns=["media"]).column("media"))
        for chunk in media.chunks if isinstance(media, pa.ChunkedArray) else [media]:
            places.update(zip(chunk.field("container").to_pylist(), chunk.field("offset").to_pylist(), strict=True))
    return places


def _is_listed(tar: ListedTar) -> bool:
    try:
        return tar.told(tar.storage)["fingerprint"] == tar.fingerprint
    except (FileNotFoundError, pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        return False


def _list_tar(tar: ListedTar) -> int:
    reader = TarReader(tar.storage)
    try:
        content = list_members(tar.url, reader)
    finally:
        reader.close()
    if file_identity(tar.url, tar.storage) != tar.identity:
        raise RunFailed(
            f"{tar.source}: {tar.shard} changed while its headers were read, so its members' places belong to no one "
            "version of it. Let the writer finish, then run the same command again."
        )
    told = {
        "fingerprint": tar.fingerprint,
        "members": len(content.members),
        "skipped": dict(content.skipped),
        "fault": content.fault,
    }
    schema = MEMBERS_SCHEMA.with_metadata({METADATA_KEY: json.dumps(told).encode()})
    table = members_table(tar.shard, content.members).cast(schema)
    with tar.storage.publishing(tar.target) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        writer.write_table(table, row_group_size=_ROW_GROUP_SIZE)
    return len(content.members)
