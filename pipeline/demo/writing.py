"""Files of the demo: one source of every kind, a tokenizer, a configuration in AutoModel's spelling, a note."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.demo.captions import captions
from pipeline.demo.drawing import encode, picture
from pipeline.demo.edits import draw_chain
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
    """Write the demo into a folder (made if it is not there) and return the path of its configuration.

    The same seed writes the same bytes. Files of an earlier demo are replaced.
    """
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    _write_captioned(root / "t2i", random.Random(f"{seed} t2i"))
    _write_chains(root / "edits", random.Random(f"{seed} edits"))
    _write_answers(root / "answers", random.Random(f"{seed} answers"))
    build_tokenizer(str(root / "tokenizer"))
    (root / "README.md").write_text(_NOTE, encoding="utf-8")
    config = root / "config.yaml"
    config.write_text(_CONFIG, encoding="utf-8")
    return str(config)


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


def _write_answers(folder: Path, draws: random.Random) -> None:
    """JSONL of questions and answers about one picture, two, a clip, or none; the last row's picture is missing."""
    media = folder / "media"
    (media / "pictures").mkdir(parents=True, exist_ok=True)
    kinds = (_one_picture, _one_picture, _two_pictures, _one_picture, _text_only, _one_picture, _two_pictures, _clip)
    rows = [{"id": number, **kinds[number % len(kinds)](draws, media, number)} for number in range(NUM_ANSWER_ROWS)]
    lost: dict[str, object] = {"image": "pictures/lost.jpg", "conversations": _conversation([("<image>\nWhat?", "?")])}
    rows.append({"id": NUM_ANSWER_ROWS, **lost})
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (folder / "answers.jsonl").write_text("".join(lines), encoding="utf-8")


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


_NOTE = """\
# The parbake demo

Drawn scenes and texts that are true of them, one source of every kind:

- `t2i/*.parquet`: pictures with several captions each ("a red circle left of a blue square")
- `edits/*.parquet`: chains of pictures and the instructions that lead from one to the next
- `answers/answers.jsonl` with `answers/media/`: questions and answers about one picture, two pictures, a clip (a folder
  of frames) or none. One row names a picture that is not there: parbake drops it, counts it and says which it was.
- `tokenizer/`: a small byte-level BPE tokenizer with Qwen2's chat tokens, trained on these texts
- `config.yaml`: a recipe in NeMo AutoModel's spelling, and what parbake adds to it under `bake:`

From this folder:

    parbake run config.yaml          index, plan and render into bake/
    parbake validate bake            check the laws and write bake/report/
    parbake inspect bake --position 1 --html pack.html
"""

_CONFIG = """\
# A BAGEL recipe as NeMo AutoModel spells it, with budgets so small that it bakes in seconds.
seed: 4396

tokenizer:
  pretrained_model_name_or_path: tokenizer

dataset:
  grouped_datasets:
    t2i_pretrain:
      dataset_names: [scenes]
      image_transform_args: {image_stride: 16, max_image_size: 256, min_image_size: 96}
      is_mandatory: true
      num_used_data: [4]
      weight: 1.0
    unified_edit:
      dataset_names: [chains]
      image_transform_args: {image_stride: 16, max_image_size: 256, min_image_size: 96}
      vit_image_transform_args: {image_stride: 14, max_image_size: 224, min_image_size: 84}
      is_mandatory: false
      num_used_data: [2]
      weight: 1.0
    vlm_sft:
      dataset_names: [answers]
      image_transform_args: {image_stride: 14, max_image_size: 224, min_image_size: 84, max_pixels: 301056}
      frame_sampler_args: {max_num_frames: 6, min_num_frames: 3}
      is_mandatory: false
      shuffle_lines: true
      shuffle_seed: 0
      num_used_data: [97]
      weight: 1.0
  dataset_info:
    t2i_pretrain:
      scenes: {data_dir: t2i}
    unified_edit:
      chains: {data_dir: edits}
    vlm_sft:
      answers: {data_dir: answers/media, jsonl_path: answers/answers.jsonl}
  expected_num_tokens: 2048
  max_num_tokens: 2560
  max_num_tokens_per_sample: 2048
  prefer_buffer_before: 1024
  max_buffer_size: 8
  text_cond_dropout_prob: 0.1
  vit_cond_dropout_prob: 0.3
  vae_cond_dropout_prob: 0.1
  interpolate_pos: false
  use_flex: false
  data_seed: 42

dataloader:
  num_workers: 1

bake:
  output: bake
  world_size: 2 # ranks the lanes are laid out for; any number of ranks can read them
  length: {packs_per_lane: 12}
  shard_bytes: 4MiB # small, so that there are several
  executor: inline # ray: the same bytes, on this machine's cores or a cluster's
"""
