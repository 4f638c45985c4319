"""What `parbake plan` prints: what training would get, and what writing it would cost, before it is paid for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.plan.conversation_report import conversation_plan_table
from pipeline.plan_table import PlanManifest

__all__ = ["drops_by_reason", "plan_table", "written_bytes"]

ARRAY_BYTES_PER_TOKEN = 16
"""Rough size of a token's entries in the packs' int32 and float32 arrays; pictures are counted exactly."""

SHARD_REQUESTS = 2
"""Objects written per shard: the tar and its sidecar."""


def plan_table(manifest: PlanManifest, packs_per_core_second: float | None = None) -> RenderableType:
    """The plan as tables for a terminal.

    Args:
        manifest: The finished plan, of either recipe.
        packs_per_core_second: Measured speed of rendering, if there is one: gives the core-hours line.
    """
    if manifest.statistics.get("recipe") == "vlm":
        return conversation_plan_table(manifest)
    parts: list[RenderableType] = [
        _totals(manifest, packs_per_core_second),
        _groups(manifest),
    ]
    drops = drops_by_reason(manifest)
    if drops:
        parts.append(_drops(manifest, drops))
    if files := manifest.statistics.get("unreadable_files"):
        parts.append(_unreadable_files(files))
    conditions = manifest.statistics["conditions"]
    if any(conditions.values()):
        parts.append(_conditions(conditions, manifest.statistics.get("condition_examples", {})))
    return Group(*parts)


def drops_by_reason(manifest: PlanManifest) -> dict[str, dict[str, int]]:
    """Source → reason → rows that the lanes lost, all passes together; `discarded_at_emit` is the packer's own loss."""
    drops: dict[str, dict[str, int]] = {}
    for source, account in _accounts(manifest):
        reasons = drops.setdefault(source, {})
        for reason, count in account["dropped"].items():
            reasons[reason] = reasons.get(reason, 0) + count
        if account["discarded"]:
            reasons["discarded_at_emit"] = reasons.get("discarded_at_emit", 0) + account["discarded"]
    return {source: reasons for source, reasons in drops.items() if reasons}


def written_bytes(manifest: PlanManifest) -> int:
    """Estimate of the shards' bytes with `pixels: raw`: pixels exactly, arrays by their tokens."""
    pixels = sum(shard.pixel_bytes for lane in manifest.lanes for shard in lane.shards)
    return pixels + ARRAY_BYTES_PER_TOKEN * int(manifest.statistics["sequence_tokens"])


def _accounts(manifest: PlanManifest) -> Iterator[tuple[str, dict[str, Any]]]:
    for lane in manifest.lanes:
        for source, passes in lane.rows.items():
            for account in passes:
                yield source, account


def _totals(manifest: PlanManifest, packs_per_core_second: float | None) -> Table:
    counts = manifest.statistics
    packs, tokens = counts["packs"], counts["sequence_tokens"]
    num_shards = sum(len(lane.shards) for lane in manifest.lanes)
    table = _table("plan", "", "")
    lanes = [lane.num_packs for lane in manifest.lanes]
    spread = f"{lanes[0]:,}" if len(set(lanes)) == 1 else f"{min(lanes):,} to {max(lanes):,}"
    table.add_row("packs", f"{packs:,} ({len(lanes):,} lanes of {spread})")
    table.add_row("tokens", f"{tokens:,} (" + ", ".join(f"{n} {c:,}" for n, c in counts["tokens"].items()) + ")")
    budget = counts["max_num_tokens"]
    fill = tokens / (packs * budget) if packs else 0.0
    expected = tokens / (packs * counts["expected_num_tokens"]) if packs else 0.0
    table.add_row("fill", f"{fill:.1%} of max_num_tokens {budget:,}, {expected:.1%} of expected_num_tokens")
    table.add_row("padding", f"{max(0, packs * budget - tokens):,} tokens with use_flex")
    _add_steps(table, counts, tokens / packs if packs else 0.0)
    if counts["packs_over_budget"]:
        table.add_row("over budget", f"{counts['packs_over_budget']:,} packs above max_num_tokens")
    if counts["aliased_images"]:
        table.add_row("aliased images", f"{counts['aliased_images']:,} with repeated position ids")
    if counts["empty_samples"]:
        table.add_row("empty samples", f"{counts['empty_samples']:,} lost all items to condition dropout")
    requests = num_shards * SHARD_REQUESTS
    table.add_row("to write", f"about {_size(written_bytes(manifest))} in {num_shards:,} shards, {requests:,} requests")
    if packs_per_core_second:
        hours = packs / packs_per_core_second / 3600
        table.add_row(
            "core-hours", f"about {hours:,.1f}, at the measured {packs_per_core_second:,.2f} packs a core-second"
        )
    table.add_row("stream", manifest.stream)
    return table


