"""Every row's draw against nemo-automodel 0.7.0, live: the same samples, and the same generator state after each."""

from __future__ import annotations

import gc
import json
import logging
import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config import Config, FrameSamplerConfig, GroupConfig, ImageTransformConfig, SourceConfig
from pipeline.plan.random import LaneRandom
from pipeline.records import Dropped, IndexRow, ItemKind, RowId, Sample
from pipeline.sources import draw
from pipeline.sources.listing import list_group
from pipeline.storage import Storage
from pipeline.tokenizer import load_tokenizer
from tests.datamaker import write_edit, write_t2i, write_tokenizer, write_vlm
from tests.datamaker.jsonl import conversation, write_conversations
from tests.datamaker.parquet import write_parquet_info
from tests.datamaker.recipe import faulty_edit_rows, faulty_t2i_rows
from tests.datamaker.video import write_video
from tests.sources.rows import config_of, group_of, rows_of

SEED = 20240607

# The reference leaves every picture it opens to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::UserWarning"
)


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture(scope="module")
def reference() -> Iterator[Any]:
    """The oracle's sub-package, its generators left as they were found."""
    from tests.parity import decord_from_pyav

    python_state, numpy_state = random.getstate(), np.random.get_state()
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from nemo_automodel.components.datasets import multimodal
        from nemo_automodel.components.datasets.multimodal import datasets, transforms, utils, video

        video.decord = decord_from_pyav
        assert multimodal
        yield {"datasets": datasets, "transforms": transforms, "utils": utils, "video": video}
    video.decord = None
    logging.disable(logging.NOTSET)
    random.setstate(python_state)
    np.random.set_state(numpy_state)


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def transform_of(reference: Any, transform: ImageTransformConfig | None) -> Any:
    assert transform is not None
    return reference["transforms"].ImageTransform(**transform.model_dump())


def oracle_dataset(reference: Any, config: Config, group: GroupConfig) -> Any:
    """The reference's iterable of a group, alone on one rank without workers."""
    from transformers import AutoTokenizer

    tokenizer, _, _ = reference["utils"].add_special_tokens(AutoTokenizer.from_pretrained(config.tokenizer_path))
    arguments: dict[str, Any] = {
        "dataset_name": group.name,
        "transform": transform_of(reference, group.image_transform),
        "tokenizer": tokenizer,
        "data_dir_list": [source.data_dir for source in group.sources],
        "num_used_data": [source.num_used_data for source in group.sources],
        "num_workers": 0,
    }
    datasets = reference["datasets"]
    if group.kind == "t2i_pretrain":
        return datasets.T2IIterableDataset(**arguments)
    if group.kind == "unified_edit":
        info: dict[str, Any] = {}
        for source in group.sources:
            assert source.parquet_info_path is not None
            info.update(json.loads(Path(source.parquet_info_path).read_text()))
        return datasets.UnifiedEditIterableDataset(
            vit_transform=transform_of(reference, group.vit_image_transform), parquet_info=info, **arguments
        )
    assert group.frame_sampler is not None
    return datasets.SftJSONLIterableDataset(
        frame_sampler=reference["video"].FrameSampler(**group.frame_sampler.model_dump()),
        jsonl_path_list=[source.jsonl_path for source in group.sources],
        **arguments,
    )


def in_oracle_order(dataset: Any, config: Config, group: GroupConfig) -> list[tuple[RowId, IndexRow]]:
    """Our rows in the order in which the reference reads its own list of paths."""
    rows = rows_of(config)
    spelled = {(use.source, use.path): use.spelled for files in list_group(group, Storage()) for use in files.uses}
    if group.kind == "vlm_sft":
        roots = {source.name: source.data_dir for source in group.sources}
        by_line: dict[tuple[str, str], tuple[RowId, IndexRow]] = {}
        for row_id, row in rows:
            content = Path(spelled[row_id.source, row_id.path]).read_bytes()
            line = content[row.line_offset : row.line_offset + row.line_num_bytes].decode()
            by_line[line.replace("\r\n", "\n").replace("\r", "\n"), roots[row_id.source]] = row_id, row
        return [by_line[path] for path in dataset.data_paths_per_rank]
    by_place: dict[tuple[str, int], list[tuple[RowId, IndexRow]]] = {}
    for row_id, row in rows:
        path = spelled[row_id.source, row_id.path]
        by_place.setdefault((path, row.row_group if group.kind == "unified_edit" else -1), []).append((row_id, row))
    paths = dataset.data_paths_per_rank
    return [entry for path in paths for entry in by_place.get((path, -1) if isinstance(path, str) else path, [])]


