"""What became of every source row, and whether too many were lost.

drawn = packed + dropped + discarded + waiting      (each pass; `packed` as planned)
in the shards = packed - dropped_in_render
rows of the source = drawn in pass 0 + not_reached + not_assigned
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from pipeline.errors import TooManyDrops
from pipeline.plan_table import PlanManifest

__all__ = ["refuse_too_many_drops", "row_accounts"]


def row_accounts(plan: PlanManifest, render_drops: Iterable[dict[tuple[str, str], int]]) -> dict[str, dict[str, Any]]:
    """The accounts of every source over all lanes, as `dataset.json` lists them under `rows`.

    Source → `passes` (one account a pass, summed over the lanes: drawn, packed, dropped by reason, discarded, waiting),
    `dropped_in_render` by reason, `not_reached`, `not_assigned`.

    Args:
        plan: The plan's accounts.
        render_drops: (source, reason) → samples, of every shard.
    """
    in_render: Counter[tuple[str, str]] = Counter()
    for drops in render_drops:
        in_render.update(drops)
    not_reached: Counter[str] = Counter()
    for lane in plan.lanes:
        not_reached.update(lane.not_reached)
    sources = {source for lane in plan.lanes for source in lane.rows} | not_reached.keys() | plan.not_assigned.keys()
    return {
        source: {
            "passes": _summed_passes(plan, source),
            "dropped_in_render": {
                reason: count for (owner, reason), count in sorted(in_render.items()) if owner == source
            },
            "not_reached": not_reached[source],
            "not_assigned": plan.not_assigned.get(source, 0),
        }
        for source in sorted(sources)
    }


def _summed_passes(plan: PlanManifest, source: str) -> list[dict[str, Any]]:
    """One account a pass, summed over the lanes."""
    accounts = [lane.rows.get(source, []) for lane in plan.lanes]
    passes = []
    for number in range(max((len(passes_of_lane) for passes_of_lane in accounts), default=0)):
        of_pass = [passes_of_lane[number] for passes_of_lane in accounts if number < len(passes_of_lane)]
        dropped: Counter[str] = Counter()
        for account in of_pass:
            dropped.update(account["dropped"])
        passes.append(
            {
                "drawn": sum(account["drawn"] for account in of_pass),
                "packed": sum(account["packed"] for account in of_pass),
                "dropped": dict(sorted(dropped.items())),
                "discarded": sum(account["discarded"] for account in of_pass),
                "waiting": sum(account["waiting"] for account in of_pass),
            }
        )
    return passes


def refuse_too_many_drops(rows: dict[str, dict[str, Any]], max_dropped_fraction: float) -> None:
    """Judge every source once all units are done, so that the outcome does not depend on their order.

    Raises:
        TooManyDrops: names the first source above the limit and its reasons, most frequent first.
    """
    for source, accounts in rows.items():
        reasons: Counter[str] = Counter(accounts["dropped_in_render"])
        for account in accounts["passes"]:
            reasons.update(account["dropped"])
        drawn = sum(account["drawn"] for account in accounts["passes"])
        dropped = sum(reasons.values())
        if dropped > max_dropped_fraction * drawn:
            shown = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common(5))
            raise TooManyDrops(
                f"{source} lost {dropped} of {drawn} rows ({dropped / drawn:.1%}; {shown}), and max_dropped_fraction "
                f"is {max_dropped_fraction:g}. Training on it would be training on another data set than the recipe "
                "says. Mend the source, or raise bake.max_dropped_fraction and run again: what is rendered stays."
            )
