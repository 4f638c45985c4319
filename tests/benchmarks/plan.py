"""Plan: rows a second per lane, and memory that does not grow with the rows."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.benchmarks.measuring import Measure, fresh_process, report
from tests.datamaker.jsonl import conversation
from tests.datamaker.parquet import T2I_SCHEMA, phrase, write_parquet
from tests.datamaker.pictures import encode, picture
from tests.datamaker.recipe import Recipe
from tests.datamaker.tokenizer import write_tokenizer

__all__ = ["run"]

WORKER = "tests.benchmarks.worker"
SIZES = (20_000, 80_000)


def run(folder: Path) -> bool:
    """Print the speed and the memory."""
    holds = []
    for kind in ("vlm_sft", "t2i_pretrain"):
        measures = [_planned(folder / f"{kind}-{num_rows}", kind, num_rows) for num_rows in SIZES]
        (_, few), (num_drawn, many) = measures
        speed = num_drawn / many.cpu_s  # a lane is one process on one core
        growth = many.peak_bytes / few.peak_bytes
        detail = f"{num_drawn:,} rows drawn in {many.cpu_s:.1f} CPU seconds, assignment included"
        holds.append(report(f"plan of {kind}, rows a second", speed, "at least 10,000", speed >= 10_000, detail))
        detail = (
            f"{few.peak_bytes / 2**20:,.0f} MiB for {SIZES[0]:,} rows, {many.peak_bytes / 2**20:,.0f} for {SIZES[1]:,}"
        )
        holds.append(
            report(f"plan of {kind}, peak memory, 4 times the rows", growth, "at most 1.1", growth <= 1.1, detail)
        )
    return all(holds)


def _planned(folder: Path, kind: str, num_rows: int) -> tuple[int, Measure]:
    """Index, then plan one epoch in a fresh process: (rows drawn, what it cost)."""
    recipe = _conversations(folder, num_rows) if kind == "vlm_sft" else _pictures(folder, num_rows)
    config = recipe.write(
        folder / "config.yaml",
        output=str(folder / "bake"),
        length={"epochs": 1},
        executor="inline",
        check_images="header",
    )
    fresh_process(WORKER, "stage", "index", str(config))
    measure = fresh_process(WORKER, "stage", "plan", str(config))
    plan = json.loads((folder / "bake" / "plan" / "plan.json").read_text())
    drawn = sum(once["drawn"] for lane in plan["lanes"] for passes in lane["rows"].values() for once in passes)
    return drawn, measure


def _recipe(folder: Path, kind: str, group: dict[str, object], info: dict[str, object]) -> Recipe:
    return Recipe(
        {
            "tokenizer": {"pretrained_model_name_or_path": str(write_tokenizer(folder / "tokenizer"))},
            "dataset": {
                "grouped_datasets": {kind: {"dataset_names": ["it"], "weight": 1, **group}},
                "dataset_info": {kind: {"it": info}},
            },
            "dataloader": {"num_workers": 1},
        }
    )


def _conversations(folder: Path, num_rows: int) -> Recipe:
    draws = random.Random(2)
    (folder / "media").mkdir(parents=True)
    (folder / "media" / "a.jpg").write_bytes(encode(picture(1, 400, 300), "JPEG"))
    with (folder / "lines.jsonl").open("w") as lines:
        for number in range(num_rows):
            turns = conversation(("human", f"<image>{number} {phrase(draws)}"), ("gpt", phrase(draws, 5, 40)))
            lines.write(json.dumps({"image": "a.jpg", "conversations": turns}) + "\n")
    return _recipe(
        folder,
        "vlm_sft",
        {
            "image_transform_args": {"image_stride": 14, "max_image_size": 980, "min_image_size": 378},
            "frame_sampler_args": {"max_num_frames": 12, "min_num_frames": 8},
            "num_used_data": [num_rows],
            "shuffle_lines": True,
        },
        {"data_dir": str(folder / "media"), "jsonl_path": str(folder / "lines.jsonl")},
    )


def _pictures(folder: Path, num_rows: int) -> Recipe:
    draws = random.Random(3)
    images = [encode(picture(number, 24 + number, 40), "JPEG") for number in range(20)]
    per_file = 20_000
    for start in range(0, num_rows, per_file):
        rows = [
            {"image": draws.choice(images), "captions": json.dumps({"a": phrase(draws), "b": phrase(draws)})}
            for _ in range(per_file)
        ]
        write_parquet(folder / "t2i" / f"{start:08d}.parquet", rows, T2I_SCHEMA, 2000)
    return _recipe(
        folder,
        "t2i_pretrain",
        {
            "image_transform_args": {"image_stride": 16, "max_image_size": 512, "min_image_size": 256},
            "num_used_data": [num_rows // per_file],
        },
        {"data_dir": str(folder / "t2i")},
    )
