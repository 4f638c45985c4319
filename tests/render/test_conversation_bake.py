"""Packs of conversations as they are stored: small, whole, and honest about what could not be rendered."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loaders import PackedShards
from loaders.format import DatasetManifest, parse_dataset_manifest, parse_sidecar
from pipeline.errors import ConfigError, SourceError
from pipeline.render.conversation_pack import _media_arrays
from tests.datamaker.conversations import meta_row, write_jsonl
from tests.datamaker.pictures import encode, picture
from tests.datamaker.processor import write_processor
from tests.datamaker.vlm_recipe import bake_vlm, write_vlm_recipe


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_processor(tmp_path_factory.mktemp("processor"), max_pixels=28 * 28 * 256)


def write_pictures(folder: Path, sizes: list[tuple[int, int]], broken: set[int] | None = None) -> Path:
    """One row a picture; a broken one has a good header and a body that no decoder takes."""
    media = folder / "media"
    media.mkdir(parents=True)
    for number, (width, height) in enumerate(sizes):
        content = bytearray(encode(picture(number, width, height), "PNG"))
        if number in (broken or ()):
            content[len(content) // 3 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 3)
        (media / f"{number}.png").write_bytes(bytes(content))
    write_jsonl(folder / "rows.jsonl", [meta_row(number, f"{number}.png") for number in range(len(sizes))])
    (folder / "meta.json").write_text(json.dumps({"shapes": {"file_name": "rows.jsonl", "media_dir": str(media)}}))
    return folder / "meta.json"


def bake(folder: Path, meta: Path, processor: Path, **sections: Any) -> tuple[Path, DatasetManifest]:
    output = Path(bake_vlm(write_vlm_recipe(folder, meta=meta, processor=processor, **sections)))
    return output, parse_dataset_manifest((output / "dataset.json").read_bytes())


def test_a_pack_takes_less_than_a_seventh_of_the_processors_bytes(processor: Path, tmp_path: Path) -> None:
    meta = write_pictures(tmp_path, [(448, 336), (400, 448), (300, 420), (448, 448)])
    output, manifest = bake(tmp_path, meta, processor, packed_sequence={"pack_size": 1024})
    stored = sum(shard.num_bytes for lane in manifest.lanes for shard in lane.shards)
    floats = 0
    for batch in PackedShards(str(output), rank=0, world_size=1).loader(num_workers=0):
        floats += 2 * sum(value.numel() for name, value in batch.items() if name.startswith("pixel_values")) * 2
    assert manifest.tokens["patches"] > 1000
    assert manifest.tokens["float32_patches"] == 0
    assert stored < floats / 7


def test_pixels_that_no_table_holds_are_stored_as_they_are() -> None:
    values = np.linspace(-1, 1, 4 * 1176, dtype=np.float32).reshape(4, 1176)
    grid = np.array([[1, 2, 2]])
    document: Any = SimpleNamespace(media={"pixel_values": values, "image_grid_thw": grid})
    arrays, counts = _media_arrays([document], {})
    assert set(arrays) == {"pixel_values_f4", "image_grid_thw"}
    assert np.array_equal(arrays["pixel_values_f4"], values)
    assert counts == {"patches": 4, "float32_patches": 4}


def test_a_row_that_cannot_be_decoded_leaves_its_pack_and_nothing_else_moves(processor: Path, tmp_path: Path) -> None:
    sizes = [(60 + 5 * number, 60) for number in range(8)]
    whole, _ = bake(
        tmp_path / "a", write_pictures(tmp_path / "whole", sizes), processor, packed_sequence={"pack_size": 128}
    )
    meta = write_pictures(tmp_path / "cut", sizes, broken={3})
    output, manifest = bake(
        tmp_path / "b", meta, processor, packed_sequence={"pack_size": 128}, bake={"check_images": "header"}
    )
    assert sum(manifest.rows["shapes"]["dropped_in_render"].values()) == 1
    [sidecar] = [parse_sidecar(path.read_bytes()) for path in (output / "shards").rglob("*.json")]
    [drop] = sidecar.drops
    assert (drop.source, drop.row) == ("shapes", 3)
    pairs = list(
        zip(
            PackedShards(str(whole), rank=0, world_size=1).loader(num_workers=0),
            PackedShards(str(output), rank=0, world_size=1).loader(num_workers=0),
            strict=True,
        )
    )
    shorter = [
        (one, other) for one, other in pairs if one["n_images_per_sample"].sum() != other["n_images_per_sample"].sum()
    ]
    assert len(shorter) == 1


def test_a_pack_without_a_sample_left_stops_the_run(processor: Path, tmp_path: Path) -> None:
    meta = write_pictures(tmp_path, [(60, 60), (80, 60)], broken={1})
    with pytest.raises(SourceError, match="no sample left"):
        bake(tmp_path, meta, processor, packed_sequence={"pack_size": 60}, bake={"check_images": "header"})


def test_unpacked_samples_of_text_mask_their_white_picture(processor: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [meta_row(1), meta_row(2)])
    (tmp_path / "meta.json").write_text(json.dumps({"text": {"file_name": "rows.jsonl"}}))
    output, _ = bake(tmp_path, tmp_path / "meta.json", processor)
    [batch] = PackedShards(str(output), rank=0, world_size=1).loader(num_workers=0)
    for ids, types, mask in zip(batch["input_ids"], batch["mm_token_type_ids"], batch["attention_mask"], strict=True):
        assert (mask[types > 0] == 0).all()
        assert mask.sum() > 0
        assert len(ids) == len(mask)


def test_lengths_in_packs_a_lane_are_refused(processor: Path, tmp_path: Path) -> None:
    meta = write_pictures(tmp_path, [(60, 60)])
    with pytest.raises(ConfigError, match="one pass"):
        bake(tmp_path, meta, processor, bake={"length": {"packs_per_lane": 3}})


@pytest.mark.parametrize("order", ["length_grouped", "shuffled", "sequential", "distributed"])
def test_unpacked_orders_visit_every_sample_once(processor: Path, tmp_path: Path, order: str) -> None:
    meta = write_pictures(tmp_path, [(60 + 9 * number, 60) for number in range(9)])
    output, manifest = bake(tmp_path, meta, processor, bake={"order": order, "world_size": 1})
    shards = PackedShards(str(output), rank=0, world_size=1)
    for epoch in (0, 1):
        shards.set_epoch(epoch)
        batches = list(shards.loader(num_workers=0))
        assert sum(len(batch["input_ids"]) for batch in batches) == 9
    assert (output / "plan" / "lengths.npy").exists() == (order == "length_grouped")
    assert manifest.settings["lengths"] == ("plan/lengths.npy" if order == "length_grouped" else "")


def test_each_rank_bakes_its_own_rows_where_data_is_sharded(processor: Path, tmp_path: Path) -> None:
    meta = write_pictures(tmp_path, [(60 + 9 * number, 60) for number in range(7)])
    output, manifest = bake(
        tmp_path,
        meta,
        processor,
        dataset={"shard_data": True},
        packed_sequence={"pack_size": 64},
        bake={"world_size": 2},
    )
    assert manifest.settings["shard_data"]
    assert manifest.rows["shapes"]["not_assigned"] == 1  # 7 rows for two ranks
    for lane in range(2):
        rows = set()
        for path in sorted((output / "shards" / f"lane-{lane:05d}").glob("*.tar")):
            with tarfile.open(path) as tar:
                for member in tar.getmembers():
                    if member.name.endswith(".json"):
                        file = tar.extractfile(member)
                        assert file is not None
                        rows |= {place["row"] for place in json.load(file)["provenance"]}
        assert rows == {lane, lane + 2, lane + 4}
