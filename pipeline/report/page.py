"""`report.json` and `report.html`: the same facts twice. Deterministic, self-contained, everything escaped."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from pipeline.law_report import BakeFigures, ValidationReport
from pipeline.storage import Storage

__all__ = ["page", "report_json", "write_report"]

_TEMPLATE = "report.html"
_KINDS = {
    "vit": "ViT images",
    "vae": "VAE images",
    "vae_stored": "VAE pictures stored",
    "image": "images",
    "video": "videos",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLine:
    """One reason for which rows of a source were lost: how many, in which stage, and the first of them."""

    source: str
    reason: str
    stage: str
    rows: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine:
    """One source over all passes."""

    source: str
    passes: int
    drawn: int
    packed: int
    dropped: int
    discarded: int
    waiting: int
    not_reached: int
    not_assigned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLine:
    """One group: its share of samples, draws and tokens beside its weight (negative: the plan is not here)."""

    group: str
    samples: int
    tokens: int
    share: float
    drawn_share: float
    weight_share: float
    empty: int


def report_json(report: ValidationReport) -> bytes:
    """`report.json`: laws with verdicts and examples, then every figure; keys in field order."""
    laws = [{**dataclasses.asdict(result), "verdict": result.verdict} for result in report.laws]
    content = {
        **dataclasses.asdict(report),
        "laws": laws,
        "ok": report.broken is None,
    }
    return json.dumps(content, indent=1, ensure_ascii=False).encode("utf-8")


def page(report: ValidationReport) -> str:
    """`report.html`."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(count="{:,}".format, percent="{:.1%}".format, kind=lambda name: _KINDS.get(name, name))
    figures = report.figures
    return environment.get_template(_TEMPLATE).render(
        report=report,
        figures=figures,
        drops=[] if figures is None else drop_lines(figures),
        sources=[] if figures is None else source_lines(figures),
        groups=[] if figures is None else group_lines(figures),
        settings=json.dumps(_shown(report.settings), indent=1, ensure_ascii=False),
    )


def _shown(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without the 256 values a channel that pixels are stored by."""
    tables = settings.get("pixel_tables")
    return {**settings, "pixel_tables": sorted(tables)} if isinstance(tables, Mapping) else dict(settings)


def write_report(report: ValidationReport, folder_url: str, storage: Storage) -> None:
    """Publish both files in a folder (any fsspec URL).

    Raises:
        RunFailed: the storage refuses.
    """
    storage.publish_bytes(f"{folder_url.rstrip('/')}/report.json", report_json(report))
    storage.publish_bytes(f"{folder_url.rstrip('/')}/report.html", page(report).encode("utf-8"))


def drop_lines(figures: BakeFigures) -> list[DropLine]:
    """Every (source, reason) with its rows, most frequent first; examples from the plan and from render."""
    planned: Mapping[str, Any] = figures.plan.get("drop_examples", {})
    lines = []
    for source, account in figures.sources.items():
        before: Counter[str] = Counter()
        for once in account["passes"]:
            before.update(once["dropped"])
        for reason, rows in before.items():
            examples = tuple(f"{path}:{row}" for path, row in planned.get(source, {}).get(reason, []))
            lines.append(DropLine(source=source, reason=reason, stage="plan", rows=rows, examples=examples))
        for reason, rows in account["dropped_in_render"].items():
            named = tuple(figures.render_drops.get(source, {}).get(reason, []))
            lines.append(DropLine(source=source, reason=reason, stage="render", rows=rows, examples=named))
    return sorted(lines, key=lambda line: (-line.rows, line.source, line.stage, line.reason))


def source_lines(figures: BakeFigures) -> list[SourceLine]:
    """The accounts of each source, passes summed."""
    lines = []
    for source, account in figures.sources.items():
        passes = account["passes"]
        in_render = sum(account["dropped_in_render"].values())
        lines.append(
            SourceLine(
                source=source,
                passes=len(passes),
                drawn=sum(once["drawn"] for once in passes),
                packed=sum(once["packed"] for once in passes) - in_render,
                dropped=sum(sum(once["dropped"].values()) for once in passes) + in_render,
                discarded=sum(once["discarded"] for once in passes),
                waiting=sum(once["waiting"] for once in passes),
                not_reached=account["not_reached"],
                not_assigned=account["not_assigned"],
            )
        )
    return lines


def group_lines(figures: BakeFigures) -> list[GroupLine]:
    """Each group's part of the tokens, and of the draws beside its weight."""
    weights: Mapping[str, float] = figures.plan.get("weights", {})
    planned: Mapping[str, Any] = figures.plan.get("groups", {})
    draws = {name: counts.get("draws", 0) for name, counts in planned.items()}
    num_tokens = sum(group["tokens"] for group in figures.groups.values())

    def part(counts: Mapping[str, float], name: str) -> float:
        total = sum(counts.values())
        return counts[name] / total if name in counts and total else -1.0

    return [
        GroupLine(
            group=name,
            samples=group["samples"],
            tokens=group["tokens"],
            share=group["tokens"] / num_tokens if num_tokens else 0.0,
            drawn_share=part(draws, name),
            weight_share=part(weights, name),
            empty=group["empty"],
        )
        for name, group in figures.groups.items()
    ]
