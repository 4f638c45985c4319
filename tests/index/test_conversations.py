"""The index of the VLM recipe: faults with names, exact lengths, the injected picture, caching, Nemotron's join."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.bake import BakeFolder
from pipeline.conversation_index_table import conversation_rows_to_table, table_to_conversation_rows
from pipeline.errors import RunFailed, SourceError
from pipeline.executor import SilentProgress
from pipeline.index import conversations
from pipeline.index.conversations import run_conversation_index
from pipeline.processor import VlmProcessor, load_processor
from pipeline.records import SourceIndex
from pipeline.sources.conversations.reader import ConversationMedia
from pipeline.storage import Storage
from pipeline.vlm_config import VlmConfig
from pipeline.vlm_records import VLM_INDEX_SCHEMA, ConversationRow, Medium
from tests.datamaker import encode, picture
from tests.datamaker.conversations import (
    meta_row,
    meta_source,
    nemotron_source,
    openai_row,
    tar_bytes,
    vlm_config,
    write_jsonl,
    write_meta,
    write_nemotron,
)
from tests.datamaker.processor import TEMPLATE, write_processor
from tests.datamaker.video import write_video


@pytest.fixture(scope="module")
def processor_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_processor(tmp_path_factory.mktemp("processor"))


class Counted:
    """An inline executor that writes down which units really ran."""

    def __init__(self) -> None:
        self.units: list[str] = []

    def map(self, function: Callable[[Any], Any], units: Iterable[Any]) -> Iterator[Any]:
        for given in units:
            self.units.append(getattr(given, "unit", None) or given.shard)
            yield function(given)

    def close(self) -> None:
        pass


def ran(config: VlmConfig, processor: VlmProcessor | None = None) -> tuple[list[str], tuple[SourceIndex, ...]]:
    """Units that were handed out, and the index."""
    executor = Counted()
    processor = processor or load_processor(config.processor_path)
    folder = BakeFolder(config.bake.output)
    indexes = run_conversation_index(config, folder, Storage(), processor, executor, SilentProgress())
    return executor.units, indexes


def rows_of(config: VlmConfig, processor: VlmProcessor | None = None) -> list[ConversationRow]:
    """Every row of every source."""
    _, indexes = ran(config, processor)
    folder = BakeFolder(config.bake.output)
    return [
        row
        for index in indexes
        for unit in index.units
        for row in table_to_conversation_rows(pq.read_table(folder.index_unit(index.source, unit.unit)))
    ]


def meta_rows(folder: Path, processor: Path, rows: list[Any], **more: Any) -> list[ConversationRow]:
    """The index rows of a meta data set with these rows."""
    (folder / "media").mkdir(exist_ok=True)
    write_jsonl(folder / "rows.jsonl", rows)
    return rows_of(vlm_config(folder / "out", processor, meta_source(folder), **more))


def test_lengths_are_the_processors_own(tmp_path: Path, processor_folder: Path) -> None:
    write_meta(tmp_path, num_rows=6)
    config = vlm_config(tmp_path / "out", processor_folder, meta_source(tmp_path))
    processor, media = load_processor(str(processor_folder)), ConversationMedia(config, Storage())
    for row in rows_of(config):
        shown = media.read("shapes", row.media)
        real = processor.encode(json.loads(row.conversation), shown.images, [])
        assert row.num_tokens == len(real.input_ids)
        assert row.num_label_tokens == int((real.labels != -100).sum())
        assert real.mm_token_type_ids is not None
        places = np.flatnonzero(real.mm_token_type_ids)
        is_fake = row.media[0].origin == "fake"  # its tokens are no burden that packs should be balanced by
        assert (row.num_media_tokens, row.media_end) == (0 if is_fake else len(places), places[-1] + 1)
        assert [int(real.input_ids[end - 1]) for end in row.turn_ends] == [processor.markers[1]] * 2


def test_a_text_only_row_gets_the_white_picture_or_none(tmp_path: Path, processor_folder: Path) -> None:
    (row,) = meta_rows(tmp_path, processor_folder, [meta_row(0)])
    assert [(medium.origin, medium.width_px, medium.height_px) for medium in row.media] == [("fake", 56, 56)]
    assert json.loads(row.conversation)[0]["content"][0] == {"type": "image", "media": 0}
    assert (row.num_media_tokens, row.media_end) == (0, 11)
    (bare,) = meta_rows(tmp_path, processor_folder, [meta_row(0)], inject_fake_images=False)
    assert (bare.media, bare.num_media_tokens, bare.media_end) == ((), 0, 0)


def test_a_conversation_without_a_user_gets_a_turn_for_the_white_picture(
    tmp_path: Path, processor_folder: Path
) -> None:
    (row,) = meta_rows(tmp_path, processor_folder, [{"messages": [{"role": "assistant", "content": "hm"}]}])
    assert [message["role"] for message in json.loads(row.conversation)] == ["user", "assistant"]


BAD_ROWS: dict[str, tuple[Any, str]] = {
    "no json": ("{broken", "invalid_json"),
    "a number": ("3", "not_an_object"),
    "another form": ({"conversations": [{"from": "human", "value": "x"}]}, "no_messages"),
    "a missing picture": (meta_row(0, "nowhere.png"), "missing_file"),
    "a path out of the folder": (meta_row(0, "../rows.jsonl"), "outside_root"),
    "an absolute path": (meta_row(0, "/etc/hostname"), "outside_root"),
    "a picture that is none": (meta_row(0, "text.png"), "not_an_image"),
    "a cut picture": (meta_row(0, "cut.jpg"), "truncated"),
    "an lmdb key": (meta_row(0, "db.lmdb::7"), "lmdb_not_supported"),
    "a picture that is a number": (meta_row(0, 3), "media_not_a_path"),  # type: ignore[arg-type]
    "half an emoji": ('{"messages": [{"role": "user", "content": "\\ud83d"}]}', "not_encodable"),
    "a side too long": (meta_row(0, "line.png"), "processor_error"),
    "a video that is none": (
        {"messages": [{"role": "user", "content": "<video>"}], "videos": ["text.png"]},
        "decode_error",
    ),
    "spelled media tokens": (
        {"messages": [{"role": "user", "content": "<image><|image_pad|>"}], "images": ["good.png"]},
        "processor_error",
    ),
}


def write_media(folder: Path) -> None:
    (folder / "media").mkdir()
    jpeg = encode(picture(1, 64, 64))
    (folder / "media/good.png").write_bytes(encode(picture(1, 60, 40), "PNG"))
    (folder / "media/cut.jpg").write_bytes(jpeg[: len(jpeg) // 2])
    (folder / "media/line.png").write_bytes(encode(picture(1, 2100, 2), "PNG"))
    (folder / "media/text.png").write_text("no picture")


@pytest.mark.parametrize("name", BAD_ROWS)
@pytest.mark.parametrize("check_images", ["decode", "header"])
def test_a_bad_row_has_a_fault_with_a_name(
    tmp_path: Path, processor_folder: Path, name: str, check_images: str
) -> None:
    write_media(tmp_path)
    row, reason = BAD_ROWS[name]
    good = meta_row(1, "good.png")
    found = meta_rows(tmp_path, processor_folder, [good, row, "", good], bake={"check_images": check_images})
    assert [entry.fault for entry in found] == ["", reason, ""]
    assert [entry.row for entry in found] == [0, 1, 2]


def test_media_outside_are_read_where_that_is_allowed(tmp_path: Path, processor_folder: Path) -> None:
    write_media(tmp_path)
    (tmp_path / "outside.png").write_bytes(encode(picture(1, 30, 30), "PNG"))
    rows = [meta_row(0, "../outside.png"), meta_row(1, str(tmp_path / "media/good.png"))]
    assert [row.fault for row in meta_rows(tmp_path, processor_folder, rows)] == ["outside_root", ""]
    allowed = meta_rows(tmp_path, processor_folder, rows, bake={"allow_outside": True})
    assert [row.fault for row in allowed] == ["", ""]


def test_a_video_shows_evenly_spaced_frames_or_those_asked_for(tmp_path: Path, processor_folder: Path) -> None:
    (tmp_path / "media").mkdir()
    write_video(tmp_path / "media/v.mp4", num_frames=12)
    for number in range(3):
        (tmp_path / f"media/f{number}.png").write_bytes(encode(picture(number, 60, 40), "PNG"))
    question = [{"role": "user", "content": "<video> moves?"}, {"role": "assistant", "content": "yes"}]
    rows = [
        {"messages": question, "videos": ["v.mp4"]},
        {"messages": question, "videos": [{"path": "v.mp4", "frame_indices": [0, 5, 99]}]},
        {"messages": question, "videos": [{"path": ["f0.png", "f1.png", "f2.png"], "fps": 2}]},
        {"messages": question, "videos": [{"path": "v.mp4", "frame_indices": []}]},
    ]
    even, asked, files, none = meta_rows(tmp_path, processor_folder, rows)
    assert json.loads(even.media[0].frames)["indexes"] == list(range(12))
    assert json.loads(asked.media[0].frames)["indexes"] == [0, 5, 11, 11]
    assert json.loads(files.media[0].frames)["indexes"] == [0, 1, 2, 2]
    assert [row.fault for row in (even, asked, files, none)] == ["", "", "", "no_frames"]
    config = vlm_config(tmp_path / "out", processor_folder, meta_source(tmp_path))
    media, processor = ConversationMedia(config, Storage()), load_processor(str(processor_folder))
    for row in (even, asked, files):
        (video,) = media.read("shapes", row.media).videos
        real = processor.encode(json.loads(row.conversation), [], [video.frames], [video.metadata])
        assert row.num_tokens == len(real.input_ids)


def test_a_unit_is_measured_once(tmp_path: Path, processor_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "JSONL_RANGE_BYTES", 300)
    write_meta(tmp_path, num_rows=6)
    config = vlm_config(tmp_path / "out", processor_folder, meta_source(tmp_path))
    units, (index,) = ran(config)
    assert len(units) > 1
    assert [unit.first_row for unit in index.units] == list(
        np.cumsum([0, *(unit.num_rows for unit in index.units)])[:-1]
    )
    assert ran(config)[0] == []
    Path(BakeFolder(config.bake.output).index_unit("shapes", units[1])).unlink()
    assert ran(config)[0] == units  # one is missing: all are asked, one is measured
    assert ran(vlm_config(tmp_path / "out", processor_folder, meta_source(tmp_path, sample_ratio=2.0)))[0] == []
    assert (
        ran(vlm_config(tmp_path / "out", processor_folder, meta_source(tmp_path), inject_fake_images=False))[0] == units
    )


def test_the_same_data_elsewhere_has_the_same_content(tmp_path: Path, processor_folder: Path) -> None:
    contents = []
    for name in ("here", "there"):
        write_meta(tmp_path / name)
        _, (index,) = ran(vlm_config(tmp_path / name / "out", processor_folder, meta_source(tmp_path / name)))
        contents.append([unit.content for unit in index.units])
    assert contents[0] == contents[1]


def test_a_wrong_prediction_stops_the_run(
    tmp_path: Path, processor_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_meta(tmp_path)
    predict = VlmProcessor.predict

    def wrong(self: VlmProcessor, conversation: Any, sizes: Any, videos: Any = ()) -> Any:
        return predict(self, conversation, [(height + 56, width) for height, width in sizes], videos)

    monkeypatch.setattr(VlmProcessor, "predict", wrong)
    with pytest.raises(SourceError, match="length was predicted as"):
        ran(vlm_config(tmp_path / "out", processor_folder, meta_source(tmp_path)))


def test_a_processor_without_predictions_is_run(
    tmp_path: Path, processor_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_meta(tmp_path)
    expected = rows_of(vlm_config(tmp_path / "predicted", processor_folder, meta_source(tmp_path)))
    monkeypatch.setattr("pipeline.processor.PREDICTABLE_PROCESSORS", frozenset())
    load_processor.__globals__["_load"].cache_clear()
    actual = rows_of(vlm_config(tmp_path / "run", processor_folder, meta_source(tmp_path)))
    load_processor.__globals__["_load"].cache_clear()
    assert actual == expected


def test_a_source_without_a_usable_row_stops_the_run(tmp_path: Path, processor_folder: Path) -> None:
    with pytest.raises(SourceError, match=r"shapes: not one of its 2 rows can be used: missing_file 2"):
        meta_rows(tmp_path, processor_folder, [meta_row(0, "a.png"), meta_row(1, "b.png")])
    with pytest.raises(SourceError, match="no row was found"):
        meta_rows(tmp_path, processor_folder, [""])
    with pytest.raises(SourceError, match="cannot be read"):
        ran(vlm_config(tmp_path / "out", processor_folder, meta_source(tmp_path, path=str(tmp_path / "gone.jsonl"))))


def test_a_json_array_is_one_unit(tmp_path: Path, processor_folder: Path) -> None:
    (tmp_path / "media").mkdir()
    (tmp_path / "rows.json").write_text(json.dumps([meta_row(0), 3, meta_row(2)]))
    source = meta_source(tmp_path, path=str(tmp_path / "rows.json"))
    assert [row.fault for row in rows_of(vlm_config(tmp_path / "out", processor_folder, source))] == [
        "",
        "not_an_object",
        "",
    ]
    (tmp_path / "rows.json").write_text("{}")
    with pytest.raises(SourceError, match="not_an_array"):
        ran(vlm_config(tmp_path / "out", processor_folder, source))


def test_a_picture_that_changes_after_the_index_is_noticed(tmp_path: Path, processor_folder: Path) -> None:
    write_media(tmp_path)
    (row,) = meta_rows(tmp_path, processor_folder, [meta_row(0, "good.png")])
    (tmp_path / "media/good.png").write_bytes(encode(picture(2, 61, 40), "PNG"))
    config = vlm_config(tmp_path / "out", processor_folder, meta_source(tmp_path))
    with pytest.raises(RunFailed, match=r"'good.png' changed since it was indexed"):
        ConversationMedia(config, Storage()).read("shapes", row.media)


def png(number: int) -> bytes:
    return encode(picture(number, 40 + number, 30), "PNG")


def test_the_full_join_takes_every_picture_of_every_message(tmp_path: Path, processor_folder: Path) -> None:
    tars = {
        "shard_000000.tar": tar_bytes([("./0.png", png(0)), ("1.png", png(1)), ("1.png", png(9)), ("8.png", png(8))]),
        "shard_000001.tar": tar_bytes([("2.png", png(2)), ("1.png", png(7)), ("bad.png", b"x")], "w:gz"),
    }
    rows = [openai_row(0, "0.png", "2.png"), openai_row(1, "1.png"), openai_row(2, "./1.png"), openai_row(3, "9.png")]
    rows += [openai_row(4, "bad.png"), openai_row(5), "{broken", {"messages": None}]
    write_nemotron(tmp_path / "data", {"docs": (tars, rows)})
    config = vlm_config(tmp_path / "out", processor_folder, nemotron_source(tmp_path / "data", "docs"))
    found = rows_of(config)
    assert [row.fault for row in found] == [
        "",
        "",
        "",
        "missing_member",
        "not_an_image",
        "",
        "invalid_json",
        "no_messages",
    ]
    assert [[medium.width_px for medium in row.media] for row in found[:3]] == [[40, 42], [41], [41]]
    media = ConversationMedia(config, Storage())
    assert [image.size for image in media.read("nemotron", found[0].media).images] == [(40, 30), (42, 30)]
    media.close()
    head = json.loads(Storage().read_bytes(BakeFolder(config.bake.output).source_index("nemotron")))["source_index"]
    assert head["tars"]["members"] == {"used": 4, "same_name_twice": 2, "without_row": 1}


def test_a_cut_tar_is_named_and_its_first_members_are_used(tmp_path: Path, processor_folder: Path) -> None:
    content = tar_bytes([("0.png", png(0)), ("1.png", png(1))])
    tars = {"shard_000000.tar": content[: content.index(png(1)) + 100]}
    write_nemotron(tmp_path / "data", {"docs": (tars, [openai_row(0, "0.png"), openai_row(1, "1.png")])})
    config = vlm_config(tmp_path / "out", processor_folder, nemotron_source(tmp_path / "data", "docs"))
    assert [row.fault for row in rows_of(config)] == ["", "missing_member"]
    head = json.loads(Storage().read_bytes(BakeFolder(config.bake.output).source_index("nemotron")))["source_index"]
    assert head["tars"]["faults"] == {"docs/media/shard_000000.tar": "cut_tar"}


def test_tars_are_listed_once(tmp_path: Path, processor_folder: Path) -> None:
    tars = {f"shard_{number:06d}.tar": tar_bytes([(f"{number}.png", png(number))]) for number in range(2)}
    rows = [openai_row(0, "0.png"), openai_row(1, "1.png")]
    write_nemotron(tmp_path / "data", {"docs": (tars, rows)})
    config = vlm_config(tmp_path / "out", processor_folder, nemotron_source(tmp_path / "data", "docs"))
    assert ran(config)[0] == [*(f"docs/media/{name}" for name in tars), "docs%2Fdocs.jsonl@0"]
    assert ran(config)[0] == []
    (tmp_path / "data/docs/media/shard_000001.tar").write_bytes(tar_bytes([("1.png", png(5))]))
    assert ran(config)[0] == ["docs/media/shard_000001.tar", "docs%2Fdocs.jsonl@0"]


def test_a_subset_without_tars_is_refused(tmp_path: Path, processor_folder: Path) -> None:
    write_nemotron(tmp_path / "data", {"docs": ({}, [openai_row(0)])})
    with pytest.raises(SourceError, match="no tar in"):
        ran(vlm_config(tmp_path / "out", processor_folder, nemotron_source(tmp_path / "data", "docs")))


def test_nemotron_is_read_from_an_object_store(tmp_path: Path, processor_folder: Path, s3: str) -> None:
    tars = {"shard_000000.tar": tar_bytes([(f"{number}.png", png(number)) for number in range(4)])}
    rows = [openai_row(number, f"{number}.png") for number in range(4)]
    local = write_nemotron(tmp_path / "data", {"docs": (tars, rows)})
    storage = Storage()
    for path in local.rglob("*.*"):
        storage.publish_bytes(f"{s3}/data/{path.relative_to(local).as_posix()}", path.read_bytes())
    source = nemotron_source(local, "docs").model_copy(update={"path": f"{s3}/data"})
    config = vlm_config(tmp_path / "out", processor_folder, source)
    found = rows_of(config)
    assert [row.fault for row in found] == [""] * 4
    shown = ConversationMedia(config, storage).read("nemotron", found[2].media)
    assert shown.images[0].size == (42, 30)


def test_rows_survive_their_table() -> None:
    rows = [
        ConversationRow(row=0, fault="x"),
        ConversationRow(
            row=1,
            conversation="[]",
            media=(Medium(kind="image", reference="ü.png", stamp=1 << 62), Medium(kind="video", origin="frames")),
            num_tokens=5,
            turn_ends=(2, 5),
        ),
    ]
    table = conversation_rows_to_table(rows)
    assert table.schema == VLM_INDEX_SCHEMA
    assert list(table_to_conversation_rows(table)) == rows
    assert list(table_to_conversation_rows(table.slice(1))) == rows[1:]


def test_a_unit_travels_to_a_worker(tmp_path: Path, processor_folder: Path) -> None:
    write_meta(tmp_path)
    sent: list[Any] = []

    class Sending(Counted):
        """Hands out copies, as another process would get them."""

        def map(self, function: Callable[[Any], Any], units: Iterable[Any]) -> Iterator[Any]:
            for given in units:
                sent.append(pickle.loads(pickle.dumps(given)))
                yield function(sent[-1])

    config = vlm_config(tmp_path / "out", processor_folder, meta_source(tmp_path))
    processor = load_processor(config.processor_path, chat_template="now: " + TEMPLATE)
    run_conversation_index(config, BakeFolder(config.bake.output), Storage(), processor, Sending(), SilentProgress())
    (unit,) = sent
    assert unit.processor.fingerprint == processor.fingerprint
    assert unit.processor.text([{"role": "user", "content": []}]).startswith("now: <|im_start|>user")
