"""Planned bakes that render tests copy and render."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.bake import BakeFolder
from pipeline.config import Config
from pipeline.configuration.reader import load_config
from pipeline.executor import InlineExecutor, SilentProgress
from pipeline.index.run import run_index
from pipeline.plan.run import run_plan
from pipeline.storage import Storage
from pipeline.tokenizer import load_tokenizer
from tests.datamaker.jsonl import write_vlm
from tests.datamaker.parquet import write_edit, write_t2i
from tests.datamaker.recipe import Sources, small_recipe
from tests.datamaker.tokenizer import write_tokenizer


def write_clean_sources(root: Path) -> Sources:
    """Small sources of every kind without a fault in them."""
    t2i = tuple(write_t2i(root / "t2i" / name, seed=seed, num_files=3) for name, seed in (("one", 1), ("two", 2)))
    edit = tuple(write_edit(root / "edit" / name, seed=seed, num_files=2) for name, seed in (("one", 3), ("two", 4)))
    pairs = [
        write_vlm(root / "vlm" / name, seed=seed, num_lines=24, faults=False, videos=False)
        for name, seed in (("one", 5), ("two", 6))
    ]
    return Sources(
        root=root,
        tokenizer=write_tokenizer(root / "tokenizer"),
        t2i=t2i,
        edit=edit,
        parquet_info=root / "none.json",
        lines=tuple(lines for lines, _ in pairs),
        media=tuple(media for _, media in pairs),
    )


def planned_bake(sources: Sources, folder: Path, packs_per_lane: int = 8, **bake: object) -> Config:
    """Index and plan into `folder/bake`; the configuration."""
    recipe = small_recipe(sources)
    recipe.dataset.pop("_target_", None)
    for source in recipe.dataset["dataset_info"]["unified_edit"].values():
        del source["parquet_info_path"]
    section = {
        "output": str(folder / "bake"),
        "world_size": 2,
        "length": {"packs_per_lane": packs_per_lane},
        "executor": "inline",
        "shard_bytes": 400_000,
        "max_dropped_fraction": 1.0,
        **bake,
    }
    config = load_config(str(recipe.write(folder / "config.yaml", **section)))
    shop = (
        config,
        BakeFolder(config.bake.output),
        Storage(),
        load_tokenizer(config.tokenizer_path),
        InlineExecutor(),
        SilentProgress(),
    )
    run_index(*shop)
    run_plan(*shop)
    return config


@pytest.fixture(scope="session")
def clean_sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Sources that no test may change."""
    return write_clean_sources(tmp_path_factory.mktemp("clean"))


@pytest.fixture(scope="session")
def _planned_once(clean_sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planned")
    planned_bake(clean_sources, folder)
    return folder


@pytest.fixture
def planned(_planned_once: Path, tmp_path: Path) -> Callable[..., Config]:
    """Makes a copy of a planned bake of two lanes, ready to render; the configuration of the copy."""

    def copy(name: str = "copy", *overrides: str) -> Config:
        target = tmp_path / name
        shutil.copytree(_planned_once, target)
        return load_config(str(target / "config.yaml"), [f"bake.output={target / 'bake'}", *overrides])

    return copy