def _add_steps(table: Table, counts: dict[str, Any], tokens_per_pack: float) -> None:
    """Steps that a billion tokens take, what they would take with the reference's packer, and how even they are."""
    steps = counts.get("steps")
    if steps is None or not tokens_per_pack:
        return
    world_size = steps["world_size"]
    needed = 1e9 / tokens_per_pack / world_size
    told = f"{needed:,.0f} of {world_size:,} packs per billion tokens"
    if counts.get("greedy_packs"):
        greedy = counts["greedy_tokens"] / counts["greedy_packs"]
        saved = 1e9 / greedy / world_size - needed
        told += f"; packer greedy: about {saved:+,.0f} (fill {greedy / counts['max_num_tokens']:.1%})"
    table.add_row("steps", told)
    if world_size > 1:
        even, packed = steps["imbalance"], steps["imbalance_as_packed"]
        table.add_row("cost of a step", f"largest / mean over its ranks {even:.3f}; in packing order {packed:.3f}")


def _groups(manifest: PlanManifest) -> Table:
    counts = manifest.statistics
    weights = counts["weights"]
    total_weight = sum(weights.values())
    total_draws = sum(group["draws"] for group in counts["groups"].values())
    table = _table(
        "groups", "group", "weight", "draws", "mandatory", "samples", "text", "vit", "vae", "of tokens", "passes"
    )
    for name, group in counts["groups"].items():
        tokens = group["text"] + group["vit"] + group["vae"]
        table.add_row(
            name,
            f"{weights[name] / total_weight:.1%}",
            f"{group['draws'] / total_draws:.1%}" if total_draws else "",
            f"{group['mandatory_draws']:,}" if name in counts["mandatory"] else "",
            f"{group['samples']:,}",
            *(f"{group[modality]:,}" for modality in ("text", "vit", "vae")),
            f"{tokens / counts['sequence_tokens']:.1%}" if counts["sequence_tokens"] else "",
            f"{group['rows_drawn'] / group['rows_per_pass']:.2f}" if group["rows_per_pass"] else "",
        )
    return table


def _drops(manifest: PlanManifest, drops: dict[str, dict[str, int]]) -> Table:
    examples = manifest.statistics["drop_examples"]
    drawn: dict[str, int] = {}
    for source, account in _accounts(manifest):
        drawn[source] = drawn.get(source, 0) + account["drawn"]
    table = _table("rows lost", "source", "reason", "rows", "of drawn", "for example")
    for source, reasons in drops.items():
        for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
            first = next(iter(examples.get(source, {}).get(reason, [])), None)
            where = f"{first[0]} row {first[1]}" if first else ""
            table.add_row(Text(source), reason, f"{count:,}", f"{count / drawn[source]:.2%}", Text(where))
    return table


def _unreadable_files(files: dict[str, dict[str, list[str]]]) -> Table:
    table = _table("files that cannot be read", "source", "reason", "files", "for example")
    for source, reasons in files.items():
        for reason, paths in reasons.items():
            table.add_row(Text(source), reason, f"{len(paths):,}", Text(paths[0]))
    return table


def _conditions(conditions: dict[str, dict[str, int]], examples: dict[str, dict[str, list[list[Any]]]]) -> Table:
    table = _table("what corrections would change", "source", "condition", "packed samples", "for example")
    for source, counts in conditions.items():
        for name, count in counts.items():
            where = "".join(f"{path} row {row}" for path, row in examples.get(source, {}).get(name, [])[:1])
            table.add_row(Text(source), name.lower(), f"{count:,}", Text(where))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE, show_header=any(columns), pad_edge=False)
    for column in columns:
        words = column in {"", "group", "source", "reason", "for example", "condition"}
        table.add_column(column, justify="left" if words else "right")
    return table


def _size(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
