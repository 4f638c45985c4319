"""What the plan leaves behind: `plan/plan.json` (PlanManifest) and the codec of `plan/lane-00000.parquet`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import RunFailed
from pipeline.records import Item, ItemKind, PlannedItem, PlannedPack, PlannedSample, RowId
from pipeline.schemas import PLAN_SCHEMA

__all__ = [
    "LanePlan",
    "PlanManifest",
    "RowCounts",
    "ShardPlan",
    "in_portions",
    "manifest_from_json",
    "manifest_to_json",
    "packs_to_table",
    "table_to_packs",
]


class _SampledPack(Protocol):
    """A planned pack of any recipe."""

    @property
    def samples(self) -> Sequence[object]:
        """Its samples."""


Pack = TypeVar("Pack", bound=_SampledPack)


@dataclass(slots=True, kw_only=True)
class RowCounts:
    """Fates of the rows drawn from one source (law 5). `drawn == packed + sum(dropped) + discarded + waiting`.

    Attributes:
        drawn: Rows the lane's packer asked for, faulty ones included.
        packed: Rows that are in a pack of the plan.
        dropped: Reason → rows, from the index and from the draw.
        discarded: Rows lost by the greedy packer when it emitted a pack (`discarded_at_emit`).
        waiting: Rows in the buffer, the pool or an unfinished pack when the lane ended.
    """

    drawn: int = 0
    packed: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    discarded: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """One planned shard: packs [first_pack, first_pack + num_packs) of the lane; `fingerprint` covers its plan rows."""

    first_pack: int
    num_packs: int
    pixel_bytes: int
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePlan:
    """One planned lane: its shards in order, and the accounts of its rows.

    `rows` maps source → list of accounts, one per pass over the lane's rows of that source's group (pass 0 first); path
    occurrences of one pass are summed. `not_reached` maps source → rows assigned to the lane that pass 0 never reached.
    """

    shards: tuple[ShardPlan, ...]
    rows: dict[str, list[dict[str, Any]]]
    not_reached: dict[str, int]

    @property
    def num_packs(self) -> int:
        """Packs of the lane."""
        return sum(shard.num_packs for shard in self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanManifest:
    """`plan/plan.json`: the commit mark of a plan and all that render needs beside the lanes.

    Attributes:
        stream: Fingerprint of configuration (without length and output), tokenizer and ordered inputs.
        fingerprints: "config", "tokenizer", "plan".
        world_size: Ranks the lanes are laid out for.
        num_workers: Workers a rank.
        lanes: Every lane.
        special_tokens: bos_token_id, eos_token_id, start_of_image, end_of_image.
        vocab_size: Token ids are below it.
        not_assigned: Source → rows that belong to no lane (cut tails, unused files).
        statistics: What the plan report prints: tokens by modality and group, mix of draws, fill, conditions, repeats.
        versions: Versions that pixel values depend on, where the plan was made.
    """

    stream: str
    fingerprints: dict[str, str]
    world_size: int
    num_workers: int
    lanes: tuple[LanePlan, ...]
    special_tokens: dict[str, int]
    vocab_size: int
    not_assigned: dict[str, int]
    statistics: dict[str, Any]
    versions: dict[str, str]


# --------------------------------------------------------------------------------------------- plan/lane-00000.parquet

_SAMPLE_TYPE = PLAN_SCHEMA.field("samples").type.value_type
_ITEM_TYPE = PLAN_SCHEMA.field("items").type.value_type
_KINDS = tuple(ItemKind)


def packs_to_table(packs: Sequence[PlannedPack]) -> pa.Table:
    """Packs as a table of PLAN_SCHEMA, one row a pack; columnar, so that a sample costs a few microseconds."""
    samples = [sample for pack in packs for sample in pack.samples]
    planned = [item for sample in samples for item in sample.items]
    items = [item.item for item in planned]
    items_per_pack = [sum(len(sample.items) for sample in pack.samples) for pack in packs]
    sample_columns = [
        pa.array([sample.row.source for sample in samples], pa.string()),
        pa.array([sample.row.path for sample in samples], pa.string()),
        _integers([sample.row.row for sample in samples], np.int64),
        pa.array([sample.row.unit for sample in samples], pa.string()),
        _integers([sample.row.index_row for sample in samples], np.int32),
        _integers([len(sample.items) for sample in samples], np.int32),
        pa.array([sample.data_indexes for sample in samples], pa.string()),
        _integers([sample.worker_id for sample in samples], np.int32),
        pa.array([sample.dataset_name for sample in samples], pa.string()),
    ]
    token_ids = pa.ListArray.from_arrays(
        _offsets([len(item.token_ids) for item in items]),
        _integers([token for item in items for token in item.token_ids], np.int32),
    )
    item_columns = [
        _integers([item.kind for item in items], np.int8),
        pa.array([item.loss for item in items], pa.bool_()),
        pa.array([item.enable_cfg for item in items], pa.bool_()),
        pa.array([item.kept for item in planned], pa.bool_()),
        _integers([item.num_tokens for item in items], np.int32),
        _integers([item.text for item in items], np.int32),
        token_ids,
        _integers([item.image for item in items], np.int32),
        _integers([item.width_px for item in items], np.int32),
        _integers([item.height_px for item in items], np.int32),
        pa.array(np.array([item.timestep for item in planned], np.float64)),
    ]
    return pa.Table.from_arrays(
        [
            _integers([pack.lane for pack in packs], np.int32),
            _integers([pack.pack for pack in packs], np.int32),
            _integers([pack.shard for pack in packs], np.int32),
            _integers([pack.sequence_length for pack in packs], np.int32),
            _integers([pack.pixel_bytes for pack in packs], np.int64),
            pa.ListArray.from_arrays(
                _offsets([len(pack.samples) for pack in packs]),
                pa.StructArray.from_arrays(sample_columns, fields=list(_SAMPLE_TYPE)),
            ),
            pa.ListArray.from_arrays(
                _offsets(items_per_pack), pa.StructArray.from_arrays(item_columns, fields=list(_ITEM_TYPE))
            ),
        ],
        schema=PLAN_SCHEMA,
    )


def table_to_packs(table: pa.Table | pa.RecordBatch) -> Iterator[PlannedPack]:
    """The packs of a table of PLAN_SCHEMA, in its order. Exact inverse of `packs_to_table`."""
    batches = table.to_batches() if isinstance(table, pa.Table) else [table]
    for batch in batches:
        yield from _batch_to_packs(batch)


def _batch_to_packs(batch: pa.RecordBatch) -> Iterator[PlannedPack]:
    items = _planned_items(batch.column("items"))
    samples = _planned_samples(batch.column("samples"), items)
    scalars = [batch.column(name).to_pylist() for name in ("lane", "pack", "shard", "sequence_length", "pixel_bytes")]
    lengths = pc.list_value_length(batch.column("samples")).to_pylist()
    for lane, pack, shard, sequence_length, pixel_bytes, num_samples in zip(*scalars, lengths, strict=True):
        yield PlannedPack(
            lane=lane,
            pack=pack,
            shard=shard,
            sequence_length=sequence_length,
            pixel_bytes=pixel_bytes,
            samples=tuple(islice(samples, num_samples)),
        )


def _planned_items(column: pa.ListArray) -> Iterator[PlannedItem]:
    columns = [child.to_pylist() for child in column.flatten().flatten()]
    for kind, loss, enable_cfg, kept, num_tokens, text, token_ids, image, width_px, height_px, timestep in zip(
        *columns, strict=True
    ):
        item = Item(
            kind=_KINDS[kind],
            loss=loss,
            enable_cfg=enable_cfg,
            num_tokens=num_tokens,
            text=text,
            token_ids=tuple(token_ids),
            image=image,
            width_px=width_px,
            height_px=height_px,
        )
        yield PlannedItem(item=item, kept=kept, timestep=timestep)


def _planned_samples(column: pa.ListArray, items: Iterator[PlannedItem]) -> Iterator[PlannedSample]:
    columns = [child.to_pylist() for child in column.flatten().flatten()]
    for source, path, row, unit, index_row, num_items, data_indexes, worker_id, dataset_name in zip(
        *columns, strict=True
    ):
        yield PlannedSample(
            row=RowId(source=source, path=path, row=row, unit=unit, index_row=index_row),
            items=tuple(islice(items, num_items)),
            data_indexes=data_indexes,
            worker_id=worker_id,
            dataset_name=dataset_name,
        )


def _integers(values: Sequence[int], dtype: type[np.signedinteger[Any]]) -> pa.Array:
    return pa.array(np.array(values, dtype=dtype))


def _offsets(lengths: Sequence[int]) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.array(offsets)


# --------------------------------------------------------------------------------------------------- plan/plan.json


def manifest_to_json(manifest: PlanManifest) -> bytes:
    """The bytes of `plan.json`: keys in field order, the same bytes for the same plan."""
    return json.dumps(dataclasses.asdict(manifest), ensure_ascii=True, allow_nan=False, indent=1).encode("ascii")


def manifest_from_json(content: bytes) -> PlanManifest:
    """The manifest in the bytes of a `plan.json`.

    Raises:
        RunFailed: the bytes are no plan of this version of parbake; nothing in them is guessed.
    """
    try:
        fields = json.loads(content)
        lanes = tuple(_lane_from_json(lane) for lane in fields["lanes"])
        return PlanManifest(**_exactly(PlanManifest, {**fields, "lanes": lanes}))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFailed(
            f"plan.json cannot be read ({error}), so the packs it lists are unknown; "
            "run `parbake plan` again, which writes it anew."
        ) from error


def _lane_from_json(fields: dict[str, Any]) -> LanePlan:
    shards = tuple(ShardPlan(**_exactly(ShardPlan, shard)) for shard in fields["shards"])
    for accounts in fields["rows"].values():
        for account in accounts:
            _exactly(RowCounts, account)
    return LanePlan(**_exactly(LanePlan, {**fields, "shards": shards}))


def _exactly(record: type[Any], fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` if they are the record's own: none missing, none unknown.

    Raises:
        ValueError: names the first differing keys.
    """
    expected = {field.name for field in dataclasses.fields(record)}
    if expected != set(fields):
        raise ValueError(f"{record.__name__}: keys {sorted(expected ^ set(fields))} missing or unknown")
    return fields


def in_portions(packs: Iterable[Pack], num_samples: int) -> Iterator[list[Pack]]:
    """Packs in lists of about so many samples: the last pack of a list is the one that reaches the number."""
    portion: list[Pack] = []
    taken = 0
    for pack in packs:
        portion.append(pack)
        taken += len(pack.samples)
        if taken >= num_samples:
            yield portion
            portion, taken = [], 0
    if portion:
        yield portion
