"""A meta data set whose rows know their exact lengths, as `precompute_tokens.py` would have measured them.

Only then does the reference pack on true lengths, as we always do, and only then can bins be compared.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_automodel.components.datasets.vlm.datasets import PreTokenizedDatasetWrapper, make_meta_dataset
from nemo_automodel.components.datasets.vlm.neat_packing_vlm import _estimate_sample_length
from nemo_automodel.components.datasets.vlm.samplers import LengthGroupedSampler
from transformers import Qwen2_5_VLConfig

from loaders import PackedShards
from pipeline.processor import VlmProcessor, load_processor
from tests.datamaker.pictures import encode, picture
from tests.datamaker.processor import write_processor
from tests.datamaker.video import write_video
from tests.datamaker.vlm_recipe import bake_vlm, write_vlm_recipe

__all__ = ["World", "make_video_world", "make_world", "read_batches"]

PACK_SIZE = 240
WORDS = ("the", "a", "red", "blue", "circle", "square", "dot", "line", "above", "below", "left", "right", "of", "and")


@dataclass(frozen=True)
class World:
    """Files of a data set.

    Attributes:
        root: Everything lies below it.
        processor: Loaded from `root/processor`.
        rows: As written, exact metadata included.
    """

    root: Path
    processor: VlmProcessor
    rows: list[dict[str, Any]]

    @property
    def meta(self) -> str:
        """Path of the meta file."""
        return str(self.root / "meta.json")

    def reference_rows(self) -> list[dict[str, Any]]:
        """The data set as the reference loads it, fresh copies each time."""
        return list(make_meta_dataset(self.meta))

    @property
    def lengths(self) -> list[int]:
        """Exact length of every row, unshifted."""
        image_cfg = LengthGroupedSampler._extract_image_config(self.processor.processor)
        return [int(_estimate_sample_length(row, image_cfg=image_cfg)) for row in self.reference_rows()]

    def bake(self, folder: Path, *, mrope: bool = False, **sections: dict[str, Any]) -> Path:
        """Run all stages on the inline executor; the output folder."""
        sections["packed_sequence"] = {"pack_size": PACK_SIZE, **sections.get("packed_sequence", {})}
        recipe = write_vlm_recipe(
            folder,
            meta=Path(self.meta),
            processor=self.root / "processor",
            model=self.root / "model" if mrope else None,
            **sections,
        )
        return Path(bake_vlm(recipe))


def make_world(root: Path, *, num_rows: int = 40, seed: int = 0) -> World:
    """Write processor, model configuration, pictures and rows: some of text, some of several pictures or turns."""
    processor = load_processor(str(write_processor(root / "processor")))
    _write_model(root, processor)
    draws = random.Random(seed)
    media = root / "media"
    media.mkdir()
    rows = [_row(number, media, draws) for number in range(num_rows)]
    world = World(root=root, processor=processor, rows=rows)
    _write(world)
    _write_exact_lengths(world)
    return world


def make_video_world(root: Path) -> World:
    """Rows with a video, with a video and a picture, with text alone. Lengths are told whole (`_text_tokens`)."""
    processor = load_processor(str(write_processor(root / "processor")))
    _write_model(root, processor)
    media = root / "media"
    rows: list[dict[str, Any]] = []
    for number, frames in enumerate((5, 8, 0, 12)):
        shown = "<video>" * bool(frames) + "<image>" * (number == 1)
        messages = [
            {"role": "user", "content": f"{shown}what moves?"},
            {"role": "assistant", "content": "the red dot " * (number + 1)},
        ]
        row: dict[str, Any] = {"messages": messages, "mm_inputs_meta": {}}
        if frames:
            write_video(media / f"{number}.mp4", frames, seed=number)
            row["videos"] = [f"{number}.mp4"]
        if number == 1:
            (media / "1.png").write_bytes(encode(picture(1, 60, 90), "PNG"))
            row["images"] = ["1.png"]
        rows.append(row)
    world = World(root=root, processor=processor, rows=rows)
    _write(world)
    _write_exact_lengths(world)
    return world


def _write_model(root: Path, processor: VlmProcessor) -> None:
    tokens = processor.tokenizer.convert_tokens_to_ids
    Qwen2_5_VLConfig(image_token_id=tokens("<|image_pad|>"), video_token_id=tokens("<|video_pad|>")).save_pretrained(
        root / "model"
    )


def _row(number: int, media: Path, draws: random.Random) -> dict[str, Any]:
    def words(most: int) -> str:
        return " ".join(draws.choices(WORDS, k=draws.randint(1, most)))

    names, sizes = [], []
    for image in range(draws.choice([0, 1, 1, 2, 3])):
        width, height = draws.randint(30, 200), draws.randint(30, 200)
        names.append(f"{number}-{image}.png")
        sizes.append([height, width])
        (media / names[-1]).write_bytes(encode(picture(number * 7 + image, width, height), "PNG"))
    messages = [{"role": "system", "content": words(6)}] if draws.random() < 0.3 else []
    waiting = len(names)
    for turn in range(draws.choice([1, 1, 2, 3])):
        shown = waiting if turn == 0 else 0
        messages.append({"role": "user", "content": "<image>" * shown + words(8)})
        messages.append({"role": "assistant", "content": words(12)})
    return {"messages": messages, "images": names, "mm_inputs_meta": {"images_meta": sizes}}


def _write(world: World) -> None:
    lines = "".join(f"{json.dumps(row)}\n" for row in world.rows)
    (world.root / "rows.jsonl").write_text(lines)
    meta = {"shapes": {"file_name": "rows.jsonl", "media_dir": str(world.root / "media")}}
    (world.root / "meta.json").write_text(json.dumps(meta))


def _write_exact_lengths(world: World) -> None:
    """`_text_tokens`: what the processor gives beyond the media tokens that the reference counts itself."""
    processor = world.processor.processor
    dataset = PreTokenizedDatasetWrapper(copy.deepcopy(world.reference_rows()), processor)
    for row in world.rows:
        row["_text_tokens"] = 0
    _write(world)
    media_tokens = world.lengths
    for number, row in enumerate(world.rows):
        row["_text_tokens"] = dataset[number]["input_ids"].shape[0] - media_tokens[number]
    _write(world)


def read_batches(bake: Path, rank: int, world_size: int, epoch: int = 0) -> Iterator[dict[str, Any]]:
    """The batches of one rank and epoch."""
    shards = PackedShards(str(bake), rank=rank, world_size=world_size)
    shards.set_epoch(epoch)
    for batch in shards.loader(num_workers=0):
        yield dict(batch)
