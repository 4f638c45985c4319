"""The stages of the BAGEL recipe, as `stages` runs them."""

from __future__ import annotations

from loaders.format import DatasetManifest
from pipeline.bake import BakeFolder
from pipeline.config import Config
from pipeline.executor import Executor, Progress
from pipeline.index.run import run_index
from pipeline.output import BakeIdentity
from pipeline.plan.run import run_plan
from pipeline.plan.stream_id import config_fingerprint
from pipeline.plan_table import PlanManifest
from pipeline.records import SourceIndex
from pipeline.render.run import run_render
from pipeline.storage import Storage
from pipeline.tokenizer import load_tokenizer

__all__ = ["BagelStages"]


class BagelStages:
    """See `stages.RecipeStages`. Loads the tokenizer."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._tokenizer = load_tokenizer(config.tokenizer_path)

    @property
    def identity(self) -> BakeIdentity:
        """What a bake of this configuration says of itself."""
        return BakeIdentity(
            config=config_fingerprint(self._config),
            tokenizer=self._tokenizer.fingerprint,
            pixels=self._config.bake.pixels,
            shard_bytes=self._config.bake.shard_bytes,
        )

    def index(
        self, folder: BakeFolder, storage: Storage, executor: Executor, progress: Progress
    ) -> tuple[SourceIndex, ...]:
        """The index stage."""
        return run_index(self._config, folder, storage, self._tokenizer, executor, progress)

    def plan(self, folder: BakeFolder, storage: Storage, executor: Executor, progress: Progress) -> PlanManifest:
        """The plan stage."""
        return run_plan(self._config, folder, storage, self._tokenizer, executor, progress)

    def render(self, folder: BakeFolder, storage: Storage, executor: Executor, progress: Progress) -> DatasetManifest:
        """The render stage."""
        return run_render(self._config, folder, storage, self._tokenizer, executor, progress)
