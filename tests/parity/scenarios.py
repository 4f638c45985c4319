"""What the parity tests run: one scenario per thing that could differ, at least 500 packs in all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.datamaker.recipe import Recipe

__all__ = ["SCENARIOS", "Scenario"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One bake and one oracle run.

    Attributes:
        name: What is in question.
        change: Makes the scenario's recipe from the small recipe.
        world_size: Ranks.
        num_workers: Workers a rank, for the lanes.
        packs_per_lane: Packs of each lane.
        bake: Further keys of the `bake` section.
        request: Further fields of the oracle's request.
        loader_workers: Workers of parbake's own loader (never changes the packs).
        wraps: Sources that must have been read more than once by some lane.
        reasons: Reasons of which rows must have been dropped.
    """

    name: str
    change: Callable[[Recipe], Recipe] = Recipe.copy
    world_size: int = 1
    num_workers: int = 1
    packs_per_lane: int = 20
    bake: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    loader_workers: int = 0
    wraps: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    def recipe(self, small: Recipe) -> Recipe:
        """The scenario's recipe."""
        return self.change(small).changed(num_workers=self.num_workers)

    @property
    def packs_per_rank(self) -> int:
        """Packs that each rank reads."""
        return self.packs_per_lane * max(1, self.num_workers)

    @property
    def num_packs(self) -> int:
        """Packs that the scenario compares."""
        return self.packs_per_rank * self.world_size


def _dataset(**dataset: Any) -> Callable[[Recipe], Recipe]:
    return lambda recipe: recipe.changed(dataset=dataset)


def _only(*names: str, **arguments: dict[str, Any]) -> Callable[[Recipe], Recipe]:
    return lambda recipe: recipe.changed(only=names, groups=arguments)


def _seed(seed: int | None) -> Callable[[Recipe], Recipe]:
    def change(recipe: Recipe) -> Recipe:
        changed = recipe.copy()
        changed.body["seed"] = seed
        return changed

    return change


def _layouts() -> list[Scenario]:
    """Every world size with every worker count; both masks and both position rules with each."""
    scenarios = []
    for world_size in (1, 2, 3):
        for num_workers in (0, 1, 2):
            number = 3 * (world_size - 1) + num_workers
            use_flex, interpolate_pos = bool(number % 2), bool((number // 2) % 2)
            scenarios.append(
                Scenario(
                    name=f"{world_size} ranks, {num_workers} workers, flex {use_flex}, interpolate {interpolate_pos}",
                    change=_dataset(use_flex=use_flex, interpolate_pos=interpolate_pos),
                    world_size=world_size,
                    num_workers=num_workers,
                    packs_per_lane=14,
                    loader_workers=number % 3,
                )
            )
    return scenarios


def _widened(recipe: Recipe) -> Recipe:
    """Strides, patch sizes and limits apart from each other: the estimate and the real length differ."""
    return recipe.changed(
        dataset={
            "vae_image_downsample": 8,
            "max_latent_size": 7,
            "vit_patch_size": 7,
            "max_num_patch_per_side": 9,
            "max_num_tokens": 2000,
            "expected_num_tokens": 700,
            "max_num_tokens_per_sample": 700,
        },
        groups={
            "t2i_pretrain": {
                "image_transform_args": {
                    "image_stride": 16,
                    "max_image_size": 96,
                    "min_image_size": 48,
                    "max_pixels": 5000,
                    "image_mean": [0.1, 0.2, 0.3],
                    "image_std": [0.9, 0.8, 0.7],
                }
            },
            "vlm_sft": {
                "image_transform_args": {"image_stride": 28, "max_image_size": 120, "min_image_size": 30},
                "shuffle_lines": False,
            },
        },
    )


def _repeats_and_cuts(recipe: Recipe) -> Recipe:
    """Files repeated (7 of 3 needs sorted listing), files cut, lines cut, line order drawn from another seed."""
    return recipe.changed(
        groups={
            "t2i_pretrain": {"num_used_data": [17, 3]},
            "unified_edit": {"num_used_data": [2, 5]},
            "vlm_sft": {"num_used_data": [31, 10], "shuffle_seed": 7},
        }
    )


def _all_mandatory(recipe: Recipe) -> Recipe:
    return recipe.changed(
        dataset={"max_num_tokens_per_sample": 210},
        groups={name: {"is_mandatory": True, "weight": 0 if name == "t2i_pretrain" else 1} for name in recipe.groups},
    )


SCENARIOS: tuple[Scenario, ...] = (
    *_layouts(),
    Scenario(
        name="every source wraps around in every lane",
        change=_dataset(use_flex=True),
        world_size=2,
        num_workers=2,
        packs_per_lane=45,
        wraps=(
            *("t2i_pretrain/one", "t2i_pretrain/two", "unified_edit/one", "unified_edit/two"),
            *("vlm_sft/one", "vlm_sft/two"),
        ),
        bake={"shard_bytes": "2MB"},
    ),
    Scenario(
        name="all drop-outs on",
        change=_dataset(text_cond_dropout_prob=0.8, vit_cond_dropout_prob=0.8, vae_cond_dropout_prob=0.8),
        packs_per_lane=30,
    ),
    Scenario(
        name="no drop-out at all",
        change=_dataset(text_cond_dropout_prob=0.0, vit_cond_dropout_prob=0.0, vae_cond_dropout_prob=0.0),
    ),
    Scenario(name="text to image alone", change=_only("t2i_pretrain"), packs_per_lane=35, wraps=("t2i_pretrain/one",)),
    Scenario(name="edits alone", change=_only("unified_edit"), packs_per_lane=40, wraps=("unified_edit/one",)),
    Scenario(name="conversations alone", change=_only("vlm_sft"), packs_per_lane=40, wraps=("vlm_sft/one",)),
    Scenario(
        name="lines in file order",
        change=_only("vlm_sft", vlm_sft={"shuffle_lines": False}),
        world_size=2,
        packs_per_lane=10,
    ),
    Scenario(name="mandatory groups", change=_all_mandatory, packs_per_lane=25),
    Scenario(
        name="files repeated and cut, lines cut",
        change=_repeats_and_cuts,
        world_size=2,
        request={"sorted_listing": True},
    ),
    Scenario(name="strides, patches and limits apart", change=_widened, packs_per_lane=15),
    Scenario(
        name="no buffer",
        change=_dataset(max_buffer_size=0, expected_num_tokens=630, prefer_buffer_before=0),
        packs_per_lane=15,
    ),
    Scenario(
        name="buffer preferred always",
        change=_dataset(max_buffer_size=2, expected_num_tokens=630, prefer_buffer_before=640),
        packs_per_lane=15,
    ),
    Scenario(name="seed 0 falls back to the data seed", change=_seed(0), packs_per_lane=8),
    Scenario(name="a seed that overflows 32 bits", change=_seed(2**31 + 12345), num_workers=2, packs_per_lane=6),
    Scenario(name="pixels stored as WebP", packs_per_lane=12, bake={"pixels": "webp"}),
)
