"""Rows become the conversations that nemo-automodel makes of them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from nemo_automodel.components.datasets.vlm import datasets as reference
from nemo_automodel.components.datasets.vlm.utils import json2token

from pipeline.sources.conversations.forms import (
    Conversation,
    RowFault,
    cord_answers,
    describe_image,
    from_openai,
    from_sharegpt,
    from_unimm,
    json_to_tokens,
)
from pipeline.vlm_config import ShareGptConfig
from tests.parity.vlm.modelopt_oracle import nemotron


def with_media(conversation: Conversation) -> list[dict[str, Any]]:
    """The reference's spelling: media inside the parts."""
    messages: list[dict[str, Any]] = json.loads(conversation.to_json())
    for message in messages:
        for part in message["content"]:
            if "media" in part:
                medium = conversation.media[part.pop("media")]
                part[medium.kind] = medium.value
                part.update(medium.extras)
    return messages


SHAREGPT_ROWS: list[dict[str, Any]] = [
    {
        "messages": [{"role": "user", "content": "<image>what?"}, {"role": "assistant", "content": "a dog"}],
        "images": ["a.jpg"],
    },
    {"messages": [{"role": "user", "content": "a <IMAGE> b <video> c"}], "images": ["a.jpg"], "videos": ["v.mp4"]},
    {
        "messages": [{"role": "system", "content": "be <image> short"}, {"role": "user", "content": "<image><image>"}],
        "images": ["a"],
    },
    {"messages": [{"role": "user", "content": "<image>"}], "images": None},
    {
        "messages": [
            {"role": "user", "content": "  "},
            {"role": "tool", "content": "x"},
            {"role": "assistant", "content": " y "},
        ]
    },
    {
        "messages": [{"role": "user", "content": "<video>?"}],
        "videos": [{"path": "v.mp4", "frame_indices": [1, 2], "fps": 2}],
    },
]


@pytest.mark.parametrize("row", SHAREGPT_ROWS)
def test_a_sharegpt_row_equals_the_references(row: dict[str, Any]) -> None:
    expected = reference.convert_sharegpt_to_conversation(row)["conversation"]
    assert with_media(from_sharegpt(row, ShareGptConfig())) == expected


def test_columns_and_tags_are_configurable() -> None:
    row = {
        "conversations": [{"from": "human", "value": "hi <image>"}, {"from": "gpt", "value": "ho"}],
        "image": ["a.jpg"],
    }
    columns = {"messages": "conversations", "images": "image"}
    tags = {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt"}
    expected = reference.convert_sharegpt_to_conversation(row, columns=columns, tags=tags)["conversation"]
    assert with_media(from_sharegpt(row, ShareGptConfig(**columns, **tags))) == expected


def test_parsed_receipts_become_the_same_tokens() -> None:
    generator = random.Random(0)

    def value(depth: int) -> Any:
        if depth == 0 or generator.random() < 0.3:
            return generator.choice(["text", 3, None, 2.5])
        if generator.random() < 0.5:
            return [value(depth - 1) for _ in range(generator.randint(0, 3))]
        return {key: value(depth - 1) for key in generator.sample(["menu", "nm", "price", "text_sequence"], 2)}

    for _ in range(100):
        parsed = {"menu": value(3), "total": value(2)}
        assert json_to_tokens(parsed) == json2token(parsed)
    assert json_to_tokens({"text_sequence": "whole"}) == json2token({"text_sequence": "whole"})


def _rows(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]) -> None:
    monkeypatch.setattr(reference, "load_dataset", lambda path, split: rows)


def test_a_cord_row_equals_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"image": "pixels", "ground_truth": json.dumps({"gt_parse": {"menu": [{"nm": "tea"}, {"nm": "milk"}]}})}]
    _rows(monkeypatch, rows)
    expected = reference.make_cord_v2_dataset("x")[0]["conversation"]
    (answer,) = cord_answers(rows[0]["ground_truth"])
    assert with_media(describe_image("pixels", answer)) == expected


def test_an_rdr_row_equals_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    _rows(monkeypatch, [{"image": "pixels", "text": "a red chair"}])
    assert with_media(describe_image("pixels", "a red chair")) == reference.make_rdr_dataset("x")[0]["conversation"]


def test_a_unimm_row_equals_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [
        {"from": "human", "value": "look: <image > here"},
        {"from": "gpt", "value": " a cat "},
        {"from": "human", "value": "<IMAGE><image>"},
        {"from": "other", "value": "ignored"},
        {"from": "human", "value": "  "},
        {"from": "gpt", "value": "yes"},
    ]
    row = {"image": "pixels", "conversation": json.dumps(turns)}
    _rows(monkeypatch, [row])
    expected = reference.make_unimm_chat_dataset("x")[0]["conversation"]
    assert with_media(from_unimm(row["conversation"], "pixels")) == expected


@pytest.mark.parametrize("key", ["image", "images", "path", "image_url", "url", "value", "data"])
def test_the_first_image_of_openai_messages_is_the_one_modelopt_finds(key: str) -> None:
    messages = [
        {"role": "system", "content": "be exact"},
        {"role": "user", "content": [{"type": "text", "text": "read"}, {"type": "image", key: "12.png"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
    ]
    conversation = from_openai(messages)
    assert conversation.media[0].value == nemotron.extract_first_image_from_messages(messages) == "12.png"
    assert [message["role"] for message in conversation.messages] == ["system", "user", "assistant"]


def test_every_image_of_every_message_is_kept() -> None:
    messages = [
        {
            "role": "user",
            "content": [{"type": "image", "image": "a.png"}, {"type": "image_url", "image_url": {"url": "b.png"}}],
        },
        {"role": "user", "content": [{"type": "image", "images": ["c.png", "d.png"]}, "and text"]},
    ]
    assert [medium.value for medium in from_openai(messages).media] == ["a.png", "b.png", "c.png", "d.png"]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (None, "no_messages"),
        ([], "no_messages"),
        (["text"], "no_messages"),
        ([{"content": "x"}], "turn_without_role"),
        ([{"role": "user", "content": 3}], "content_not_text"),
        ([{"role": "user", "content": [{"type": "image"}]}], "image_without_reference"),
        ([{"role": "user", "content": [{"type": "audio"}]}], "unknown_part"),
    ],
)
def test_messages_of_another_form_are_faults_with_a_name(messages: Any, reason: str) -> None:
    with pytest.raises(RowFault) as caught:
        from_openai(messages)
    assert caught.value.reason == reason
