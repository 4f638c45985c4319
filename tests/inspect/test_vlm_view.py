"""From a VLM pack's arrays to its documents, texts and pictures; and the demo's VLM bake from end to end."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from loaders import PackedShards
from pipeline import stages
from pipeline.configuration.reader import load_config
from pipeline.demo.drawing import picture
from pipeline.demo.scenes import Scene, Thing
from pipeline.errors import ConfigError
from pipeline.executor import SilentProgress
from pipeline.inspect import describe, describe_step
from pipeline.inspect.page import page
from pipeline.inspect.vlm_view import pictures_of_patches, view_vlm_pack
from pipeline.processor import load_processor
from pipeline.render.pixel_table import calibrate, encode_pixels
from tests.loaders.synthetic import write_bake
from tests.loaders.vlm_synthetic import SETTINGS, draw_sample, stored_pack, write_vlm_bake

SCENE = Scene(
    layout="row",
    background="white",
    things=(Thing(colour="red", shape="star", place=0, large=True),),
    width_px=280,
    height_px=196,
)


def shown(samples: Any) -> list[list[tuple[str, int]]]:
    return [[(split.kind, split.num_tokens) for split in sample.splits] for sample in samples]


def test_patches_of_a_real_processor_become_the_picture_again(demo_folder: Path) -> None:
    processor = load_processor(str(demo_folder / "model")).processor.image_processor
    table = calibrate(processor, temporal_repeats=True)
    assert table is not None
    drawn = picture(SCENE)
    made = processor(images=[drawn], do_resize=False, return_tensors="np")
    stored = encode_pixels(np.asarray(made["pixel_values"], dtype=np.float32), table)
    assert stored is not None
    (grid,) = made["image_grid_thw"].tolist()
    assert np.array_equal(pictures_of_patches(stored, tuple(grid), 2, 1), np.asarray(drawn))


def test_frames_of_a_video_stand_side_by_side() -> None:
    frames = [np.full((4, 4, 3), value, dtype=np.uint8) for value in (10, 20, 30, 40)]
    # [t=2, h/m=1, w/m=1, m=2, m=2, channels, frames=2, side=2, side=2]
    cut = np.stack(frames).reshape(2, 2, 1, 2, 2, 1, 2, 2, 3).transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    sheet = pictures_of_patches(cut.reshape(8, 24), (2, 2, 2), 2, 2)
    assert sheet.shape == (4, 16, 3)
    assert sheet[0, ::4, 0].tolist() == [10, 20, 30, 40]


SAMPLES = [draw_sample(str(seed), mrope=False) for seed in (2, 7, 5)]


@pytest.mark.parametrize("decode", [True, False])
def test_documents_are_cut_into_texts_and_media(decode: bool) -> None:
    header, arrays = stored_pack(3, SAMPLES, SETTINGS)
    samples = view_vlm_pack(header, arrays, SETTINGS, (lambda ids: f"{len(ids)} ids") if decode else None)
    assert [sample.num_tokens for sample in samples] == list(header.seq_lens)
    splits = [split for sample in samples for split in sample.splits]
    assert [split.start for split in splits][1:] == [split.end for split in splits][:-1]
    assert sum(split.kind == "image" for split in splits) == header.n_images
    assert sum(split.kind == "video" for split in splits) == header.n_videos
    assert sum(split.num_loss_tokens for split in splits) == int((arrays["labels"] != -100).sum())
    for split in splits:
        if split.kind == "text":
            assert split.text == (f"{len(split.token_ids)} ids" if decode else None)
            assert split.num_loss_tokens in (0, split.num_tokens)
        else:
            assert split.pixels is not None
            assert split.pixels.shape == ((4, 4, 3) if split.kind == "image" else (4, 16, 3))


def test_facts_of_a_row_are_told() -> None:
    header, arrays = stored_pack(3, SAMPLES[:2], SETTINGS)
    told = dataclasses.replace(
        header,
        extra=({"instead_of": 12}, {"cut_from": 99}),
        document_numbers_masked=((header.seq_lens[0], 3),),
    )
    first, second = view_vlm_pack(told, arrays, SETTINGS, None)
    assert first.facts == ("stands in for row 12 of the data set, which cannot be used",)
    assert second.facts == ("cut from 99 tokens", "its picture was put in and is not attended to (3 tokens)")


def test_pictures_of_float_pixels_are_shown_too() -> None:
    settings = dataclasses.replace(SETTINGS, pixel_tables={})
    header, arrays = stored_pack(3, SAMPLES, settings)
    assert shown(view_vlm_pack(header, arrays, settings, None)) == shown(
        view_vlm_pack(*stored_pack(3, SAMPLES, SETTINGS), SETTINGS, None)
    )


def test_a_step_shows_every_pack_of_the_ranks_batch(tmp_path: Path) -> None:
    made = write_vlm_bake(tmp_path / "vlm", 9, world_size=2)
    places = [[(pack.lane, pack.pack) for pack in describe_step(made.url, 1, rank, 2)] for rank in (0, 1)]
    assert places == [[(0, 2), (0, 3)], [(1, 2), (1, 3)]]
    with pytest.raises(ConfigError, match="no step 3 for 2 ranks: it holds 9 packs, 2 of them a batch"):
        describe_step(made.url, 3, 0, 2)
    write_bake(tmp_path / "bagel", [3, 3])
    assert [pack.position for pack in describe_step(str(tmp_path / "bagel"), 1, 1, 2)] == [3]
    with pytest.raises(ConfigError, match="no step 3"):
        describe_step(str(tmp_path / "bagel"), 3, 0, 2)


@pytest.fixture(scope="module")
def demo_bake(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    output = str(tmp_path_factory.mktemp("demo") / "bake")
    stages.run(load_config(str(demo_folder / "vlm.yaml"), [f"bake.output={output}"]), SilentProgress())
    return output


def test_the_demos_vlm_bake_holds_every_law_and_stores_pixels_small(demo_bake: str) -> None:
    report = stages.validate_bake(demo_bake)
    assert report.broken is None
    assert report.figures is not None
    assert report.figures.counted["replacements"] == 1
    assert report.figures.counted["packs_with_float_pixels"] == 0
    assert report.figures.fill["mean"] > 0.85
    num_bytes = report.figures.num_bytes_of
    assert 4 < num_bytes["pixels_float32"] / num_bytes["pixels_stored"] < 8  # videos 4, images 8


def test_the_demos_packs_explain_themselves(demo_bake: str, demo_folder: Path) -> None:
    packs = [describe(demo_bake, position) for position in range(len(PackedShards(demo_bake).reader.order))]
    assert not any(pack.note for pack in packs)
    splits = [split for pack in packs for sample in pack.samples for split in sample.splits]
    assert {split.kind for split in splits} == {"text", "image", "video"}
    answered = [split.text or "" for split in splits if split.num_loss_tokens]
    assert any("There are two shapes." in text for text in answered)
    assert all("<|im_start|>" not in text for text in answered)
    html = page(*packs[:2])
    assert html.count("<h1>") == 2
    assert "data:image/png;base64," in html


def test_a_picture_in_a_pack_is_the_file_resized(demo_bake: str, demo_folder: Path) -> None:
    rows = (demo_folder / "chats/scenes.jsonl").read_text(encoding="utf-8").splitlines()
    sample = next(
        sample
        for position in range(3)
        for sample in describe(demo_bake, position).samples
        if any(split.kind == "image" for split in sample.splits)
    )
    name = json.loads(rows[sample.row])["images"][0]
    stored = next(split.pixels for split in sample.splits if split.kind == "image")
    assert stored is not None
    with Image.open(demo_folder / "answers/media" / name) as image:
        resized = np.asarray(image.resize((stored.shape[1], stored.shape[0]), Image.Resampling.BICUBIC))
    assert float(np.abs(stored.astype(int) - resized.astype(int)).mean()) < 2
