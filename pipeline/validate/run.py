"""The validate stage: every shard through an executor, then the laws that concern the whole bake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from loaders.errors import BakeUnfinished, FormatError, ManifestDamaged
from loaders.format import DatasetManifest
from loaders.reader import BakeReader
from pipeline.bake import BakeFolder
from pipeline.errors import ConfigError, LawBroken
from pipeline.executor import Executor, InlineExecutor, Progress, SilentProgress, UnitDone
from pipeline.law_report import LAWS, LawResult, ValidationReport, Violation, judge
from pipeline.storage import Storage
from pipeline.validate.checks import RecipeChecks, checks_of
from pipeline.validate.figures import bake_figures
from pipeline.validate.findings import ShardFindings
from pipeline.validate.replay import check_order, check_resume
from pipeline.validate.rows import check_rows, read_plan
from pipeline.validate.shards import ShardUnit, check_shard

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
        LawBroken: its `dataset.json` is not as it was written, so there is nothing to hold the shards to.
    """
    progress = progress or SilentProgress()
    options = dict(storage_options or {})
    folder, storage = BakeFolder(bake_url.rstrip("/")), Storage(options)
    try:
        reader = BakeReader(bake_url, verify=True, storage_options=options)
        manifest = reader.manifest
        checks = checks_of(manifest)
    except ManifestDamaged as error:
        raise LawBroken(f"{bake_url} breaks law 6, {LAWS[6]}: {error}") from error
    except (BakeUnfinished, FormatError) as error:
        raise ConfigError(str(error)) from error
    units = [
        ShardUnit(reader=reader, folder=folder, storage=storage, checks=checks, lane=lane, shard=shard)
        for lane, entry in enumerate(manifest.lanes)
        for shard in range(len(entry.shards))
    ]
    progress.start("validate", len(units))
    findings = []
    for found in (executor or InlineExecutor()).map(check_shard, units):
        findings.append(found)
        progress.advance(UnitDone(packs=found.num_packs, num_bytes=found.num_bytes))
    progress.finish()
    plan, plan_complaints = read_plan(storage, folder, manifest)
    drops = [drop for found in findings for drop in found.drops]
    every_pack_was_read = all(len(found.lengths) == found.num_packs for found in findings)
    source_rows = sum((found.source_rows for found in findings), Counter[str]()) if every_pack_was_read else None
    num_replacements = sum(found.counted["replacements"] for found in findings)
    laws = (
        *_pack_laws(findings, checks),
        check_rows(storage, folder, manifest, plan, source_rows, drops, num_replacements),
        _byte_law(findings, manifest),
        check_order(manifest, reader.order, plan, [*plan_complaints, *checks.order_violations(findings, reader)]),
        check_resume(bake_url, reader, options),
    )
    return ValidationReport(
        bake=bake_url,
        stream=manifest.stream,
        laws=laws,
        figures=bake_figures(findings, manifest, plan, checks),
        versions=manifest.versions,
        settings=manifest.settings,
    )


def _pack_laws(findings: Sequence[ShardFindings], checks: RecipeChecks) -> list[LawResult]:
    num_packs = sum(len(found.lengths) for found in findings)
    violations = _first(findings)
    results = []
    for law in (1, 2, 3, 4):
        counted = sum((found.counted for found in findings), Counter[str]())
        notes = checks.notes(counted) if law == 4 else []
        num_broken = sum(found.broken[law] for found in findings)
        results.append(judge(law, num_packs, violations, notes, num_broken, titles=checks.titles))
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
