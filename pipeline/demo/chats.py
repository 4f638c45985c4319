"""The demo's questions and answers once more, as the two VLM sources: a meta data set and a Nemotron set.

answers/answers.jsonl ──┬──► chats/meta.json, scenes.jsonl, clips.json        pictures stay in answers/media
                        └──► nemotron/<subset>/<subset>.jsonl + media/shard_000.tar
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["SUBSETS", "write_chats", "write_nemotron"]

Row = Mapping[str, Any]

SUBSETS = ("scenes", "pairs")
SHARDS_PER_SUBSET = 2
FRAMES_PER_SECOND = 2


def write_chats(folder: Path, rows: Sequence[Row]) -> None:
    """A meta data set in AutoModel's spelling: one JSONL, one JSON array with other column names, `meta.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    scenes = [_sharegpt(row) for row in rows if "video" not in row]
    (folder / "scenes.jsonl").write_text("".join(_line(row) for row in scenes), encoding="utf-8")
    clips = [_clip(row, folder.parent / "answers" / "media") for row in rows if "video" in row]
    (folder / "clips.json").write_text(json.dumps(clips, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    meta = {
        "scenes": {"file_name": "scenes.jsonl", "media_dir": "../answers/media"},
        "clips": {
            "file_name": "clips.json",
            "media_dir": "../answers/media",
            "columns": {"messages": "conversations"},
            "tags": {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt"},
            "sample_ratio": 0.5,
        },
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")


def _sharegpt(row: Row) -> dict[str, Any]:
    roles = {"human": "user", "gpt": "assistant"}
    messages = [{"role": roles[turn["from"]], "content": turn["value"]} for turn in row["conversations"]]
    return {"messages": messages, "images": _images(row)}


def _clip(row: Row, media: Path) -> dict[str, Any]:
    """A clip as the list of its frames, with their rate."""
    names = sorted((media / row["video"]).iterdir(), key=lambda path: int(path.stem.rpartition("_")[2]))
    frames = [path.relative_to(media).as_posix() for path in names]
    return {"conversations": row["conversations"], "videos": [{"path": frames, "fps": FRAMES_PER_SECOND}]}


def write_nemotron(folder: Path, rows: Sequence[Row], media: Path) -> None:
    """Two subsets as Nemotron-VLM-Dataset-v2 has them; one member is named by no row, one row names no member."""
    with_pictures = [row for row in rows if _images(row)]
    chosen = {
        "scenes": [row for row in with_pictures if len(_images(row)) == 1],
        "pairs": [row for row in with_pictures if len(_images(row)) == 2],
    }
    for subset, own in chosen.items():
        place = folder / subset
        (place / "media").mkdir(parents=True, exist_ok=True)
        lines = [_line(_openai(number, row)) for number, row in enumerate(own)]
        (place / f"{subset}.jsonl").write_text("".join(lines), encoding="utf-8")
        names = [name for row in own for name in _images(row) if (media / name).is_file()]
        for shard in range(SHARDS_PER_SUBSET):
            members = {Path(name).name: (media / name).read_bytes() for name in names[shard::SHARDS_PER_SUBSET]}
            if shard == 0:
                members["nobody-asks-for-me.jpg"] = (media / names[0]).read_bytes()
            (place / "media" / f"shard_{shard:03d}.tar").write_bytes(_tar(members))


def _openai(number: int, row: Row) -> dict[str, Any]:
    """A row in OpenAI's message form; every `<image>` is a part of its own."""
    names = iter(_images(row))
    messages = []
    for turn in row["conversations"]:
        pieces = turn["value"].split("<image>")
        parts: list[dict[str, str]] = []
        for place, text in enumerate(pieces):
            if place:
                parts.append({"type": "image", "image": Path(next(names)).name})
            if text.strip():
                parts.append({"type": "text", "text": text.strip()})
        messages.append({"role": "user" if turn["from"] == "human" else "assistant", "content": parts})
    return {"id": number, "messages": messages}


def _images(row: Row) -> list[str]:
    images = row.get("image", [])
    return [images] if isinstance(images, str) else list(images)


def _tar(members: Mapping[str, bytes]) -> bytes:
    """A tar whose bytes depend on its members alone."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return file.getvalue()


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
