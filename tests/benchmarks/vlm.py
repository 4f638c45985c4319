"""VLM packs of rows that do not know their length: fill and samples lost at load beside nemo-automodel's, stored bytes.

    rows ──estimate──► bins ──real lengths──► what overflows is dropped      nemo-automodel's `neat_pack_dataset_vlm`
         ──index─────► real lengths ──► bins                                 ours, `neat` and `best_fit`

Rows are conversations of log-normal length with none to three pictures of common sizes, for a Qwen2.5-VL processor with
its own limits (4 to 1,280 tokens a picture). A word is a token, as is usual with a large vocabulary.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline import stages
from pipeline.configuration.reader import load_config
from pipeline.conversation_table import table_to_conversation_packs
from pipeline.executor import SilentProgress
from pipeline.vlm_records import ConversationPack
from tests.benchmarks.measuring import report
from tests.datamaker.conversations import write_jsonl
from tests.datamaker.pictures import encode, picture
from tests.datamaker.processor import write_processor
from tests.datamaker.tokenizer import SENTENCES
from tests.datamaker.vlm_recipe import bake_vlm, write_vlm_recipe

__all__ = ["run"]

PACK_SIZES = (4096, 8192)
MAX_PIXELS = 14 * 14 * 4 * 1280
NUM_ROWS = 2000
NUM_PICTURES = 40
NUM_RENDERED = 20
SIZES = ((640, 480), (512, 512), (336, 336), (800, 600), (500, 333), (1024, 768), (1280, 720), (768, 1024), (224, 224))
WORDS = tuple({word: None for sentence in SENTENCES for word in sentence.split()})
PATCH_FLOATS = 3 * 2 * 14 * 14


def run(folder: Path) -> bool:
    """Print fill, losses and bytes beside their targets."""
    logging.getLogger("nemo_automodel").setLevel(logging.ERROR)
    files = _write_files(folder)
    holds = [_packing(files, folder / "packing", pack_size) for pack_size in PACK_SIZES]
    holds.append(_stored_bytes(files, folder / "stored"))
    return all(itertools.chain(*holds))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    processor: Path
    meta: Path
    few: Path  # a meta file of the first rows


def _write_files(folder: Path) -> _Files:
    draws = random.Random(1)
    media = folder / "media"
    media.mkdir(parents=True)
    for number in range(NUM_PICTURES):
        scale = draws.uniform(0.6, 1.3)
        width, height = (round(side * scale) for side in draws.choice(SIZES))
        (media / f"{number}.jpg").write_bytes(encode(picture(number, width, height), "JPEG", quality=90))
    rows = [_row(draws) for _ in range(NUM_ROWS)]
    meta = {}
    for name, part in (("meta", rows), ("few", rows[:NUM_RENDERED])):
        write_jsonl(folder / f"{name}.jsonl", part)
        meta[name] = folder / f"{name}.json"
        meta[name].write_text(json.dumps({"chats": {"file_name": f"{name}.jsonl", "media_dir": str(media)}}))
    processor = write_processor(folder / "processor", max_pixels=MAX_PIXELS)
    return _Files(processor=processor, meta=meta["meta"], few=meta["few"])


def _row(draws: random.Random) -> dict[str, Any]:
    """A row as data sets have them: text and names of pictures."""

    def words(median: float, spread: float, most: int) -> str:
        count = max(1, min(most, round(draws.lognormvariate(math.log(median), spread))))
        return " ".join(draws.choices(WORDS, k=count))

    names = [f"{draws.randrange(NUM_PICTURES)}.jpg" for _ in range(draws.choice((0, 1, 1, 1, 2, 3)))]
    messages = []
    for turn in range(draws.choice((1, 1, 2, 4))):
        shown = "<image>" * len(names) if turn == 0 else ""
        messages.append({"role": "user", "content": shown + words(25, 0.8, 300)})
        messages.append({"role": "assistant", "content": words(120, 1.0, 2000)})
    return {"messages": messages, "images": names}


def _packing(files: _Files, folder: Path, pack_size: int) -> list[bool]:
    planned = {name: _planned(files, folder, name, pack_size) for name in ("neat", "best_fit")}
    lengths = _lengths(folder)
    fitting = {row for row, length in enumerate(lengths) if length - 1 <= pack_size}
    reference = _reference_packs(files, lengths, pack_size)
    lost_there = len(fitting) - sum(len(pack) for pack in reference)
    fills = {"reference": _fill([sum(pack) for pack in reference], pack_size)}
    holds = []
    for name, packs in planned.items():
        lost = len(fitting - {sample.dataset_row for pack in packs for sample in pack.samples})
        fills[name] = _fill([pack.num_tokens for pack in packs], pack_size)
        detail = f"of {len(fitting):,} that fit; the reference loses {lost_there} when its packs are loaded"
        measured = f"VLM {name} into {pack_size:,}, samples lost"
        holds.append(report(measured, lost, "0", lost == 0 < lost_there, detail))
    detail = (
        f"neat {fills['neat']:.2%}, the reference {fills['reference']:.2%}; "
        f"packs {len(planned['best_fit'])}, {len(planned['neat'])}, {len(reference)}"
    )
    fill = fills["best_fit"]
    holds.append(report(f"VLM best_fit into {pack_size:,}, mean fill", fill, "at least 0.99", fill >= 0.99, detail))
    return holds


def _fill(totals: Sequence[int], pack_size: int) -> float:
    return sum(totals) / len(totals) / pack_size


def _planned(files: _Files, folder: Path, packing: str, pack_size: int) -> list[ConversationPack]:
    """Index (once) and plan; the packs."""
    recipe = write_vlm_recipe(
        folder,
        meta=files.meta,
        processor=files.processor,
        packed_sequence={"pack_size": pack_size},
        bake={"packing": packing, "check_images": "header"},
    )
    config = load_config(str(recipe))
    stages.index(config, SilentProgress())
    stages.plan(config, SilentProgress())
    [lane] = sorted((folder / "bake" / "plan").glob("lane-*.parquet"))
    return list(table_to_conversation_packs(pq.read_table(lane)))


def _lengths(folder: Path) -> list[int]:
    """Unshifted tokens of every row, by the index (its one unit)."""
    [unit] = (folder / "bake" / "index" / "chats").glob("*.parquet")
    lengths: list[int] = pq.read_table(unit, columns=["num_tokens"]).column(0).to_pylist()
    return lengths


class _Tokenized:
    """Rows as long as `PreTokenizedDatasetWrapper` gives them, without the cost of making them."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, row: int) -> dict[str, Any]:
        import torch

        ids = torch.ones(self._lengths[row], dtype=torch.int64)
        return {"input_ids": ids, "labels": ids, "attention_mask": ids}


