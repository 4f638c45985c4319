"""A Nemotron subset in the BAGEL recipe: every picture a ViT image, answers with loss, pictures read by range."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline import stages
from pipeline.bake import BakeFolder
from pipeline.config import Config, SourceConfig
from pipeline.configuration.reader import load_config
from pipeline.errors import ConfigError, RunFailed
from pipeline.media.decode import decode_rgb
from pipeline.plan.random import LaneRandom
from pipeline.records import Dropped, ItemKind, Sample
from pipeline.sources import draw
from pipeline.sources.nemotron_vlm import place_of
from pipeline.sources.reader import PictureRequest, SourceReader
from pipeline.storage import Storage
from pipeline.tokenizer import load_tokenizer
from tests.datamaker import encode, picture
from tests.datamaker.conversations import openai_row, tar_bytes, write_nemotron
from tests.datamaker.recipe import VIT_TRANSFORM, Recipe
from tests.datamaker.tokenizer import write_tokenizer
from tests.sources.rows import VIT, config_of, group_of, rows_of


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def png(number: int) -> bytes:
    return encode(picture(number, 40 + number, 30), "PNG")


def write_docs(folder: Path) -> Path:
    """A subset with every kind of row."""
    tars = {
        "shard_000000.tar": tar_bytes([("./0.png", png(0)), ("1.png", png(1)), ("unused.png", png(5))]),
        "shard_000001.tar": tar_bytes([("2.png", png(2)), ("bad.png", b"x")], "w:gz"),
    }
    system = {"messages": [{"role": "system", "content": "be exact"}, *openai_row(5)["messages"]]}
    question = {"messages": openai_row(6)["messages"][:1]}
    rows = [
        openai_row(0, "0.png", "2.png"),
        openai_row(1, "1.png"),
        openai_row(2, "gone.png"),
        openai_row(3, "bad.png"),
    ]
    return write_nemotron(folder, {"docs": (tars, [*rows, system, question, "{broken"])})


def docs_config(folder: Path, tokenizer: Path) -> Config:
    source = SourceConfig(
        name="nemotron_vlm/docs",
        data_dir=str(folder),
        jsonl_path=str(folder / "docs/docs.jsonl"),
        num_used_data=100,
    )
    return config_of(folder / "bake", tokenizer, group_of("nemotron_vlm", [source], image_transform=VIT))


def test_rows_are_measured_and_joined(tmp_path: Path, tokenizer_path: Path) -> None:
    config = docs_config(write_docs(tmp_path), tokenizer_path)
    rows = [row for _, row in rows_of(config)]
    assert [row.fault for row in rows] == ["", "", "missing_member", "not_an_image", "", "no_loss", "invalid_json"]
    assert [[image.width_px for image in row.images] for row in rows[:2]] == [[40, 42], [41]]
    assert place_of(rows[1].images[0].reference)[0] == "docs/media/shard_000000.tar"
    head = json.loads(Path(BakeFolder(config.bake.output).source_index("nemotron_vlm/docs")).read_text())
    assert head["source_index"]["tars"]["members"] == {"used": 4, "without_row": 1}


def test_samples_have_vit_images_and_loss_on_answers(tmp_path: Path, tokenizer_path: Path) -> None:
    config = docs_config(write_docs(tmp_path), tokenizer_path)
    tokenizer, group = load_tokenizer(str(tokenizer_path)), config.dataset.groups[0]
    drawn = [draw(row, row_id, group, config.dataset, LaneRandom(0), tokenizer) for row_id, row in rows_of(config)]
    first, system = drawn[0], drawn[4]
    assert isinstance(first, Sample)
    assert [(item.kind, item.loss) for item in first.items] == [
        (ItemKind.VIT, False),
        (ItemKind.VIT, False),
        (ItemKind.TEXT, False),
        (ItemKind.TEXT, True),
    ]
    assert isinstance(system, Sample)
    assert [item.loss for item in system.items] == [False, False, True]
    reasons = [sample.reason for sample in drawn if isinstance(sample, Dropped)]
    assert reasons == ["missing_member", "not_an_image", "no_loss", "invalid_json"]


def test_pictures_are_read_by_range_from_tars_that_are_still_the_same(tmp_path: Path, tokenizer_path: Path) -> None:
    config = docs_config(write_docs(tmp_path), tokenizer_path)
    row_id, row = rows_of(config)[0]
    requests = [PictureRequest(row_id=row_id, row=row, image=image) for image in range(2)]
    reader = SourceReader(config, Storage())
    sizes = [decode_rgb(found.encoded, corrections=frozenset()).size for found in reader.pictures(requests)]
    reader.close()
    assert sizes == [(40, 30), (42, 30)]
    (tmp_path / "docs/media/shard_000000.tar").write_bytes(tar_bytes([("0.png", png(9))]))
    reader = SourceReader(config, Storage())
    with pytest.raises(RunFailed, match="changed since it was indexed"):
        reader.pictures(requests[:1])
    reader.close()


def recipe_over(folder: Path, tokenizer: Path) -> Recipe:
    """A recipe whose only group is the subset."""
    group = {
        "dataset_names": ["docs"],
        "image_transform_args": {**VIT_TRANSFORM, "max_pixels": 9000},
        "num_used_data": [100],
        "weight": 1,
    }
    return Recipe(
        {
            "tokenizer": {"pretrained_model_name_or_path": str(tokenizer)},
            "dataset": {
                "grouped_datasets": {"nemotron_vlm": group},
                "dataset_info": {"nemotron_vlm": {"docs": {"data_dir": str(folder)}}},
                "expected_num_tokens": 128,
                "max_num_tokens": 256,
                "max_num_tokens_per_sample": 128,
                "prefer_buffer_before": 64,
            },
            "dataloader": {"num_workers": 1},
        }
    )


def test_a_subset_bakes_and_keeps_the_laws(tmp_path: Path, tokenizer_path: Path) -> None:
    recipe = recipe_over(write_docs(tmp_path / "data"), tokenizer_path)
    bake = {"output": str(tmp_path / "out"), "length": {"packs_per_lane": 3}, "executor": "inline"}
    path = recipe.write(tmp_path / "recipe.yaml", max_dropped_fraction=1.0, **bake)
    config = load_config(str(path))
    stages.run(config)
    assert stages.validate_bake(str(tmp_path / "out")).broken is None
    assert load_config(str(tmp_path / "out/config.yaml")) == config


def test_a_frame_sampler_is_refused(tmp_path: Path, tokenizer_path: Path) -> None:
    recipe = recipe_over(tmp_path, tokenizer_path)
    recipe.groups["nemotron_vlm"]["frame_sampler_args"] = {"max_num_frames": 3}
    path = recipe.write(tmp_path / "recipe.yaml", output="/out", length={"packs_per_lane": 3})
    with pytest.raises(ConfigError, match="only vlm_sft takes it"):
        load_config(str(path))
