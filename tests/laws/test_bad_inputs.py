"""A wrong input ends with one clear sentence and the right exit code; nothing half-written, nothing earlier touched."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.datamaker.parquet import T2I_SCHEMA, write_parquet
from tests.datamaker.recipe import Recipe
from tests.laws.commands import Outcome, parbake
from tests.laws.reading import snapshot
from tests.parity.baking import bake_recipe


def assert_one_clear_sentence(outcome: Outcome, exit_code: int, *words: str) -> None:
    """The exit code, no traceback, and an error of one paragraph that holds these words."""
    assert outcome.exit_code == exit_code, outcome.output
    assert "Traceback" not in outcome.output
    text = " ".join(outcome.output.split())
    for word in words:
        assert word in text, f"{word!r} is not in: {outcome.output}"
    assert outcome.output.count("error") <= 2, outcome.output


def written(recipe: Recipe, folder: Path, **settings: Any) -> tuple[Path, Path]:
    """The recipe as a file, and its output folder."""
    output = folder / "bake"
    section = {"output": str(output), "length": {"packs_per_lane": 2}, "executor": "inline", **settings}
    return recipe.write(folder / "config.yaml", max_dropped_fraction=1.0, **section), output


def no_shard_and_no_temporary(output: Path) -> bool:
    """Nothing that a reader could take for a bake, and nothing half-written."""
    files = [path.name for path in output.rglob("*") if path.is_file()]
    return not any(name.endswith(".tar") or name == "dataset.json" or ".tmp" in name for name in files)


def test_a_file_that_is_not_yaml(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("dataset: {grouped_datasets: [\nbake:\n")
    outcome = parbake("run", "bad.yaml", folder=tmp_path)
    assert_one_clear_sentence(outcome, 2, "bad.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]


def test_a_configuration_that_does_not_exist(tmp_path: Path) -> None:
    assert_one_clear_sentence(parbake("run", "nowhere.yaml", folder=tmp_path), 2, "nowhere.yaml")
    assert not list(tmp_path.iterdir())


def _without_length(recipe: Recipe, folder: Path) -> Path:
    return recipe.write(folder / "config.yaml", output=str(folder / "bake"), executor="inline")


def _misspelt(recipe: Recipe, folder: Path) -> Path:
    return recipe.changed(dataset={"expected_num_token": 100}).write(
        folder / "config.yaml", output=str(folder / "bake"), length={"packs_per_lane": 2}
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [(_without_length, ["length", "packs_per_lane"]), (_misspelt, ["expected_num_token", "expected_num_tokens"])],
    ids=["no length", "misspelt key"],
)
def test_a_configuration_that_cannot_be_used(
    make: Callable[[Recipe, Path], Path], words: list[str], recipe: Recipe, tmp_path: Path
) -> None:
    outcome = parbake("run", str(make(recipe, tmp_path)))
    assert_one_clear_sentence(outcome, 2, *words)
    assert not (tmp_path / "bake").exists()


def _missing_folder(recipe: Recipe, folder: Path) -> str:
    recipe.dataset["dataset_info"]["t2i_pretrain"]["one"]["data_dir"] = str(folder / "not_here")
    return "not_here"


def _folder_without_parquet(recipe: Recipe, folder: Path) -> str:
    (folder / "empty_folder").mkdir()
    recipe.dataset["dataset_info"]["t2i_pretrain"]["one"]["data_dir"] = str(folder / "empty_folder")
    return "empty_folder"


def _parquet_without_rows(recipe: Recipe, folder: Path) -> str:
    write_parquet(folder / "no_rows" / "a.parquet", [], T2I_SCHEMA, 5)
    recipe.groups["t2i_pretrain"].update(dataset_names=["one"], num_used_data=[1])
    recipe.dataset["dataset_info"]["t2i_pretrain"]["one"]["data_dir"] = str(folder / "no_rows")
    return "t2i_pretrain"


def _lines_without_a_line(recipe: Recipe, folder: Path) -> str:
    (folder / "empty.jsonl").write_bytes(b"")
    recipe.groups["vlm_sft"].update(dataset_names=["one"], num_used_data=[10])
    recipe.dataset["dataset_info"]["vlm_sft"]["one"]["jsonl_path"] = str(folder / "empty.jsonl")
    return "vlm_sft"


def _missing_lines(recipe: Recipe, folder: Path) -> str:
    recipe.dataset["dataset_info"]["vlm_sft"]["one"]["jsonl_path"] = str(folder / "absent.jsonl")
    return "absent.jsonl"


def _another_column(recipe: Recipe, folder: Path) -> str:
    schema = pa.schema([("picture", pa.binary()), ("captions", pa.string())])
    write_parquet(folder / "columns" / "a.parquet", [{"picture": b"x", "captions": "{}"}], schema, 5)
    recipe.groups["t2i_pretrain"].update(dataset_names=["one"], num_used_data=[1])
    recipe.dataset["dataset_info"]["t2i_pretrain"]["one"]["data_dir"] = str(folder / "columns")
    return "picture"


@pytest.mark.parametrize(
    "break_it",
    [
        _missing_folder,
        _folder_without_parquet,
        _parquet_without_rows,
        _lines_without_a_line,
        _missing_lines,
        _another_column,
    ],
    ids=lambda function: function.__name__.strip("_").replace("_", " "),
)
def test_a_source_that_cannot_be_used(break_it: Callable[[Recipe, Path], str], recipe: Recipe, tmp_path: Path) -> None:
    changed = recipe.copy()
    word = break_it(changed, tmp_path)
    config, output = written(changed, tmp_path)
    assert_one_clear_sentence(parbake("run", str(config)), 2, word)
    assert no_shard_and_no_temporary(output)


def test_fewer_paths_than_lanes(recipe: Recipe, tmp_path: Path) -> None:
    config, output = written(recipe.changed(only=("t2i_pretrain",)), tmp_path, world_size=13)
    assert_one_clear_sentence(parbake("run", str(config)), 2, "t2i_pretrain", "12", "13")
    assert no_shard_and_no_temporary(output)


def test_a_source_that_loses_too_much_exits_with_1(recipe: Recipe, tmp_path: Path) -> None:
    config, _ = written(recipe, tmp_path)
    outcome = parbake("run", str(config), "--set", "bake.max_dropped_fraction=0.01")
    assert_one_clear_sentence(outcome, 1, "max_dropped_fraction")
    assert not (tmp_path / "bake" / "dataset.json").exists()


def test_an_output_that_holds_another_bake_is_left_alone(recipe: Recipe, tmp_path: Path) -> None:
    folder = bake_recipe(recipe, tmp_path, 2)
    before = snapshot(folder), (folder / "config.yaml").read_bytes()
    config, _ = written(recipe.changed(dataset={"expected_num_tokens": 500}), tmp_path)
    outcome = parbake("run", str(config))
    assert_one_clear_sentence(outcome, 2, str(folder))
    assert (snapshot(folder), (folder / "config.yaml").read_bytes()) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that is full after 1.5 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1536k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"mounting a tmpfs is not permitted here: {mounted.stderr.decode()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_fails_the_run_which_goes_on_elsewhere(recipe: Recipe, tmp_path: Path, small_disk: Path) -> None:
    config, output = written(recipe, small_disk, length={"packs_per_lane": 12}, shard_bytes=300_000)
    outcome = parbake("run", str(config))
    assert_one_clear_sentence(outcome, 3, "space")
    assert not (output / "dataset.json").exists()
    assert not [path for path in output.rglob("*") if ".tmp" in path.name]
    roomy = tmp_path / "roomy"
    shutil.copytree(small_disk, roomy)
    finished = parbake("run", str(config), "--output", str(roomy / "bake"))
    assert finished.exit_code == 0, finished.output
    whole = bake_recipe(recipe, tmp_path / "whole", 12, shard_bytes=300_000)
    assert snapshot(roomy / "bake") == snapshot(whole)
