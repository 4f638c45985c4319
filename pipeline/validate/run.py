"""The validate stage: every shard through an executor, then the laws that concern the whole bake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from loaders.errors import BakeUnfinished, FormatError
from loaders.format import DatasetManifest
from loaders.reader import BakeReader
from pipeline.bake import BakeFolder
from pipeline.errors import ConfigError
from pipeline.executor import Executor, InlineExecutor, Progress, SilentProgress, UnitDone
from pipeline.law_report import MAX_EXAMPLES, BakeFigures, LawResult, ValidationReport, Violation, judge
from pipeline.plan_table import PlanManifest
from pipeline.storage import Storage
from pipeline.validate.packs import PackLimits
from pipeline.validate.replay import check_order, check_resume
from pipeline.validate.rows import check_rows, read_plan
from pipeline.validate.shards import ShardFindings, ShardUnit, check_shard

__all__ = ["validate"]


def validate(
    bake_url: str,
    *,
    storage_options: Mapping[str, object] | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> ValidationReport:
    """Read everything in a finished bake and check laws 1 to 8. Writes nothing; broken laws are results, not errors.

    Args:
        bake_url: The bake's folder, any fsspec URL.
        storage_options: fsspec options.
        executor: Where shards are checked; default: one after another, here.
        progress: Told how far it is.

    Raises:
        ConfigError: there is no finished bake of this format at the URL.
    """
    progress = progress or SilentProgress()
    options = dict(storage_options or {})
    folder, storage = BakeFolder(bake_url.rstrip("/")), Storage(options)
    try:
        reader = BakeReader(bake_url, verify=True, storage_options=options)
    except (BakeUnfinished, FormatError) as error:
        raise ConfigError(str(error)) from error
    manifest = reader.manifest
    units = [
        ShardUnit(reader=reader, folder=folder, storage=storage, limits=_limits(manifest), lane=lane, shard=shard)
        for lane, entry in enumerate(manifest.lanes)
        for shard in range(len(entry.shards))
    ]
    progress.start("validate", len(units))
    findings = []
    for found in (executor or InlineExecutor()).map(check_shard, units):
        findings.append(found)
        progress.advance(UnitDone(packs=found.num_packs, num_bytes=found.num_bytes))
    progress.finish()
    plan = read_plan(storage, folder)
    drops = [drop for found in findings for drop in found.drops]
    every_pack_was_read = all(len(found.lengths) == found.num_packs for found in findings)
    source_rows = sum((found.source_rows for found in findings), Counter[str]()) if every_pack_was_read else None
    laws = (
        *_pack_laws(findings, manifest),
        check_rows(storage, folder, manifest, plan, source_rows, drops),
        _byte_law(findings, manifest),
        check_order(manifest, reader.order, plan),
        check_resume(bake_url, reader, options),
    )
    return ValidationReport(
        bake=bake_url,
        stream=manifest.stream,
        laws=laws,
        figures=_figures(findings, manifest, plan),
        versions=manifest.versions,
        settings=manifest.settings,
    )


def _limits(manifest: DatasetManifest) -> PackLimits:
    return PackLimits(
        max_num_tokens=manifest.max_num_tokens,
        max_num_tokens_per_sample=int(manifest.settings.get("max_num_tokens_per_sample", 0)),
        vocab_size=manifest.vocab_size,
        counts_only=manifest.settings.get("packer", "greedy") == "greedy",
        vae_image_downsample=manifest.vae_image_downsample,
        vit_patch_size=manifest.vit_patch_size,
    )


def _pack_laws(findings: Sequence[ShardFindings], manifest: DatasetManifest) -> list[LawResult]:
    num_packs = sum(len(found.lengths) for found in findings)
    violations = _first(findings)
    results = []
    for law in (1, 2, 3, 4):
        notes = []
        if law == 4:
            counted = sum((found.counted for found in findings), Counter[str]())
            notes = [f"{name.replace('_', ' ')}: {count}, as in the reference" for name, count in counted.items()]
        num_broken = sum(found.broken[law] for found in findings)
        results.append(judge(law, num_packs, violations, notes, num_broken))
    return results


def _byte_law(findings: Sequence[ShardFindings], manifest: DatasetManifest) -> LawResult:
    """Law 6, and that the totals of `dataset.json` are the sums of what the shards hold."""
    violations, num_broken = _first(findings), sum(found.broken[6] for found in findings)
    found_tokens = sum((found.tokens for found in findings), Counter[str]())
    totals = {name: found_tokens[name] for name in manifest.tokens}
    if not num_broken and totals != manifest.tokens:
        complaint = f"totals {manifest.tokens} tokens, the shards hold {totals}"
        violations = [Violation(law=6, subject="dataset.json", complaint=complaint), *violations]
        num_broken += 1
    return judge(6, len(findings), violations, num_broken=num_broken)


def _first(findings: Sequence[ShardFindings]) -> list[Violation]:
    """The first violations of each law in canonical shape: by law, then by subject, whatever finished first."""
    every = [violation for found in findings for violation in found.violations]
    return sorted(every, key=lambda violation: (violation.law, violation.subject))


def _figures(findings: Sequence[ShardFindings], manifest: DatasetManifest, plan: PlanManifest | None) -> BakeFigures:
    lengths = [length for found in findings for length in found.lengths]
    groups = sorted({group for found in findings for group in found.group_samples})
    render_drops: dict[str, dict[str, list[str]]] = {}
    drops = [drop for found in findings for drop in found.drops]
    for drop in sorted(drops, key=lambda drop: (drop.source, drop.reason, drop.path, drop.row, drop.pack)):
        rows = render_drops.setdefault(drop.source, {}).setdefault(drop.reason, [])
        if len(rows) < MAX_EXAMPLES:
            rows.append(f"{drop.path}:{drop.row} (pack {drop.pack})")
    return BakeFigures(
        packs=sum(found.num_packs for found in findings),
        shards=len(findings),
        lanes=len(manifest.lanes),
        num_bytes=sum(found.num_bytes for found in findings),
        max_num_tokens=manifest.max_num_tokens,
        tokens={name: sum(found.tokens[name] for found in findings) for name in ("total", "text", "vit", "vae")},
        fill=_fill(lengths, manifest.max_num_tokens),
        images={name: sum(found.images[name] for found in findings) for name in ("vit", "vae", "vae_stored")},
        groups={
            group: {
                "samples": sum(found.group_samples[group] for found in findings),
                "tokens": sum(found.group_tokens[group] for found in findings),
                "empty": sum(found.group_empty[group] for found in findings),
            }
            for group in groups
        },
        sources=manifest.rows,
        render_drops=render_drops,
        plan={} if plan is None else plan.statistics,
        counted=dict(sum((found.counted for found in findings), Counter[str]())),
    )


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
