"""The meta data set's rows, samples and shards are nemo-automodel's; so are the mock set's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from nemo_automodel.components.datasets.vlm import datasets as reference
from nemo_automodel.components.datasets.vlm.mock import build_mock_vlm_dataset
from nemo_automodel.components.datasets.vlm.neat_packing_vlm import _estimate_sample_length
from nemo_automodel.components.datasets.vlm.samplers import LengthGroupedSampler

from pipeline.bake import BakeFolder
from pipeline.conversation_index_table import table_to_conversation_rows
from pipeline.executor import InlineExecutor, SilentProgress
from pipeline.index.conversations import run_conversation_index
from pipeline.processor import load_processor
from pipeline.sources.conversations.mock import MockPictures, drafts
from pipeline.sources.conversations.order import dataset_rows
from pipeline.storage import Storage
from pipeline.vlm_config import ConversationSourceConfig, MockConfig, VlmConfig
from tests.datamaker.conversations import meta_row, vlm_config, write_jsonl
from tests.datamaker.processor import write_processor


@pytest.fixture(scope="module")
def processor_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_processor(tmp_path_factory.mktemp("processor"))


def write_sets(folder: Path, ratio: float) -> dict[str, Any]:
    """Three data sets, JSONL and JSON, one with blank lines, whose texts tell the rows apart."""
    rows = {name: [meta_row(number, tag=name) for number in range(count)] for name, count in SIZES.items()}
    for name, made in rows.items():
        for number, row in enumerate(made):
            row["messages"][0]["content"] = f"{name} {number}"
    write_jsonl(folder / "b.jsonl", [*rows["b"][:3], "", "   ", *rows["b"][3:]])
    write_jsonl(folder / "c.jsonl", rows["c"])
    (folder / "a.json").write_text(json.dumps(rows["a"]))
    meta = {
        "c": {"file_name": "c.jsonl", "sample_ratio": 1.0},
        "a": {"file_name": "a.json", "sample_ratio": ratio},
        "b": {"file_name": "b.jsonl", "sample_ratio": ratio},
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    return meta


SIZES = {"a": 11, "b": 7, "c": 5}


def config_for(folder: Path, processor: Path, meta: dict[str, Any], **more: Any) -> VlmConfig:
    sources = [
        ConversationSourceConfig(
            name=name,
            kind="meta",
            path=str(folder / entry["file_name"]),
            media_dir=str(folder),
            sample_ratio=entry["sample_ratio"],
        )
        for name, entry in sorted(meta.items())
    ]
    return vlm_config(folder / "out", processor, *sources, **more)


def ours(config: VlmConfig, ranks: int) -> list[list[str]]:
    """The user's text of every row of each rank's data set."""
    folder, storage = BakeFolder(config.bake.output), Storage()
    processor = load_processor(config.processor_path)
    indexes = run_conversation_index(config, folder, storage, processor, InlineExecutor(), SilentProgress())
    texts = []
    for index in indexes:
        rows = [
            row
            for unit in index.units
            for row in table_to_conversation_rows(pq.read_table(folder.index_unit(index.source, unit.unit)))
        ]
        texts.append([json.loads(row.conversation)[0]["content"][-1]["text"] for row in rows])
    made = []
    for rank in range(ranks):
        places = dataset_rows(config, indexes, rank)
        assert not places.unit.any()  # the files are small
        pairs = zip(places.source.tolist(), places.index_row.tolist(), strict=True)
        made.append([texts[source][row] for source, row in pairs])
    return made


@pytest.mark.parametrize("ratio", [1.0, 0.5, 0.01, 2.0, 2.6])
@pytest.mark.parametrize("ranks", [1, 3])
def test_rows_samples_and_shards_are_the_references(
    tmp_path: Path, processor_folder: Path, ratio: float, ranks: int
) -> None:
    meta = write_sets(tmp_path, ratio)
    config = config_for(tmp_path, processor_folder, meta, shard_data=ranks > 1, bake={"world_size": ranks})
    expected = [
        [
            row["conversation"][0]["content"][0]["text"]
            for row in reference.make_meta_dataset(
                str(tmp_path / "meta.json"), shard_data=ranks > 1, rank=rank, world_size=ranks
            )
        ]
        for rank in range(ranks)
    ]
    assert ours(config, ranks) == expected


def test_the_planned_estimate_is_the_references(tmp_path: Path, processor_folder: Path) -> None:
    rows = [
        meta_row(0),
        meta_row(1, "a.png"),
        meta_row(2, "a.png", mm_inputs_meta={"images_meta": [[60, 90]]}, _text_tokens=31),
        meta_row(3, "a.png", "b.png", mm_inputs_meta={"images_meta": [[600, 90], None, [28, 28]]}),
        meta_row(4, mm_inputs_meta={"images_meta": None, "videos_meta": [[100, 50, 70, 25.0, 4.0]]}),
        meta_row(5, mm_inputs_meta={"videos_meta": [[0, 500, 70, 25.0, 40.0], None, [7, 20, 20, 0.0, 9.0]]}),
    ]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    config = config_for(tmp_path, processor_folder, {"rows": {"file_name": "rows.jsonl", "sample_ratio": 1.0}})
    folder = BakeFolder(config.bake.output)
    processor = load_processor(config.processor_path, {"fps": 2.0, "min_frames": 4, "max_frames": 16})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.index.stage.refuse_unusable", lambda *_: None)  # the pictures are not there
        (index,) = run_conversation_index(config, folder, Storage(), processor, InlineExecutor(), SilentProgress())
    table = pq.read_table(folder.index_unit("rows", index.units[0].unit))
    image_config = LengthGroupedSampler._extract_image_config(processor.processor)
    video_config = LengthGroupedSampler._extract_video_config(processor.processor)
    expected = [
        _estimate_sample_length(
            reference.convert_sharegpt_to_conversation(row), image_cfg=image_config, video_cfg=video_config
        )
        for row in rows
    ]
    assert table.column("reference_length").to_pylist() == expected
    assert table.column("reference_text_tokens").to_pylist() == [-1, -1, 31, -1, -1, -1]


@pytest.mark.parametrize(
    "fields",
    [
        {"num_samples": 3, "num_images_per_sample": 2, "image_size": (40, 30), "seed": 3},
        {"num_samples": 2, "max_length": 11},
        {"num_samples": 3, "responses": ("yes", "no"), "prompt": "well?"},
        {"num_samples": 2, "num_images_per_sample": 0},
    ],
)
def test_the_mock_set_is_the_references(fields: dict[str, Any]) -> None:
    config = MockConfig(**fields)
    expected = build_mock_vlm_dataset(
        **{**fields, "responses": list(fields["responses"]) if "responses" in fields else None}
    )
    pictures = MockPictures(config)
    made = list(drafts(config))
    assert len(made) == len(expected)
    for draft, row in reversed(list(zip(made, expected, strict=True))):  # pictures can be drawn again in any order
        for message, wanted in zip(draft.messages, row["conversation"], strict=True):
            assert message["role"] == wanted["role"]
            for part, other in zip(message["content"], wanted["content"], strict=True):
                if part["type"] == "image":
                    shown = pictures.picture(draft.media[part["media"]].reference)
                    assert np.array_equal(np.asarray(shown), np.asarray(other["image"]))
                else:
                    assert part == other
