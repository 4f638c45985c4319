"""Other spellings of a conversation, brought into the one that `vlm_sft` reads. Improved streams only.

{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.jpg"}},
                                           {"type": "text", "text": "What is it?"}]}, …]}
→  {"image": ["a.jpg"], "conversations": [{"from": "human", "value": "<image>What is it?"}, …]}
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.sources.conversation import IMAGE, VIDEO

__all__ = ["as_conversation"]

_SPEAKERS = {"user": "human", "human": "human", "assistant": "gpt", "gpt": "gpt", "model": "gpt"}
_MEDIA_KEYS = ("image_url", "image", "path", "url", "value", "data")


def as_conversation(record: dict[str, object]) -> dict[str, object]:
    """The record with `conversations`/`from`/`value`; what cannot be read stays, for the reader to refuse."""
    turns = record.get("conversations", record.get("messages"))
    if not isinstance(turns, list):
        return record
    images: list[object] = []
    videos: list[object] = []
    converted = [_turn(turn, images, videos) for turn in turns]
    found: dict[str, object] = {**record, "conversations": converted}
    if images and "image" not in record:
        found["image"] = images
    if videos and "video" not in record and "image" not in found:
        found["video"] = videos[0]
    return found


def _turn(turn: object, images: list[object], videos: list[object]) -> object:
    if not isinstance(turn, Mapping):
        return turn
    speaker = turn.get("from", turn.get("role"))
    if not isinstance(speaker, str):
        return turn
    value = turn.get("value", turn.get("content"))
    if isinstance(value, list):
        value = "".join(_part(part, images, videos) for part in value)
    return {"from": _SPEAKERS.get(speaker, speaker), "value": value}


def _part(part: object, images: list[object], videos: list[object]) -> str:
    """Text of one content part; an image or video part leaves its placeholder."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return ""
    kind = str(part.get("type", ""))
    if kind.startswith("image"):
        reference = _reference(part)
        if reference is not None:  # without one the row lists its images itself
            images.append(reference)
        return IMAGE
    if kind.startswith("video"):
        reference = part.get("video", part.get("path"))
        if reference is not None:
            videos.append(reference)
        return VIDEO
    text = part.get("text")
    return text if isinstance(text, str) else ""


def _reference(part: Mapping[object, object]) -> object | None:
    """The path an image part names, under any of the usual keys."""
    for key in _MEDIA_KEYS:
        if key in part:
            named = part[key]
            return _reference(named) if isinstance(named, Mapping) else named
    return None
