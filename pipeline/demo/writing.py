"""Files of the demo: one source of every kind, tokenizer and model, configurations in AutoModel's spelling, a note."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.demo import recipes
from pipeline.demo.captions import captions
from pipeline.demo.chats import write_chats, write_nemotron
from pipeline.demo.drawing import encode, picture
from pipeline.demo.edits import draw_chain
from pipeline.demo.model import build_model
from pipeline.demo.questions import Exchange, comparison, motion, questions, riddle
from pipeline.demo.scenes import Scene, draw_scene
from pipeline.demo.tokenizer import build_tokenizer

__all__ = ["write_demo"]

NUM_T2I_FILES, T2I_ROWS_PER_FILE, T2I_ROWS_PER_GROUP = 4, 24, 12
NUM_EDIT_FILES, EDIT_ROWS_PER_FILE, EDIT_ROWS_PER_GROUP = 2, 32, 8
NUM_ANSWER_ROWS = 96
NUM_FRAMES = 12

_CAPTIONED = pa.schema([("image", pa.binary()), ("captions", pa.string())])
_CHAINS = pa.schema([("image_list", pa.list_(pa.binary())), ("instruction_list", pa.list_(pa.list_(pa.string())))])


def write_demo(folder: str, seed: int = 7) -> str:
    """Write the demo into a folder (made if it is not there) and return the path of its BAGEL configuration.

    The same seed writes the same bytes. Files of an earlier demo are replaced.
    """
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    _write_captioned(root / "t2i", random.Random(f"{seed} t2i"))
    _write_chains(root / "edits", random.Random(f"{seed} edits"))
    rows = _write_answers(root / "answers", random.Random(f"{seed} answers"))
    write_chats(root / "chats", rows)
    write_nemotron(root / "nemotron", rows, root / "answers" / "media")
    build_tokenizer(str(root / "tokenizer"))
    build_model(str(root / "model"))
    for name, text in (
        ("README.md", recipes.NOTE),
        ("config.yaml", recipes.BAGEL),
        ("vlm.yaml", recipes.VLM),
        ("nemotron.yaml", recipes.NEMOTRON),
    ):
        (root / name).write_text(text, encoding="utf-8")
    return str(root / "config.yaml")


def _write_captioned(folder: Path, draws: random.Random) -> None:
    """Parquet of pictures and JSON captions: `{"caption_0": "a red circle left of a blue square", …}`."""
    for number in range(NUM_T2I_FILES):
        rows: list[dict[str, object]] = []
        for row in range(T2I_ROWS_PER_FILE):
            scene = draw_scene(draws)
            texts = {f"caption_{n}": text for n, text in enumerate(captions(scene))}
            image = encode(picture(scene), "PNG" if row % 6 == 5 else "JPEG")
            rows.append({"image": image, "captions": json.dumps(texts)})
        _write_parquet(folder / f"scenes-{number:03d}.parquet", rows, _CAPTIONED, T2I_ROWS_PER_GROUP)


def _write_chains(folder: Path, draws: random.Random) -> None:
    """Parquet of edit chains: n pictures and, for each of the n - 1 steps, its instruction in several phrasings."""
    for number in range(NUM_EDIT_FILES):
        rows: list[dict[str, object]] = []
        for _ in range(EDIT_ROWS_PER_FILE):
            scenes, instructions = draw_chain(draws)
            images = [encode(picture(scene), "JPEG") for scene in scenes]
            rows.append({"image_list": images, "instruction_list": instructions})
        _write_parquet(folder / f"chains-{number:03d}.parquet", rows, _CHAINS, EDIT_ROWS_PER_GROUP)


def _write_parquet(path: Path, rows: Sequence[dict[str, object]], schema: pa.Schema, rows_per_group: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path, row_group_size=rows_per_group)


def _write_answers(folder: Path, draws: random.Random) -> list[dict[str, object]]:
    """JSONL of questions and answers about one picture, two, a clip, or none; the last row's picture is missing.

    Returns:
        The rows.
    """
    media = folder / "media"
    (media / "pictures").mkdir(parents=True, exist_ok=True)
    kinds = (_one_picture, _one_picture, _two_pictures, _one_picture, _text_only, _one_picture, _two_pictures, _clip)
    rows = [{"id": number, **kinds[number % len(kinds)](draws, media, number)} for number in range(NUM_ANSWER_ROWS)]
    lost: dict[str, object] = {"image": "pictures/lost.jpg", "conversations": _conversation([("<image>\nWhat?", "?")])}
    rows.append({"id": NUM_ANSWER_ROWS, **lost})
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (folder / "answers.jsonl").write_text("".join(lines), encoding="utf-8")
    return rows


def _one_picture(draws: random.Random, media: Path, number: int) -> dict[str, object]:
    scene = draw_scene(draws)
    exchanges = questions(draws, scene)[: draws.randint(1, 3)]
    exchanges[0] = (f"<image>\n{exchanges[0][0]}", exchanges[0][1])
    return {"image": _save(scene, media, f"scene-{number:03d}"), "conversations": _conversation(exchanges)}


def _two_pictures(draws: random.Random, media: Path, number: int) -> dict[str, object]:
    scenes = [draw_scene(draws), draw_scene(draws)]
    question, answer = comparison(draws, scenes)
    names = [_save(scene, media, f"scene-{number:03d}-{part}") for part, scene in zip("ab", scenes, strict=True)]
    return {"image": names, "conversations": _conversation([(f"<image>\n<image>\n{question}", answer)])}


def _clip(draws: random.Random, media: Path, number: int) -> dict[str, object]:
    scene = draw_scene(draws)
    scene = scene.with_things(scene.things[:1])
    forward = draws.random() < 0.5
    place = scene.things[0].place
    start, end = (-place, 2 - place) if forward else (2 - place, -place)
    clip = media / "clips" / f"clip-{number:03d}"
    clip.mkdir(parents=True, exist_ok=True)
    for frame in range(NUM_FRAMES):
        shift = start + (end - start) * frame / (NUM_FRAMES - 1)
        (clip / f"frame_{frame}.jpg").write_bytes(encode(picture(scene, shift), "JPEG"))
    question, answer = motion(scene, forward)
    return {"video": f"clips/{clip.name}/", "conversations": _conversation([(f"<video>\n{question}", answer)])}


def _text_only(draws: random.Random, media: Path, number: int) -> dict[str, object]:
    return {"conversations": _conversation([riddle(draws, draw_scene(draws))])}


def _save(scene: Scene, media: Path, name: str) -> str:
    (media / "pictures" / f"{name}.jpg").write_bytes(encode(picture(scene), "JPEG"))
    return f"pictures/{name}.jpg"


def _conversation(exchanges: Sequence[Exchange]) -> list[dict[str, str]]:
    return [
        {"from": speaker, "value": text}
        for exchange in exchanges
        for speaker, text in zip(("human", "gpt"), exchange, strict=True)
    ]