def assert_same(sample: Sample, row: IndexRow, theirs: dict[str, Any]) -> None:
    """Plan, tokens, sizes and count of one sample are the reference's."""
    kinds = {ItemKind.TEXT: "text", ItemKind.VIT: "vit_image", ItemKind.VAE: "vae_image"}
    assert [(kinds[item.kind], int(item.enable_cfg), int(item.loss)) for item in sample.items] == [
        (item["type"], item["enable_cfg"], item["loss"]) for item in theirs["sequence_plan"]
    ]
    texts = [item for item in sample.items if item.kind is ItemKind.TEXT]
    token_ids = [list(item.token_ids if item.text < 0 else row.text_ids[item.text]) for item in texts]
    assert token_ids == theirs["text_ids_list"]
    assert [item.num_tokens for item in texts] == [len(ids) for ids in token_ids]
    images = [item for item in sample.items if item.kind is not ItemKind.TEXT]
    shapes = [tuple(image.shape[1:]) for image in theirs["image_tensor_list"]]
    assert [(item.height_px, item.width_px) for item in images] == shapes[: len(images)]
    assert sample.num_tokens == theirs["num_tokens"]


def compare(reference: Any, config: Config, group: GroupConfig, passes: int = 3) -> list[str]:
    """Draw every row `passes` times beside the reference; returns the reasons of the rows dropped on the way."""
    dataset = oracle_dataset(reference, config, group)
    rows = in_oracle_order(dataset, config, group)
    tokenizer = load_tokenizer(config.tokenizer_path)
    draws = LaneRandom(SEED)
    random.seed(SEED)
    np.random.seed(SEED)
    theirs = iter(dataset)
    dropped: list[str] = []
    num_samples = 0
    for row_id, row in rows * passes:
        sample = draw(row, row_id, group, config.dataset, draws, tokenizer)
        if isinstance(sample, Dropped):
            dropped.append(sample.reason)
            continue
        num_samples += 1
        assert_same(sample, row, next(theirs))
        assert draws._python.getstate() == random.getstate()
        assert repr(draws._numpy.get_state()) == repr(np.random.get_state())
    assert num_samples
    return dropped


def test_captions_are_drawn_as_the_reference_draws_them(reference: Any, tmp_path: Path, tokenizer_path: Path) -> None:
    folder = write_t2i(tmp_path / "t2i", seed=1, num_files=3, extra_rows=faulty_t2i_rows(5))
    source = SourceConfig(name="t2i_pretrain/one", data_dir=str(folder), num_used_data=3)
    group = group_of("t2i_pretrain", [source])
    dropped = compare(reference, config_of(tmp_path / "bake", tokenizer_path, group), group, passes=2)
    assert {"captions_invalid_json", "captions_null", "zero_bytes", "not_an_image"} <= set(dropped)


def test_edit_chains_are_cut_as_the_reference_cuts_them(reference: Any, tmp_path: Path, tokenizer_path: Path) -> None:
    folder = write_edit(tmp_path / "edit", seed=2, num_files=3, extra_rows=faulty_edit_rows(7))
    info = write_parquet_info(tmp_path / "info.json", [folder], leave_out=["chains-001.parquet"])
    source = SourceConfig(name="unified_edit/one", data_dir=str(folder), num_used_data=3, parquet_info_path=str(info))
    group = group_of("unified_edit", [source])
    dropped = compare(reference, config_of(tmp_path / "bake", tokenizer_path, group), group, passes=5)
    assert {"too_few_images", "no_instructions", "empty_instructions", "zero_bytes"} <= set(dropped)


def odd_edit_rows() -> list[dict[str, object]]:
    """Instructions that are no lists of texts where lists of texts are expected."""
    row = faulty_edit_rows(3)[0]
    return [
        {**row, "instruction_list": ["make it red", "", None]},
        {**row, "instruction_list": ["ab", "cd", "ef", "g"]},
    ]


def test_a_plain_string_of_instructions_is_drawn_letter_by_letter_as_the_reference_draws_it(
    reference: Any, tmp_path: Path, tokenizer_path: Path
) -> None:
    import pyarrow as pa

    from tests.datamaker.parquet import write_parquet

    schema = pa.schema([("image_list", pa.list_(pa.binary())), ("instruction_list", pa.list_(pa.string()))])
    write_parquet(tmp_path / "edit" / "a.parquet", odd_edit_rows(), schema, 2)
    info = write_parquet_info(tmp_path / "info.json", [tmp_path / "edit"])
    source = SourceConfig(
        name="unified_edit/odd", data_dir=str(tmp_path / "edit"), num_used_data=1, parquet_info_path=str(info)
    )
    group = group_of("unified_edit", [source])
    compare(reference, config_of(tmp_path / "bake", tokenizer_path, group), group, passes=12)


