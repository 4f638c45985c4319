"""Where a lane is cut into shards, and the fingerprint of each shard's plan rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from pipeline.plan.packer import Placed
from pipeline.plan_table import ShardPlan
from pipeline.records import ItemKind

__all__ = ["MAX_PACKS_PER_SHARD", "ShardCutter", "pack_digests", "pixel_bytes"]

MAX_PACKS_PER_SHARD = 4096
"""A shard closes at this many packs too: packs of text have no pixels and would never fill one."""

BYTES_PER_PIXEL = 3


def pixel_bytes(placed: list[Placed]) -> int:
    """Raw uint8 bytes of the pictures that a pack stores, each once per sample (see `sequence.stored_pictures`)."""
    total = 0
    for sample in placed:
        seen: set[tuple[ItemKind, int]] = set()
        for planned in sample.items:
            item = planned.item
            if planned.kept and item.image >= 0 and (item.kind, item.image) not in seen:
                seen.add((item.kind, item.image))
                total += item.width_px * item.height_px
    return total * BYTES_PER_PIXEL


class ShardCutter:
    """Packs in, shards out: a shard closes when the next pack would take it above `shard_bytes` of raw pixels.

    A function of the packs alone: cutting a longer lane gives the same closed shards.
    """

    def __init__(self, lane: int, shard_bytes: int) -> None:
        self._lane = lane
        self._shard_bytes = shard_bytes
        self._sizes: list[tuple[int, int]] = []  # packs and pixel bytes of each shard
        self._digests: list[bytes] = []

    def place(self, num_bytes: int) -> int:
        """Number of the shard that the lane's next pack, of `num_bytes` raw pixel bytes, goes into."""
        packs, total = self._sizes[-1] if self._sizes else (0, 0)
        if not packs or total + num_bytes > self._shard_bytes or packs >= MAX_PACKS_PER_SHARD:
            self._sizes.append((1, num_bytes))
        else:
            self._sizes[-1] = (packs + 1, total + num_bytes)
        return len(self._sizes) - 1

    def digest(self, table: pa.Table) -> None:
        """Take note of the plan rows of packs already placed, in their order."""
        self._digests.extend(pack_digests(table))

    def shards(self) -> tuple[ShardPlan, ...]:
        """All shards, the open one included; every pack placed must have been digested."""
        shards = []
        first_pack = 0
        for number, (num_packs, num_bytes) in enumerate(self._sizes):
            head = f"{self._lane}/{number}/{first_pack}/".encode("ascii")
            rows = b"".join(self._digests[first_pack : first_pack + num_packs])
            shards.append(
                ShardPlan(
                    first_pack=first_pack,
                    num_packs=num_packs,
                    pixel_bytes=num_bytes,
                    fingerprint=hashlib.sha256(head + rows).hexdigest()[:32],
                )
            )
            first_pack += num_packs
        return tuple(shards)


def pack_digests(table: pa.Table) -> Iterator[bytes]:
    """SHA-256 of everything that each row of a plan (of either recipe) says about its samples, 32 bytes a pack.

    Column by column: numbers little-endian, bools as bytes, texts and lists as lengths and content; one NaN for all.
    """
    table = table.combine_chunks()
    columns: list[tuple[pa.Array, Callable[[int, int], bytes]]] = []
    for name in ("samples", "items"):
        if name not in table.column_names:
            continue
        lists = table.column(name).chunk(0) if table.num_rows else None
        if lists is not None:
            columns.extend((lists.offsets.to_numpy(), _pieces(child)) for child in lists.values.flatten())
    numbers = table.column("number").to_pylist() if "number" in table.column_names else ()
    for pack in range(table.num_rows):
        digest = hashlib.sha256(str(numbers[pack]).encode("ascii") if numbers else b"")
        for offsets, piece in columns:
            digest.update(piece(int(offsets[pack]), int(offsets[pack + 1])))
        yield digest.digest()


def _pieces(column: pa.Array) -> Callable[[int, int], bytes]:
    """A function giving the canonical bytes of values [start, end) of a column."""
    if pa.types.is_string(column.type) or pa.types.is_list(column.type):
        if pa.types.is_string(column.type):
            _, raw_offsets, content = column.buffers()
            offsets = np.frombuffer(raw_offsets, np.int32)[column.offset : column.offset + len(column) + 1]
            values = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
        else:
            offsets, values = column.offsets.to_numpy(), column.values.to_numpy().astype("<i4")
        lengths = np.diff(offsets).astype("<i4")
        return lambda start, end: lengths[start:end].tobytes() + values[offsets[start] : offsets[end]].tobytes()
    numbers = column.to_numpy(zero_copy_only=False)
    if numbers.dtype.kind == "f":
        numbers = np.where(np.isnan(numbers), np.nan, numbers)
    numbers = numbers.astype(numbers.dtype.newbyteorder("<"))
    return lambda start, end: numbers[start:end].tobytes()
