"""Runs the stages in order on one output: what `parbake run`, `index`, `plan`, `render` and `validate` do.

    check the output ──► config.yaml ──► index ──► plan ──► render

What a stage does is the recipe's own (`RecipeStages`: `bagel_stages`, `vlm_stages`); when and on what, is decided here.
Every stage skips what it finds finished, so running a command again resumes, and a stage before the one asked for costs
little. An output that holds another bake is refused before anything is written: first by what the configuration and the
tokenizer (or processor) tell, then, when the sources are known, by the stream.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from loaders.format import DatasetManifest
from pipeline.bake import BakeFolder
from pipeline.config import Config
from pipeline.configuration.writer import resolved_yaml, without_secrets
from pipeline.executor import Executor, Progress, SilentProgress, make_executor
from pipeline.law_report import ValidationReport
from pipeline.output import BakeIdentity, refuse_other_bake, refuse_other_plan
from pipeline.plan_table import PlanManifest
from pipeline.records import SourceIndex
from pipeline.storage import Storage
from pipeline.vlm_config import VlmConfig

__all__ = ["index", "index_lines", "plan", "render", "run", "summary", "validate_bake"]


AnyConfig = Config | VlmConfig


class RecipeStages(Protocol):
    """The stages of one recipe on one configuration; made anew for every command."""

    @property
    def identity(self) -> BakeIdentity:
        """What a bake of this configuration says of itself."""

    def index(
        self, folder: BakeFolder, storage: Storage, executor: Executor, progress: Progress
    ) -> tuple[SourceIndex, ...]:
        """Measure every row."""

    def plan(self, folder: BakeFolder, storage: Storage, executor: Executor, progress: Progress) -> PlanManifest:
        """Decide every pack."""

    def render(self, folder: BakeFolder, storage: Storage, executor: Executor, progress: Progress) -> DatasetManifest:
        """Write every shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """One command's recipe, and what its stages are given."""

    recipe: RecipeStages
    folder: BakeFolder
    storage: Storage
    executor: Executor

    def index(self, progress: Progress) -> tuple[SourceIndex, ...]:
        """The index stage."""
        return self.recipe.index(self.folder, self.storage, self.executor, progress)

    def plan(self, progress: Progress) -> PlanManifest:
        """The plan stage."""
        return self.recipe.plan(self.folder, self.storage, self.executor, progress)

    def render(self, progress: Progress) -> DatasetManifest:
        """The render stage."""
        return self.recipe.render(self.folder, self.storage, self.executor, progress)


def run(config: AnyConfig, progress: Progress | None = None) -> DatasetManifest:
    """Index, plan and render.

    Raises:
        ParbakeError: See `errors`; the class says whether anything was written.
    """
    progress = progress or SilentProgress()
    with _opened(config) as shop:
        shop.index(progress)
        shop.plan(progress)
        return shop.render(progress)


def index(config: AnyConfig, progress: Progress | None = None) -> tuple[SourceIndex, ...]:
    """The index stage alone."""
    with _opened(config) as shop:
        return shop.index(progress or SilentProgress())


def plan(config: AnyConfig, progress: Progress | None = None) -> PlanManifest:
    """Bring the index up to date, then plan."""
    progress = progress or SilentProgress()
    with _opened(config) as shop:
        shop.index(progress)
        return shop.plan(progress)


def render(config: AnyConfig, progress: Progress | None = None) -> DatasetManifest:
    """The render stage alone, on the plan that is there.

    Raises:
        RunFailed: There is no plan, or it was made with another configuration.
    """
    with _opened(config) as shop:
        refuse_other_plan(shop.storage, shop.folder, shop.recipe.identity.config)
        return shop.render(progress or SilentProgress())


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


def recipe_stages(config: AnyConfig) -> RecipeStages:
    """The stages of the configuration's recipe; only its own libraries are imported.

    Raises:
        ConfigError: The tokenizer, processor or model that it names cannot be loaded.
    """
    if isinstance(config, VlmConfig):
        from pipeline.vlm_stages import VlmStages

        return VlmStages(config)
    from pipeline.bagel_stages import BagelStages

    return BagelStages(config)


@contextlib.contextmanager
def _opened(config: AnyConfig) -> Iterator[Workshop]:
    """Recipe, storage and executor for one command; the output is checked before its first byte is written."""
    storage = Storage(config.bake.storage_options)
    folder = BakeFolder(absolute(config.bake.output))
    recipe = recipe_stages(config)
    refuse_other_bake(storage, folder, recipe.identity, config.bake.length)
    executor = make_executor(config.bake.executor)
    try:
        _write_config(storage, folder, config)
        yield Workshop(recipe=recipe, folder=folder, storage=storage, executor=executor)
    finally:
        executor.close()


def absolute(url: str) -> str:
    """A URL as it is, a local path from the root: workers on this machine may stand in another folder."""
    return url if "://" in url else os.path.abspath(os.path.expanduser(url))  # noqa: PTH100, PTH111


def _write_config(storage: Storage, folder: BakeFolder, config: AnyConfig) -> None:
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


def summary(config: AnyConfig, manifest: DatasetManifest) -> str:
    """What a finished bake is, in one line."""
    num_packs = sum(lane.num_packs for lane in manifest.lanes)
    num_shards = sum(len(lane.shards) for lane in manifest.lanes)
    num_bytes = sum(shard.num_bytes for lane in manifest.lanes for shard in lane.shards)
    return (
        f"{without_secrets(config.bake.output)}: {num_packs:,} packs in {num_shards:,} shards"
        f" of {len(manifest.lanes):,} lanes, {manifest.tokens.get('total', 0):,} tokens, {num_bytes / 1e6:,.1f} MB"
    )
