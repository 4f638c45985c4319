"""Laws 1 to 8 for the improved stream: best_fit, balanced windows, every correction, lanes of unequal length."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from loaders import PackedShards
from pipeline import stages
from pipeline.config import CORRECTIONS
from tests.datamaker.recipe import Recipe, Sources
from tests.laws.commands import parbake, start_parbake
from tests.laws.laws import assert_pack_laws, assert_shard_laws
from tests.laws.reading import raw_manifest, raw_packs, snapshot
from tests.laws.replay_process import batch_digest
from tests.laws.test_conservation import assert_every_row_is_accounted_for, rows_of_sources
from tests.laws.test_resume import canonical_order
from tests.laws.test_same_bytes import _killed_when
from tests.parity.baking import bake_recipe

IMPROVED: dict[str, Any] = {"stream": "improved", "pool_size": 8, "balance_window": 4, "shard_bytes": 300_000}
UNEVEN: dict[str, Any] = {**IMPROVED, "world_size": 3, "length": {"epochs": 1}}
LANES: dict[str, Any] = {**IMPROVED, "world_size": 2, "max_dropped_fraction": 1.0}
PACKS = 10


def source_rows(sources: Sources) -> dict[str, int]:
    return {source: sum(files) for source, files in rows_of_sources(sources).items()}


@pytest.fixture(scope="module")
def uneven(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One epoch over lanes that end when their own rows do."""
    return bake_recipe(recipe, tmp_path_factory.mktemp("uneven"), 1, **UNEVEN)


