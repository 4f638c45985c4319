"""Small VLM bakes from a seed, written with ShardWriter and obeying every law: no source, plan or render behind them.

A sample is what a processor gives, before the shift; a pack is some of them. Pack number n starts with token
FIRST_ID + n, so that a batch tells which packs it holds.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from loaders.format import (
    DatasetManifest,
    LaneEntry,
    Provenance,
    ShardEntry,
    Sidecar,
    pack_key,
    shard_path,
    sidecar_path,
    to_json,
)
from loaders.vlm_format import LENGTHS_PATH, PixelTable, VlmPackHeader, VlmSettings
from loaders.vlm_order import OrderRule, epoch_order
from pipeline.render.shard_writer import ShardWriter

IMAGE_ID, VIDEO_ID, PAD_ID, FIRST_ID, VOCABULARY = 5, 6, 7, 10, 600
PIXELS = 4  # of a patch and frame: a 2x2 square
TABLES = tuple(
    tuple(float(np.float32((byte / 255 - mean) / std)) for byte in range(256))
    for mean, std in ((0.48, 0.27), (0.46, 0.26), (0.41, 0.28))
)
IMAGE_TABLE = PixelTable(tables=TABLES, temporal=2, temporal_repeats=True)
VIDEO_TABLE = replace(IMAGE_TABLE, temporal_repeats=False)

Array = npt.NDArray[Any]
Sample = dict[str, Any]

SETTINGS = VlmSettings(
    packing="neat",
    packing_format="neat",
    mask="dense",
    order="distributed",
    shuffle=True,
    order_seed=0,
    shard_data=False,
    num_packs=0,
    local_batch_size=2,
    pad_token_id=PAD_ID,
    pack_size=160,
    max_length=None,
    collate_max_length=None,
    cp_size=1,
    lengths="",
    pixel_tables={"pixel_values": IMAGE_TABLE, "pixel_values_videos": VIDEO_TABLE},
    shard_bytes=1 << 20,
    on_bad_row="replace",
    truncation="off",
    inject_fake_images=True,
    corrections=(),
    processor="Qwen2_5_VLProcessor",
    mrope=False,
)


@dataclass(frozen=True, kw_only=True)
class Made:
    """A bake and what it holds: by pack number its samples, by position of epoch 0 its pack numbers."""

    url: str
    settings: VlmSettings
    samples: list[list[Sample]]
    stored: list[int]


def draw_sample(seed: str, *, mrope: bool, media: bool = True, first_id: int | None = None) -> Sample:
    """Question with images and videos of grid (1, 2, 2) and (2, 2, 2), then an answer with loss. Merged by 2x2."""
    draws = random.Random(seed)
    images, videos = (draws.randint(0, 2), draws.choice((0, 0, 1))) if media else (0, 0)
    text = [draws.randrange(FIRST_ID, VOCABULARY) for _ in range(draws.randint(6, 30))]
    text[0] = text[0] if first_id is None else first_id
    ids = [*text[:2], *[IMAGE_ID] * images, *[VIDEO_ID] * (2 * videos), *text[2:]]
    num_answer = draws.randint(1, len(text) - 3)
    labels = [-100] * (len(ids) - num_answer) + ids[-num_answer:]
    sample: Sample = {
        "input_ids": torch.tensor(ids),
        "labels": torch.tensor(labels),
        "attention_mask": torch.ones(len(ids), dtype=torch.int64),
        "mm_token_type_ids": torch.tensor([[{IMAGE_ID: 1, VIDEO_ID: 2}.get(token, 0) for token in ids]]),
    }
    rng = np.random.default_rng(draws.getrandbits(32))
    if mrope:
        sample["position_ids"] = torch.from_numpy(np.sort(rng.integers(0, 50, (3, len(ids))), axis=1))
    if images:
        stored = np.repeat(rng.integers(0, 256, (images * 4, 3, 1, PIXELS), dtype=np.uint8), 2, axis=2)
        sample |= {"pixel_values": _floats(stored), "image_grid_thw": torch.tensor([[1, 2, 2]] * images)}
    if videos:
        stored = rng.integers(0, 256, (videos * 8, 3, 2, PIXELS), dtype=np.uint8)
        sample |= {"pixel_values_videos": _floats(stored), "video_grid_thw": torch.tensor([[2, 2, 2]] * videos)}
        sample["second_per_grid_ts"] = torch.full((videos,), 0.5)
    return sample


def _floats(stored: Array) -> torch.Tensor:
    values = np.stack([np.array(TABLES[channel], np.float32)[stored[:, channel]] for channel in range(3)], axis=1)
    return torch.from_numpy(values.reshape(len(stored), -1))


def write_vlm_bake(
    folder: Path,
    num_packs: int,
    *,
    world_size: int = 1,
    lane_lengths: Sequence[int] = (),
    packs_per_shard: int = 3,
    media: bool = True,
    stored_floats: bool = False,
    stream: str = "stream-v",
    **changes: Any,
) -> Made:
    """Write a whole bake below `folder`; `changes` are of SETTINGS, `lane_lengths` mean `shard_data`."""
    settings = replace(SETTINGS, num_packs=num_packs, **changes)
    settings = replace(settings, shard_data=bool(lane_lengths))
    if stored_floats:
        settings = replace(settings, pixel_tables={})
    samples = [_draw_pack(number, settings, media) for number in range(num_packs)]
    lengths = np.array([sum(len(s["input_ids"]) for s in pack) for pack in samples], dtype=np.int32)
    if settings.order == "length_grouped":
        settings = replace(settings, lengths=LENGTHS_PATH)
        (folder / "plan").mkdir(parents=True, exist_ok=True)
        np.save(folder / LENGTHS_PATH, lengths)
    rule = OrderRule(
        order=settings.order,
        shuffle=settings.shuffle,
        seed=settings.order_seed,
        batch_size=settings.local_batch_size,
    )
    if lane_lengths:
        firsts = [0, *accumulate(lane_lengths)]
        lanes = [
            (first + epoch_order(rule, end - first, 1, epoch=0, lengths=lengths[first:end])).tolist()
            for first, end in pairwise(firsts)
        ]
        rounds = [[lane[turn] for lane in lanes if turn < len(lane)] for turn in range(max(lane_lengths))]
        stored = [number for each in rounds for number in each]
    else:
        stored = epoch_order(rule, num_packs, world_size, epoch=0, lengths=lengths)[:num_packs].tolist()
        lanes = [stored[lane::world_size] for lane in range(world_size)]
    entries, tokens = [], dict.fromkeys(("total", "text", "media", "label", "patches", "float32_patches"), 0)
    for lane, numbers in enumerate(lanes):
        bounds = [*range(0, len(numbers), packs_per_shard), len(numbers)]
        shards = [
            _write_shard(folder, (lane, shard, first), numbers[first:end], samples, settings, tokens, stream)
            for shard, (first, end) in enumerate(pairwise(bounds))
        ]
        entries.append(LaneEntry(shards=tuple(shards)))
    num_rows = sum(map(len, samples))
    manifest = DatasetManifest(
        recipe="vlm",
        stream=stream,
        fingerprints={"config": "c", "tokenizer": "t", "plan": "p"},
        world_size=len(lanes),
        num_workers=1,
        lanes=tuple(entries),
        use_flex=False,
        max_num_tokens=settings.pack_size or 0,
        vit_patch_size=0,
        vae_image_downsample=0,
        pixels="raw",
        special_tokens={},
        vocab_size=VOCABULARY,
        normalisations=(),
        tokens=tokens,
        rows={
            "synthetic": {
                "passes": [{"drawn": num_rows, "packed": num_rows, "dropped": {}, "discarded": 0, "waiting": 0}],
                "dropped_in_render": {},
                "not_reached": 0,
                "not_assigned": 0,
            }
        },
        seed=0,
        settings=settings.to_settings(),
    )
    (folder / "dataset.json").write_bytes(to_json(manifest))
    return Made(url=str(folder), settings=settings, samples=samples, stored=stored)


def _draw_pack(number: int, settings: VlmSettings, media: bool) -> list[Sample]:
    draws = random.Random(number)
    num_samples = 1 if settings.packing == "none" else draws.randint(1, 3)
    return [
        draw_sample(
            f"{number} {part}", mrope=settings.mrope, media=media, first_id=FIRST_ID + number if part == 0 else None
        )
        for part in range(num_samples)
    ]


def alignment_of(settings: VlmSettings) -> int:
    """Tokens to whose multiple documents are padded."""
    return 2 * settings.cp_size if settings.packing_format == "thd" and settings.cp_size > 1 else 1


def stored_pack(
    number: int, samples: Sequence[Sample], settings: VlmSettings
) -> tuple[VlmPackHeader, dict[str, Array]]:
    """Header and arrays of a pack, as render writes them."""
    unpacked = settings.packing == "none"
    alignment = alignment_of(settings)
    ids, labels, types, positions, lens, padded = [], [], [], [], [], []
    for sample in samples:
        kept = slice(None) if unpacked else slice(None, -1)
        length = len(sample["input_ids"][kept])
        pad = -length % alignment
        lens.append(length)
        padded.append(length + pad)
        ids.append(np.pad(sample["input_ids"][kept].numpy(), (0, pad), constant_values=PAD_ID))
        shifted = sample["labels"] if unpacked else sample["labels"][1:]
        labels.append(np.pad(shifted.numpy(), (0, pad), constant_values=-100))
        types.append(np.pad(sample["mm_token_type_ids"][0][kept].numpy(), (0, pad)))
        if settings.mrope:
            positions.append(sample["position_ids"][:, kept].numpy())
    arrays: dict[str, Array] = {
        "input_ids": np.concatenate(ids).astype(np.int32),
        "labels": np.concatenate(labels).astype(np.int32),
        "mm_token_type_ids": np.concatenate(types).astype(np.uint8),
    }
    if positions:
        arrays["position_ids"] = np.concatenate(positions, axis=1).astype(np.int32)
    for key, dtype in (("image_grid_thw", np.int32), ("video_grid_thw", np.int32), ("second_per_grid_ts", np.float32)):
        if found := [sample[key].numpy() for sample in samples if key in sample]:
            arrays[key] = np.concatenate(found).astype(dtype)
    for key in ("pixel_values", "pixel_values_videos"):
        if found := [sample[key].numpy() for sample in samples if key in sample]:
            values = np.concatenate(found)
            if key in settings.pixel_tables:
                arrays[f"{key}_u1"] = _bytes(values, settings.pixel_tables[key])
            else:
                arrays[f"{key}_f4"] = values
    header = VlmPackHeader(
        num_tokens=sum(padded),
        seq_lens=tuple(lens),
        seq_lens_padded=tuple(padded),
        n_images=sum(len(sample.get("image_grid_thw", ())) for sample in samples),
        n_videos=sum(len(sample.get("video_grid_thw", ())) for sample in samples),
        number=number,
        provenance=tuple(
            Provenance(source="synthetic", path="rows.jsonl", row=1000 * number + part) for part in range(len(samples))
        ),
    )
    return header, arrays


def _bytes(values: Array, table: PixelTable) -> Array:
    rows = values.reshape(len(values), 3, table.temporal, -1)[:, :, : 1 if table.temporal_repeats else None]
    stored = [np.searchsorted(np.array(table.tables[channel], np.float32), rows[:, channel]) for channel in range(3)]
    return np.stack(stored, axis=1).reshape(len(values), -1).astype(np.uint8)


def _write_shard(
    folder: Path,
    place: tuple[int, int, int],
    numbers: Sequence[int],
    samples: Sequence[Sequence[Sample]],
    settings: VlmSettings,
    totals: dict[str, int],
    stream: str,
) -> ShardEntry:
    lane, shard, first = place
    tokens = dict.fromkeys(totals, 0)
    tar = folder / shard_path(lane, shard)
    tar.parent.mkdir(parents=True, exist_ok=True)
    with open(tar, "wb") as file:
        writer = ShardWriter(file)
        for offset, number in enumerate(numbers):
            header, arrays = stored_pack(number, samples[number], settings)
            writer.add_pack(pack_key(lane, first + offset), header, arrays, {})
            types = arrays["mm_token_type_ids"]
            tokens["total"] += sum(header.seq_lens)
            tokens["media"] += int((types > 0).sum())
            tokens["text"] += sum(header.seq_lens) - int((types > 0).sum())
            tokens["label"] += int((arrays["labels"] != -100).sum())
            for name, array in arrays.items():
                tokens["patches"] += len(array) * name.startswith("pixel_values")
                tokens["float32_patches"] += len(array) * name.endswith("_f4")
        content = writer.finish()
    sidecar = to_json(
        Sidecar(
            lane=lane,
            shard=shard,
            first_pack=first,
            num_packs=len(numbers),
            num_bytes=content.num_bytes,
            sha256=content.sha256,
            fingerprint=f"{lane}-{shard}",
            packs=content.packs,
            tokens=tokens,
            stream=stream,
        )
    )
    (folder / sidecar_path(lane, shard)).write_bytes(sidecar)
    for kind, count in tokens.items():
        totals[kind] += count
    return ShardEntry(
        num_packs=len(numbers),
        num_bytes=content.num_bytes,
        sha256=content.sha256,
        sidecar_sha256=hashlib.sha256(sidecar).hexdigest(),
    )
