"""Pictures for render: the right bytes, parquet read forward once, and no picture of a file that changed."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pipeline.config import Config, SourceConfig
from pipeline.errors import RunFailed
from pipeline.sources import parquet_cells, parquet_rows
from pipeline.sources.reader import PictureRequest, SourceReader
from pipeline.storage import Storage
from tests.datamaker import encode, picture, write_frame_folder, write_tokenizer
from tests.datamaker.jsonl import conversation, write_conversations
from tests.datamaker.video import write_video
from tests.sources.rows import config_of, group_of, rows_of


@pytest.fixture
def reader_of() -> Iterator[Callable[..., SourceReader]]:
    """Makes readers and closes them."""
    with contextlib.ExitStack() as stack:
        yield lambda config, **options: stack.enter_context(
            contextlib.closing(SourceReader(config, Storage(), **options))
        )


Readers = Callable[..., SourceReader]


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def picture_of(number: int) -> bytes:
    return encode(picture(number, 40, 30), "PNG")


@pytest.fixture
def config(tmp_path: Path, tokenizer_path: Path) -> Config:
    """20 captioned pictures in two row groups, 6 chains, and three lines with media files."""
    (tmp_path / "t2i").mkdir()
    (tmp_path / "edit").mkdir()
    (tmp_path / "media").mkdir()
    table = pa.table({"image": [picture_of(number) for number in range(20)], "captions": ['{"a": "b"}'] * 20})
    pq.write_table(table, tmp_path / "t2i" / "a.parquet", row_group_size=10)
    chains = [[picture_of(100 + 3 * row + image) for image in range(3)] for row in range(6)]
    pq.write_table(
        pa.table({"image_list": chains, "instruction_list": [[["a"], ["b"]]] * 6}), tmp_path / "edit" / "a.parquet"
    )
    (tmp_path / "media" / "a.png").write_bytes(picture_of(200))
    write_frame_folder(tmp_path / "media" / "frames", 3)
    write_video(tmp_path / "media" / "clip.mp4", 5)
    lines = [
        {"image": ["a.png"], "conversations": conversation(("human", "<image>"), ("gpt", "a"))},
        {"video": "frames/", "conversations": conversation(("human", "<video>"), ("gpt", "a"))},
        {"video": "clip.mp4", "conversations": conversation(("human", "<video>"), ("gpt", "a"))},
    ]
    path = write_conversations(tmp_path / "lines.jsonl", lines)
    groups = [
        group_of("t2i_pretrain", [SourceConfig(name="t/1", data_dir=str(tmp_path / "t2i"), num_used_data=1)]),
        group_of("unified_edit", [SourceConfig(name="e/1", data_dir=str(tmp_path / "edit"), num_used_data=1)]),
        group_of(
            "vlm_sft",
            [SourceConfig(name="v/1", data_dir=str(tmp_path / "media"), jsonl_path=str(path), num_used_data=9)],
        ),
    ]
    return config_of(tmp_path / "bake", tokenizer_path, *groups)


def requests_of(config: Config) -> dict[tuple[str, int, int], PictureRequest]:
    """A request for every image, by source, row and image number."""
    found = {}
    for row_id, row in rows_of(config):
        count = row.num_frames if row.num_frames >= 0 else len(row.images)
        for image in range(count):
            found[row_id.source, row_id.row, image] = PictureRequest(row_id=row_id, row=row, image=image)
    return found


def test_every_request_gets_its_own_picture_in_any_order(config: Config, tmp_path: Path, reader_of: Readers) -> None:
    requests = requests_of(config)
    reader = reader_of(config)
    order = sorted(requests, key=lambda key: hash_free_shuffle(key))
    pictures = dict(zip(order, reader.pictures([requests[key] for key in order]), strict=True))
    for (source, row, image), found in pictures.items():
        if source == "t/1":
            assert found.encoded == picture_of(row)
        elif source == "e/1":
            assert found.encoded == picture_of(100 + 3 * row + image)
        elif row == 0:
            assert (found.encoded, found.plain) == (picture_of(200), False)
        elif row == 1:
            assert found.encoded == sorted((tmp_path / "media" / "frames").iterdir())[image].read_bytes()
            assert found.plain
        else:
            assert found.frame is not None
            assert found.frame.size == (64, 48)


def hash_free_shuffle(key: tuple[str, int, int]) -> tuple[int, str]:
    """A fixed order that follows nothing in the files."""
    return (key[1] * 7 + key[2] * 5) % 11, key[0]


def test_frames_of_a_video_are_the_ones_asked_for(config: Config, reader_of: Readers) -> None:
    requests = requests_of(config)
    reader = reader_of(config)
    asked = [requests["v/1", 2, image] for image in (3, 0, 3)]
    frames = [np.asarray(found.frame) for found in reader.pictures(asked)]
    assert np.array_equal(frames[0], frames[2])
    assert not np.array_equal(frames[0], frames[1])


def test_consecutive_rows_read_a_row_group_once(
    config: Config, monkeypatch: pytest.MonkeyPatch, reader_of: Readers
) -> None:
    monkeypatch.setattr(parquet_rows, "SLICE_BYTES", 2000)
    started: list[Any] = []
    original = parquet_cells.iter_slices

    def counted(*arguments: Any) -> Any:
        started.append(arguments[1])
        return original(*arguments)

    requests = requests_of(config)
    monkeypatch.setattr(parquet_cells, "iter_slices", counted)
    reader = reader_of(config)
    for row in [0, 1, 3, 2, 4, 12, 5, 13, 9, 11, 19]:  # two row groups side by side, some rows a little late
        (found,) = reader.pictures([requests["t/1", row, 0]])
        assert Image.open(io.BytesIO(found.encoded)).size == (40, 30)
    assert started == [0, 1]


def test_a_small_cache_reads_again_and_still_finds_every_row(
    config: Config, monkeypatch: pytest.MonkeyPatch, reader_of: Readers
) -> None:
    monkeypatch.setattr(parquet_rows, "SLICE_BYTES", 2000)
    monkeypatch.setattr(parquet_cells, "_MOST_CURSORS", 1)
    requests = requests_of(config)
    reader = reader_of(config, cache_bytes=1)
    for row in [9, 0, 15, 9, 3, 19, 0]:
        assert reader.pictures([requests["t/1", row, 0]])[0].encoded == picture_of(row)


@pytest.mark.parametrize(("name", "key"), [("t2i/a.parquet", ("t/1", 3, 0)), ("media/a.png", ("v/1", 0, 0))])
@pytest.mark.parametrize("change", ["touched", "removed"])
def test_a_file_that_changed_since_the_index_stops_the_run(
    config: Config, tmp_path: Path, name: str, key: tuple[str, int, int], change: str, reader_of: Readers
) -> None:
    requests = requests_of(config)
    if change == "touched":
        os.utime(tmp_path / name, ns=(1, 1))
    else:
        (tmp_path / name).unlink()
    with pytest.raises(RunFailed, match=Path(name).name):
        reader_of(config).pictures([requests[key]])
