"""The laws, for a VLM bake: same bytes however it ran, exact books, conflicts refused, object stores."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest
import yaml

from loaders import PackedShards
from loaders.format import parse_dataset_manifest
from pipeline.errors import BakeConflict, RunFailed
from tests.datamaker.conversations import meta_row, write_jsonl
from tests.datamaker.pictures import encode, picture
from tests.datamaker.processor import write_processor
from tests.datamaker.vlm_recipe import bake_vlm, write_vlm_recipe
from tests.laws.commands import parbake, start_parbake
from tests.laws.reading import snapshot

NUM_ROWS = 30
SETTINGS: dict[str, dict[str, Any]] = {
    "packed_sequence": {"pack_size": 128},
    "bake": {"world_size": 2, "shard_bytes": 100_000},
}


def write_rows(folder: Path) -> Path:
    """Rows of which every tenth has a broken picture, and their meta file."""
    media = folder / "media"
    media.mkdir(parents=True)
    rows = []
    for number in range(NUM_ROWS):
        name = f"{number}.png"
        content = encode(picture(number, 40 + 4 * number, 90), "PNG")
        (media / name).write_bytes(content[:50] if number % 10 == 9 else content)
        rows.append(meta_row(number % 5, *([name] if number % 3 else [])))
    write_jsonl(folder / "rows.jsonl", rows)
    (folder / "meta.json").write_text(json.dumps({"shapes": {"file_name": "rows.jsonl", "media_dir": str(media)}}))
    return folder / "meta.json"


@pytest.fixture(scope="module")
def meta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_processor(tmp_path_factory.mktemp("processor"))


def recipe(folder: Path, meta: Path, processor: Path, **bake: Any) -> Path:
    sections = {**SETTINGS, "bake": {**SETTINGS["bake"], **bake}}
    return write_vlm_recipe(folder, meta=meta, processor=processor, **sections)


@pytest.fixture(scope="module")
def inline(meta: Path, processor: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one undisturbed process makes of it."""
    found = snapshot(Path(bake_vlm(recipe(tmp_path_factory.mktemp("inline"), meta, processor))))
    assert sum(name.endswith(".tar") for name in found) >= 6
    return found


@pytest.mark.ray
def test_ray_and_inline_give_the_same_bytes(
    meta: Path, processor: Path, inline: dict[str, str], tmp_path: Path
) -> None:
    outcome = parbake("run", str(recipe(tmp_path, meta, processor, executor="ray")))
    assert outcome.exit_code == 0, outcome.output
    assert snapshot(tmp_path / "bake") == inline


def test_killed_and_rerun_gives_the_same_bytes(
    meta: Path, processor: Path, inline: dict[str, str], tmp_path: Path
) -> None:
    config, folder = recipe(tmp_path, meta, processor), tmp_path / "bake"
    killed = 0
    for num_files in sorted(random.Random(5).sample(range(2, len(inline) - 1), 3)):
        process = start_parbake("run", str(config))
        while process.poll() is None:
            if sum(path.is_file() for path in folder.rglob("*")) >= num_files:
                os.killpg(process.pid, signal.SIGKILL)
                break
            time.sleep(0.001)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
    assert killed >= 2
    outcome = parbake("run", str(config))
    assert outcome.exit_code == 0, outcome.output
    assert snapshot(folder) == inline


def test_a_rerun_writes_nothing_again(meta: Path, processor: Path, tmp_path: Path) -> None:
    config = recipe(tmp_path, meta, processor)
    bake_vlm(config)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "bake").rglob("*") if path.is_file()}
    bake_vlm(config)
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "bake").rglob("*") if path.is_file()}
    assert after == before


def test_data_in_another_place_gives_the_same_shards(processor: Path, inline: dict[str, str], tmp_path: Path) -> None:
    moved = write_rows(tmp_path / "moved")
    found = snapshot(Path(bake_vlm(recipe(tmp_path / "bake", moved, processor))))

    def kept(files: dict[str, str]) -> dict[str, str]:
        return {name: digest for name, digest in files.items() if name.startswith(("plan", "shards", "dataset"))}

    assert kept(found) == kept(inline)


def test_an_object_store_gets_the_same_bytes(
    s3: str, meta: Path, processor: Path, inline: dict[str, str], tmp_path: Path
) -> None:
    url = f"{s3}/bake"
    assert bake_vlm(recipe(tmp_path, meta, processor, output=url)) == url
    names = [name for name in inline if name.startswith(("plan", "shards", "dataset"))]
    copied = tmp_path / "copied"
    filesystem, root = fsspec.url_to_fs(url)
    filesystem.invalidate_cache()
    filesystem.get(root, str(copied), recursive=True)
    found = snapshot(copied)
    assert {name: found[name] for name in names} == {name: inline[name] for name in names}
    batches = list(PackedShards(url, rank=0, world_size=1).loader(num_workers=0))
    assert batches


@pytest.mark.parametrize("on_bad_row", ["replace", "drop"])
@pytest.mark.parametrize("max_packs", [None, 4])
def test_every_row_has_one_fate(
    meta: Path, processor: Path, tmp_path: Path, on_bad_row: str, max_packs: int | None
) -> None:
    sections = {**SETTINGS, "bake": {"on_bad_row": on_bad_row}}
    sections["packed_sequence"] = {"pack_size": 128, "max_packs": max_packs}
    bake = Path(bake_vlm(write_vlm_recipe(tmp_path, meta=meta, processor=processor, **sections)))
    manifest = parse_dataset_manifest((bake / "dataset.json").read_bytes())
    [account] = manifest.rows["shapes"]["passes"]
    assert account["drawn"] == NUM_ROWS
    assert account["packed"] + sum(account["dropped"].values()) + account["waiting"] == NUM_ROWS
    prefix = "replaced: " if on_bad_row == "replace" else ""
    reasons = set(account["dropped"])
    assert all(reason.startswith(prefix) for reason in reasons)
    assert (account["waiting"] > 0) == (max_packs is not None)
    assert sum(lane.num_packs for lane in manifest.lanes) == manifest.settings["num_packs"]


@pytest.mark.parametrize(
    "changed",
    [
        {"packed_sequence": {"pack_size": 96}},
        {"bake": {"shard_bytes": 50_000}},
        {"dataset": {"inject_fake_images": False}},
        {"step_scheduler": {"local_batch_size": 3}},
    ],
)
def test_another_bake_in_the_output_is_refused(
    meta: Path, processor: Path, tmp_path: Path, changed: dict[str, dict[str, Any]]
) -> None:
    config = recipe(tmp_path, meta, processor)
    bake_vlm(config)
    before = snapshot(tmp_path / "bake")
    content = yaml.safe_load(config.read_text())
    for name, section in changed.items():
        content[name].update(section)
    config.write_text(yaml.safe_dump(content))
    with pytest.raises(BakeConflict):
        bake_vlm(config)
    assert snapshot(tmp_path / "bake") == before


def test_a_picture_that_changed_stops_the_run(processor: Path, tmp_path: Path) -> None:
    meta = write_rows(tmp_path / "rows")
    config = recipe(tmp_path, meta, processor)
    assert parbake("plan", str(config)).exit_code == 0
    (tmp_path / "rows" / "media" / "1.png").write_bytes(encode(picture(1, 300, 20), "PNG"))
    outcome = parbake("render", str(config))
    assert outcome.exit_code == RunFailed.exit_code
    assert "index" in outcome.output
