"""`vlm_sft` sources: conversation lines and their media folders."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from tests.datamaker.parquet import phrase
from tests.datamaker.pictures import broken_gallery, encode, gallery, picture

__all__ = ["conversation", "faulty_lines", "good_lines", "write_conversations", "write_frame_folder", "write_vlm"]


def conversation(*turns: tuple[str, str]) -> list[dict[str, str]]:
    """Turns as (speaker, text)."""
    return [{"from": speaker, "value": text} for speaker, text in turns]


def write_frame_folder(folder: Path, num_frames: int, seed: int = 0) -> Path:
    """Frames `clip_<n>.jpg`, enough of them that sorting by name and by number differ."""
    folder.mkdir(parents=True, exist_ok=True)
    draws = random.Random(seed)
    size = draws.randint(30, 90), draws.randint(30, 90)
    for number in range(num_frames):
        (folder / f"clip_{number}.jpg").write_bytes(encode(picture(seed * 100 + number, *size), "JPEG"))
    return folder


def write_conversations(
    path: Path, rows: Sequence[object], *, line_end: str = "\n", last_line_end: bool = True
) -> Path:
    """Rows (JSON values, or raw lines as `str`/`bytes`) as a JSONL file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for row in rows:
        if isinstance(row, bytes):
            lines.append(row)
        else:
            lines.append((row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)).encode("utf-8"))
    content = line_end.encode().join(lines)
    path.write_bytes(content + (line_end.encode() if last_line_end else b""))
    return path


def good_lines(draws: random.Random, names: Sequence[str], count: int) -> list[object]:
    """Rows with no, one and several images, several turns, placeholders at every place."""
    rows: list[object] = []
    for number in range(count):
        question, answer = phrase(draws), phrase(draws)
        kind = number % 8
        if kind == 0:
            row = {
                "image": draws.choice(names),
                "conversations": conversation(("human", f"<image>\n{question}"), ("gpt", answer)),
            }
        elif kind == 1:
            row = {"conversations": conversation(("human", question), ("gpt", answer))}
        elif kind == 2:
            pair = [draws.choice(names), draws.choice(names)]
            text = f"{question} <image> {phrase(draws)}<image>"
            row = {"image": pair, "conversations": conversation(("human", text), ("gpt", answer))}
        elif kind == 3:
            row = {
                "id": number,
                "image": draws.choice(names),
                "conversations": conversation(
                    ("system", "be brief"),
                    ("human", f"{question}<image>"),
                    ("gpt", answer),
                    ("human", phrase(draws)),
                    ("gpt", phrase(draws)),
                ),
            }
        elif kind == 4:  # fewer placeholders than images: the second is counted but not shown
            pair = [draws.choice(names), draws.choice(names)]
            row = {"image": pair, "conversations": conversation(("human", f"<image>{question}"), ("gpt", answer))}
        elif kind == 5:  # more placeholders in one turn than images
            row = {
                "image": draws.choice(names),
                "conversations": conversation(("human", f"<image><image> {question} <image>"), ("gpt", answer)),
            }
        elif kind == 6:
            row = {
                "image": [],
                "conversations": conversation(("human", f"  {question}\n"), ("gpt", f"{answer} <image> in an answer")),
            }
        else:  # control tokens spelled out, an empty answer beside a real one
            row = {
                "conversations": conversation(
                    ("human", f"<|im_start|>{question}<|vision_start|> x"),
                    ("gpt", ""),
                    ("gpt", f"{answer}<|im_end|>"),
                )
            }
        rows.append(row)
    return rows


def faulty_lines(draws: random.Random, broken_names: Sequence[str], good_name: str) -> list[object]:
    """Rows that the reference drops: invalid lines, missing and broken files, nothing to learn from."""
    ask = conversation(("human", f"<image>{phrase(draws)}"), ("gpt", phrase(draws)))
    rows: list[object] = [
        "",
        "{not json",
        '{"conversations": [',
        "42",
        "null",
        {"image": None, "conversations": ask},
        {"image": "absent.jpg", "conversations": ask},
        {"image": [good_name, "absent.jpg"], "conversations": ask},
        {"image": [good_name, 7], "conversations": ask},
        {"image": good_name, "conversations": conversation(("human", "<image>no answer"))},
        {"image": good_name, "conversations": conversation(("human", "<image>empty answer"), ("gpt", ""))},
        {"conversations": []},
        {"video": "absent/", "conversations": conversation(("human", "<video>what?"), ("gpt", "nothing"))},
    ]
    rows += [{"image": name, "conversations": ask} for name in broken_names]
    rows += [{"image": [good_name, name], "conversations": ask} for name in broken_names[:3]]
    return rows


def video_lines(draws: random.Random, folders: Sequence[str]) -> list[object]:
    """Rows about frame folders; the last two are dropped after their frame draws were spent."""
    rows: list[object] = [
        {
            "video": folder,
            "conversations": conversation(("human", f"<video>\n{phrase(draws)}"), ("gpt", phrase(draws))),
        }
        for folder in folders
    ]
    rows.append(
        {
            "video": folders[0],
            "conversations": conversation(
                ("human", f"{phrase(draws)}<video>"), ("gpt", phrase(draws)), ("human", "and?"), ("gpt", phrase(draws))
            ),
        }
    )
    rows.append({"video": folders[0], "conversations": conversation(("human", "no clip here"), ("gpt", phrase(draws)))})
    rows.append({"video": folders[-1], "conversations": conversation(("human", "<video> no answer"))})
    return rows


def write_vlm(
    folder: Path, *, seed: int = 0, num_lines: int = 40, faults: bool = True, videos: bool = True, awkward: bool = True
) -> tuple[Path, Path]:
    """A JSONL file and its media folder: (path of the lines, media root)."""
    draws = random.Random(seed)
    media = folder / "media"
    media.mkdir(parents=True, exist_ok=True)
    pictures = gallery(seed) if awkward else {}
    for number in range(10):
        size = draws.randint(20, 140), draws.randint(20, 140)
        pictures[f"plain_{number}.jpg"] = encode(picture(seed * 1000 + number, *size), "JPEG")
    broken = broken_gallery(seed) if faults else {}
    for name, content in (pictures | broken).items():
        (media / name).write_bytes(content)
    rows = good_lines(draws, sorted(pictures), num_lines)
    if faults:
        rows += faulty_lines(draws, sorted(broken), "plain_0.jpg")
    if videos:
        counts = [1, 2, 3, 4, 5, 7, 9, 12, 14]
        for count in counts:
            write_frame_folder(media / f"clip{count}", count, seed + count)
        rows += video_lines(draws, [f"clip{count}/" for count in counts])
    draws.shuffle(rows)
    return write_conversations(folder / "lines.jsonl", rows), media
