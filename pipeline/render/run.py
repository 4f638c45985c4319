"""The render stage: every planned shard through the executor, then `dataset.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from loaders.format import FORMAT_VERSION, DatasetManifest, LaneEntry, to_json
from pipeline.bake import BakeFolder
from pipeline.config import Config
from pipeline.errors import ConfigError, RunFailed
from pipeline.executor import Executor, Progress, UnitDone
from pipeline.fingerprint import fingerprint
from pipeline.plan_table import PlanManifest, ShardPlan, manifest_from_json
from pipeline.render.accounts import refuse_too_many_drops, row_accounts
from pipeline.render.conflict import refuse_other_bake, remove_uncommitted
from pipeline.render.normalisation import normalisations
from pipeline.render.pack import PackRules, layout_rules
from pipeline.render.unit import RenderedShard, RenderJob, RenderUnit, render_unit
from pipeline.storage import Storage
from pipeline.tokenizer import Tokenizer

__all__ = ["run_render"]

SHARDS_PER_UNIT = 8
SMALL_UNIT_BYTES = 128 << 20
"""Consecutive shards of a lane go into one unit up to this many raw pixel bytes: their source rows lie together."""

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
    plan = _read_plan(storage, folder)
    job = _job(config, folder, storage, tokenizer, plan)
    lanes = [lane.shards for lane in plan.lanes]
    refuse_other_bake(storage, folder, config.bake, plan.stream, lanes)
    storage.sweep(folder.url)
    remove_uncommitted(storage, folder, lanes)

    units = list(_units(job, lanes))
    progress.start("render", len(units))
    shards: dict[tuple[int, int], RenderedShard] = {}
    for done in executor.map(render_unit, units):
        shards |= {(shard.lane, shard.shard): shard for shard in done}
        made = [shard.entry for shard in done if not shard.found]
        progress.advance(
            UnitDone(packs=sum(entry.num_packs for entry in made), num_bytes=sum(entry.num_bytes for entry in made))
        )
    progress.finish()

    rows = row_accounts(plan, (shard.drops for shard in shards.values()))
    refuse_too_many_drops(rows, config.bake.max_dropped_fraction)
    manifest = _manifest(job, plan, shards, rows)
    storage.sweep(folder.url)  # a worker killed during this run left its own
    content = to_json(manifest, indent=1)
    if not storage.exists(folder.dataset) or storage.read_bytes(folder.dataset) != content:
        storage.publish_bytes(folder.dataset, content)
    return manifest


def _read_plan(storage: Storage, folder: BakeFolder) -> PlanManifest:
    try:
        return manifest_from_json(storage.read_bytes(folder.plan))
    except FileNotFoundError as error:
        raise RunFailed(
            f"{folder.plan} does not exist. Render makes what the plan decided and has nothing to go by. Run `parbake "
            "plan` first, or `parbake run`, which does all stages."
        ) from error


def _job(config: Config, folder: BakeFolder, storage: Storage, tokenizer: Tokenizer, plan: PlanManifest) -> RenderJob:
    planned_tokenizer = plan.fingerprints["tokenizer"]
    if tokenizer.fingerprint != planned_tokenizer:
        raise RunFailed(
            f"the tokenizer {tokenizer.path} has fingerprint {tokenizer.fingerprint}, the plan was made with "
            f"{planned_tokenizer}. Its token ids would not be the planned ones. Run `parbake plan` again, or restore "
            "the tokenizer."
        )
    if config.bake.pixels == "webp":
        _refuse_sizes_beyond_webp(config)
    rules = PackRules(
        layout=layout_rules(config, plan.special_tokens),
        normalisations=normalisations(config.dataset),
        corrections=frozenset(config.bake.corrections),
        webp=config.bake.pixels == "webp",
    )
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
        config=config,
        folder=folder,
        storage=storage,
        stream=plan.stream,
        rules=rules,
        versions=plan.versions,
        settings=fingerprint(settings),
    )


def _refuse_sizes_beyond_webp(config: Config) -> None:
    for group in config.dataset.groups:
        for transform in (group.image_transform, group.vit_image_transform):
            if transform is not None and transform.max_image_size + transform.image_stride > WEBP_MAX_SIDE_PX:
                raise ConfigError(
                    f"group {group.name} has max_image_size {transform.max_image_size}, and a WebP picture has at most "
                    f"{WEBP_MAX_SIDE_PX} px a side. A larger picture could not be stored. Set bake.pixels: raw."
                )


def _units(job: RenderJob, lanes: Sequence[Sequence[ShardPlan]]) -> Iterator[RenderUnit]:
    """Consecutive shards of a lane, as many as are small."""
    for lane, shards in enumerate(lanes):
        first, taken, num_bytes = 0, list[ShardPlan](), 0
        for number, shard in enumerate(shards):
            if taken and (len(taken) == SHARDS_PER_UNIT or num_bytes + shard.pixel_bytes > SMALL_UNIT_BYTES):
                yield RenderUnit(job=job, lane=lane, first_shard=first, shards=tuple(taken))
                first, taken, num_bytes = number, [], 0
            taken.append(shard)
            num_bytes += shard.pixel_bytes
        if taken:
            yield RenderUnit(job=job, lane=lane, first_shard=first, shards=tuple(taken))


def _manifest(
    job: RenderJob, plan: PlanManifest, shards: dict[tuple[int, int], RenderedShard], rows: dict[str, dict[str, object]]
) -> DatasetManifest:
    config, dataset, bake = job.config, job.config.dataset, job.config.bake
    tokens: Counter[str] = Counter()
    for rendered in shards.values():
        tokens.update(rendered.tokens)
    return DatasetManifest(
        recipe=config.recipe,
        stream=plan.stream,
        fingerprints=plan.fingerprints,
        world_size=plan.world_size,
        num_workers=plan.num_workers,
        lanes=tuple(
            LaneEntry(shards=tuple(shards[number, shard].entry for shard in range(len(lane.shards))))
            for number, lane in enumerate(plan.lanes)
        ),
        use_flex=dataset.use_flex,
        max_num_tokens=dataset.max_num_tokens,
        vit_patch_size=dataset.vit_patch_size,
        vae_image_downsample=dataset.vae_image_downsample,
        pixels=bake.pixels,
        special_tokens=plan.special_tokens,
        vocab_size=plan.vocab_size,
        normalisations=job.rules.normalisations.table,
        tokens={name: tokens[name] for name in ("total", "text", "vit", "vae")},
        rows=rows,
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
