"""Shards are cut by raw pixel bytes, and their fingerprints cover the plan rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.plan import shards
from pipeline.plan.packer import Drawn, Placed
from pipeline.plan.shards import ShardCutter, pack_digests, pixel_bytes
from pipeline.plan_table import RowCounts, packs_to_table
from pipeline.records import Item, ItemKind, PlannedItem, PlannedPack, PlannedSample, RowId, Sample

ROW = RowId(source="s", path="p", row=1, unit="u", index_row=1)


def placed(*items: PlannedItem) -> Placed:
    sample = Sample(row=ROW, items=tuple(item.item for item in items), num_tokens=0)
    return Placed(Drawn(sample, 0, 0, "[0]", RowCounts()), items, 0)


def picture(kind: ItemKind, image: int, *, kept: bool = True) -> PlannedItem:
    return PlannedItem(item=Item(kind=kind, image=image, width_px=10, height_px=4), kept=kept)


def test_a_picture_that_two_items_of_a_sample_use_counts_once_and_a_dropped_one_not_at_all() -> None:
    vae, vit = ItemKind.VAE, ItemKind.VIT
    text = PlannedItem(item=Item(kind=ItemKind.TEXT, num_tokens=5, text=0))
    sample = placed(text, picture(vae, 0), picture(vit, 0), picture(vae, 0), picture(vae, 1, kept=False))
    assert pixel_bytes([sample]) == 2 * 120
    assert pixel_bytes([sample, sample]) == 4 * 120


def test_a_shard_closes_when_the_next_pack_would_exceed_it_and_holds_one_pack_at_least() -> None:
    cutter = ShardCutter(0, 100)
    assert [cutter.place(size) for size in (60, 40, 1, 250, 0, 99, 1)] == [0, 0, 1, 2, 3, 3, 3]


def test_packs_without_pixels_close_a_shard_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MAX_PACKS_PER_SHARD", 3)
    cutter = ShardCutter(0, 100)
    assert [cutter.place(0) for _ in range(7)] == [0, 0, 0, 1, 1, 1, 2]


def pack(number: int, *items: PlannedItem, **changes: object) -> PlannedPack:
    sample = PlannedSample(row=ROW, items=items, data_indexes="[0]", worker_id=0, dataset_name="g")
    sample = replace(sample, **changes)  # type: ignore[arg-type]
    return PlannedPack(lane=0, pack=number, shard=0, sequence_length=1, pixel_bytes=1, samples=(sample,))


def digests(*packs: PlannedPack) -> list[bytes]:
    return list(pack_digests(packs_to_table(packs)))


def test_a_digest_changes_with_anything_a_sample_says() -> None:
    text = PlannedItem(item=Item(kind=ItemKind.TEXT, num_tokens=5, text=0))
    base = pack(0, text)
    variants = [
        base,
        pack(0, text, data_indexes="[1]"),
        pack(0, text, row=replace(ROW, index_row=2)),
        pack(0, text, row=replace(ROW, source="sp", path="")),
        pack(0, replace(text, kept=False)),
        pack(0, replace(text, timestep=0.25)),
        pack(0, replace(text, item=replace(text.item, token_ids=(1, 2)))),
        pack(0, text, text),
        pack(0),
    ]
    assert len(set(digests(*variants))) == len(variants)


def test_a_digest_does_not_depend_on_the_packs_around_it() -> None:
    text = PlannedItem(item=Item(kind=ItemKind.TEXT, num_tokens=5, token_ids=(3,)))
    first, second = pack(0, text, data_indexes="[7]"), pack(1, text, picture(ItemKind.VAE, 0))
    assert digests(first, second) == [*digests(first), *digests(second)]
    assert digests() == []


def test_a_digest_is_this_one_for_ever() -> None:
    text = PlannedItem(item=Item(kind=ItemKind.TEXT, enable_cfg=True, num_tokens=5, text=0))
    target = PlannedItem(item=Item(kind=ItemKind.VAE, loss=True, num_tokens=4, image=0), timestep=-0.5)
    assert digests(pack(3, text, target))[0].hex() == "90a8034be3847ba16b512f86812fb7c539b39f4405c4536999527dc12b1d65c6"
