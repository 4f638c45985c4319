"""`packer: best_fit` on a lane's streams: every draw first, so that real lengths are known, then the pool."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pipeline.config import BakeConfig, DatasetConfig
from pipeline.plan.best_fit import BestFitPacker, Budgets, Candidate
from pipeline.plan.deck import deal_groups
from pipeline.plan.greedy_estimate import GreedyEstimate
from pipeline.plan.packer import TOO_LONG, Draw, Drawn, Drop, GroupChoice, Placed, SpinGuard, count_drop, spend
from pipeline.plan.random import LaneRandom
from pipeline.records import ItemKind, PlannedItem

__all__ = ["OVER_BUDGET", "FittedPacker"]

OVER_BUDGET = "over_budget"
"""Reason of a sample that no pack can hold: alone above max_num_tokens or a vision budget."""


class FittedPacker:
    """Implements `Packer`."""

    def __init__(
        self, rules: DatasetConfig, bake: BakeConfig, draw: Draw, random: LaneRandom, drop: Drop = count_drop
    ) -> None:
        self._rules = rules
        self._draw = draw
        self._random = random
        self._count_drop = drop
        self._guard = SpinGuard([group.name for group in rules.groups], rules.max_num_tokens_per_sample)
        self._weighted = [number for number, group in enumerate(rules.groups) if group.weight > 0]
        weights = [group.weight for group in rules.groups]
        GroupChoice(weights)  # refuses weights that choose nothing
        self._deal = deal_groups(weights, random)
        self._budgets = Budgets(
            num_tokens=rules.max_num_tokens,
            vit_tokens=bake.max_vit_tokens,
            vae_tokens=bake.max_vae_tokens,
            num_images=bake.max_images,
        )
        self._limits_vision = self._budgets.limits_vision
        self.draws = [0] * len(rules.groups)
        self.mandatory_draws = [0] * len(rules.groups)
        mandatory = [number for number, group in enumerate(rules.groups) if group.is_mandatory]
        self._greedy = GreedyEstimate(rules, len(mandatory))
        self._packer: BestFitPacker[Placed] = BestFitPacker(
            draw=self._draw_by_weight,
            draw_mandatory=[partial(self._draw_mandatory, place, group) for place, group in enumerate(mandatory)],
            budgets=self._budgets,
            pool_size=bake.pool_size,
        )

    def next_pack(self) -> list[Placed]:
        """See `Packer.next_pack`."""
        return [candidate.payload for candidate in self._packer.next_pack()]

    def waiting(self) -> list[Drawn]:
        """See `Packer.waiting`."""
        return [candidate.payload.drawn for candidate in self._packer.waiting]

    def comparison(self) -> dict[str, int]:
        """See `Packer.comparison`."""
        return {"greedy_packs": self._greedy.packs, "greedy_tokens": self._greedy.tokens}

    def _draw_by_weight(self) -> Candidate[Placed]:
        while True:
            group = next(self._deal)
            self.draws[group] += 1
            drawn = self._draw(group)
            candidate, num_tokens = self._candidate(drawn, self._weighted)
            self._greedy.add(drawn.sample.num_tokens_estimated, num_tokens)
            if candidate is not None:
                return candidate

    def _draw_mandatory(self, place: int, group: int) -> Candidate[Placed]:
        while True:
            self.mandatory_draws[group] += 1
            drawn = self._draw(group)
            candidate, num_tokens = self._candidate(drawn, [group])
            self._greedy.add_mandatory(place, drawn.sample.num_tokens_estimated, num_tokens)
            if candidate is not None:
                return candidate

    def _candidate(self, drawn: Drawn, groups: list[int]) -> tuple[Candidate[Placed] | None, int]:
        """The sample with every draw spent, None if no pack may hold it, and its length.

        `groups`: where the search goes on.
        """
        items, num_tokens = spend(drawn.sample.items, self._rules, self._random)
        vit_tokens, vae_tokens, num_images = vision_work(items) if self._limits_vision else (0, 0, 0)
        placed = Placed(drawn, items, num_tokens)
        candidate = Candidate(num_tokens, placed, vit_tokens, vae_tokens, num_images)
        reason = self._refusal(candidate)
        if reason:
            self._count_drop(drawn, reason)
            self._guard.dropped(drawn, groups)
            return None, num_tokens
        self._guard.placed()
        return candidate, num_tokens

    def _refusal(self, candidate: Candidate[Placed]) -> str:
        if candidate.num_tokens > self._rules.max_num_tokens_per_sample:
            return TOO_LONG
        return "" if self._budgets.admit(candidate) else OVER_BUDGET


def vision_work(items: Sequence[PlannedItem]) -> tuple[int, int, int]:
    """ViT patches, latent cells and images of the kept items."""
    kept = [planned.item for planned in items if planned.kept]
    return (
        sum(item.num_tokens for item in kept if item.kind is ItemKind.VIT),
        sum(item.num_tokens for item in kept if item.kind is ItemKind.VAE),
        sum(item.kind is not ItemKind.TEXT for item in kept),
    )
