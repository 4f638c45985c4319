"""The stages of the VLM recipe, as `stages` runs them. Imports transformers and torch: seconds."""

from __future__ import annotations

from loaders.format import DatasetManifest
from pipeline.bake import BakeFolder
from pipeline.executor import Executor, Progress
from pipeline.index.conversations import run_conversation_index
from pipeline.output import BakeIdentity
from pipeline.plan.conversation_stream import vlm_config_fingerprint
from pipeline.plan.conversations import run_conversation_plan
from pipeline.plan_table import PlanManifest
from pipeline.processor import load_processor
from pipeline.records import SourceIndex
from pipeline.render.conversations import VLM_PIXELS, refuse_unplaceable, run_conversation_render
from pipeline.storage import Storage
from pipeline.vlm_config import VlmConfig

__all__ = ["VlmStages"]


class VlmStages:
    """See `stages.RecipeStages`. Loads the processor, and makes sure that the model gives the positions it is to give.

    Raises:
        ConfigError: There is no such processor or model, or positions that packs of this format cannot have.
    """

    def __init__(self, config: VlmConfig) -> None:
        self._config = config
        self._processor = load_processor(config.processor_path, config.processor_arguments, config.chat_template)
        refuse_unplaceable(config)

    @property
    def identity(self) -> BakeIdentity:
        """What a bake of this configuration says of itself."""
        return BakeIdentity(
            config=vlm_config_fingerprint(self._config),
            tokenizer=self._processor.fingerprint,
            pixels=VLM_PIXELS,
            shard_bytes=self._config.bake.shard_bytes,
        )

    def index(
        self, folder: BakeFolder, storage: Storage, executor: Executor, progress: Progress
    ) -> tuple[SourceIndex, ...]:
        """The index stage."""
        return run_conversation_index(self._config, folder, storage, self._processor, executor, progress)

    def plan(self, folder: BakeFolder, storage: Storage, executor: Executor, progress: Progress) -> PlanManifest:
        """The plan stage."""
        return run_conversation_plan(self._config, folder, storage, self._processor, progress)

    def render(self, folder: BakeFolder, storage: Storage, executor: Executor, progress: Progress) -> DatasetManifest:
        """The render stage."""
        return run_conversation_render(self._config, folder, storage, self._processor, executor, progress)
