"""Bake against the reference: CPU seconds per pack, the same packs, photo-sized JPEGs, budgets 32,768/36,864."""

from __future__ import annotations

import json
from pathlib import Path

from tests.benchmarks.measuring import fresh_process, report
from tests.benchmarks.photos import photo_recipe

__all__ = ["run"]

WORKER = "tests.benchmarks.worker"
NUM_PACKS = 24


def run(folder: Path) -> bool:
    """Print the ratio and render's peak memory."""
    recipe = photo_recipe(folder / "sources")
    (folder / "recipe.json").write_text(json.dumps(recipe.body))
    config = recipe.write(
        folder / "config.yaml", output=str(folder / "bake"), length={"packs_per_lane": NUM_PACKS}, executor="inline"
    )
    reference = fresh_process(WORKER, "reference", str(folder / "recipe.json"), str(NUM_PACKS))
    stages = {name: fresh_process(WORKER, "stage", name, str(config)) for name in ("index", "plan", "render")}
    ours = sum(measure.cpu_s for measure in stages.values())
    ratio = ours / reference.cpu_s
    parts = ", ".join(f"{name} {measure.cpu_s:.2f}" for name, measure in stages.items())
    detail = f"{ours / NUM_PACKS:.2f} s a pack against {reference.cpu_s / NUM_PACKS:.2f} s ({parts})"
    peak = stages["render"].peak_bytes / 2**20
    return all(
        [
            report("bake, CPU over the reference's", ratio, "at most 0.6", ratio <= 0.6, detail),
            report("render, peak memory in MiB", peak, "below 1,024", peak < 1024, f"{NUM_PACKS} packs in one shard"),
        ]
    )
