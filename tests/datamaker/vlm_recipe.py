"""A VLM recipe in AutoModel's spelling over a meta file, and baking it in this process."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import yaml

from pipeline import stages
from pipeline.configuration.reader import load_config
from pipeline.executor import SilentProgress

__all__ = ["bake_vlm", "write_vlm_recipe"]


def write_vlm_recipe(
    folder: Path, *, meta: Path, processor: Path, model: Path | None = None, **sections: dict[str, Any]
) -> Path:
    """Write `folder/recipe.yaml`; `sections` are merged over its own. Without a model positions count up."""
    content: dict[str, Any] = {
        "recipe": "FinetuneRecipeForVLM",
        "model": {"pretrained_model_name_or_path": str(model or processor)},
        "processor": {
            "_target_": "transformers.AutoProcessor.from_pretrained",
            "pretrained_model_name_or_path": str(processor),
        },
        "dataset": {
            "_target_": "nemo_automodel.components.datasets.vlm.datasets.make_meta_dataset",
            "path_or_dataset": str(meta),
        },
        "dataloader": {"shuffle": True},
        "step_scheduler": {"local_batch_size": 2},
        "bake": {
            "output": str(folder / "bake"),
            "executor": "inline",
            "max_dropped_fraction": 1.0,
            "positions": "one_dimensional" if model is None else "auto",
        },
    }
    for name, section in sections.items():
        content.setdefault(name, {}).update(section)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def bake_vlm(recipe: Path) -> str:
    """Run all stages; the output."""
    config = load_config(str(recipe))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pytest makes errors of them
        stages.run(config, SilentProgress())
    return config.bake.output
