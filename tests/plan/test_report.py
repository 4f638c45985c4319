"""`parbake plan` says what training would get and what is lost, in numbers that can be checked."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from pipeline.plan.report import drops_by_reason, plan_table, written_bytes
from tests.plan.maker import World, mixed_world


def shown(world: World, **settings: object) -> str:
    manifest = world.plan(world.config(20, **settings))
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(plan_table(manifest, packs_per_core_second=2.0))
    console.file.close()
    return console.export_text()


def test_the_table_names_packs_fill_mix_drops_and_cost(tmp_path: Path) -> None:
    text = shown(mixed_world(tmp_path), world_size=2)
    assert "40 (2 lanes of 20)" in text
    assert "of max_num_tokens 360" in text
    assert "unified_edit" in text
    assert "57.1%" in text  # weight 2.0 of 3.5
    assert "broken" in text
    assert "core-hours" in text
    assert "in 2 shards, 4 requests" in text


def test_drops_add_up_over_lanes_and_passes(tmp_path: Path) -> None:
    world = mixed_world(tmp_path)
    manifest = world.plan(world.config(40, world_size=2))
    drops = drops_by_reason(manifest)
    accounts = [account for lane in manifest.lanes for rows in lane.rows.values() for account in rows]
    lost = sum(account["discarded"] + sum(account["dropped"].values()) for account in accounts)
    assert sum(count for reasons in drops.values() for count in reasons.values()) == lost
    assert drops["t2i_pretrain/a"]["broken"] > 0


def test_examples_name_the_first_rows_that_were_lost(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.add_parquet("t2i_pretrain", [[40]])
    manifest = world.plan(world.config(30))
    assert manifest.statistics["drop_examples"]["t2i_pretrain/a"]["broken"][0] == ["000.parquet", 6]


def test_the_size_counts_pixels_exactly_and_arrays_by_tokens(tmp_path: Path) -> None:
    world = mixed_world(tmp_path)
    manifest = world.plan(world.config(5))
    pixels = sum(pack.pixel_bytes for pack in world.packs())
    assert written_bytes(manifest) == pixels + 16 * manifest.statistics["sequence_tokens"]


def test_a_plan_without_losses_shows_no_table_of_losses(tmp_path: Path) -> None:
    world = World(tmp_path, fault_every=0)
    world.add_parquet("t2i_pretrain", [[40]])
    assert "rows lost" not in shown(world)
