"""Law 9: greedy packs are the reference's packs, every field, bit for bit, live against nemo-automodel 0.7.0."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.datamaker.recipe import Recipe
from tests.parity.baking import bake_recipe, replayed
from tests.parity.comparison import assert_same_batch
from tests.parity.oracle import Oracle, Request
from tests.parity.scenarios import SCENARIOS, Scenario


def test_the_suite_compares_at_least_500_packs() -> None:
    assert sum(scenario.num_packs for scenario in SCENARIOS) >= 500


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_field_of_every_pack_of_every_rank_is_the_references(
    scenario: Scenario, recipe: Recipe, oracle: Oracle, tmp_path: Path
) -> None:
    changed = scenario.recipe(recipe)
    folder = bake_recipe(changed, tmp_path, scenario.packs_per_lane, scenario.world_size, **scenario.bake)
    reference = oracle.packs(
        Request(
            recipe=changed.body,
            world_size=scenario.world_size,
            packs_per_rank=scenario.packs_per_rank,
            **scenario.request,
        )
    )
    for rank, expected in enumerate(reference):
        ours = list(replayed(folder, rank, scenario.world_size, scenario.loader_workers))
        assert len(ours) == scenario.packs_per_rank
        for step, (our_batch, reference_batch) in enumerate(zip(ours, expected, strict=True)):
            assert_same_batch(our_batch, reference_batch, f"rank {rank}, step {step}")
    plan = json.loads((folder / "plan" / "plan.json").read_text())
    for source in scenario.wraps:
        passes = [len(lane["rows"][source]) for lane in plan["lanes"] if source in lane["rows"]]
        assert min(passes) > 1, f"{source} was to wrap around in every lane that has it, passes: {passes}"