@pytest.fixture(scope="module")
def inline(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one undisturbed process makes of it."""
    return snapshot(bake_recipe(recipe, tmp_path_factory.mktemp("inline"), PACKS, **LANES))


def test_lanes_of_unequal_length_obey_every_law(uneven: Path) -> None:
    lanes = [sum(shard["num_packs"] for shard in lane["shards"]) for lane in raw_manifest(uneven)["lanes"]]
    assert len(set(lanes)) > 1, "the lanes must differ for this to be a test"
    assert assert_pack_laws(uneven, max_num_tokens_per_sample=320) == sum(lanes)
    assert_shard_laws(uneven)
    report = stages.validate_bake(str(uneven), report=str(uneven / "report"))
    assert report.broken is None
    assert all(result.verdict == "holds" for result in report.laws), report.laws


def test_every_row_of_an_epoch_belongs_to_a_lane_and_is_drawn(uneven: Path, sources: Sources) -> None:
    rows = source_rows(sources)
    assert_every_row_is_accounted_for(uneven, rows)
    for source, account in raw_manifest(uneven)["rows"].items():
        assert account["not_assigned"] == account["not_reached"] == 0, source
        assert account["passes"][0]["drawn"] == rows[source], source
        assert not any(once["discarded"] for once in account["passes"]), source


SWITCHES: dict[str, dict[str, Any]] = {
    "all corrections": {},
    "no correction": {"corrections": []},
    **{f"only {name}": {"corrections": [name]} for name in CORRECTIONS},
    "greedy with all corrections": {"packer": "greedy", "balance": "off", "pool_size": None, "balance_window": None},
    "no tail": {"drop_tail": True},
    "images decoded": {"check_images": "decode"},
    "vision budgets": {"max_vit_tokens": 120, "max_vae_tokens": 200, "max_images": 6},
}


@pytest.mark.parametrize("name", SWITCHES)
def test_conservation_to_the_last_row_with_every_switch(
    name: str, recipe: Recipe, sources: Sources, tmp_path: Path
) -> None:
    settings = {**IMPROVED, "world_size": 2, **SWITCHES[name]}
    settings = {key: value for key, value in settings.items() if value is not None}
    folder = bake_recipe(recipe, tmp_path, 1, **settings, length={"epochs": 1})
    assert_every_row_is_accounted_for(folder, source_rows(sources))
    assert_pack_laws(folder, max_num_tokens_per_sample=320)
    accounts = raw_manifest(folder)["rows"].values()
    if settings.get("packer") != "greedy":
        assert not sum(once["discarded"] for account in accounts for once in account["passes"])
    if name == "vision budgets":
        for pack in raw_packs(folder):
            assert len(pack.array("packed_vit_position_ids")) <= 120
            assert len(pack.array("packed_vae_token_indexes")) <= 200
            images = len(pack.header["vit_image_sizes"]) + len(pack.header["vae_image_index"])
            assert images <= 6


def config_file(recipe: Recipe, folder: Path, packs_per_lane: int = PACKS, **settings: Any) -> tuple[Path, Path]:
    section = {"output": str(folder / "bake"), "length": {"packs_per_lane": packs_per_lane}, **LANES, **settings}
    return recipe.write(folder / "config.yaml", **section), folder / "bake"


@pytest.mark.ray
def test_ray_and_inline_give_the_same_bytes(recipe: Recipe, inline: dict[str, str], tmp_path: Path) -> None:
    config, folder = config_file(recipe, tmp_path, executor="ray")
    outcome = parbake("run", str(config))
    assert outcome.exit_code == 0, outcome.output
    assert snapshot(folder) == inline


def test_killed_and_rerun_gives_the_same_bytes(recipe: Recipe, inline: dict[str, str], tmp_path: Path) -> None:
    config, folder = config_file(recipe, tmp_path, executor="inline")
    killed = sum(_killed_when(start_parbake("run", str(config)), folder, len(inline) * part // 4) for part in (1, 2, 3))
    assert killed >= 2
    outcome = parbake("run", str(config))
    assert outcome.exit_code == 0, outcome.output
    assert snapshot(folder) == inline


def test_extended_over_the_middle_of_a_window_gives_the_same_bytes(
    recipe: Recipe, inline: dict[str, str], tmp_path: Path
) -> None:
    kept: dict[str, str] = {}
    for packs_per_lane in (1, 3, 6, PACKS):
        folder = bake_recipe(recipe, tmp_path, packs_per_lane, **LANES)
        found = snapshot(folder)
        assert all(found[name] == digest for name, digest in kept.items())
        tars = sorted((folder / "shards").glob("*/*.tar"))
        last = {max(tar for tar in tars if tar.parent == lane) for lane in {tar.parent for tar in tars}}
        kept = {tar.relative_to(folder).as_posix(): found[tar.relative_to(folder).as_posix()]
                for tar in tars if tar not in last}  # fmt: skip
    assert snapshot(folder) == inline


def digests(folder: Path, rank: int, world_size: int, state: Any = None) -> tuple[list[str], list[Any]]:
    """Packs that a rank reads, and its state before each and after the last."""
    loader = PackedShards(str(folder), rank=rank, world_size=world_size).loader(num_workers=0)
    if state is not None:
        loader.load_state_dict(state)
    packs, states = [], [loader.state_dict()]
    for batch in loader:
        packs.append(batch_digest(batch))
        states.append(loader.state_dict())
    return packs, states


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_unequal_lanes_are_read_in_canonical_order_by_any_world_size_and_resume_at_every_step(
    world_size: int, uneven: Path
) -> None:
    whole, _ = digests(uneven, 0, 1)
    assert len(whole) == len(canonical_order(uneven))
    for rank in range(world_size):
        packs, states = digests(uneven, rank, world_size)
        assert packs == whole[rank::world_size][: len(whole) // world_size]
        for step in range(0, len(packs), 3):
            assert digests(uneven, rank, world_size, states[step])[0] == packs[step:]


def test_a_state_of_a_shorter_balanced_bake_goes_on_in_the_longer_one(recipe: Recipe, tmp_path: Path) -> None:
    folder = bake_recipe(recipe, tmp_path, 3, **LANES)
    first, states = digests(folder, 1, 2)
    bake_recipe(recipe, tmp_path, 6, **LANES)
    whole, _ = digests(folder, 1, 2)
    assert whole[:3] == first
    for step, state in enumerate(states):
        assert digests(folder, 1, 2, state)[0] == whole[step:]


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # webdataset leaves closing its files to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reads_every_shard(uneven: Path) -> None:
    import webdataset

    shards = sorted(str(path) for path in (uneven / "shards").rglob("*.tar"))
    keys = [
        sample["__key__"] for shard in shards for sample in webdataset.WebDataset(shard, shardshuffle=False).decode()
    ]
    assert sorted(keys) == sorted(pack.key for pack in raw_packs(uneven))
    gc.collect()


def test_two_runs_of_one_improved_bake_at_once_give_the_same_bytes(
    recipe: Recipe, inline: dict[str, str], tmp_path: Path
) -> None:
    config, folder = config_file(recipe, tmp_path, executor="inline")
    runs = [start_parbake("run", str(config)) for _ in range(2)]
    outputs = [run.communicate(timeout=300)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    assert snapshot(folder) == inline
