"""Bake a recipe in this process and read it back as training does."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loaders import PackedShards
from pipeline import stages
from pipeline.configuration.reader import load_config
from pipeline.executor import SilentProgress
from tests.datamaker.recipe import Recipe

__all__ = ["bake", "bake_recipe", "replayed"]


def bake(config: Path, *overrides: str) -> Path:
    """Run all stages on the inline executor; the output folder."""
    # pytest makes errors of warnings. A picture that Pillow merely warns about must not become a broken one.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = load_config(str(config), ["bake.executor=inline", *overrides])
        stages.run(loaded, progress=SilentProgress())
    return Path(loaded.bake.output)


def bake_recipe(recipe: Recipe, folder: Path, packs_per_lane: int, world_size: int = 1, **settings: Any) -> Path:
    """Write the recipe below `folder` and bake it there."""
    section: dict[str, Any] = {
        "output": str(folder / "bake"),
        "world_size": world_size,
        "length": {"packs_per_lane": packs_per_lane},
        "executor": "inline",
        "max_dropped_fraction": 1.0,
        **settings,
    }
    return bake(recipe.write(folder / "config.yaml", **section))


def replayed(folder: Path, rank: int, world_size: int, num_workers: int = 0) -> Iterator[dict[str, Any]]:
    """The batch dicts that a rank reads, in order."""
    loader = PackedShards(str(folder), rank=rank, world_size=world_size).loader(num_workers=num_workers)
    for batch in loader:
        yield dict(batch.to_dict().items())
