"""A shard's plan rows and index rows are found, and only theirs are read."""

from __future__ import annotations

import random

import pyarrow.parquet as pq
import pytest

from pipeline.bake import BakeFolder
from pipeline.errors import RunFailed
from pipeline.index_table import iter_rows, rows_to_table
from pipeline.plan_table import ShardPlan, in_portions, packs_to_table, table_to_packs
from pipeline.records import ImageEntry, IndexRow, PlannedPack, PlannedSample, RowId
from pipeline.render.bagel import INDEX_COLUMNS
from pipeline.render.plan_rows import read_index_rows, read_packs
from pipeline.storage import Storage

SHARD_OF = [0] * 5 + [1] * 80 + [2] * 15


def sample(unit, index_row):
    row = RowId(source="g/d", path=unit, row=index_row, unit=unit, index_row=index_row)
    return PlannedSample(row=row, items=(), data_indexes="0", worker_id=0, dataset_name="g")


def packs():
    return [
        PlannedPack(lane=0, pack=number, shard=shard, sequence_length=0, pixel_bytes=0, samples=(sample("u", number),))
        for number, shard in enumerate(SHARD_OF)
    ]


def shard_plan(first_pack, num_packs):
    return ShardPlan(first_pack=first_pack, num_packs=num_packs, pixel_bytes=0, fingerprint="")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "plan").mkdir()
    return BakeFolder(str(tmp_path))


@pytest.mark.parametrize("row_group_size", [3, 7, 64, 1000])
def test_a_shard_gets_exactly_its_packs_however_the_plan_is_cut_into_row_groups(folder, row_group_size):
    pq.write_table(packs_to_table(packs()), folder.plan_lane(0), row_group_size=row_group_size)
    read = [
        list(
            read_packs(
                Storage(), folder, 0, shard, shard_plan(SHARD_OF.index(shard), SHARD_OF.count(shard)), table_to_packs
            )
        )
        for shard in range(3)
    ]
    assert [pack for of_shard in read for pack in of_shard] == packs()


@pytest.mark.parametrize(("shard", "plan"), [(1, shard_plan(4, 3)), (2, shard_plan(95, 6)), (2, shard_plan(200, 1))])
def test_a_plan_that_does_not_hold_what_it_promised_is_refused(folder, shard, plan):
    pq.write_table(packs_to_table(packs()), folder.plan_lane(0), row_group_size=8)
    with pytest.raises(RunFailed, match="Run `parbake plan` again"):
        list(read_packs(Storage(), folder, 0, shard, plan, table_to_packs))


def index_rows(count):
    return [
        IndexRow(
            row=number,
            row_group=number // 10,
            row_in_group=number % 10,
            images=(ImageEntry(reference=f"{number}.png", width_px=number + 1, height_px=2, stamp=number),),
            text_ids=((number,), tuple(range(number % 5))),
        )
        for number in range(count)
    ]


def test_scattered_index_rows_come_back_by_their_row_id(folder, tmp_path):
    expected = {}
    for unit, count in (("u", 50), ("v", 33)):
        path = tmp_path / "index" / "g%2Fd" / f"{unit}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows_to_table(index_rows(count)), path, row_group_size=16)
        expected |= {(unit, row.row): row for row in index_rows(count)}
    wanted = random.Random(3).choices(sorted(expected), k=25)
    pack = PlannedPack(
        lane=0, pack=0, shard=0, sequence_length=0, pixel_bytes=0, samples=tuple(sample(*key) for key in wanted)
    )
    found = read_index_rows(Storage(), folder, [pack], INDEX_COLUMNS, iter_rows)
    assert {(row_id.unit, row_id.index_row): row for row_id, row in found.items()} == {
        key: expected[key] for key in wanted
    }


def test_an_index_that_is_too_short_for_the_plan_is_refused(folder, tmp_path):
    path = tmp_path / "index" / "g%2Fd" / "u.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(rows_to_table(index_rows(5)), path)
    pack = PlannedPack(
        lane=0, pack=0, shard=0, sequence_length=0, pixel_bytes=0, samples=(sample("u", 2), sample("u", 5))
    )
    with pytest.raises(RunFailed, match="ends before row 5"):
        read_index_rows(Storage(), folder, [pack], INDEX_COLUMNS, iter_rows)


def test_a_portion_is_bounded_in_samples():
    assert [len(portion) for portion in in_portions(packs()[:8], 3)] == [3, 3, 2]
