"""The plan's codec gives back what it was given, and refuses what it does not know."""

from __future__ import annotations

import json
import math

import pytest

from pipeline.errors import RunFailed
from pipeline.plan_table import (
    LanePlan,
    PlanManifest,
    ShardPlan,
    manifest_from_json,
    manifest_to_json,
    packs_to_table,
    table_to_packs,
)
from pipeline.records import Item, ItemKind, PlannedItem, PlannedPack, PlannedSample, RowId
from pipeline.schemas import PLAN_SCHEMA

TEXT = PlannedItem(item=Item(kind=ItemKind.TEXT, enable_cfg=True, num_tokens=3, text=1), kept=False, timestep=-1.0)
JOINED = PlannedItem(item=Item(kind=ItemKind.TEXT, num_tokens=2, token_ids=(7, 9)), timestep=-1.0)
TARGET = PlannedItem(
    item=Item(kind=ItemKind.VAE, loss=True, num_tokens=4, image=2, width_px=32, height_px=48), timestep=0.1
)


def sample(row: int, *items: PlannedItem) -> PlannedSample:
    return PlannedSample(
        row=RowId(source="t2i/a", path="ä/0.parquet", row=row, unit="%C3%A4%2F0.parquet", index_row=row - 1),
        items=items,
        data_indexes=f"[0,1,{row}]",
        worker_id=1,
        dataset_name="t2i",
    )


def pack(number: int, *samples: PlannedSample) -> PlannedPack:
    return PlannedPack(lane=3, pack=number, shard=0, sequence_length=10, pixel_bytes=1 << 40, samples=samples)


PACKS = [
    pack(0, sample(1, TEXT, TARGET), sample(2), sample(3, JOINED)),
    pack(1),
    pack(2, sample(4, TARGET)),
]


def manifest() -> PlanManifest:
    shard = ShardPlan(first_pack=0, num_packs=2, pixel_bytes=9, fingerprint="ab")
    account = {"drawn": 2, "packed": 1, "dropped": {"truncated": 1}, "discarded": 0, "waiting": 0}
    lane = LanePlan(shards=(shard, shard), rows={"t2i/a": [account]}, not_reached={"t2i/a": 4})
    return PlanManifest(
        stream="s",
        fingerprints={"config": "c", "tokenizer": "t", "plan": "p"},
        world_size=1,
        num_workers=0,
        lanes=(lane,),
        special_tokens={"bos_token_id": 1},
        vocab_size=9,
        not_assigned={},
        statistics={"fill": 0.5},
        versions={"python": "3"},
    )


def test_packs_survive_the_table_unchanged() -> None:
    table = packs_to_table(PACKS)
    assert table.schema.equals(PLAN_SCHEMA)
    table.validate(full=True)
    assert list(table_to_packs(table)) == PACKS


def test_a_slice_of_a_table_holds_its_own_packs_only() -> None:
    assert list(table_to_packs(packs_to_table(PACKS).slice(1))) == PACKS[1:]


def test_no_packs_are_a_table_of_no_rows() -> None:
    table = packs_to_table([])
    assert table.schema.equals(PLAN_SCHEMA)
    assert list(table_to_packs(table)) == []


def test_a_missing_timestep_stays_not_a_number() -> None:
    planned = pack(0, sample(1, PlannedItem(item=Item(kind=ItemKind.TEXT, num_tokens=1, text=0))))
    (back,) = table_to_packs(packs_to_table([planned]))
    assert math.isnan(back.samples[0].items[0].timestep)


def test_a_manifest_survives_json_unchanged() -> None:
    assert manifest_from_json(manifest_to_json(manifest())) == manifest()


@pytest.mark.parametrize("damage", ["unknown", "missing", "nested", "cut"])
def test_a_manifest_of_another_form_is_refused(damage: str) -> None:
    fields = json.loads(manifest_to_json(manifest()))
    if damage == "unknown":
        fields["surprise"] = 1
    elif damage == "missing":
        del fields["vocab_size"]
    elif damage == "nested":
        fields["lanes"][0]["shards"][0]["surprise"] = 1
    content = json.dumps(fields).encode()
    with pytest.raises(RunFailed, match=r"plan\.json cannot be read"):
        manifest_from_json(content[:-5] if damage == "cut" else content)
