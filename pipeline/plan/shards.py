"""Where a lane is cut into shards, and the fingerprint of each shard's plan rows."""

from __future__ import annotations

import hashlib
import json

from pipeline.plan.packer import Placed
from pipeline.plan_table import ShardPlan
from pipeline.records import ItemKind

__all__ = ["MAX_PACKS_PER_SHARD", "ShardCutter", "pixel_bytes"]

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
        self._closed: list[ShardPlan] = []
        self._first_pack = 0
        self._open(0)

    def add(self, pack: list[Placed], num_bytes: int) -> int:
        """Number of the shard that the lane's next pack goes into."""
        full = self._pixel_bytes + num_bytes > self._shard_bytes or self._num_packs >= MAX_PACKS_PER_SHARD
        if self._num_packs and full:
            self._closed.append(self._close())
            self._open(self._first_pack + self._num_packs)
        self._digest.update(_canonical(pack))
        self._pixel_bytes += num_bytes
        self._num_packs += 1
        return len(self._closed)

    def shards(self) -> tuple[ShardPlan, ...]:
        """All shards, the open one included."""
        return (*self._closed, self._close()) if self._num_packs else tuple(self._closed)

    def _open(self, first_pack: int) -> None:
        self._first_pack = first_pack
        self._num_packs = 0
        self._pixel_bytes = 0
        self._digest = hashlib.sha256(f"{self._lane}/{len(self._closed)}/{first_pack}".encode("ascii"))

    def _close(self) -> ShardPlan:
        return ShardPlan(
            first_pack=self._first_pack,
            num_packs=self._num_packs,
            pixel_bytes=self._pixel_bytes,
            fingerprint=self._digest.hexdigest()[:32],
        )


def _canonical(pack: list[Placed]) -> bytes:
    """Everything that a plan row says about the samples of a pack, as JSON; a missing timestep is null."""
    rows: list[object] = []
    for placed in pack:
        row = placed.drawn.sample.row
        rows.append([row.source, row.path, row.row, row.unit, row.index_row, placed.drawn.data_indexes])
        for planned in placed.items:
            item = planned.item
            timestep = planned.timestep
            rows.append(
                [
                    item.kind,
                    item.loss,
                    item.enable_cfg,
                    planned.kept,
                    item.num_tokens,
                    item.text,
                    item.token_ids,
                    item.image,
                    item.width_px,
                    item.height_px,
                    timestep if timestep == timestep else None,
                ]
            )
    return json.dumps(rows, separators=(",", ":")).encode("ascii")
