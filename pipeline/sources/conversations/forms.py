"""Rows of the known data sets as conversations: pure functions of the row, no media touched.

Sources of the rules: nemo-automodel 0.7.0 `vlm.datasets` (`convert_sharegpt_to_conversation`, `make_cord_v2_dataset`,
`make_rdr_dataset`, `make_unimm_chat_dataset`, `utils.json2token`) and the OpenAI message form of
Nemotron-VLM-Dataset-v2. A row that has not the expected form raises `RowFault` with a reason that is counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.vlm_config import ShareGptConfig

__all__ = [
    "Conversation",
    "MediaReference",
    "RowFault",
    "cord_answers",
    "describe_image",
    "from_openai",
    "from_sharegpt",
    "from_unimm",
    "json_to_tokens",
]

IMAGE_KEYS = ("image", "images", "path", "image_url", "url", "value", "data")
"""Where a message part of type image may keep its reference, first match wins."""

_PLACEHOLDER = re.compile(r"(<image>|<video>)", re.IGNORECASE)
_UNIMM_PLACEHOLDER = re.compile(r"<image\s*>", re.IGNORECASE)


class RowFault(Exception):
    """A row that has not the form its source promises; `reason` is the stable name it is counted under."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaReference:
    """A medium as the row names it.

    Attributes:
        kind: "image" or "video".
        value: Path or name as the row spells it; what the source makes of it is its business.
        extras: Further keys of a dict-style entry (`frame_indices`, `fps`, …).
    """

    kind: str
    value: Any
    extras: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages whose media parts are numbers into `media`."""

    messages: tuple[dict[str, Any], ...]
    media: tuple[MediaReference, ...] = ()

    def to_json(self) -> str:
        """The messages as JSON text, as the index keeps them."""
        return json.dumps(self.messages, ensure_ascii=False, separators=(",", ":"))


class _Builder:
    """Collects messages and numbers the media in order of appearance."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._media: list[MediaReference] = []

    def medium(self, reference: MediaReference) -> dict[str, Any]:
        self._media.append(reference)
        return {"type": reference.kind, "media": len(self._media) - 1}

    def turn(self, role: str, content: list[dict[str, Any]]) -> None:
        self._messages.append({"role": role, "content": content})

    def done(self) -> Conversation:
        return Conversation(messages=tuple(self._messages), media=tuple(self._media))


def _text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def from_sharegpt(row: Mapping[str, Any], form: ShareGptConfig) -> Conversation:
    """A row of a meta data set: user text split at `<image>` and `<video>`, other roles as plain text.

    Raises:
        RowFault: The messages are no list of objects, or a turn's text is no string.
    """
    turns = _turns(row.get(form.messages, []), form.messages, row)
    waiting = {"image": _listed(row, form.images), "video": _listed(row, form.videos)}
    roles = {form.user_tag: "user", form.assistant_tag: "assistant", form.system_tag: "system"}
    builder = _Builder()
    for turn in turns:
        role = roles.get(turn.get(form.role_tag, ""))
        text = turn.get(form.content_tag, "")
        if role is None:
            continue
        if not isinstance(text, str):
            raise RowFault("text_not_a_string", f"{form.content_tag} is a {type(text).__name__}")
        if role == "user":
            builder.turn("user", _split_user_text(text, waiting, builder) or [_text("")])
        else:
            builder.turn(role, [_text(text)])
    return builder.done()


def _split_user_text(text: str, waiting: dict[str, list[Any]], builder: _Builder) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for segment in _PLACEHOLDER.split(text):
        kind = segment.lower().strip("<>") if _PLACEHOLDER.fullmatch(segment) else ""
        if kind:
            if waiting[kind]:
                parts.append(builder.medium(_reference(kind, waiting[kind].pop(0))))
        elif segment.strip():
            parts.append(_text(segment.strip()))
    return parts


def _reference(kind: str, entry: Any) -> MediaReference:
    if not isinstance(entry, Mapping):
        return MediaReference(kind=kind, value=entry)
    if "path" not in entry:
        raise RowFault("media_without_path", f"keys {sorted(entry)}")
    extras = {key: value for key, value in entry.items() if key != "path"}
    return MediaReference(kind=kind, value=entry["path"], extras=extras)


def json_to_tokens(value: Any) -> str:
    """A parsed receipt as a token string: `<s_key>…</s_key>`, keys in reverse order, `<sep/>` between list items."""
    if isinstance(value, dict):
        if len(value) == 1 and "text_sequence" in value:
            return str(value["text_sequence"])
        return "".join(f"<s_{key}>{json_to_tokens(value[key])}</s_{key}>" for key in sorted(value, reverse=True))
    if isinstance(value, list):
        return "<sep/>".join(map(json_to_tokens, value))
    return str(value)


