"""What the plan report prints, counted lane by lane and added up.

Statistics are nested dicts of numbers: they add up by key, whatever the order of the lanes. Keys:

    packs, sequence_tokens          packs and their tokens (unpadded)
    packs_over_budget               packs above max_num_tokens (possible with the reference packer and without use_flex)
    tokens: text | vit | vae        text includes the marker tokens of images
    groups: <group>: …              samples, text, vit, vae; draws, mandatory_draws; rows_drawn, rows_per_pass
    conditions: <source>: <NAME>    packed samples that have it: what the correction of that name would change
    condition_examples: <source>: <NAME>   the first of them as [path, row]
    aliased_images                  images with a side of more cells than the position table
    empty_samples                   samples whose items were all dropped by condition dropout
    greedy_packs, greedy_tokens     packer best_fit: what greedy would have made of the draws (`greedy_estimate`)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.config import DatasetConfig
from pipeline.plan.packer import Placed
from pipeline.records import Condition, ItemKind, Sample
from pipeline.sequence import MARKER_TOKENS_PER_ITEM
from pipeline.sources.items import is_aliased

__all__ = ["LaneStatistics", "added"]

MAX_EXAMPLES = 5


class LaneStatistics:
    """Counts the packs of one lane."""

    def __init__(self, rules: DatasetConfig) -> None:
        self._rules = rules
        self._packs = 0
        self._tokens = 0
        self._over_budget = 0
        self._aliased = 0
        self._empty = 0
        # per group: samples, then tokens by ItemKind
        self._groups = [[0, 0, 0, 0] for _ in rules.groups]
        self._conditions: dict[str, dict[int, int]] = {}
        self._examples: dict[str, dict[str, list[list[Any]]]] = {}

    def add(self, pack: Sequence[Placed]) -> None:
        """One more pack."""
        length = 0
        for placed in pack:
            length += placed.num_tokens
            sample = placed.drawn.sample
            group = self._groups[placed.drawn.group]
            group[0] += 1
            self._empty += not placed.num_tokens
            if sample.conditions:
                self._count(sample)
            aliased = sample.conditions & Condition.ALIASED
            for planned in placed.items:
                if planned.kept:
                    item = planned.item
                    group[1] += MARKER_TOKENS_PER_ITEM
                    group[1 + item.kind] += item.num_tokens
                    if aliased and item.kind is not ItemKind.TEXT:
                        self._aliased += is_aliased(item, self._rules)
        self._packs += 1
        self._tokens += length
        self._over_budget += length > self._rules.max_num_tokens

    def _count(self, sample: Sample) -> None:
        counts = self._conditions.setdefault(sample.row.source, {})
        seen = counts.get(sample.conditions, 0)
        counts[sample.conditions] = seen + 1
        if seen < MAX_EXAMPLES:  # later rows of the same conditions can add no example
            row = [sample.row.path, sample.row.row]
            for name in _names(sample.conditions):
                rows = self._examples.setdefault(sample.row.source, {}).setdefault(name, [])
                if len(rows) < MAX_EXAMPLES and row not in rows:
                    rows.append(row)

    def close(self, draws: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """The lane's statistics; `draws` gives further counts per group by name."""
        groups = {}
        for number, group in enumerate(self._rules.groups):
            samples, text, vit, vae = self._groups[number]
            counts = {"samples": samples, "text": text, "vit": vit, "vae": vae}
            groups[group.name] = counts | {name: values[number] for name, values in draws.items()}
        return {
            "packs": self._packs,
            "sequence_tokens": self._tokens,
            "packs_over_budget": self._over_budget,
            "tokens": {name: sum(group[name] for group in groups.values()) for name in ("text", "vit", "vae")},
            "groups": groups,
            "conditions": {source: _by_name(counts) for source, counts in sorted(self._conditions.items())},
            "condition_examples": dict(sorted(self._examples.items())),
            "aliased_images": self._aliased,
            "empty_samples": self._empty,
        }


def added(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Sums of statistics by key; lists (examples) are joined in the order of the parts and cut to the first few."""
    total: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            if key not in total:
                total[key] = added([value]) if isinstance(value, Mapping) else value
            elif isinstance(value, Mapping):
                total[key] = added([total[key], value])
            elif isinstance(value, list):
                total[key] = [*total[key], *value][:MAX_EXAMPLES]
            else:
                total[key] += value
    return total


def _names(conditions: int) -> list[str]:
    return [condition.name for condition in Condition if condition & conditions and condition.name]


def _by_name(counts: Mapping[int, int]) -> dict[str, int]:
    names: dict[str, int] = {}
    for conditions, count in counts.items():
        for name in _names(conditions):
            names[name] = names.get(name, 0) + count
    return dict(sorted(names.items()))
