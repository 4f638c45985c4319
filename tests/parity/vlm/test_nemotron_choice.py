"""`sampling: reference` takes the rows that ModelOpt's iterable yields, in its order, with its pictures."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import huggingface_hub
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageChops

from pipeline.bake import BakeFolder
from pipeline.conversation_index_table import table_to_conversation_rows
from pipeline.executor import InlineExecutor, SilentProgress
from pipeline.index.conversations import run_conversation_index
from pipeline.processor import load_processor
from pipeline.sources.conversations.nemotron_choice import first_image, sample_targets
from pipeline.sources.conversations.order import dataset_rows
from pipeline.sources.conversations.reader import ConversationMedia
from pipeline.storage import Storage
from tests.datamaker import encode, picture
from tests.datamaker.conversations import nemotron_source, openai_row, tar_bytes, vlm_config, write_nemotron
from tests.datamaker.processor import write_processor
from tests.parity.vlm.modelopt_oracle import nemotron


@pytest.fixture(scope="module")
def processor_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_processor(tmp_path_factory.mktemp("processor"))


def write_subset(folder: Path, name: str, seed: int) -> None:
    """Three shards and a JSONL in another order: names twice, bad pictures, rows without one, lines of no JSON."""
    generator = random.Random(seed)
    names = [f"img/{number}.{generator.choice(['png', 'jpg', 'PNG', 'webp'])}" for number in range(24)]
    tars: dict[str, bytes] = {}
    for shard in range(3):
        entries: list[Any] = []
        for member in generator.sample(names, 12):
            content = encode(picture(generator.randint(0, 99), 30 + shard, 20), "PNG")
            entries.append((member, b"no picture" if generator.random() < 0.2 else content))
        entries.append(("readme.txt", b"not looked for"))
        tars[f"shard_{shard:06d}.tar"] = tar_bytes(entries)
    rows: list[Any] = []
    for number, member in enumerate(generator.sample(names, len(names)) + generator.sample(names, 6)):
        more = generator.sample(names, generator.randint(0, 2))
        rows.append(openai_row(number, member, *more, key=generator.choice(["image", "path", "url"])))
    rows[3:3] = ["{broken", json.dumps({"id": "text", "messages": [{"role": "user", "content": "no picture"}]}), ""]
    write_nemotron(folder, {name: (tars, rows)})


def modelopt_samples(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    subsets: list[str],
    **settings: int | None,
) -> list[dict[str, Any]]:
    def local(repo_id: str, filename: str, repo_type: str) -> str:
        return str(folder / filename)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", local)
    shards = [path.relative_to(folder).as_posix() for path in folder.glob("*/media/*.tar")]
    return list(nemotron.NemotronTarPlusJsonlIterable("repo", subsets, shards, shuffle_buffer_size=0, **settings))


@pytest.mark.parametrize(
    ("seed", "num_samples", "max_shards"), [(0, 7, None), (1, 8, 2), (2, 30, None), (3, 2, 1), (4, 1, None)]
)
def test_choice_order_and_pictures_are_modelopts(
    tmp_path: Path,
    processor_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    num_samples: int,
    max_shards: int | None,
) -> None:
    subsets = ["charts", "tables", "words"]
    for number, subset in enumerate(subsets):
        write_subset(tmp_path / "data", subset, 10 * seed + number)
    settings = {"num_samples": num_samples, "seed": seed, "max_shards": max_shards}
    expected = modelopt_samples(tmp_path / "data", monkeypatch, subsets, **settings)
    source = nemotron_source(tmp_path / "data", *subsets, sampling="reference", **settings)
    config = vlm_config(tmp_path / "out", processor_folder, source)
    folder, storage = BakeFolder(config.bake.output), Storage()
    processor = load_processor(config.processor_path)
    indexes = run_conversation_index(config, folder, storage, processor, InlineExecutor(), SilentProgress())
    tables = [
        list(table_to_conversation_rows(pq.read_table(folder.index_unit("nemotron", unit.unit))))
        for unit in indexes[0].units
    ]
    places = dataset_rows(config, indexes)
    media = ConversationMedia(config, storage)
    actual = []
    for unit, index_row in zip(places.unit.tolist(), places.index_row.tolist(), strict=True):
        row = tables[unit][index_row]
        if row.fault:
            assert row.fault == "not_an_image"  # ModelOpt passes it over, and so does `on_bad_row: drop`
            continue
        subset = indexes[0].units[unit].path.split("/")[0]
        lines = (tmp_path / "data" / subset / f"{subset}.jsonl").read_text().splitlines()
        told = json.loads([line for line in lines if line.strip()][row.row])
        (shown,) = media.read("nemotron", row.media).images
        actual.append((told["id"], told["messages"], shown))
    assert [(made["id"], made["messages"]) for made in expected] == [(name, messages) for name, messages, _ in actual]
    for made, (_, _, shown) in zip(expected, actual, strict=True):
        assert same(made["image"], shown)


def same(first: Image.Image, second: Image.Image) -> bool:
    return first.size == second.size and ImageChops.difference(first, second).getbbox() is None


def test_targets_are_modelopts() -> None:
    for num_samples in range(12):
        for subsets in ([], ["a"], ["a", "b", "c"], list("abcdefg")):
            assert sample_targets(num_samples, subsets) == nemotron.subset_sample_targets(num_samples, subsets)


@pytest.mark.parametrize(
    "messages",
    [
        None,
        "text",
        [],
        ["x", {"content": "text"}],
        [{"content": [{"type": "image"}, {"type": "image", "data": "a"}]}],
        [
            {"content": ["x", {"type": "text", "image": "b"}]},
            {"content": [{"type": "image", "path": "c", "image": "d"}]},
        ],
        [{"content": [{"type": "image", "image": ["a", "b"]}]}],
    ],
)
def test_the_first_image_is_modelopts(messages: Any) -> None:
    assert first_image(messages) == nemotron.extract_first_image_from_messages(messages)
