"""Runs the stages in order on one output: what `parbake run`, `index`, `plan`, `render` and `validate` do.

    check the output ──► config.yaml ──► index ──► plan ──► render

Every stage skips what it finds finished, so running a command again resumes, and a stage before the one asked for costs
little. An output that holds another bake is refused before anything is written: first by what the configuration and the
tokenizer tell, then, when the sources are known, by the stream.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from loaders.format import DatasetManifest
from pipeline.bake import BakeFolder
from pipeline.config import Config
from pipeline.config_writer import resolved_yaml, without_secrets
from pipeline.executor import Executor, Progress, SilentProgress, make_executor
from pipeline.index.run import run_index
from pipeline.law_report import ValidationReport
from pipeline.output import refuse_other_bake, refuse_other_plan
from pipeline.plan.run import run_plan
from pipeline.plan_table import PlanManifest
from pipeline.records import SourceIndex
from pipeline.render.run import run_render
from pipeline.storage import Storage
from pipeline.tokenizer import Tokenizer, load_tokenizer

__all__ = ["index", "index_lines", "plan", "render", "run", "summary", "validate_bake"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What every stage is given beside the configuration."""

    folder: BakeFolder
    storage: Storage
    tokenizer: Tokenizer
    executor: Executor


def run(config: Config, progress: Progress | None = None) -> DatasetManifest:
    """Index, plan and render.

    Raises:
        ParbakeError: See `errors`; the class says whether anything was written.
    """
    progress = progress or SilentProgress()
    with _opened(config) as shop:
        _index(config, shop, progress)
        _plan(config, shop, progress)
        return _render(config, shop, progress)


def index(config: Config, progress: Progress | None = None) -> tuple[SourceIndex, ...]:
    """The index stage alone."""
    with _opened(config) as shop:
        return _index(config, shop, progress or SilentProgress())


def plan(config: Config, progress: Progress | None = None) -> PlanManifest:
    """Bring the index up to date, then plan."""
    progress = progress or SilentProgress()
    with _opened(config) as shop:
        _index(config, shop, progress)
        return _plan(config, shop, progress)


def render(config: Config, progress: Progress | None = None) -> DatasetManifest:
    """The render stage alone, on the plan that is there.

    Raises:
        RunFailed: There is no plan, or it was made with another configuration.
    """
    with _opened(config) as shop:
        refuse_other_plan(shop.storage, shop.folder, config)
        return _render(config, shop, progress or SilentProgress())


def validate_bake(
    bake: str,
    report: str | None = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> ValidationReport:
    """Check the laws of a finished bake and write `report.json` and `report.html`.

    Args:
        bake: The bake's folder, any fsspec URL.
        report: Folder for the report; default: `report/` inside the bake.
        progress: Told how far it is.
        storage_options: fsspec options of both.

    Raises:
        ConfigError: There is no finished bake of this format.
        RunFailed: The report cannot be written.
    """
    from pipeline.report import write_report  # both read a bake as training does, with torch: seconds to import
    from pipeline.validate import validate

    url = absolute(bake)
    outcome = validate(url, storage_options=storage_options, progress=progress)
    folder = BakeFolder(url).join("report") if report is None else absolute(report)
    write_report(outcome, folder, Storage(storage_options or {}))
    return outcome


def _index(config: Config, shop: Workshop, progress: Progress) -> tuple[SourceIndex, ...]:
    return run_index(config, shop.folder, shop.storage, shop.tokenizer, shop.executor, progress)


def _plan(config: Config, shop: Workshop, progress: Progress) -> PlanManifest:
    return run_plan(config, shop.folder, shop.storage, shop.tokenizer, shop.executor, progress)


def _render(config: Config, shop: Workshop, progress: Progress) -> DatasetManifest:
    return run_render(config, shop.folder, shop.storage, shop.tokenizer, shop.executor, progress)


@contextlib.contextmanager
def _opened(config: Config) -> Iterator[Workshop]:
    """Storage, tokenizer and executor for one command; the output is checked before its first byte is written."""
    storage = Storage(config.bake.storage_options)
    folder = BakeFolder(absolute(config.bake.output))
    tokenizer = load_tokenizer(config.tokenizer_path)
    refuse_other_bake(storage, folder, config, tokenizer)
    executor = make_executor(config.bake.executor)
    try:
        _write_config(storage, folder, config)
        yield Workshop(folder=folder, storage=storage, tokenizer=tokenizer, executor=executor)
    finally:
        executor.close()


def absolute(url: str) -> str:
    """A URL as it is, a local path from the root: workers on this machine may stand in another folder."""
    return url if "://" in url else os.path.abspath(os.path.expanduser(url))  # noqa: PTH100, PTH111


def _write_config(storage: Storage, folder: BakeFolder, config: Config) -> None:
    content = resolved_yaml(config).encode("utf-8")
    if not storage.exists(folder.config) or storage.read_bytes(folder.config) != content:
        storage.publish_bytes(folder.config, content)


def index_lines(sources: Sequence[SourceIndex]) -> list[str]:
    """One line per source: `t2i_pretrain/scenes: 1,200 rows in 4 units`."""
    lines = []
    for source in sources:
        num_rows = sum(unit.num_rows for unit in source.units)
        unreadable = sum(1 for unit in source.units if unit.fault)
        lines.append(
            f"{source.source}: {num_rows:,} rows in {len(source.units):,} units"
            + (f", {source.rows_unused:,} rows unused" if source.rows_unused else "")
            + (f", {unreadable:,} unreadable files" if unreadable else "")
        )
    return lines


def summary(config: Config, manifest: DatasetManifest) -> str:
    """What a finished bake is, in one line."""
    num_packs = sum(lane.num_packs for lane in manifest.lanes)
    num_shards = sum(len(lane.shards) for lane in manifest.lanes)
    num_bytes = sum(shard.num_bytes for lane in manifest.lanes for shard in lane.shards)
    return (
        f"{without_secrets(config.bake.output)}: {num_packs:,} packs in {num_shards:,} shards"
        f" of {len(manifest.lanes):,} lanes, {manifest.tokens.get('total', 0):,} tokens, {num_bytes / 1e6:,.1f} MB"
    )
