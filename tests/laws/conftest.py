"""Sources without much in them, and a few finished bakes that the laws are read off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.datamaker.recipe import Recipe, Sources, small_recipe, write_sources
from tests.parity.baking import bake_recipe

BAKES = {
    "one lane, dense masks": {"packs_per_lane": 30},
    "four lanes, flex, small shards": {
        "packs_per_lane": 12,
        "world_size": 2,
        "num_workers": 2,
        "use_flex": True,
        "shard_bytes": 400_000,
    },
    "three ranks, WebP": {"packs_per_lane": 8, "world_size": 3, "pixels": "webp", "shard_bytes": 300_000},
}


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small tensors on a busy machine: threads would wait for each other, not help."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Two data sets of each kind with everything awkward in them."""
    return write_sources(tmp_path_factory.mktemp("sources"), seed=100)


@pytest.fixture(scope="session")
def recipe(sources: Sources) -> Recipe:
    """The small recipe over them."""
    return small_recipe(sources)


@pytest.fixture(scope="session")
def finished(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A finished bake of `BAKES` by name, baked once."""
    done: dict[str, Path] = {}

    def folder_of(name: str) -> Path:
        if name not in done:
            settings = dict(BAKES[name])
            changed = recipe.changed(
                dataset={"use_flex": settings.pop("use_flex", False)}, num_workers=settings.pop("num_workers", 1)
            )
            done[name] = bake_recipe(changed, tmp_path_factory.mktemp("bake"), **settings)
        return done[name]

    return folder_of