def _reference_packs(files: _Files, lengths: Sequence[int], pack_size: int) -> list[list[int]]:
    """Shifted lengths of what is in every pack that the reference loads."""
    from nemo_automodel.components.datasets.vlm.datasets import PreTokenizedDatasetWrapper, make_meta_dataset
    from nemo_automodel.components.datasets.vlm.neat_packing_vlm import neat_pack_dataset_vlm
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(files.processor)  # type: ignore[no-untyped-call]
    rows = list(make_meta_dataset(str(files.meta)))
    packs = neat_pack_dataset_vlm(
        dataset=_Tokenized(lengths), pack_size=pack_size, ds_raw=rows, processor=processor, balance_media_tokens=True
    )
    loaded = [[length for length in packs[number]["seq_lens"] if length] for number in range(len(packs))]
    wrapper = PreTokenizedDatasetWrapper(rows, processor)
    for row in range(0, NUM_ROWS, NUM_ROWS // 8):
        real = len(wrapper[row]["input_ids"])
        if real != lengths[row]:
            raise RuntimeError(f"row {row} has {lengths[row]} tokens in our index and {real} in the reference")
    return loaded


def _stored_bytes(files: _Files, folder: Path) -> list[bool]:
    """The whole shard, ids, labels and provenance included, against the pixel values alone."""
    recipe = write_vlm_recipe(
        folder, meta=files.few, processor=files.processor, packed_sequence={"pack_size": PACK_SIZES[-1]}
    )
    output = Path(bake_vlm(recipe))
    stored = sum(path.stat().st_size for path in output.glob("shards/*/*.tar"))
    patches = json.loads((output / "dataset.json").read_text())["tokens"]["patches"]
    detail = f"{stored / 2**20:,.1f} MiB stored, {patches:,} patches of {NUM_RENDERED} rows"
    holds = []
    for name, width, target in (("float32", 4, 1 / 7), ("bfloat16", 2, 1 / 3.5)):
        share = stored / (patches * PATCH_FLOATS * width)
        limit = f"at most {target:.3f}"
        holds.append(report(f"VLM packs, bytes over the processor's {name}", share, limit, share <= target, detail))
    return holds