def vlm_group(folder: Path, sampler: FrameSamplerConfig, extra: Sequence[object] = ()) -> GroupConfig:
    lines, media = write_vlm(folder, seed=3, num_lines=30)
    if extra:
        lines = write_conversations(folder / "more.jsonl", list(extra))
    source = SourceConfig(name="vlm_sft/one", data_dir=str(media), jsonl_path=str(lines), num_used_data=10_000)
    return group_of("vlm_sft", [source], frame_sampler=sampler)


@pytest.mark.parametrize(("fewest", "most"), [(3, 6), (1, 1), (8, 20), (0, 3)])
def test_conversations_and_frames_are_laid_out_as_the_reference_lays_them_out(
    reference: Any, tmp_path: Path, tokenizer_path: Path, fewest: int, most: int
) -> None:
    group = vlm_group(tmp_path / "vlm", FrameSamplerConfig(min_num_frames=fewest, max_num_frames=most))
    dropped = compare(reference, config_of(tmp_path / "bake", tokenizer_path, group), group)
    assert {"no_loss", "missing_file", "invalid_json", "blank_line", "no_video_placeholder"} <= set(dropped)


def test_a_sampler_without_room_drops_every_video_and_draws_nothing(
    reference: Any, tmp_path: Path, tokenizer_path: Path
) -> None:
    group = vlm_group(tmp_path / "vlm", FrameSamplerConfig())
    dropped = compare(reference, config_of(tmp_path / "bake", tokenizer_path, group), group)
    assert "no_frame_count" in dropped


ODD_CONVERSATIONS: list[object] = [
    {"video": "clip.mp4", "conversations": conversation(("human", "<video> and <image> what?"), ("gpt", "this"))},
    {"video": "clip.mp4", "conversations": conversation(("gpt", "I see <video>!"), ("human", "<image>"), ("gpt", "x"))},
    {"video": "clip.mp4", "conversations": conversation(("system", "<video>"), ("human", "a<image>"), ("gpt", "b"))},
    {"video": "clip.mp4", "conversations": conversation(("human", "<video>"), ("gpt", "c <video>"))},
    {"video": "clip.mp4", "conversations": []},
    {"video": "no.mp4", "conversations": conversation(("human", "<video>"), ("gpt", "d"))},
    {"video": "plain_0.jpg", "conversations": conversation(("human", "<video> e"), ("gpt", "f"))},
    {"video": "empty/", "conversations": conversation(("human", "  g <video> h "), ("gpt", "i <video>"))},
    {"video": "empty/", "conversations": conversation(("gpt", "<video>"), ("human", "j"))},
    {"image": [], "conversations": conversation(("human", "<image>k"), ("gpt", "<image> in an answer"))},
    {"image": "plain_1.jpg", "conversations": conversation(("human", "<image><image><image>l"), ("gpt", "m"))},
    {"image": ["plain_1.jpg", "plain_2.jpg"], "conversations": conversation(("human", "<image>n"), ("gpt", "o"))},
    {"image": "plain_1.jpg", "conversations": conversation(("human", "no placeholder "), ("gpt", "p"))},
    {"image": "plain_1.jpg", "video": "clip.mp4", "conversations": conversation(("human", "<image>"), ("gpt", "q"))},
    {"conversations": conversation(("system", "ignored"), ("human", " kept as it is\n"), ("gpt", "r"))},
    {"conversations": conversation(("human", "<|im_end|> and <|vision_start|>"), ("gpt", "s<|im_start|>"))},
    {"conversations": conversation(("human", ""), ("gpt", "t"), ("gpt", ""))},
]


@pytest.mark.parametrize(("fewest", "most"), [(2, 5), (0, 2)])
def test_odd_conversations_are_read_as_the_reference_reads_them(
    reference: Any, tmp_path: Path, tokenizer_path: Path, fewest: int, most: int
) -> None:
    sampler = FrameSamplerConfig(min_num_frames=fewest, max_num_frames=most)
    group = vlm_group(tmp_path / "vlm", sampler, ODD_CONVERSATIONS)
    write_video(tmp_path / "vlm" / "media" / "clip.mp4", 9)
    (tmp_path / "vlm" / "media" / "empty").mkdir()
    lines = tmp_path / "vlm" / "more.jsonl"
    lines.write_bytes(lines.read_bytes().replace(b"}\n", b"}\r\n", 3).rstrip(b"\n"))
    compare(reference, config_of(tmp_path / "bake", tokenizer_path, group), group, passes=12)


def test_the_oracle_is_the_version_the_semantics_were_read_from(reference: Any) -> None:
    from importlib.metadata import version

    assert version("nemo-automodel") == "0.7.0"
    assert "nemo_automodel" in sys.modules
