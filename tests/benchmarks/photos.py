"""Photo-sized sources with the budgets that BAGEL trains with."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.datamaker.jsonl import conversation, write_conversations
from tests.datamaker.parquet import EDIT_SCHEMA, T2I_SCHEMA, phrase, write_parquet, write_parquet_info
from tests.datamaker.pictures import encode, picture
from tests.datamaker.recipe import Recipe
from tests.datamaker.tokenizer import write_tokenizer

__all__ = ["photo_recipe"]

VAE = {"image_stride": 16, "max_image_size": 1024, "min_image_size": 512}
VIT = {"image_stride": 14, "max_image_size": 518, "min_image_size": 224}
VLM = {"image_stride": 14, "max_image_size": 980, "min_image_size": 378, "max_pixels": 2_007_040}


def _photos(seed: int, count: int) -> list[bytes]:
    """JPEGs of one to six megapixels, quality 90."""
    draws = random.Random(seed)
    sizes = [(1280, 960), (1600, 1200), (1024, 1536), (2048, 1365), (1920, 1080), (3000, 2000)]
    return [encode(picture(seed + number, *draws.choice(sizes)), "JPEG", quality=90) for number in range(count)]


def photo_recipe(root: Path, num_rows: int = 40, num_photos: int = 24) -> Recipe:
    """A recipe over `num_rows` rows of each kind; the rows share `num_photos` photos (decoded anew each time)."""
    draws = random.Random(1)
    photos = _photos(7, num_photos)
    t2i = [
        {"image": draws.choice(photos), "captions": json.dumps({"a": phrase(draws, 20, 60), "b": phrase(draws, 5, 20)})}
        for _ in range(num_rows)
    ]
    edit = [
        {
            "image_list": [draws.choice(photos) for _ in range(3)],
            "instruction_list": [[phrase(draws), phrase(draws)] for _ in range(2)],
        }
        for _ in range(num_rows)
    ]
    for number in range(4):
        write_parquet(root / "t2i" / f"{number}.parquet", t2i[number::4], T2I_SCHEMA, 5)
        write_parquet(root / "edit" / f"{number}.parquet", edit[number::4], EDIT_SCHEMA, 5)
    (root / "media").mkdir(parents=True)
    for number, photo in enumerate(photos):
        (root / "media" / f"{number}.jpg").write_bytes(photo)
    lines: list[object] = []
    for _ in range(num_rows):
        turns = conversation(("human", f"<image>{phrase(draws, 10, 40)}"), ("gpt", phrase(draws, 40, 200)))
        lines.append({"image": f"{draws.randrange(num_photos)}.jpg", "conversations": turns})
    write_conversations(root / "lines.jsonl", lines)
    listing = write_parquet_info(root / "info.json", [root / "edit"])
    return Recipe(
        {
            "seed": 4396,
            "tokenizer": {"pretrained_model_name_or_path": str(write_tokenizer(root / "tokenizer"))},
            "dataset": {
                "grouped_datasets": {
                    "t2i_pretrain": {
                        "dataset_names": ["it"],
                        "image_transform_args": VAE,
                        "num_used_data": [4],
                        "weight": 1,
                    },
                    "unified_edit": {
                        "dataset_names": ["it"],
                        "image_transform_args": VAE,
                        "vit_image_transform_args": VIT,
                        "num_used_data": [4],
                        "weight": 1,
                    },
                    "vlm_sft": {
                        "dataset_names": ["it"],
                        "image_transform_args": VLM,
                        "frame_sampler_args": {"max_num_frames": 12, "min_num_frames": 8},
                        "num_used_data": [num_rows],
                        "weight": 1,
                    },
                },
                "dataset_info": {
                    "t2i_pretrain": {"it": {"data_dir": str(root / "t2i")}},
                    "unified_edit": {"it": {"data_dir": str(root / "edit"), "parquet_info_path": str(listing)}},
                    "vlm_sft": {"it": {"data_dir": str(root / "media"), "jsonl_path": str(root / "lines.jsonl")}},
                },
                "expected_num_tokens": 32768,
                "max_num_tokens": 36864,
                "max_num_tokens_per_sample": 16384,
                "use_flex": True,
                "max_latent_size": 64,
            },
            "dataloader": {"num_workers": 0},
        }
    )
