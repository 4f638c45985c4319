"""The render stage of the BAGEL recipe: its job and its manifest. How shards are made is `stage` and `unit`."""

from __future__ import annotations

from loaders.format import FORMAT_VERSION, DatasetManifest
from pipeline.bake import BakeFolder
from pipeline.config import Config
from pipeline.errors import ConfigError
from pipeline.executor import Executor, Progress
from pipeline.fingerprint import fingerprint
from pipeline.plan_table import PlanManifest
from pipeline.render.bagel import BagelRecipe
from pipeline.render.normalisation import normalisations
from pipeline.render.pack import PackRules, layout_rules
from pipeline.render.stage import Rendered, read_plan, refuse_other_maker, render_bake
from pipeline.render.unit import RenderJob
from pipeline.storage import Storage
from pipeline.tokenizer import Tokenizer

__all__ = ["run_render"]

WEBP_MAX_SIDE_PX = 16_383


def run_render(
    config: Config,
    folder: BakeFolder,
    storage: Storage,
    tokenizer: Tokenizer,
    executor: Executor,
    progress: Progress,
) -> DatasetManifest:
    """Render every shard of the plan that is not there yet, then publish `dataset.json`.

    The bytes depend on the plan and the sources alone: not on the executor, the order of the units, or how often the
    run was killed.

    Raises:
        BakeConflict: the output holds another bake, or a longer one.
        ConfigError: `pixels: webp` with pictures larger than WebP can hold.
        RunFailed: there is no plan, a source changed, a worker's versions differ, or storage failed.
        SourceError: a pack has nothing to learn left.
        TooManyDrops: a source lost more rows than `max_dropped_fraction` allows.
    """
    plan = read_plan(storage, folder)
    refuse_other_maker(plan, "tokenizer", tokenizer.path, tokenizer.fingerprint)
    if config.bake.pixels == "webp":
        _refuse_sizes_beyond_webp(config)
    rules = PackRules(
        layout=layout_rules(config, plan.special_tokens),
        normalisations=normalisations(config.dataset),
        corrections=frozenset(config.bake.corrections),
        webp=config.bake.pixels == "webp",
    )
    job = _job(config, folder, storage, plan, rules)
    return render_bake(
        job,
        plan,
        executor,
        progress,
        config.bake.max_dropped_fraction,
        lambda rendered: _manifest(config, plan, rules, rendered),
    )


def _job(config: Config, folder: BakeFolder, storage: Storage, plan: PlanManifest, rules: PackRules) -> RenderJob:
    settings = {
        "format": FORMAT_VERSION,
        "stream": plan.stream,
        "pixels": config.bake.pixels,
        "shard_bytes": config.bake.shard_bytes,
        "corrections": sorted(config.bake.corrections),
        "layout": {name: getattr(rules.layout, name) for name in rules.layout.__slots__},
        "normalisations": [[list(pair.mean), list(pair.std)] for pair in rules.normalisations.table],
        "versions": plan.versions,
    }
    return RenderJob(
        recipe=BagelRecipe(config=config, rules=rules),
        folder=folder,
        storage=storage,
        stream=plan.stream,
        versions=plan.versions,
        settings=fingerprint(settings),
        pixels=config.bake.pixels,
        shard_bytes=config.bake.shard_bytes,
    )


def _refuse_sizes_beyond_webp(config: Config) -> None:
    for group in config.dataset.groups:
        for transform in (group.image_transform, group.vit_image_transform):
            if transform is not None and transform.max_image_size + transform.image_stride > WEBP_MAX_SIDE_PX:
                raise ConfigError(
                    f"group {group.name} has max_image_size {transform.max_image_size}, and a WebP picture has at most "
                    f"{WEBP_MAX_SIDE_PX} px a side. A larger picture could not be stored. Set bake.pixels: raw."
                )


def _manifest(config: Config, plan: PlanManifest, rules: PackRules, rendered: Rendered) -> DatasetManifest:
    dataset, bake = config.dataset, config.bake
    return DatasetManifest(
        recipe=config.recipe,
        stream=plan.stream,
        fingerprints=plan.fingerprints,
        world_size=plan.world_size,
        num_workers=plan.num_workers,
        lanes=rendered.lanes,
        use_flex=dataset.use_flex,
        max_num_tokens=dataset.max_num_tokens,
        vit_patch_size=dataset.vit_patch_size,
        vae_image_downsample=dataset.vae_image_downsample,
        pixels=bake.pixels,
        special_tokens=plan.special_tokens,
        vocab_size=plan.vocab_size,
        normalisations=rules.normalisations.table,
        tokens=rendered.tokens,
        rows=rendered.rows,
        seed=config.base_seed,
        balance_window=bake.balance_window if bake.balance == "window" else 0,
        versions=plan.versions,
        settings={
            "shard_bytes": bake.shard_bytes,
            "packer": bake.packer,
            "corrections": list(bake.corrections),
            "check_images": bake.check_images,
            "drop_tail": bake.drop_tail,
            "expected_num_tokens": dataset.expected_num_tokens,
            "max_num_tokens_per_sample": dataset.max_num_tokens_per_sample,
            "interpolate_pos": dataset.interpolate_pos,
            "max_num_patch_per_side": dataset.max_num_patch_per_side,
            "max_latent_size": dataset.max_latent_size,
        },
    )
