"""What is in a bake, added up over its shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from loaders.format import DatasetManifest
from pipeline.law_report import MAX_EXAMPLES, BakeFigures
from pipeline.plan_table import PlanManifest
from pipeline.validate.checks import RecipeChecks
from pipeline.validate.findings import ShardFindings

__all__ = ["bake_figures"]


def bake_figures(
    findings: Sequence[ShardFindings], manifest: DatasetManifest, plan: PlanManifest | None, checks: RecipeChecks
) -> BakeFigures:
    """The figures of a report."""
    tokens = _total(found.tokens for found in findings)
    images = _total(found.images for found in findings)
    samples, group_tokens, empty = (
        _total(getattr(found, name) for found in findings) for name in ("group_samples", "group_tokens", "group_empty")
    )
    lengths = [length for found in findings for length in found.lengths]
    budget = manifest.max_num_tokens or max(lengths, default=1)
    return BakeFigures(
        recipe=manifest.recipe,
        packs=sum(found.num_packs for found in findings),
        shards=len(findings),
        lanes=len(manifest.lanes),
        num_bytes=sum(found.num_bytes for found in findings),
        max_num_tokens=budget,
        has_budget=manifest.max_num_tokens > 0,
        tokens={name: tokens[name] for name in ("total", *checks.token_kinds)},
        loss_tokens=tokens["label"],
        fill=_fill(lengths, budget),
        images={name: images[name] for name in checks.image_kinds},
        num_bytes_of=dict(_total(found.num_bytes_of for found in findings)),
        groups={
            group: {"samples": samples[group], "tokens": group_tokens[group], "empty": empty[group]}
            for group in sorted(samples)
        },
        sources=manifest.rows,
        render_drops=_render_drops(findings),
        plan={} if plan is None else plan.statistics,
        counted=dict(_total(found.counted for found in findings)),
    )


def _total(counters: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)  # unlike `+`, it keeps names whose count is 0
    return total


def _render_drops(findings: Sequence[ShardFindings]) -> dict[str, dict[str, list[str]]]:
    """Source → reason → the first rows."""
    named: dict[str, dict[str, list[str]]] = {}
    drops = [drop for found in findings for drop in found.drops]
    for drop in sorted(drops, key=lambda drop: (drop.source, drop.reason, drop.path, drop.row, drop.pack)):
        rows = named.setdefault(drop.source, {}).setdefault(drop.reason, [])
        if len(rows) < MAX_EXAMPLES:
            rows.append(f"{drop.path}:{drop.row} (pack {drop.pack})")
    return named


def _fill(lengths: Sequence[int], max_num_tokens: int) -> dict[str, Any]:
    """Fractions of the budget; the histogram counts packs by tenths, the last for everything from 100 % up."""
    fills = [length / max_num_tokens for length in lengths] or [0.0]
    tenths = Counter(min(10, int(10 * fill)) for fill in fills[: len(lengths)])
    return {
        "mean": sum(fills) / len(fills),
        "lowest": min(fills),
        "highest": max(fills),
        "histogram": [tenths[tenth] for tenth in range(11)],
    }
