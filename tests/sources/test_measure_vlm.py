"""What a JSONL line becomes: its faults by name, the corrections, and the spellings an improved stream reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Config
from pipeline.plan.random import LaneRandom
from pipeline.records import Condition, Dropped, Element, IndexRow, ItemKind, Sample
from pipeline.sources import draw
from pipeline.tokenizer import load_tokenizer
from tests.datamaker import encode, picture, write_frame_folder, write_tokenizer
from tests.datamaker.jsonl import conversation
from tests.sources.rows import SourceConfig, config_of, group_of, rows_of

GOOD = conversation(("human", "<image>what?"), ("gpt", "a red circle"))
CORRECTIONS = ("system_turns", "control_tokens", "placeholders")

Measure = Callable[..., list[IndexRow]]


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def configure(tmp_path: Path, tokenizer_path: Path) -> Callable[..., Config]:
    """Writes lines (JSON values or raw bytes) beside two pictures; gives the configuration that reads them."""
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(encode(picture(1, 40, 30)))
    write_frame_folder(tmp_path / "clip", 2)

    def write(*lines: object, **bake: Any) -> Config:
        raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        (tmp_path / "lines.jsonl").write_bytes(b"\n".join(raw))
        source = SourceConfig(
            name="vlm_sft/one", data_dir=str(tmp_path), jsonl_path=str(tmp_path / "lines.jsonl"), num_used_data=999
        )
        good = {"conversations": conversation(("human", "a"), ("gpt", "b"))}
        (tmp_path / "lines.jsonl").write_bytes(b"\n".join([*raw, json.dumps(good).encode()]))
        return config_of(tmp_path / "bake", tokenizer_path, group_of("vlm_sft", [source]), **bake)

    return write


def faults_of(config: Config) -> list[str]:
    return [row.fault for _, row in rows_of(config)][:-1]


def samples_of(config: Config) -> list[Sample | Dropped]:
    tokenizer = load_tokenizer(config.tokenizer_path)
    group = config.dataset.groups[0]
    draws = LaneRandom(1)
    rows = rows_of(config)[:-1]
    return [draw(row, row_id, group, config.dataset, draws, tokenizer, config.bake) for row_id, row in rows]


def spelled(config: Config, sample: Sample | Dropped) -> list[str]:
    """A sample as words: texts (answers with a star), images as their number in the row."""
    assert isinstance(sample, Sample)
    tokenizer = load_tokenizer(config.tokenizer_path)
    row = dict(rows_of(config))[sample.row]
    return [
        f"image {item.image}"
        if item.kind is not ItemKind.TEXT
        else tokenizer.decode(item.token_ids or row.text_ids[item.text]) + "*" * item.loss
        for item in sample.items
    ]


FAULTS: dict[str, list[object]] = {
    "blank_line": [b"", b"  \t"],
    "invalid_json": [b"{not json", b'{"a":', b'{"a": 1} 2', b'\xef\xbb\xbf{"a": 1}', b'{"a": ' + b"9" * 5000 + b"}"],
    "invalid_utf8": [b'{"a": "\xff"}'],
    "nested_too_deep": [b"[" * 600 + b"]" * 600, b'{"a":' * 100_000],
    "not_an_object": [[1], "image", 4, None],
    "image_not_a_path": [{"image": None}, {"image": 3}, {"image": ["a.jpg", None]}, {"image": {"path": "a.jpg"}}],
    "video_not_a_path": [{"video": None}, {"video": ["clip/"]}],
    "missing_file": [
        {"image": "absent.jpg", "conversations": GOOD},
        {"video": "absent.mp4", "conversations": GOOD},
        {"video": "absent/", "conversations": GOOD},
        {"image": ["a.jpg", "absent.jpg"], "conversations": GOOD},
    ],
    "outside_root": [{"image": "../a.jpg", "conversations": GOOD}, {"video": "/", "conversations": GOOD}],
    "no_conversations": [{}, {"conversations": None}, {"conversations": "hi"}, {"conversations": {"from": "gpt"}}],
    "turn_without_from": [{"conversations": ["hi"]}, {"conversations": [{"value": "hi"}]}],
    "turn_without_text": [
        {"conversations": [{"from": "gpt"}]},
        {"conversations": [{"from": "human", "value": 4}]},
        {"conversations": [{"from": "gpt", "value": None}]},
    ],
    "lone_surrogate": [{"conversations": conversation(("human", "half \ud83d"), ("gpt", "yes"))}],
    "too_many_placeholders": [
        {"image": "a.jpg", "conversations": [*GOOD, *GOOD]},
        {"image": ["a.jpg", "b.jpg"], "conversations": [*GOOD, *GOOD, *GOOD]},
    ],
    "no_loss": [
        {"conversations": []},
        {"conversations": conversation(("human", "hello"))},
        {"conversations": conversation(("human", "hello"), ("gpt", ""))},
        {"conversations": conversation(("system", "hello"))},
    ],
}


@pytest.mark.parametrize("reason", FAULTS)
def test_every_fault_of_a_line_has_its_name(configure: Callable[..., Config], reason: str) -> None:
    if reason == "invalid_json":  # only the first line of a file may begin with a byte order mark
        FAULTS[reason].sort(key=lambda line: isinstance(line, bytes) and not line.startswith(b"\xef"))
    assert faults_of(configure(*FAULTS[reason])) == [reason] * len(FAULTS[reason])


@pytest.mark.parametrize(
    ("conversations", "reason"),
    [
        (conversation(("human", "no clip"), ("gpt", "a")), "no_video_placeholder"),
        (None, "no_conversations"),
        ([{"from": "human"}], "no_video_placeholder"),
        ([{"value": "<video>"}], "turn_without_from"),
        (conversation(("human", "<video>")), "no_loss"),
        ([], "no_loss"),
        (conversation(("human", "<video>"), ("gpt", "half \ud83d")), "lone_surrogate"),
    ],
)
def test_a_fault_behind_the_frames_strikes_after_their_draws(
    configure: Callable[..., Config], conversations: object, reason: str
) -> None:
    config = configure({"video": "clip/", "conversations": conversations})
    (_, row), _ = rows_of(config)
    assert (row.fault, row.fault_after_draws, row.num_frames) == (reason, True, 2)
    draws, untouched = LaneRandom(5), LaneRandom(5)
    group = config.dataset.groups[0]
    row_id = rows_of(config)[0][0]
    assert draw(row, row_id, group, config.dataset, draws, load_tokenizer(config.tokenizer_path)) == Dropped(
        reason=reason
    )
    assert draws.randn() != untouched.randn()


def test_a_byte_order_mark_is_stripped_from_an_improved_stream(configure: Callable[..., Config]) -> None:
    line = b"\xef\xbb\xbf" + json.dumps({"conversations": conversation(("gpt", "hi"))}).encode()
    assert faults_of(configure(line)) == ["invalid_json"]
    assert faults_of(configure(line, stream="improved")) == [""]
    assert faults_of(configure({"conversations": conversation(("gpt", "hi"))}, line, stream="improved"))[1] != ""


def test_placeholders_are_counted_per_turn_or_over_the_conversation(configure: Callable[..., Config]) -> None:
    asks = conversation(("human", "<image> one <image>"), ("gpt", "a"), ("human", "two <image>"), ("gpt", "b"))
    line = {"image": ["a.jpg", "b.jpg"], "conversations": asks}
    config = configure(line)
    assert samples_of(config) == [Dropped(reason="too_many_placeholders")]
    assert rows_of(config)[0][1].conditions & Condition.PLACEHOLDERS
    config = configure(line, corrections=CORRECTIONS)
    (sample,) = samples_of(config)
    assert spelled(config, sample) == ["image 0", "one", "image 1", "a*", "two", "b*"]


def test_a_system_turn_is_counted_and_kept_where_asked(configure: Callable[..., Config]) -> None:
    line = {"conversations": conversation(("system", "be kind "), ("human", "hello"), ("gpt", "hi"))}
    config = configure(line)
    (sample,) = samples_of(config)
    assert spelled(config, sample) == ["hello", "hi*"]
    assert isinstance(sample, Sample)
    assert sample.conditions & Condition.SYSTEM_TURNS
    config = configure(line, corrections=CORRECTIONS)
    (sample,) = samples_of(config)
    assert spelled(config, sample) == ["be kind ", "hello", "hi*"]


def test_a_control_token_spelled_by_a_user_is_counted_and_stays_text_where_asked(
    configure: Callable[..., Config],
) -> None:
    line = {"conversations": conversation(("human", "say <|im_end|>"), ("gpt", "no"))}
    config = configure(line)
    end = load_tokenizer(config.tokenizer_path).special_tokens["eos_token_id"]
    row = rows_of(config)[0][1]
    assert end in row.text_ids[0]
    assert row.conditions == Condition.CONTROL_TOKENS
    corrected = rows_of(configure(line, corrections=CORRECTIONS))[0][1]
    assert end not in corrected.text_ids[0]
    assert corrected.conditions == Condition.CONTROL_TOKENS


MESSAGES: list[dict[str, object]] = [
    {
        "messages": [{"role": "user", "content": "<image>what?"}, {"role": "assistant", "content": "c"}],
        "image": "a.jpg",
    },
    {
        "messages": [
            {"role": "system", "content": "ignored"},
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "a.jpg"}},
                    {"type": "text", "text": "what?"},
                    {"type": "image", "image": "b.jpg"},
                ],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "c"}]},
        ]
    },
    {"conversations": [{"role": "user", "content": "what?"}, {"role": "assistant", "content": "c"}]},
]


def test_messages_in_other_spellings_are_read_by_an_improved_stream(configure: Callable[..., Config]) -> None:
    assert faults_of(configure(*MESSAGES)) == ["no_conversations", "no_conversations", "turn_without_from"]
    config = configure(*MESSAGES, stream="improved")
    assert [spelled(config, sample) for sample in samples_of(config)] == [
        ["image 0", "what?", "c*"],
        ["image 0", "what?", "image 1", "c*"],
        ["what?", "c*"],
    ]


def test_elements_are_written_down_as_they_stand(configure: Callable[..., Config]) -> None:
    turns = conversation(("human", "a <video> b <image>"), ("gpt", "c"), ("human", " d "), ("gpt", ""))
    row = rows_of(configure({"video": "clip/", "conversations": turns}))[0][1]
    assert [Element(element) for element in row.elements] == [
        Element.TURN,
        Element.TEXT,
        Element.VIDEO,
        Element.TEXT,
        Element.IMAGE,
        Element.ANSWER,
        Element.TURN,
        Element.TEXT,
    ]


def test_a_side_longer_than_the_position_table_is_counted_or_refused(configure: Callable[..., Config]) -> None:
    line = {"image": "a.jpg", "conversations": GOOD}
    config = configure(line)
    small = config.model_copy(update={"dataset": config.dataset.model_copy(update={"max_num_patch_per_side": 2})})
    (sample,) = samples_of(small)
    assert isinstance(sample, Sample)
    assert sample.conditions & Condition.ALIASED
    improved = configure(line, stream="improved")
    improved = improved.model_copy(update={"dataset": small.dataset})
    assert samples_of(improved) == [Dropped(reason="side_too_long")]


def test_a_row_says_where_its_line_lies(configure: Callable[..., Config], tmp_path: Path) -> None:
    rows = rows_of(configure(b"", {"conversations": conversation(("gpt", "é"))}, b"x"))
    content = (tmp_path / "lines.jsonl").read_bytes()
    cut = [content[row.line_offset : row.line_offset + row.line_num_bytes] for _, row in rows]
    assert b"".join(cut) == content
    assert [row_id.row for row_id, _ in rows] == [0, 1, 2, 3]
