from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
from PIL import Image

from pipeline.config import Config
from pipeline.configuration.reader import load_config
from pipeline.demo import write_demo
from pipeline.demo.chats import SUBSETS
from pipeline.processor import load_processor
from pipeline.render.mrope import rope_index
from pipeline.sources.conversations.forms import from_openai, from_sharegpt
from pipeline.vlm_config import VlmConfig


def digest(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_same_seed_writes_the_same_bytes_in_any_folder(tmp_path: Path, demo_folder: Path) -> None:
    config = write_demo(str(tmp_path / "again"))
    assert digest(Path(config).parent) == digest(demo_folder)
    write_demo(str(tmp_path / "other"), seed=8)
    assert digest(tmp_path / "other") != digest(demo_folder)


def test_the_recipe_is_read_and_finds_every_source(demo_folder: Path) -> None:
    config = load_config(str(demo_folder / "config.yaml"))
    assert isinstance(config, Config)
    assert {group.kind for group in config.dataset.groups} == {"t2i_pretrain", "unified_edit", "vlm_sft"}
    assert (config.seed, config.bake.world_size, config.num_lanes) == (4396, 2, 2)
    for group in config.dataset.groups:
        for source in group.sources:
            assert Path(source.data_dir).is_dir()
    assert Path(config.tokenizer_path).is_dir()


def test_every_source_kind_has_several_files_and_row_groups(demo_folder: Path) -> None:
    for folder in ("t2i", "edits"):
        files = sorted((demo_folder / folder).glob("*.parquet"))
        assert len(files) >= 2
        assert all(pq.ParquetFile(file).num_row_groups >= 2 for file in files)


def test_pictures_are_large_enough_to_look_at(demo_folder: Path) -> None:
    table = pq.read_table(demo_folder / "t2i" / "scenes-000.parquet")
    for cell, text in zip(table["image"].to_pylist(), table["captions"].to_pylist(), strict=True):
        with Image.open(io.BytesIO(cell)) as image:
            assert 256 <= min(image.size) <= max(image.size) <= 512
        assert len(json.loads(text)) == 4


def test_chains_have_an_instruction_list_per_step(demo_folder: Path) -> None:
    lengths = set()
    for file in (demo_folder / "edits").glob("*.parquet"):
        for row in pq.read_table(file).to_pylist():
            assert len(row["image_list"]) == len(row["instruction_list"]) + 1
            lengths.add(len(row["image_list"]))
    assert lengths == {2, 3, 4}


def test_answers_are_about_one_picture_two_a_clip_or_none_and_one_picture_is_lost(demo_folder: Path) -> None:
    media = demo_folder / "answers" / "media"
    lines = (demo_folder / "answers" / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    kinds: dict[str, int] = {}
    for line in lines:
        row = json.loads(line)
        images = row.get("image", [])
        images = [images] if isinstance(images, str) else images
        text = row["conversations"][0]["value"]
        assert text.count("<image>") == len(images)
        lost = [name for name in images if not (media / name).is_file()]
        if lost:
            kind = "lost"
        elif "video" in row:
            kind = "clip"
            names = [path.name for path in (media / row["video"]).iterdir()]
            assert sorted(names) == sorted(f"frame_{n}.jpg" for n in range(12))
            assert text.startswith("<video>\n")
        else:
            kind = ("none", "one", "two")[len(images)]
        kinds[kind] = kinds.get(kind, 0) + 1
    assert kinds == {"one": 48, "two": 24, "none": 12, "clip": 12, "lost": 1}
    assert len(lines) == 97


def test_the_meta_data_set_finds_its_files_and_reads_as_conversations(demo_folder: Path) -> None:
    config = load_config(str(demo_folder / "vlm.yaml"))
    assert isinstance(config, VlmConfig)
    assert {source.name: source.sample_ratio for source in config.sources} == {"clips": 0.5, "scenes": 1.0}
    assert config.processor_path == config.model_path == str(demo_folder / "model")
    for source in config.sources:
        assert Path(source.path).is_file()
        text = Path(source.path).read_text(encoding="utf-8")
        rows = json.loads(text) if source.path.endswith(".json") else [json.loads(line) for line in text.splitlines()]
        made = [from_sharegpt(row, source.form) for row in rows]
        assert len(made) == {"clips": 12, "scenes": 85}[source.name]
        names = [name for row in made for medium in row.media for name in _listed(medium.value)]
        lost = [name for name in names if not (Path(source.media_dir) / name).is_file()]
        assert lost == (["pictures/lost.jpg"] if source.name == "scenes" else [])


def _listed(value: str | list[str]) -> list[str]:
    return value if isinstance(value, list) else [value]


def test_the_nemotron_set_has_tars_beside_rows_and_one_orphan_on_either_side(demo_folder: Path) -> None:
    config = load_config(str(demo_folder / "nemotron.yaml"))
    assert isinstance(config, VlmConfig)
    assert config.sources[0].nemotron is not None
    assert config.sources[0].nemotron.subsets == SUBSETS
    unnamed, missing = set(), set()
    for subset in SUBSETS:
        place = demo_folder / "nemotron" / subset
        lines = (place / f"{subset}.jsonl").read_text(encoding="utf-8").splitlines()
        made = [from_openai(json.loads(line)["messages"]) for line in lines]
        asked = {medium.value for row in made for medium in row.media}
        members = set()
        for shard in sorted((place / "media").iterdir()):
            with tarfile.open(shard) as tar:
                members.update(tar.getnames())
        unnamed |= members - asked
        missing |= asked - members
    assert (unnamed, missing) == ({"nobody-asks-for-me.jpg"}, {"lost.jpg"})


def test_the_model_folder_loads_as_processor_and_configuration(demo_folder: Path) -> None:
    processor = load_processor(str(demo_folder / "model"))
    assert processor.name == "Qwen2_5_VLProcessor"
    assert processor.is_predictable
    assert rope_index(str(demo_folder / "model")) is not None
