"""The lanes of a VLM plan: packs in epoch 0's order, dealt out round robin, cut into shards, a batch at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from loaders.vlm_order import OrderRule, epoch_order
from pipeline.bake import BakeFolder
from pipeline.conversation_table import conversation_packs_to_table
from pipeline.plan.conversation_accounts import DataSet, order_seed
from pipeline.plan.conversation_index import IndexEntries
from pipeline.plan.shards import ShardCutter
from pipeline.plan_table import LanePlan, ShardPlan
from pipeline.storage import Storage
from pipeline.vlm_config import VlmConfig
from pipeline.vlm_records import VLM_PLAN_SCHEMA, ConversationPack, ConversationSample

__all__ = ["LaneWriter", "lane_is_there", "order_rule"]

FLUSH_PACKS = 1024
METADATA_KEY = "parbake"

TOKEN_BYTES = 4 + 4 + 1 + 12
"""Of a stored token: id, label, type and a position in three axes."""

MEDIA_TOKEN_BYTES = 4 * 3 * 14 * 14
"""Of a media token's pixels, by Qwen's geometry: four patches of 14 x 14 px. Shard boundaries need an estimate only."""


def order_rule(config: VlmConfig) -> OrderRule:
    """The rule of every epoch's order, as the loader will have it."""
    return OrderRule(
        order=config.order,
        shuffle=config.shuffle,
        seed=order_seed(config),
        batch_size=config.local_batch_size,
    )


def lane_is_there(folder: BakeFolder, storage: Storage, stream: str, lane: int, plan: LanePlan) -> bool:
    """Whether the lane's file is the one that `plan.json` speaks of."""
    try:
        with storage.open(folder.plan_lane(lane)) as file:
            metadata = pq.read_metadata(file).metadata or {}
        return bool(metadata.get(METADATA_KEY.encode()) == _head(stream, plan.shards).encode())
    except (FileNotFoundError, pa.ArrowInvalid):
        return False


def _head(stream: str, shards: tuple[ShardPlan, ...]) -> str:
    return json.dumps({"stream": stream, "shards": [shard.fingerprint for shard in shards]})


@dataclass(slots=True, kw_only=True)
class LaneWriter:
    """Writes the lanes of one data set after another.

    Attributes:
        config: The recipe.
        folder: The bake.
        storage: Publishes.
        stream: The bake's stream, noted in every file.
        entries: The index.
        next_lane: Lane that is written next.
        next_number: Number of the next data set's first pack.
    """

    config: VlmConfig
    folder: BakeFolder
    storage: Storage
    stream: str
    entries: IndexEntries
    next_lane: int = 0
    next_number: int = 0

    def lanes(self, data_set: DataSet) -> Iterator[tuple[ShardPlan, ...]]:
        """Publish the lanes of a data set; the shards of each."""
        packed = data_set.packed
        num_lanes = 1 if self.config.shard_data else self.config.num_lanes
        order = epoch_order(
            order_rule(self.config), packed.num_packs, num_lanes, epoch=0, lengths=packed.order_lengths
        )[: packed.num_packs]
        for lane in range(num_lanes):
            yield self._write(data_set, order[lane::num_lanes])
            self.next_lane += 1
        self.next_number += packed.num_packs

    def _write(self, data_set: DataSet, numbers: npt.NDArray[np.int64]) -> tuple[ShardPlan, ...]:
        cutter = ShardCutter(self.next_lane, self.config.bake.shard_bytes)
        with (
            self.storage.publishing(self.folder.plan_lane(self.next_lane)) as file,
            pq.ParquetWriter(file, VLM_PLAN_SCHEMA, compression="zstd") as writer,
        ):
            for start in range(0, len(numbers), FLUSH_PACKS):
                packs = list(self._packs(data_set, numbers[start : start + FLUSH_PACKS], start, cutter))
                table = conversation_packs_to_table(packs)
                cutter.digest(table)
                writer.write_table(table)
            shards = cutter.shards()
            writer.add_key_value_metadata({METADATA_KEY: _head(self.stream, shards)})
        return shards

    def _packs(
        self, data_set: DataSet, numbers: npt.NDArray[np.int64], first_pack: int, cutter: ShardCutter
    ) -> Iterator[ConversationPack]:
        packed = data_set.packed
        for pack, number in enumerate(numbers.tolist(), first_pack):
            num_tokens, num_media_tokens = int(packed.num_tokens[number]), int(packed.num_media_tokens[number])
            num_bytes = num_tokens * TOKEN_BYTES + num_media_tokens * MEDIA_TOKEN_BYTES
            yield ConversationPack(
                lane=self.next_lane,
                pack=pack,
                shard=cutter.place(num_bytes),
                number=self.next_number + number,
                num_tokens=num_tokens,
                num_media_tokens=num_media_tokens,
                num_bytes=num_bytes,
                samples=self._samples(data_set, int(packed.pack_starts[number]), int(packed.pack_starts[number + 1])),
            )

    def _samples(self, data_set: DataSet, first: int, end: int) -> tuple[ConversationSample, ...]:
        packed = data_set.packed
        rows = packed.rows[first:end]
        entries = data_set.entries[rows]
        return tuple(
            ConversationSample(
                row=row_id, dataset_row=dataset_row, instead_of=instead_of, keep_tokens=keep, num_tokens=num_tokens
            )
            for row_id, dataset_row, instead_of, keep, num_tokens in zip(
                self.entries.row_ids(entries),
                rows.tolist(),
                packed.instead_of[first:end].tolist(),
                packed.keep_tokens[first:end].tolist(),
                self.entries.table.num_tokens[entries].tolist(),
                strict=True,
            )
        )
