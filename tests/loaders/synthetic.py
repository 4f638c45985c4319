"""Small bakes from a seed, written with ShardWriter and obeying every law: no source, plan or render behind them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loaders.format import (
    DatasetManifest,
    LaneEntry,
    Normalisation,
    PackHeader,
    Provenance,
    ShardEntry,
    Sidecar,
    pack_key,
    picture_name,
    shard_path,
    sidecar_path,
    to_json,
)
from loaders.pixels import patchify
from pipeline.render.shard_writer import ShardWriter, encode_webp

PATCH, DOWNSAMPLE = 2, 4
VOCABULARY = 100
MAX_NUM_TOKENS = 200
SAMPLES_PER_PACK = 3
NORMALISATIONS = (
    Normalisation(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
    Normalisation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
)

Array = npt.NDArray[np.generic]


@dataclass
class Drawn:
    """One pack before it is written: header, arrays, and its pictures as pixels."""

    header: PackHeader
    arrays: dict[str, Array]
    vit_pictures: list[npt.NDArray[np.uint8]]
    vae_pictures: list[npt.NDArray[np.uint8]]


@dataclass
class _Sequence:
    """Lists that grow item by item, as the reference's packer grows them."""

    lists: dict[str, list[Any]] = field(default_factory=dict)
    length: int = 0

    def extend(self, name: str, values: Sequence[Any]) -> None:
        self.lists.setdefault(name, []).extend(values)

    def marker(self, token: int) -> None:
        self.extend("packed_text_ids", [token])
        self.extend("packed_text_indexes", [self.length])
        self.length += 1


