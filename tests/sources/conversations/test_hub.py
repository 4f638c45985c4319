"""CORD-v2, RDR and UniMM-Chat from folders in their real schemas: the reference's conversations and pictures."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet as pq
import pytest
from nemo_automodel.components.datasets.vlm import datasets as reference
from PIL import Image, ImageChops

from pipeline.bake import BakeFolder
from pipeline.conversation_index_table import table_to_conversation_rows
from pipeline.errors import RunFailed, SourceError
from pipeline.executor import InlineExecutor, SilentProgress
from pipeline.index.conversations import run_conversation_index
from pipeline.processor import load_processor
from pipeline.sources.conversations import hub
from pipeline.sources.conversations.reader import ConversationMedia
from pipeline.storage import Storage
from pipeline.vlm_config import ConversationSourceConfig, VlmConfig
from pipeline.vlm_records import ConversationRow
from tests.datamaker import encode, picture
from tests.datamaker.conversations import vlm_config
from tests.datamaker.processor import write_processor


@pytest.fixture(scope="module")
def processor_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_processor(tmp_path_factory.mktemp("processor"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test has its own cache of prepared data sets."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    hub._load.cache_clear()
    yield
    hub._load.cache_clear()


TEXTS: dict[str, dict[str, list[str]]] = {
    "cord_v2": {
        "ground_truth": [
            json.dumps({"gt_parse": {"menu": [{"nm": f"tea {number}", "price": "3"}], "total": {"cash": "5"}}})
            for number in range(3)
        ]
    },
    "rdr": {"text": ["a red chair", "", "a lamp"]},
    "unimm_chat": {
        "conversation": [
            json.dumps([{"from": "human", "value": f"<image>what {number}?"}, {"from": "gpt", "value": " a cat "}])
            for number in range(3)
        ]
    },
}
TARGETS = {
    "cord_v2": reference.make_cord_v2_dataset,
    "rdr": reference.make_rdr_dataset,
    "unimm_chat": reference.make_unimm_chat_dataset,
}


def write_folder(folder: Path, kind: str, cells: list[Any] | None = None) -> Path:
    """A folder of one parquet file, as a hub data set is stored."""
    cells = cells or [{"bytes": encode(picture(number, 50 + number, 40), "PNG"), "path": None} for number in range(3)]
    features = datasets.Features(
        {"image": datasets.Image(), **{name: datasets.Value("string") for name in TEXTS[kind]}}
    )
    (folder / "data").mkdir(parents=True)
    made = datasets.Dataset.from_dict({"image": cells, **TEXTS[kind]}, features=features)
    made.to_parquet(str(folder / "data/train-00000-of-00001.parquet"))
    return folder


def source_of(folder: Path, kind: str, **more: Any) -> ConversationSourceConfig:
    return ConversationSourceConfig(name=kind, kind=kind, path=str(folder), **more)


def indexed(config: VlmConfig) -> list[ConversationRow]:
    folder = BakeFolder(config.bake.output)
    processor = load_processor(config.processor_path)
    (index,) = run_conversation_index(config, folder, Storage(), processor, InlineExecutor(), SilentProgress())
    return [
        row
        for unit in index.units
        for row in table_to_conversation_rows(pq.read_table(folder.index_unit(index.source, unit.unit)))
    ]


@pytest.mark.parametrize("kind", TARGETS)
def test_conversations_and_pictures_are_the_references(
    tmp_path: Path, processor_folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "ROWS_PER_UNIT", 2)
    folder = write_folder(tmp_path / "data", kind)
    config = vlm_config(tmp_path / "out", processor_folder, source_of(folder, kind))
    rows, media = indexed(config), ConversationMedia(config, Storage())
    expected = TARGETS[kind](str(folder))
    assert len(rows) == len(expected) == 3
    for row, wanted in zip(rows, expected, strict=True):
        assert row.fault == ""
        images = iter(media.read(kind, row.media).images)
        for message, other in zip(json.loads(row.conversation), wanted["conversation"], strict=True):
            assert message["role"] == other["role"]
            for part, told in zip(message["content"], other["content"], strict=True):
                if part["type"] == "image":
                    assert same(next(images), told["image"].convert("RGB"))
                else:
                    assert part == told


def same(first: Image.Image, second: Image.Image) -> bool:
    return first.size == second.size and ImageChops.difference(first, second).getbbox() is None


def test_a_limit_takes_the_first_rows(tmp_path: Path, processor_folder: Path) -> None:
    folder = write_folder(tmp_path / "data", "cord_v2")
    rows = indexed(vlm_config(tmp_path / "out", processor_folder, source_of(folder, "cord_v2", limit=2)))
    assert len(rows) == 2


def test_one_of_several_ground_truths_is_drawn_by_the_row() -> None:
    parses = {"gt_parses": [{"a": str(number)} for number in range(4)]}
    answers = {
        row: hub._conversation("cord_v2", json.dumps(parses), row).messages[1]["content"][0]["text"]
        for row in range(40)
    }
    assert set(answers.values()) == {f"<s_a>{number}</s_a>" for number in range(4)}
    assert answers[7] == hub._conversation("cord_v2", json.dumps(parses), 7).messages[1]["content"][0]["text"]


def test_bad_cells_are_faults_with_a_name(tmp_path: Path, processor_folder: Path) -> None:
    (tmp_path / "secret.png").write_bytes(encode(picture(1, 30, 30), "PNG"))
    good = {"bytes": encode(picture(1, 30, 30), "PNG"), "path": None}
    cells = [good, None, {"bytes": b"no picture", "path": None}]
    folder = write_folder(tmp_path / "data", "rdr", cells)
    rows = indexed(vlm_config(tmp_path / "out", processor_folder, source_of(folder, "rdr")))
    assert [row.fault for row in rows] == ["", "zero_bytes", "not_an_image"]


def test_a_cell_may_not_name_a_file_outside_its_data_set(tmp_path: Path, processor_folder: Path) -> None:
    (tmp_path / "secret.png").write_bytes(encode(picture(1, 30, 30), "PNG"))
    folder = tmp_path / "data"
    (folder / "data").mkdir(parents=True)
    (folder / "data/inside.png").write_bytes(encode(picture(1, 30, 30), "PNG"))
    rows = [
        {"image": str(tmp_path / "secret.png"), "text": "outside"},
        {"image": str(folder / "data/inside.png"), "text": "inside"},
    ]
    (folder / "data/train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = indexed(vlm_config(tmp_path / "out", processor_folder, source_of(folder, "rdr")))
    assert sorted(row.fault for row in found) == ["", "outside_root"]


def test_a_data_set_of_another_kind_is_refused(tmp_path: Path, processor_folder: Path) -> None:
    folder = write_folder(tmp_path / "data", "rdr")
    with pytest.raises(SourceError, match=r"no column 'ground_truth' but \['image', 'text'\]"):
        indexed(vlm_config(tmp_path / "out", processor_folder, source_of(folder, "cord_v2")))
    with pytest.raises(SourceError, match="split 'test', cannot be loaded"):
        indexed(vlm_config(tmp_path / "out", processor_folder, source_of(folder, "rdr", split="test")))
    with pytest.raises(SourceError, match="cannot be loaded"):
        indexed(vlm_config(tmp_path / "out", processor_folder, source_of(tmp_path / "nowhere", "rdr")))


def test_a_data_set_that_changes_after_the_index_is_noticed(tmp_path: Path, processor_folder: Path) -> None:
    folder = write_folder(tmp_path / "data", "rdr")
    config = vlm_config(tmp_path / "out", processor_folder, source_of(folder, "rdr"))
    row = indexed(config)[0]
    os.utime(folder / "data/train-00000-of-00001.parquet", ns=(1, 1))
    with pytest.raises(RunFailed, match="changed since it was indexed"):
        ConversationMedia(config, Storage()).read("rdr", row.media)
