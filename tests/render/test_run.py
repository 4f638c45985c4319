"""The render stage over a whole plan: same bytes however it ran, nothing half-done, refusals before harm."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import time
import tracemalloc
from pathlib import Path

import pytest

from loaders.format import parse_dataset_manifest, parse_sidecar
from pipeline.bake import BakeFolder
from pipeline.configuration.reader import load_config
from pipeline.errors import BakeConflict, ConfigError, RunFailed, TooManyDrops
from pipeline.executor import InlineExecutor, SilentProgress
from pipeline.render.run import run_render
from pipeline.storage import Storage
from pipeline.tokenizer import load_tokenizer
from tests.render.conftest import planned_bake, write_clean_sources


class Shuffled(InlineExecutor):
    """Runs the units in an order drawn from a seed."""

    def __init__(self, seed):
        self.seed = seed

    def map(self, function, units):
        order = list(units)
        random.Random(self.seed).shuffle(order)
        return super().map(function, order)


def render(config, executor=None, storage=None):
    return run_render(
        config,
        BakeFolder(config.bake.output),
        storage or Storage(),
        load_tokenizer(config.tokenizer_path),
        executor or InlineExecutor(),
        SilentProgress(),
    )


def files_of(config):
    """Published files of render: relative path → SHA-256."""
    root = Path(config.bake.output)
    paths = [path for path in (root / "shards").rglob("*") if path.is_file()]
    paths += [path for path in root.glob("*") if path.is_file() and path.name != "config.yaml"]
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)}


def touched(config):
    """Relative path → (inode, mtime): changes whenever a file is published again."""
    root = Path(config.bake.output)
    statuses = {name: (root / name).stat() for name in files_of(config)}
    return {name: (status.st_ino, status.st_mtime_ns) for name, status in statuses.items()}


def sidecars(config):
    return [parse_sidecar(path.read_bytes()) for path in sorted((Path(config.bake.output) / "shards").glob("*/*.json"))]


@pytest.fixture
def rendered(planned):
    config = planned("rendered")
    render(config)
    return config


def test_every_planned_pack_is_in_a_shard_and_dataset_json_lists_every_shard(rendered):
    root = Path(rendered.bake.output)
    manifest = parse_dataset_manifest((root / "dataset.json").read_bytes())
    assert [lane.num_packs for lane in manifest.lanes] == [8, 8]
    assert min(len(lane.shards) for lane in manifest.lanes) > 1
    for lane, entry in enumerate(manifest.lanes):
        for shard, listed in enumerate(entry.shards):
            tar = root / f"shards/lane-{lane:05d}/{shard:06d}.tar"
            assert hashlib.sha256(tar.read_bytes()).hexdigest() == listed.sha256
            assert hashlib.sha256(tar.with_suffix(".json").read_bytes()).hexdigest() == listed.sidecar_sha256
    totals = [sidecar.tokens for sidecar in sidecars(rendered)]
    assert manifest.tokens == {name: sum(tokens[name] for tokens in totals) for name in totals[0]}


def test_bytes_do_not_depend_on_the_order_of_the_units(planned, rendered):
    for seed in range(2):
        config = planned(f"shuffled-{seed}")
        render(config, Shuffled(seed))
        assert files_of(config) == files_of(rendered)


def test_bytes_do_not_depend_on_how_shards_are_grouped_into_units(planned, rendered, monkeypatch):
    monkeypatch.setattr("pipeline.render.stage.SHARDS_PER_UNIT", 1)
    config = planned("single")
    render(config)
    assert files_of(config) == files_of(rendered)


def test_a_second_run_publishes_nothing(rendered):
    before = touched(rendered)
    render(rendered)
    assert touched(rendered) == before


def test_a_shard_without_its_sidecar_or_with_a_damaged_one_is_rendered_again(rendered):
    before = files_of(rendered)
    first, second, third, *_ = sorted((Path(rendered.bake.output) / "shards").glob("*/*.tar"))
    first.with_suffix(".json").unlink()
    second.with_suffix(".json").write_bytes(b'{"format": 1')
    third.write_bytes(third.read_bytes()[:1000])
    render(rendered)
    assert files_of(rendered) == before


class Unhurried(Storage):
    """Pauses while a file is half written, so that a kill can hit it there."""

    @contextlib.contextmanager
    def publishing(self, url):
        with super().publishing(url) as file:
            yield file
            time.sleep(0.03)


def render_copy(config_path, output):
    render(load_config(config_path, [f"bake.output={output}"]), storage=Unhurried())


def published(root):
    return [path for path in (root / "shards").rglob("*.*") if not path.name.startswith(".")]


def test_a_run_killed_at_random_moments_and_run_again_leaves_the_same_bytes_and_nothing_else(planned, rendered):
    config = planned("killed")
    root = Path(config.bake.output)
    processes = multiprocessing.get_context("forkserver")  # imports once, then starts a fresh process in no time
    processes.set_forkserver_preload([__name__, "transformers.models.auto.tokenization_auto"])
    draws = random.Random(5)
    killed = 0
    while True:
        process = processes.Process(target=render_copy, args=(str(root.parent / "config.yaml"), str(root)))
        process.start()
        goal = len(published(root)) + draws.randint(1, 4)
        while process.is_alive() and len(published(root)) < goal:
            time.sleep(0.001)
        time.sleep(draws.random() * 0.05)
        process.kill()
        process.join()
        if process.exitcode == 0:
            break
        killed += 1
    assert killed >= 3
    assert files_of(config) == files_of(rendered)


def test_webp_shards_hold_no_raw_pixels_and_may_not_join_raw_ones(planned, rendered):
    config = planned("webp", "bake.pixels=webp")
    manifest = render(config)
    assert manifest.pixels == "webp"
    for raw, webp in zip(sidecars(rendered), sidecars(config), strict=True):
        for raw_pack, webp_pack in zip(raw.packs, webp.packs, strict=True):
            pixels = {"vit_pixels", "vae_pixels"}
            assert raw_pack.members.keys() - pixels <= webp_pack.members.keys()
            assert not webp_pack.members.keys() & pixels
    before = touched(rendered)
    other = load_config(
        str(Path(rendered.bake.output).parent / "config.yaml"),
        [f"bake.output={rendered.bake.output}", "bake.pixels=webp"],
    )
    with pytest.raises(BakeConflict, match="pixels raw, this one has webp"):
        render(other)
    assert touched(rendered) == before


def test_committed_shards_of_another_stream_are_refused_even_without_dataset_json(rendered):
    root = Path(rendered.bake.output)
    (root / "dataset.json").unlink()
    plan = json.loads((root / "plan/plan.json").read_bytes())
    plan["stream"] = "0" * 32
    (root / "plan/plan.json").write_text(json.dumps(plan))
    before = touched(rendered)
    with pytest.raises(BakeConflict, match="holds a bake with stream"):
        render(rendered)
    assert touched(rendered) == before


def test_extending_a_bake_keeps_finished_shards_and_equals_a_bake_of_that_length(clean_sources, tmp_path):
    short = planned_bake(clean_sources, tmp_path / "grown", packs_per_lane=5)
    render(short)
    before = touched(short)
    num_packs = {(sidecar.lane, sidecar.shard): sidecar.num_packs for sidecar in sidecars(short)}
    grown = planned_bake(clean_sources, tmp_path / "grown", packs_per_lane=9)
    render(grown)
    straight = planned_bake(clean_sources, tmp_path / "straight", packs_per_lane=9)
    render(straight)
    assert files_of(grown) == files_of(straight)
    after = touched(grown)
    for sidecar in sidecars(grown):
        name = f"shards/lane-{sidecar.lane:05d}/{sidecar.shard:06d}"
        if num_packs.get((sidecar.lane, sidecar.shard)) == sidecar.num_packs:
            assert (after[f"{name}.tar"], after[f"{name}.json"]) == (before[f"{name}.tar"], before[f"{name}.json"])


@pytest.mark.parametrize("finished", [True, False])
def test_a_shorter_length_than_what_is_there_is_refused(clean_sources, tmp_path, finished):
    config = planned_bake(clean_sources, tmp_path / "long", packs_per_lane=7)
    render(config)
    if not finished:
        Path(BakeFolder(config.bake.output).dataset).unlink()
    shorter = planned_bake(clean_sources, tmp_path / "short", packs_per_lane=6)
    shutil.rmtree(Path(config.bake.output) / "plan")
    shutil.copytree(Path(shorter.bake.output) / "plan", Path(config.bake.output) / "plan")
    before = touched(config)
    with pytest.raises(BakeConflict, match="holds a longer bake of the same stream"):
        render(config)
    assert touched(config) == before


@pytest.fixture
def own_sources(tmp_path):
    """Sources that the test may damage."""
    return write_clean_sources(tmp_path / "sources")


def damage(path):
    """Other bytes, same size and mtime: as a disk would do it."""
    status = path.stat()
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_damaged_image_drops_its_samples_and_the_sidecar_says_why(own_sources, tmp_path):
    config = planned_bake(own_sources, tmp_path / "bake")
    for media in own_sources.media:
        for path in sorted(media.glob("plain_*.jpg"))[:4]:
            damage(path)
    manifest = render(config)
    drops = [drop for sidecar in sidecars(config) for drop in sidecar.drops]
    assert {(drop.source.partition("/")[0], drop.reason) for drop in drops} == {("vlm_sft", "not_an_image")}
    counted = {source: rows["dropped_in_render"] for source, rows in manifest.rows.items()}
    assert sum(sum(reasons.values()) for reasons in counted.values()) == len(drops)
    strict = config.model_copy(update={"bake": config.bake.model_copy(update={"max_dropped_fraction": 0.01})})
    Path(BakeFolder(config.bake.output).dataset).unlink()
    with pytest.raises(TooManyDrops, match="vlm_sft/"):
        render(strict)
    assert not Path(BakeFolder(config.bake.output).dataset).exists()


@pytest.mark.parametrize("kind", ["media", "parquet"])
def test_a_source_that_changed_after_the_index_stops_the_run(own_sources, tmp_path, kind):
    config = planned_bake(own_sources, tmp_path / "bake")
    folders = own_sources.media if kind == "media" else own_sources.t2i
    for folder in folders:
        for path in folder.iterdir():
            os.utime(path, ns=(0, 0))
    with pytest.raises(RunFailed, match="changed"):
        render(config)
    assert not Path(BakeFolder(config.bake.output).dataset).exists()


def test_a_worker_with_other_versions_refuses_and_names_them(planned):
    config = planned()
    path = Path(BakeFolder(config.bake.output).plan)
    plan = json.loads(path.read_bytes())
    plan["versions"]["pillow"] = "1.0"
    path.write_text(json.dumps(plan))
    with pytest.raises(RunFailed, match=r"this worker has pillow \S+ instead of 1\.0"):
        render(config)
    assert not sidecars(config)


def test_render_without_a_plan_says_what_to_run(planned):
    config = planned()
    Path(BakeFolder(config.bake.output).plan).unlink()
    with pytest.raises(RunFailed, match="Run `parbake plan` first"):
        render(config)


def test_webp_of_pictures_too_large_for_it_is_refused_at_once(planned):
    config = planned(
        "large", "bake.pixels=webp", "dataset.grouped_datasets.vlm_sft.image_transform_args.max_image_size=16380"
    )
    with pytest.raises(ConfigError, match="WebP"):
        render(config)


def test_memory_does_not_grow_with_the_shard(clean_sources, tmp_path):
    def peak_bytes(packs_per_lane):
        config = planned_bake(
            clean_sources, tmp_path / str(packs_per_lane), packs_per_lane, world_size=1, shard_bytes=1 << 30
        )
        tracemalloc.start()
        render(config)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(sidecars(config)) == 1
        return peak, sidecars(config)[0].num_bytes

    few, few_bytes = peak_bytes(4)
    many, many_bytes = peak_bytes(20)
    assert many - few < (many_bytes - few_bytes) / 4


def test_published_files_name_no_place_and_no_time(rendered):
    root = Path(rendered.bake.output)
    place = str(root.parent.parent).encode()
    for name in files_of(rendered):
        assert place not in (root / name).read_bytes(), name
    assert os.uname().nodename.encode() not in (root / "dataset.json").read_bytes()