def draw_pack(seed: int, *, samples: int = SAMPLES_PER_PACK) -> Drawn:
    """A pack of text-only, caption + picture, and edit samples (one stored picture used twice)."""
    rng = np.random.default_rng(seed)
    seq = _Sequence()
    splits: list[tuple[int, str]] = []
    sample_lens, vit, vae, vae_index, vit_norm, vae_norm, shapes = [], [], [], [], [], [], []

    def text(*, loss: bool) -> None:
        ids = rng.integers(4, VOCABULARY, rng.integers(1, 6)).tolist()
        start = seq.length
        for token in [0, *ids, 1]:
            seq.marker(token)
        if loss:
            seq.extend("ce_loss_indexes", range(start, start + len(ids) + 1))
            seq.extend("packed_label_ids", [*ids, 1])
            seq.extend("ce_loss_weights", [(len(ids) + 1) ** -0.5] * (len(ids) + 1))
        close("causal", start)

    def close(mode: str, start: int) -> None:
        splits.append((seq.length - start, mode))

    def vit_image() -> None:
        height, width = (int(side) * PATCH for side in rng.integers(1, 4, 2))
        start = seq.length
        seq.marker(2)
        num_patches = (height // PATCH) * (width // PATCH)
        seq.extend("packed_vit_token_indexes", range(seq.length, seq.length + num_patches))
        seq.extend("packed_vit_position_ids", range(num_patches))
        seq.extend("vit_token_seqlens", [num_patches])
        seq.length += num_patches
        seq.marker(3)
        vit.append(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        vit_norm.append(int(rng.integers(2)))
        close("full", start)

    def vae_image(picture: int, *, loss: bool) -> None:
        height, width, _ = vae[picture].shape
        rows, columns = height // DOWNSAMPLE, width // DOWNSAMPLE
        start = seq.length
        seq.marker(2)
        cells = range(seq.length, seq.length + rows * columns)
        seq.extend("packed_vae_token_indexes", cells)
        seq.extend("packed_latent_position_ids", range(rows * columns))
        seq.extend("packed_timesteps", [rng.standard_normal() if loss else -np.inf] * (rows * columns))
        seq.extend("mse_loss_indexes", cells if loss else [])
        seq.length += rows * columns
        seq.marker(3)
        vae_index.append(picture)
        shapes.append((rows, columns))
        close("noise" if loss else "full", start)

    def new_picture() -> int:
        height, width = (int(side) * DOWNSAMPLE for side in rng.integers(1, 4, 2))
        vae.append(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        vae_norm.append(int(rng.integers(2)))
        return len(vae) - 1

    for sample in range(samples):
        start = seq.length
        kind = ("text", "t2i", "edit")[(seed + sample) % 3]
        if kind == "text":
            text(loss=False)
            vit_image()
            text(loss=True)
        elif kind == "t2i":
            text(loss=False)
            vae_image(new_picture(), loss=True)
        else:
            vae_image(new_picture(), loss=False)
            text(loss=False)
            target = new_picture()
            vae_image(target, loss=True)
            vae_image(target, loss=False)
        sample_lens.append(seq.length - start)
    dtypes = {"ce_loss_weights": np.float32, "packed_timesteps": np.float32}
    arrays: dict[str, Array] = {
        name: np.array(values, dtype=dtypes.get(name, np.int32)) for name, values in seq.lists.items()
    }
    arrays["packed_position_ids"] = np.arange(seq.length, dtype=np.int32)
    header = PackHeader(
        sequence_length=seq.length,
        sample_lens=tuple(sample_lens),
        split_lens=tuple(length for length, _ in splits),
        attn_modes=tuple(mode for _, mode in splits),
        vit_image_sizes=tuple((int(p.shape[0]), int(p.shape[1])) for p in vit),
        vit_normalisation=tuple(vit_norm),
        vae_image_sizes=tuple((int(p.shape[0]), int(p.shape[1])) for p in vae),
        vae_image_index=tuple(vae_index),
        vae_normalisation=tuple(vae_norm),
        patchified_vae_latent_shapes=tuple(shapes),
        batch_data_indexes=tuple(
            {"data_indexes": [seed, 0, number], "worker_id": 0, "dataset_name": "synthetic"}
            for number in range(samples)
        ),
        provenance=tuple(
            Provenance(source="synthetic/all", path="rows.parquet", row=samples * seed + number)
            for number in range(samples)
        ),
    )
    return Drawn(header, arrays, vit, vae)


def members(drawn: Drawn, pixels: str) -> tuple[dict[str, Array], dict[str, bytes]]:
    """Arrays and WebP pictures that the shard stores for a pack."""
    arrays, pictures = dict(drawn.arrays), {}
    if pixels == "webp":
        for tower, images in (("vit", drawn.vit_pictures), ("vae", drawn.vae_pictures)):
            for number, image in enumerate(images):
                short = picture_name("key", tower, number).split(".")[1]
                pictures[short] = encode_webp(image)
    else:
        if drawn.vit_pictures:
            arrays["vit_pixels"] = np.concatenate([patchify(image, PATCH) for image in drawn.vit_pictures])
        if drawn.vae_pictures:
            arrays["vae_pixels"] = np.concatenate([image.reshape(-1) for image in drawn.vae_pictures])
    return arrays, pictures


def seed_of(lane: int, pack: int) -> int:
    """The seed that `write_bake` draws a pack from."""
    return 1000 * lane + pack


def write_bake(
    folder: Path,
    lane_lengths: Sequence[int],
    *,
    packs_per_shard: int = 3,
    pixels: str = "raw",
    use_flex: bool = True,
    stream: str = "stream-a",
) -> DatasetManifest:
    """Write a whole bake below `folder`."""
    lanes = []
    totals = {"total": 0, "text": 0, "vit": 0, "vae": 0}
    for lane, num_packs in enumerate(lane_lengths):
        bounds = [*range(0, num_packs, packs_per_shard), num_packs]
        shards = []
        for shard, (first, end) in enumerate(pairwise(bounds)):
            tokens = dict.fromkeys(totals, 0)
            tar = folder / shard_path(lane, shard)
            tar.parent.mkdir(parents=True, exist_ok=True)
            with open(tar, "wb") as file:
                writer = ShardWriter(file)
                for pack in range(first, end):
                    drawn = draw_pack(seed_of(lane, pack))
                    writer.add_pack(pack_key(lane, pack), drawn.header, *members(drawn, pixels))
                    tokens["total"] += drawn.header.sequence_length
                    for kind in ("text", "vit", "vae"):
                        prefix = "token_" if kind != "text" else ""
                        indexes = drawn.arrays.get(f"packed_{kind}_{prefix}indexes")
                        tokens[kind] += 0 if indexes is None else len(indexes)
                content = writer.finish()
            sidecar = to_json(
                Sidecar(
                    lane=lane,
                    shard=shard,
                    first_pack=first,
                    num_packs=end - first,
                    num_bytes=content.num_bytes,
                    sha256=content.sha256,
                    fingerprint=f"{lane}-{shard}",
                    packs=content.packs,
                    tokens=tokens,
                )
            )
            (folder / sidecar_path(lane, shard)).write_bytes(sidecar)
            totals = {kind: totals[kind] + tokens[kind] for kind in totals}
            shards.append(
                ShardEntry(
                    num_packs=end - first,
                    num_bytes=content.num_bytes,
                    sha256=content.sha256,
                    sidecar_sha256=hashlib.sha256(sidecar).hexdigest(),
                )
            )
        lanes.append(LaneEntry(shards=tuple(shards)))
    num_rows = SAMPLES_PER_PACK * sum(lane_lengths)
    manifest = DatasetManifest(
        recipe="bagel",
        stream=stream,
        fingerprints={"config": "c", "tokenizer": "t", "plan": "p"},
        world_size=1,
        num_workers=len(lane_lengths),
        lanes=tuple(lanes),
        use_flex=use_flex,
        max_num_tokens=MAX_NUM_TOKENS,
        vit_patch_size=PATCH,
        vae_image_downsample=DOWNSAMPLE,
        pixels=pixels,
        special_tokens={"bos_token_id": 0, "eos_token_id": 1, "start_of_image": 2, "end_of_image": 3},
        vocab_size=VOCABULARY,
        normalisations=NORMALISATIONS,
        tokens=totals,
        rows={
            "synthetic/all": {
                "passes": [{"drawn": num_rows, "packed": num_rows, "dropped": {}, "discarded": 0, "waiting": 0}],
                "dropped_in_render": {},
                "not_reached": 0,
                "not_assigned": 0,
            }
        },
        seed=4396,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset.json").write_bytes(to_json(manifest))
    return manifest
