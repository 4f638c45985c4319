"""Law 7: inline, on Ray, killed and rerun, extended, twice at once: the same bytes, and not a file more."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.datamaker.recipe import Recipe
from tests.laws.commands import parbake, start_parbake
from tests.laws.reading import snapshot
from tests.parity.baking import bake_recipe

SETTINGS: dict[str, Any] = {"world_size": 2, "shard_bytes": 400_000, "max_dropped_fraction": 1.0}
PACKS = 10


@pytest.fixture(scope="module")
def inline(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one undisturbed process makes of it."""
    found = snapshot(bake_recipe(recipe, tmp_path_factory.mktemp("inline"), PACKS, **SETTINGS))
    assert sum(name.endswith(".tar") for name in found) >= 6
    return found


def written(recipe: Recipe, folder: Path, packs_per_lane: int = PACKS, **settings: Any) -> tuple[Path, Path]:
    """The recipe as a file, and its output folder."""
    section = {"output": str(folder / "bake"), "length": {"packs_per_lane": packs_per_lane}, **SETTINGS, **settings}
    return recipe.write(folder / "config.yaml", **section), folder / "bake"


@pytest.mark.ray
def test_ray_and_inline_give_the_same_bytes(recipe: Recipe, inline: dict[str, str], tmp_path: Path) -> None:
    config, folder = written(recipe, tmp_path, executor="ray")
    outcome = parbake("run", str(config))
    assert outcome.exit_code == 0, outcome.output
    assert snapshot(folder) == inline


def test_killed_at_random_moments_and_rerun_gives_the_same_bytes(
    recipe: Recipe, inline: dict[str, str], tmp_path: Path
) -> None:
    config, folder = written(recipe, tmp_path, executor="inline")
    moments = sorted(random.Random(20).sample(range(1, len(inline) - 1), 6))
    killed = 0
    for num_files in moments:
        process = start_parbake("run", str(config))
        killed += _killed_when(process, folder, num_files)
    assert killed >= 4
    outcome = parbake("run", str(config))
    assert outcome.exit_code == 0, outcome.output
    assert snapshot(folder) == inline


def _killed_when(process: subprocess.Popen[str], folder: Path, num_files: int) -> bool:
    """Kill the run (-9) once the folder holds that many files, finished or not."""
    while process.poll() is None:
        if sum(path.is_file() for path in folder.rglob("*")) >= num_files:
            os.killpg(process.pid, signal.SIGKILL)
            break
        time.sleep(0.001)
    process.communicate()
    return process.returncode == -signal.SIGKILL


def test_extended_from_a_shorter_bake_gives_the_same_bytes(
    recipe: Recipe, inline: dict[str, str], tmp_path: Path
) -> None:
    for packs_per_lane in (1, 4, PACKS):
        folder = bake_recipe(recipe, tmp_path, packs_per_lane, **SETTINGS)
    assert snapshot(folder) == inline


def test_finished_shards_are_left_as_they_are_when_a_bake_is_extended(recipe: Recipe, tmp_path: Path) -> None:
    folder = bake_recipe(recipe, tmp_path, 6, **SETTINGS)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("shards/lane-*/*.tar")}
    last = {max(folder.glob(f"shards/{lane.name}/*.tar")) for lane in folder.glob("shards/lane-*")}
    bake_recipe(recipe, tmp_path, PACKS, **SETTINGS)
    kept = [path for path, stamp in before.items() if path.exists() and path.stat().st_mtime_ns == stamp]
    assert before.keys() - last <= set(kept)


def test_rerunning_a_finished_bake_writes_no_shard_again(recipe: Recipe, tmp_path: Path) -> None:
    folder = bake_recipe(recipe, tmp_path, 3, **SETTINGS)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("shards/*/*")}
    bake_recipe(recipe, tmp_path, 3, **SETTINGS)
    assert {path: path.stat().st_mtime_ns for path in folder.glob("shards/*/*")} == before


def test_two_runs_of_one_bake_at_once_give_the_same_bytes(
    recipe: Recipe, inline: dict[str, str], tmp_path: Path
) -> None:
    config, folder = written(recipe, tmp_path, executor="inline")
    runs = [start_parbake("run", str(config)) for _ in range(2)]
    outputs = [run.communicate(timeout=300)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    assert snapshot(folder) == inline


def test_a_moved_copy_of_the_data_gives_the_same_shards(recipe: Recipe, tmp_path: Path) -> None:
    """Nothing of a place or a time is in plan, shards, sidecars or `dataset.json`."""
    from tests.datamaker.recipe import small_recipe, write_sources

    found = []
    for place in ("here", "elsewhere"):
        moved = small_recipe(write_sources(tmp_path / place, seed=100))
        files = snapshot(bake_recipe(moved, tmp_path / f"bake-{place}", 3, **SETTINGS))
        found.append({name: digest for name, digest in files.items() if not name.startswith("index/")})
    assert found[0] == found[1]
