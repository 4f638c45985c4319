"""What `parbake plan` prints of a VLM plan: fill, tokens, lost rows, and how far the reference's estimates are off."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.plan_table import PlanManifest

__all__ = ["conversation_plan_table"]


def conversation_plan_table(manifest: PlanManifest) -> RenderableType:
    """The plan as tables for a terminal."""
    parts: list[RenderableType] = [_totals(manifest), _sources(manifest)]
    losses = _losses(manifest)
    if losses.row_count:
        parts.append(losses)
    conditions = manifest.statistics["conditions"]
    if conditions:
        parts.append(_conditions(conditions))
    return Group(*parts)


def _totals(manifest: PlanManifest) -> Table:
    counts = manifest.statistics
    packs, samples = counts["packs"], counts["samples"]
    lanes = [lane.num_packs for lane in manifest.lanes]
    spread = f"{lanes[0]:,}" if len(set(lanes)) == 1 else f"{min(lanes):,} to {max(lanes):,}"
    table = _table("plan", "", "")
    table.add_row("packing", counts["packing"])
    table.add_row("packs", f"{packs:,} ({len(lanes):,} lanes of {spread})")
    table.add_row("samples", f"{samples:,}, {samples / packs:,.1f} a pack" if packs else "0")
    tokens = counts["tokens"]
    table.add_row("tokens", f"{tokens['total']:,} ({tokens['media']:,} of media)")
    size = "pack_size" if counts["packing"] != "none" else "the longest sample,"
    table.add_row("fill", f"{counts['fill']:.1%} of {size} {counts['pack_size']:,}")
    if counts["truncated"]:
        table.add_row("cut short", f"{counts['truncated']:,} samples")
    if counts["replacements"]:
        table.add_row("replacements", f"{counts['replacements']:,} samples stand in for rows that cannot be used")
    table.add_row("estimates", _estimates(counts["estimate"]))
    num_bytes = sum(shard.pixel_bytes for lane in manifest.lanes for shard in lane.shards)
    num_shards = sum(len(lane.shards) for lane in manifest.lanes)
    table.add_row("to write", f"about {num_bytes / 1e6:,.1f} MB in {num_shards:,} shards, {2 * num_shards:,} requests")
    table.add_row("stream", manifest.stream)
    return table


def _estimates(estimate: dict[str, int]) -> str:
    """What packing on the reference's estimated lengths would have gone by."""
    real, estimated = estimate["real_tokens"], estimate["estimated_tokens"]
    ratio = f"{estimated / real:.2f} of the true tokens" if real else "no rows"
    return (
        f"{ratio}; {estimate['rows_underestimated']:,} rows too short, {estimate['rows_overestimated']:,} too long "
        "(plans here use true lengths)"
    )


def _sources(manifest: PlanManifest) -> Table:
    table = _table("sources", "source", "rows", "packed", "replaced", "dropped", "cut off", "not used")
    for source in sorted({source for lane in manifest.lanes for source in lane.rows} | manifest.not_assigned.keys()):
        accounts = [account for lane in manifest.lanes for account in lane.rows.get(source, [])]
        lost = [item for account in accounts for item in account["dropped"].items()]
        replaced = sum(count for reason, count in lost if reason.startswith("replaced: "))
        table.add_row(
            Text(source),
            f"{sum(account['drawn'] for account in accounts):,}",
            f"{sum(account['packed'] for account in accounts):,}",
            f"{replaced:,}",
            f"{sum(count for _, count in lost) - replaced:,}",
            f"{sum(account['waiting'] for account in accounts):,}",
            f"{manifest.not_assigned.get(source, 0):,}",
        )
    return table


def _losses(manifest: PlanManifest) -> Table:
    examples = manifest.statistics["drop_examples"]
    table = _table("rows lost", "source", "reason", "rows", "of rows", "for example")
    for lane in manifest.lanes:
        for source, passes in lane.rows.items():
            for reason, count in sorted(passes[0]["dropped"].items(), key=lambda item: (-item[1], item[0])):
                first = next(iter(examples.get(source, {}).get(reason, [])), None)
                where = f"{first[0]} row {first[1]}" if first else ""
                table.add_row(Text(source), reason, f"{count:,}", f"{count / passes[0]['drawn']:.2%}", Text(where))
    return table


def _conditions(conditions: dict[str, dict[str, int]]) -> Table:
    table = _table("what corrections would change", "source", "correction", "packed samples")
    for source, counts in conditions.items():
        for name, count in counts.items():
            table.add_row(Text(source), name.lower(), f"{count:,}")
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE, show_header=any(columns), pad_edge=False)
    for column in columns:
        words = column in {"", "source", "reason", "for example", "correction"}
        table.add_column(column, justify="left" if words else "right")
    return table
