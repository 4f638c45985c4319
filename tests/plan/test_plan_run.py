"""The plan stage on synthetic indexes: accounts, ends, prefixes, resumption, errors."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.errors import BakeConflict, ConfigError, SourceError
from pipeline.plan import scatter
from pipeline.plan_table import PlanManifest, manifest_from_json
from pipeline.records import PlannedPack
from tests.plan.maker import World, mixed_world


def assert_rows_are_accounted_for(world: World, manifest: PlanManifest, totals: dict[str, int]) -> None:
    """Law 5, with the packs as witnesses."""
    packed: Counter[str] = Counter()
    for lane in range(len(manifest.lanes)):
        packed.update(sample.row.source for pack in world.packs(lane) for sample in pack.samples)
    for source, total in totals.items():
        accounts = [account for lane in manifest.lanes for account in lane.rows.get(source, [])]
        for account in accounts:
            fates = account["packed"] + sum(account["dropped"].values()) + account["discarded"] + account["waiting"]
            assert account["drawn"] == fates
        first = sum(lane.rows[source][0]["drawn"] for lane in manifest.lanes if lane.rows.get(source))
        not_reached = sum(lane.not_reached.get(source, 0) for lane in manifest.lanes)
        assert first + not_reached + manifest.not_assigned[source] == total, source
        assert sum(account["packed"] for account in accounts) == packed[source], source


TOTALS = {"t2i_pretrain/a": 93, "unified_edit/a": 27, "vlm_sft/0": 120, "vlm_sft/1": 70}


@pytest.mark.parametrize(
    "settings",
    [
        {"packs": 1},
        {"packs": 40},
        {"packs": 7, "world_size": 2},
        {"packs": 30, "num_workers": 2, "world_size": 2},
        {"packs": 3, "num_workers": 0, "world_size": 3},
        {"packs": 12, "num_workers": 2, "drop_tail": False},
        {"length": {"epochs": 2}},
        {"length": {"tokens": 9000}, "world_size": 2},
        {"packs": 30, "packer": "best_fit", "pool_size": 8},
        {"packs": 30, "packer": "best_fit", "pool_size": 8, "balance": "window", "balance_window": 8, "world_size": 2},
    ],
)
def test_every_row_has_one_fate(settings: dict[str, Any], tmp_path: Path) -> None:
    world = mixed_world(tmp_path)
    manifest = world.plan(world.config(**settings))
    assert_rows_are_accounted_for(world, manifest, TOTALS)
    if not settings.get("drop_tail", True):
        assert not any(manifest.not_assigned.values())


def test_best_fit_loses_no_sample_and_keeps_the_budget(tmp_path: Path) -> None:
    world = mixed_world(tmp_path)
    manifest = world.plan(world.config(60, packer="best_fit", pool_size=16))
    accounts = [account for lane in manifest.lanes for rows in lane.rows.values() for account in rows]
    assert sum(account["discarded"] for account in accounts) == 0
    assert max(pack.sequence_length for pack in world.packs()) <= 360


def test_files_used_twice_count_twice_and_unused_ones_are_in_no_lane(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.add_parquet("t2i_pretrain", [[5], [6], [7]], num_used=5)
    world.add_lines([40, 30], num_used=[25, 30], shuffle_lines=True, shuffle_seed=3)
    manifest = world.plan(world.config(9, world_size=2))
    assert_rows_are_accounted_for(
        world, manifest, {"t2i_pretrain/a": 5 + 6 + 7 + 5 + 6, "vlm_sft/0": 40, "vlm_sft/1": 30}
    )
    assert manifest.not_assigned["vlm_sft/0"] >= 15


def lane_bytes(packs: list[PlannedPack]) -> list[str]:
    return [repr(pack) for pack in packs]


@pytest.mark.parametrize("extra", [{}, {"packer": "best_fit", "pool_size": 8}])
def test_a_longer_lane_begins_with_the_shorter_one_and_its_closed_shards(extra: dict[str, Any], tmp_path: Path) -> None:
    world = mixed_world(tmp_path)
    shard_bytes = 40_000
    short = world.plan(world.config(11, shard_bytes=shard_bytes, world_size=2, **extra))
    short_packs = lane_bytes(world.packs(1))
    long = world.plan(world.config(23, shard_bytes=shard_bytes, world_size=2, **extra))
    assert lane_bytes(world.packs(1))[:11] == short_packs
    assert long.stream == short.stream
    for before, after in zip(short.lanes, long.lanes, strict=True):
        assert len(before.shards) > 3
        assert after.shards[: len(before.shards) - 1] == before.shards[:-1]


BALANCED = {"packer": "best_fit", "pool_size": 8, "balance": "window", "balance_window": 8}


@pytest.mark.parametrize(
    "lengths", [({"packs_per_lane": 3}, {"packs_per_lane": 29}), ({"tokens": 9e3}, {"tokens": 3e4})]
)
def test_a_balanced_lane_cut_inside_a_window_is_the_beginning_of_a_longer_one(
    lengths: tuple[dict[str, Any], ...], tmp_path: Path
) -> None:
    world = mixed_world(tmp_path)
    manifests, lanes = [], []
    for length in lengths:
        manifests.append(world.plan(world.config(length=length, world_size=2, shard_bytes=60_000, **BALANCED)))
        assert_rows_are_accounted_for(world, manifests[-1], TOTALS)
        lanes.append([[repr(pack.samples) for pack in world.packs(lane)] for lane in range(2)])
    for lane in range(2):
        few, many = lanes[0][lane], lanes[1][lane]
        assert len(few) % BALANCED["balance_window"], "the cut must lie inside a window"
        assert len(few) < len(many)
        assert many[: len(few)] == few
        shards, longer = (manifest.lanes[lane].shards for manifest in manifests)
        assert longer[: len(shards) - 1] == shards[:-1]


def test_packs_beyond_the_cut_wait(tmp_path: Path) -> None:
    world = mixed_world(tmp_path)
    waiting = []
    for packs in (8, 9):
        manifest = world.plan(world.config(packs, **BALANCED))
        waiting.append(sum(once["waiting"] for passes in manifest.lanes[0].rows.values() for once in passes))
    assert waiting[1] >= 7 + waiting[0]  # seven packs of at least one sample each


def test_the_last_window_of_an_epoch_is_ordered_by_itself(tmp_path: Path) -> None:
    world = mixed_world(tmp_path)
    manifest = world.plan(world.config(length={"epochs": 1}, **BALANCED))
    in_order = world.plan(world.config(length={"epochs": 1}, **{**BALANCED, "balance": "off"}))
    assert manifest.lanes[0].num_packs == in_order.lanes[0].num_packs
    assert manifest.lanes[0].rows == in_order.lanes[0].rows


def test_steps_of_balanced_lanes_are_more_even_and_the_plan_says_by_how_much(tmp_path: Path) -> None:
    world = mixed_world(tmp_path)
    steps = world.plan(world.config(32, world_size=2, num_workers=2, **BALANCED)).statistics["steps"]
    assert steps["world_size"] == 2
    assert 1.0 <= steps["imbalance"] < steps["imbalance_as_packed"]
    off = world.plan(world.config(32, world_size=2, num_workers=2, **{**BALANCED, "balance": "off"})).statistics[
        "steps"
    ]
    assert off["imbalance"] == off["imbalance_as_packed"] == steps["imbalance_as_packed"]


def test_an_epoch_draws_every_row_of_the_lane(tmp_path: Path) -> None:
    world = mixed_world(tmp_path)
    manifest = world.plan(world.config(length={"epochs": 1}))
    assert sum(manifest.lanes[0].not_reached.values()) == 0
    assert {source: rows[0]["drawn"] for source, rows in manifest.lanes[0].rows.items()} == TOTALS


def test_tokens_are_reached_with_the_last_pack_of_every_lane_and_not_before(tmp_path: Path) -> None:
    world = mixed_world(tmp_path)
    world.plan(world.config(length={"tokens": 5000}, world_size=2))
    for lane in range(2):
        lengths = [pack.sequence_length for pack in world.packs(lane)]
        assert sum(lengths) >= 2500 > sum(lengths[:-1])


def test_planning_again_writes_no_lane_again(tmp_path: Path) -> None:
    world = mixed_world(tmp_path)
    config = world.config(4, world_size=2)
    world.plan(config)
    files = sorted(Path(world.folder.url, "plan").rglob("*.parquet"))
    before = [(file.stat().st_mtime_ns, file.read_bytes()) for file in files]
    manifest = Path(world.folder.plan).read_bytes()
    world.plan(config)
    assert [(file.stat().st_mtime_ns, file.read_bytes()) for file in files] == before
    assert Path(world.folder.plan).read_bytes() == manifest


def test_the_same_data_in_another_place_gives_the_same_plan(tmp_path: Path) -> None:
    plans = []
    for place in ("here", "there/and/deeper"):
        world = mixed_world(tmp_path / place)
        world.plan(world.config(9, world_size=2, drop_tail=False))
        root = Path(world.folder.url, "plan")
        plans.append({str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*.*")})
    assert plans[0] == plans[1]
    assert not any(str(tmp_path).encode() in content for content in plans[0].values())


def test_temporaries_of_a_killed_plan_are_swept(tmp_path: Path) -> None:
    world = mixed_world(tmp_path)
    left = Path(world.folder.url, "plan", ".lane-00000.parquet.tmp-0123456789abcdef")
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    world.plan(world.config(1))
    assert not left.exists()


def test_lanes_of_an_earlier_wider_plan_are_removed(tmp_path: Path) -> None:
    world = mixed_world(tmp_path)
    world.plan(world.config(2, world_size=3))
    world.plan(world.config(2, world_size=1))
    assert sorted(path.name for path in Path(world.folder.url, "plan").glob("lane-*")) == ["lane-00000.parquet"]


def test_lines_reach_a_lane_in_the_reference_s_order(tmp_path: Path) -> None:
    world = World(tmp_path, fault_every=0)
    world.add_lines([60, 45], num_used=[60, 20])
    config = world.config(60, world_size=2, num_workers=2)
    world.plan(config)
    lines = []
    for number, used in enumerate((60, 20)):
        raw = (tmp_path / f"vlm_sft-{number}.jsonl").read_text().splitlines(keepends=True)
        lines += [(text, f"media-{number}", (f"vlm_sft-{number}.jsonl", row)) for row, text in enumerate(raw[:used])]
    lines.sort(key=lambda line: line[:2])
    random.Random(config.dataset.data_seed).shuffle(lines)
    expected = [place for _, _, place in lines[40:80][20:40]][::-1]  # rank 1, worker 1, reversed: lane 3
    rows = pq.read_table(world.folder.assign("vlm_sft", "lane-00003.parquet"))
    assert rows.column("ordinal").to_pylist() == list(range(20))
    # The packer draws in lane order, and waiting samples come back later: what was drawn once is exactly the lane.
    drawn = {(s.row.path, s.row.row): s.data_indexes for pack in world.packs(3) for s in pack.samples}
    assert {place: int(drawn[place]) for place in expected if place in drawn} == {
        place: number for number, place in enumerate(expected) if place in drawn
    }
    assert len(drawn) > 15


def test_data_indexes_count_what_each_kind_of_group_counts(tmp_path: Path) -> None:
    world = World(tmp_path, fault_every=0)
    world.add_parquet("t2i_pretrain", [[2], [1, 2]])
    world.plan(world.config(6, num_workers=0))
    seen = {(s.row.path, s.row.row): s.data_indexes for pack in world.packs() for s in pack.samples}
    # shuffled with data_seed 42 two files keep their order or swap: the ordinal is that of the list
    first = min(seen, key=lambda place: json.loads(seen[place]))[0]
    other = "001.parquet" if first == "000.parquet" else "000.parquet"
    ordinal = {first: 0, other: 1}
    assert seen == {
        ("000.parquet", 0): f"[{ordinal['000.parquet']},0,0]",
        ("000.parquet", 1): f"[{ordinal['000.parquet']},0,1]",
        ("001.parquet", 0): f"[{ordinal['001.parquet']},0,0]",
        ("001.parquet", 1): f"[{ordinal['001.parquet']},1,0]",
        ("001.parquet", 2): f"[{ordinal['001.parquet']},1,1]",
    }


def test_edit_rows_come_row_group_by_row_group_with_global_numbers(tmp_path: Path) -> None:
    world = World(tmp_path, fault_every=0)
    world.add_parquet("unified_edit", [[2, 3], [4]], num_used=4)
    config = world.config(2, num_workers=1)
    world.plan(config)
    paths = sorted([("000", 0), ("000", 1), ("001", 0)] * 2)
    random.Random(config.dataset.data_seed).shuffle(paths)
    starts = {("000", 0): range(2), ("000", 1): range(2, 5), ("001", 0): range(4)}
    expected = [(number, f"{path[0]}.parquet", row) for number, path in enumerate(paths[::-1]) for row in starts[path]]
    table = pq.read_table(world.folder.assign("unified_edit", "lane-00000.parquet"))
    units = json.loads(Path(world.folder.assign("unified_edit", "assign.json")).read_text())["units"]
    files = [units[unit]["path"] for unit in table.column("unit").to_pylist()]
    assert list(zip(table.column("ordinal").to_pylist(), files, table.column("row").to_pylist(), strict=True)) == (
        expected
    )


def test_many_small_buckets_give_the_lanes_of_one_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = []
    for number, (bucket, batch) in enumerate([(1 << 15, 1 << 14), (7, 5)]):
        monkeypatch.setattr(scatter, "BUCKET_ROWS", bucket)
        monkeypatch.setattr(scatter, "BATCH_ROWS", batch)
        world = mixed_world(tmp_path / str(number))
        world.plan(world.config(1, world_size=2))
        lanes.append([pq.read_table(world.folder.assign("vlm_sft", f"lane-0000{lane}.parquet")) for lane in range(2)])
    assert lanes[0] == lanes[1]
    assert lanes[0][0].num_rows == 95


@pytest.mark.parametrize("kind", ["t2i_pretrain", "unified_edit", "vlm_sft"])
def test_a_lane_without_one_usable_row_stops_instead_of_spinning(kind: str, tmp_path: Path) -> None:
    world = World(tmp_path, fault_every=1)
    if kind == "vlm_sft":
        world.add_lines([9])
    else:
        world.add_parquet(kind, [[3], [4]])
    with pytest.raises(SourceError, match=rf"group {kind} has no usable row in lane 0 .*broken"):
        world.plan(world.config(1))


def test_a_lane_of_empty_files_stops_too(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.add_parquet("t2i_pretrain", [[], [0]])
    with pytest.raises(SourceError, match="its files are empty"):
        world.plan(world.config(1))


def test_fewer_files_than_lanes_is_said_before_anything_is_planned(tmp_path: Path) -> None:
    world = mixed_world(tmp_path)
    with pytest.raises(SourceError, match="group t2i_pretrain has 4 paths"):
        world.plan(world.config(1, world_size=5))
    assert not Path(world.folder.plan).exists()


def test_mandatory_groups_that_overfill_a_flex_pack_stop_the_plan(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(3):
        world.add_parquet("t2i_pretrain", [[30]], name=f"group{number}", is_mandatory=True)
    tight = {"max_num_tokens": 60, "expected_num_tokens": 50, "max_num_tokens_per_sample": 55}
    with pytest.raises(ConfigError, match="the padding would be negative"):
        world.plan(world.config(30, dataset={**tight, "use_flex": True}))
    manifest = world.plan(world.config(30, dataset=tight))
    assert manifest.statistics["packs_over_budget"] > 0


def test_a_plan_before_its_index_says_what_to_run(tmp_path: Path) -> None:
    world = mixed_world(tmp_path)
    Path(world.folder.source_index("vlm_sft/1")).unlink()
    with pytest.raises(SourceError, match=r"vlm_sft/1 has no finished index .*parbake index"):
        world.plan(world.config(1))


@pytest.mark.parametrize(
    "change", [{"seed": 7}, {"world_size": 2}, {"shard_bytes": 99}, {"packer": "best_fit"}, {"drop_tail": False}]
)
def test_shards_of_another_stream_are_left_alone(change: dict[str, Any], tmp_path: Path) -> None:
    world = mixed_world(tmp_path)
    world.plan(world.config(3))
    sidecar = Path(world.folder.sidecar(0, 0))
    sidecar.parent.mkdir(parents=True)
    sidecar.write_text("{}")
    before = {path: path.read_bytes() for path in Path(world.folder.url).rglob("*") if path.is_file()}
    with pytest.raises(BakeConflict):
        world.plan(world.config(3, **change))
    assert {path: path.read_bytes() for path in Path(world.folder.url).rglob("*") if path.is_file()} == before
    world.plan(world.config(4))


def test_changed_sources_are_refused_where_shards_were_made_from_the_old_ones(tmp_path: Path) -> None:
    world = World(tmp_path / "a")
    world.add_parquet("t2i_pretrain", [[20], [10]])
    world.plan(world.config(3))
    sidecar = Path(world.folder.sidecar(0, 0))
    sidecar.parent.mkdir(parents=True)
    sidecar.write_text("{}")
    changed = World(tmp_path / "b", fault_every=3)
    changed.add_parquet("t2i_pretrain", [[20], [10]])
    source = Path(changed.folder.source_index("t2i_pretrain/a"))
    Path(world.folder.source_index("t2i_pretrain/a")).write_bytes(source.read_bytes())
    with pytest.raises(BakeConflict, match="not those that the shards"):
        world.plan(world.config(3))


def test_the_manifest_on_disk_is_the_one_returned(tmp_path: Path) -> None:
    world = mixed_world(tmp_path)
    manifest = world.plan(world.config(3, world_size=2))
    assert manifest_from_json(Path(world.folder.plan).read_bytes()) == manifest
    tokens = manifest.statistics["tokens"]
    assert sum(tokens.values()) == manifest.statistics["sequence_tokens"]
    assert manifest.statistics["sequence_tokens"] == sum(
        pack.sequence_length for lane in range(2) for pack in world.packs(lane)
    )
