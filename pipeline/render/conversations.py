"""The render stage of the VLM recipe: its job and its manifest. How shards are made is `stage` and `unit`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from loaders.format import FORMAT_VERSION, DatasetManifest
from loaders.vlm_format import LENGTHS_PATH, PixelTable, VlmSettings
from pipeline.bake import BakeFolder
from pipeline.conversation_index_table import table_to_conversation_rows
from pipeline.conversation_table import table_to_conversation_packs
from pipeline.errors import ConfigError
from pipeline.executor import Executor, Progress
from pipeline.fingerprint import fingerprint
from pipeline.model_config import model_fingerprint
from pipeline.plan_table import PlanManifest, ShardPlan, in_portions
from pipeline.processor import VlmProcessor
from pipeline.render.conversation_pack import (
    TOKEN_KINDS,
    ConversationRules,
    RenderedConversationPack,
    render_conversation_pack,
)
from pipeline.render.fake_image import vision_token_ids
from pipeline.render.mrope import RopeIndex, rope_index
from pipeline.render.pixel_table import calibrate
from pipeline.render.plan_rows import SAMPLES_PER_PORTION, read_index_rows, read_packs
from pipeline.render.stage import Rendered, read_plan, refuse_other_maker, render_bake
from pipeline.render.unit import RenderJob
from pipeline.sources.conversations.reader import ConversationMedia
from pipeline.storage import Storage
from pipeline.vlm_config import VlmConfig

__all__ = ["VLM_PIXELS", "ConversationMaker", "ConversationRecipe", "refuse_unplaceable", "run_conversation_render"]

VLM_PIXELS = "raw"
"""Pixels are arrays in the shard; `PixelTable` says how they stand for floats."""

INDEX_COLUMNS = ("row", "conversation", "media")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRecipe:
    """See `unit.RenderRecipe`.

    Attributes:
        config: The recipe.
        processor: Travels as its path.
        rules: What a pack's bytes depend on.
        model_path: Of the model whose class gives positions; None for plain ones.
    """

    config: VlmConfig
    processor: VlmProcessor
    rules: ConversationRules
    model_path: str | None

    @property
    def token_kinds(self) -> tuple[str, ...]:
        """See `conversation_pack.TOKEN_KINDS`."""
        return TOKEN_KINDS

    def open(self, folder: BakeFolder, storage: Storage) -> ConversationMaker:
        """A maker with media readers of its own."""
        media = ConversationMedia(self.config, storage)
        rope = None if self.model_path is None else rope_index(self.model_path)
        return ConversationMaker(folder, storage, self, media, rope)


class ConversationMaker:
    """See `unit.PackMaker`."""

    def __init__(
        self,
        folder: BakeFolder,
        storage: Storage,
        recipe: ConversationRecipe,
        media: ConversationMedia,
        get_rope_index: RopeIndex | None,
    ) -> None:
        self._folder = folder
        self._storage = storage
        self._recipe = recipe
        self._media = media
        self._rope_index = get_rope_index

    def packs(self, lane: int, shard: int, plan: ShardPlan) -> Iterator[tuple[int, RenderedConversationPack]]:
        """The packs of a shard; one pack's pixels are in memory at a time.

        Raises:
            RunFailed: a source file changed, a length is not the planned one, or the plan and the index disagree.
            SourceError: a pack has no sample left.
        """
        planned = read_packs(self._storage, self._folder, lane, shard, plan, table_to_conversation_packs)
        for portion in in_portions(planned, SAMPLES_PER_PORTION):
            rows = read_index_rows(self._storage, self._folder, portion, INDEX_COLUMNS, table_to_conversation_rows)
            for pack in portion:
                yield (
                    pack.pack,
                    render_conversation_pack(
                        pack, rows, self._media, self._recipe.processor, self._rope_index, self._recipe.rules
                    ),
                )

    def close(self) -> None:
        """Close the sources."""
        self._media.close()


def run_conversation_render(
    config: VlmConfig,
    folder: BakeFolder,
    storage: Storage,
    processor: VlmProcessor,
    executor: Executor,
    progress: Progress,
) -> DatasetManifest:
    """Render every shard of the plan that is not there yet, then publish `dataset.json`; as `render.run.run_render`.

    Raises:
        BakeConflict: the output holds another bake.
        ConfigError: no model class can be built for positions.
        RunFailed: there is no plan, a source or the processor changed, a worker's versions differ, or storage failed.
        SourceError: a pack has no sample left.
        TooManyDrops: a source lost more rows than `max_dropped_fraction` allows.
    """
    plan = read_plan(storage, folder)
    refuse_other_maker(plan, "processor", processor.path, processor.fingerprint)
    job = _job(config, folder, storage, processor, plan)
    return render_bake(
        job,
        plan,
        executor,
        progress,
        config.bake.max_dropped_fraction,
        lambda rendered: _manifest(config, plan, processor, job, rendered),
    )


def _job(
    config: VlmConfig, folder: BakeFolder, storage: Storage, processor: VlmProcessor, plan: PlanManifest
) -> RenderJob:
    rules = ConversationRules(
        shifted=config.packing != "none",
        alignment=config.sequence_alignment,
        masks_fakes=config.bake.stream != "reference",
        pixel_tables=_pixel_tables(processor),
        vision_token_ids=vision_token_ids(processor.processor),
    )
    settings = {
        "format": FORMAT_VERSION,
        "stream": plan.stream,
        "shard_bytes": config.bake.shard_bytes,
        "model": model_fingerprint(config.position_model) if config.position_model else "",
        "pixel_tables": {key: dataclasses.asdict(table) for key, table in rules.pixel_tables.items()},
        "vision_token_ids": rules.vision_token_ids.tolist(),
        "versions": plan.versions,
    }
    return RenderJob(
        recipe=ConversationRecipe(config=config, processor=processor, rules=rules, model_path=config.position_model),
        folder=folder,
        storage=storage,
        stream=plan.stream,
        versions=plan.versions,
        settings=fingerprint(settings),
        pixels=VLM_PIXELS,
        shard_bytes=config.bake.shard_bytes,
    )


def _pixel_tables(processor: VlmProcessor) -> dict[str, PixelTable]:
    """Tables of images and of videos; whether they really hold a pack's pixels is verified when it is written."""
    image_processor = getattr(processor.processor, "image_processor", None)
    table = None if image_processor is None else calibrate(image_processor, temporal_repeats=True)
    if table is None:
        return {}
    return {"pixel_values": table, "pixel_values_videos": dataclasses.replace(table, temporal_repeats=False)}