def cord_answers(ground_truth: str) -> list[str]:
    """The answers that a CORD-v2 row offers; the reference draws one per row.

    Raises:
        RowFault: The ground truth is no JSON object with `gt_parse` or `gt_parses`.
    """
    try:
        parsed = json.loads(ground_truth)
    except (TypeError, ValueError, RecursionError) as error:
        raise RowFault("invalid_json", str(error)) from error
    if isinstance(parsed, dict) and isinstance(parsed.get("gt_parses"), list):
        parses = parsed["gt_parses"]
    elif isinstance(parsed, dict) and isinstance(parsed.get("gt_parse"), dict):
        parses = [parsed["gt_parse"]]
    else:
        raise RowFault("no_ground_truth", "neither gt_parses nor gt_parse")
    if not parses:
        raise RowFault("no_ground_truth", "gt_parses is empty")
    return [json_to_tokens(parse) for parse in parses]


def describe_image(image: Any, answer: str) -> Conversation:
    """One image, the question "Describe this image.", one answer: CORD-v2 and RDR."""
    if not isinstance(answer, str):
        raise RowFault("text_not_a_string", f"the answer is a {type(answer).__name__}")
    builder = _Builder()
    builder.turn("user", [builder.medium(MediaReference(kind="image", value=image)), _text("Describe this image.")])
    builder.turn("assistant", [_text(answer)])
    return builder.done()


def from_unimm(conversation: str, image: Any) -> Conversation:
    """A UniMM-Chat row: its `conversation` column is JSON, every placeholder of a human turn is the row's one image."""
    try:
        turns = _turns(json.loads(conversation), "conversation", {})
    except (TypeError, ValueError, RecursionError) as error:
        raise RowFault("invalid_json", str(error)) from error
    builder = _Builder()
    for turn in turns:
        text = turn.get("value", "")
        if turn.get("from") not in ("human", "gpt"):
            continue
        if not isinstance(text, str):
            raise RowFault("text_not_a_string", f"value is a {type(text).__name__}")
        if turn["from"] == "gpt":
            builder.turn("assistant", [_text(text.strip())])
            continue
        parts: list[dict[str, Any]] = []
        segments = _UNIMM_PLACEHOLDER.split(text)
        for number, segment in enumerate(segments):
            if segment.strip():
                parts.append(_text(segment.strip()))
            if number < len(segments) - 1:
                parts.append(builder.medium(MediaReference(kind="image", value=image)))
        builder.turn("user", parts or [builder.medium(MediaReference(kind="image", value=image))])
    return builder.done()


def from_openai(messages: Any) -> Conversation:
    """OpenAI-style messages: content is a string or a list of parts, an image part's reference under any of IMAGE_KEYS.

    Every image of every message becomes a medium, in order.

    Raises:
        RowFault: The messages have not that form, or an image part names no image.
    """
    builder = _Builder()
    for turn in _turns(messages, "messages", {}):
        role, content = turn.get("role"), turn.get("content")
        if not isinstance(role, str):
            raise RowFault("turn_without_role", f"keys {sorted(turn)}")
        if isinstance(content, str):
            builder.turn(role, [_text(content)])
            continue
        if not isinstance(content, list):
            raise RowFault("content_not_text", f"content is a {type(content).__name__}")
        builder.turn(role, [made for part in content for made in _openai_part(part, builder)])
    return builder.done()


def _openai_part(part: Any, builder: _Builder) -> list[dict[str, Any]]:
    if isinstance(part, str):
        return [_text(part)]
    if not isinstance(part, Mapping):
        raise RowFault("content_not_text", f"a part is a {type(part).__name__}")
    kind = part.get("type")
    if kind in ("image", "image_url"):
        key = next((name for name in IMAGE_KEYS if name in part), None)
        if key is None:
            raise RowFault("image_without_reference", f"keys {sorted(part)}")
        values = part[key] if isinstance(part[key], list) else [part[key]]
        references = [value["url"] if isinstance(value, Mapping) and "url" in value else value for value in values]
        if not all(isinstance(reference, str) for reference in references):
            raise RowFault("image_without_reference", f"{key} holds no name")
        return [builder.medium(MediaReference(kind="image", value=reference)) for reference in references]
    if isinstance(part.get("text"), str):
        return [_text(part["text"])]
    raise RowFault("unknown_part", f"type {kind!r}, keys {sorted(part)}")


def _turns(messages: Any, column: str, row: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    if not isinstance(messages, list) or not all(isinstance(turn, Mapping) for turn in messages):
        raise RowFault("no_messages", f"{column!r} holds no list of turns; the row has keys {sorted(row)}")
    if not messages:
        raise RowFault("no_messages", f"{column!r} is empty or missing; the row has keys {sorted(row)}")
    return messages


def _listed(row: Mapping[str, Any], column: str) -> list[Any]:
    value = row.get(column) or []
    if isinstance(value, (str, Mapping)):
        return [value]
    if not isinstance(value, (list, tuple)):
        raise RowFault("media_not_a_list", f"{column!r} is a {type(value).__name__}")
    return list(value)