def refuse_unplaceable(config: VlmConfig) -> None:
    """Positions in three axes cannot be split over context-parallel ranks, here as in the reference.

    Raises:
        ConfigError: the model has such positions and documents are to be aligned; or no model class can be built.
    """
    if config.position_model and rope_index(config.position_model) is not None and config.sequence_alignment > 1:
        raise ConfigError(
            f"{config.position_model} places its tokens in three axes (mRoPE), and packing_format thd with cp_size "
            f"{config.cp_size} would pad between documents, for which no such positions exist. Set cp_size to 1, "
            "packing_format to neat, or bake.positions to one_dimensional."
        )


def _manifest(
    config: VlmConfig, plan: PlanManifest, processor: VlmProcessor, job: RenderJob, rendered: Rendered
) -> DatasetManifest:
    settings = VlmSettings(
        packing=config.packing,
        packing_format=config.packing_format,
        mask=config.mask,
        order=config.order,
        shuffle=config.shuffle,
        order_seed=plan.statistics["order_seed"],
        shard_data=config.shard_data,
        num_packs=plan.statistics["packs"],
        local_batch_size=config.local_batch_size,
        pad_token_id=processor.pad_token_id,
        pack_size=config.pack_size,
        max_length=config.max_length,
        collate_max_length=config.collate_max_length,
        cp_size=config.cp_size,
        lengths=LENGTHS_PATH if config.order == "length_grouped" else "",
        pixel_tables=_pixel_tables(processor),
        shard_bytes=config.bake.shard_bytes,
        on_bad_row=config.bake.on_bad_row,
        truncation=config.truncation,
        inject_fake_images=config.inject_fake_images,
        corrections=tuple(config.bake.corrections),
        processor=processor.name,
        mrope=config.position_model is not None and rope_index(config.position_model) is not None,
        drop_last=config.drop_last,
    )
    return DatasetManifest(
        recipe=config.recipe,
        stream=plan.stream,
        fingerprints=plan.fingerprints,
        world_size=plan.world_size,
        num_workers=plan.num_workers,
        lanes=rendered.lanes,
        use_flex=False,
        max_num_tokens=plan.statistics["pack_size"],
        vit_patch_size=0,
        vae_image_downsample=0,
        pixels=job.pixels,
        special_tokens=plan.special_tokens,
        vocab_size=plan.vocab_size,
        normalisations=(),
        tokens=rendered.tokens,
        rows=rendered.rows,
        seed=config.seed or 0,
        versions=plan.versions,
        settings=settings.to_settings(),
    )
