"""One pack: planned samples, their token ids and their pictures become the members of a tar sample."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loaders.format import Drop, PackHeader, Provenance
from pipeline.config import Config
from pipeline.errors import RunFailed, SourceError
from pipeline.media.faults import ImageFault
from pipeline.media.patches import patchify
from pipeline.records import IndexRow, Item, ItemKind, PlannedPack, PlannedSample, RowId
from pipeline.render.layout import LayoutRules, PackLayout, lay_out
from pipeline.render.normalisation import Normalisations
from pipeline.render.pictures import PictureKey, PictureReader, Pixels, pictures_of_samples
from pipeline.render.shard_writer import encode_webp

__all__ = ["PackRules", "RenderedPack", "layout_rules", "render_pack"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackRules:
    """What a pack's bytes depend on beside the plan and the sources.

    Attributes:
        layout: Special tokens and grids.
        normalisations: Mean and deviation of every source's pictures.
        corrections: `bake.corrections`.
        webp: Store pictures as lossless WebP instead of raw pixels.
    """

    layout: LayoutRules
    normalisations: Normalisations
    corrections: frozenset[str]
    webp: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPack:
    """What `ShardWriter.add_pack` takes, and what became of the samples.

    Attributes:
        header: The `.json` member.
        arrays: Array name → array.
        pictures: Short name ("vit_000") → lossless WebP; empty with raw pixels.
        tokens: "total", "text", "vit", "vae".
        drops: Samples that had to be left out.
    """

    header: PackHeader
    arrays: dict[str, NDArray[np.generic]]
    pictures: dict[str, bytes]
    tokens: dict[str, int]
    drops: tuple[Drop, ...]


@dataclass(frozen=True, slots=True)
class _Shown:
    """An image of the batch: its item, its source and its pixels."""

    source: str
    item: Item
    pixels: Pixels


def layout_rules(config: Config, special_tokens: Mapping[str, int]) -> LayoutRules:
    """The layout rules of a recipe."""
    dataset = config.dataset
    return LayoutRules(
        bos_token_id=special_tokens["bos_token_id"],
        eos_token_id=special_tokens["eos_token_id"],
        start_of_image=special_tokens["start_of_image"],
        end_of_image=special_tokens["end_of_image"],
        vit_patch_px=dataset.vit_patch_size,
        vit_max_per_side=dataset.max_num_patch_per_side,
        vae_cell_px=dataset.vae_image_downsample,
        vae_max_per_side=dataset.max_latent_size,
        interpolate_pos=dataset.interpolate_pos,
    )


def render_pack(
    pack: PlannedPack, rows: Mapping[RowId, IndexRow], reader: PictureReader, rules: PackRules
) -> RenderedPack:
    """Make one pack. A sample with an image that no longer decodes is left out; nothing else moves.

    Args:
        pack: The plan's row.
        rows: Index rows of its samples.
        reader: Gives source images.
        rules: Settings of the bake.

    Raises:
        SourceError: so many samples had to be left out that the pack is empty or has no loss.
        RunFailed: a source file changed since the index, or cannot be read.
    """
    kept: list[PlannedSample] = []
    pictures: list[dict[PictureKey, Pixels]] = []
    drops: list[Drop] = []
    outcomes = pictures_of_samples(pack.samples, rows, reader, rules.corrections)
    for sample, outcome in zip(pack.samples, outcomes, strict=True):
        if isinstance(outcome, ImageFault):
            row = sample.row
            drops.append(Drop(pack=pack.pack, source=row.source, path=row.path, row=row.row, reason=outcome.reason))
        else:
            kept.append(sample)
            pictures.append(outcome)
    layout = lay_out(kept, _token_ids(kept, rows), rules.layout)
    if layout.num_loss_tokens == 0:
        raise _nothing_to_learn(pack, layout, drops)

    vits = [shown for group in _shown(kept, pictures, ItemKind.VIT) for shown in group]
    vaes = _shown(kept, pictures, ItemKind.VAE)
    stored, vae_image_index = _store_once(vaes)
    numbers = rules.normalisations
    return RenderedPack(
        header=PackHeader(
            sequence_length=layout.sequence_length,
            sample_lens=layout.sample_lens,
            split_lens=layout.split_lens,
            attn_modes=layout.attn_modes,
            vit_image_sizes=_sizes(vits),
            vit_normalisation=tuple(numbers.number(shown.source, ItemKind.VIT) for shown in vits),
            vae_image_sizes=_sizes(stored),
            vae_image_index=vae_image_index,
            vae_normalisation=tuple(numbers.number(shown.source, ItemKind.VAE) for shown in stored),
            patchified_vae_latent_shapes=layout.patchified_vae_latent_shapes,
            batch_data_indexes=tuple(_data_indexes(sample) for sample in kept),
            provenance=tuple(
                Provenance(source=sample.row.source, path=sample.row.path, row=sample.row.row) for sample in kept
            ),
        ),
        arrays=layout.arrays if rules.webp else layout.arrays | _raw_pixels(vits, stored, rules.layout.vit_patch_px),
        pictures=_webp_pictures(vits, stored) if rules.webp else {},
        tokens={
            "total": layout.sequence_length,
            "text": layout.num_text_tokens,
            "vit": layout.num_vit_tokens,
            "vae": layout.num_vae_tokens,
        },
        drops=tuple(drops),
    )


def _token_ids(samples: Sequence[PlannedSample], rows: Mapping[RowId, IndexRow]) -> list[NDArray[np.int32]]:
    """Ids of the kept texts in order: from the index, or from the plan where it composed the text itself."""
    token_ids = []
    for sample in samples:
        texts = rows[sample.row].text_ids
        for planned in sample.items:
            item = planned.item
            if planned.kept and item.kind is ItemKind.TEXT:
                ids = item.token_ids if item.text < 0 else texts[item.text] if item.text < len(texts) else ()
                if len(ids) != item.num_tokens:
                    raise RunFailed(
                        f"text {item.text} of {sample.row.path} row {sample.row.row} has {len(ids)} tokens in the "
                        f"index and {item.num_tokens} in the plan. The plan was made from another index, so its "
                        "lengths are wrong. Run `parbake plan` again, then render."
                    )
                token_ids.append(np.array(ids, np.int32))
    return token_ids


def _shown(
    samples: Sequence[PlannedSample], pictures: Sequence[Mapping[PictureKey, Pixels]], kind: ItemKind
) -> list[list[_Shown]]:
    """The images of one tower, sample by sample, in sequence order."""
    return [
        [
            _Shown(sample.row.source, planned.item, its_pictures[kind, planned.item.image])
            for planned in sample.items
            if planned.kept and planned.item.kind is kind
        ]
        for sample, its_pictures in zip(samples, pictures, strict=True)
    ]


def _store_once(groups: Sequence[Sequence[_Shown]]) -> tuple[list[_Shown], tuple[int, ...]]:
    """The pictures to store, each image of a sample once, and the number of its picture for each image of the batch."""
    stored: list[_Shown] = []
    index: list[int] = []
    for group in groups:
        number_of: dict[int, int] = {}
        for shown in group:
            if shown.item.image not in number_of:
                number_of[shown.item.image] = len(stored)
                stored.append(shown)
            index.append(number_of[shown.item.image])
    return stored, tuple(index)


def _sizes(images: Sequence[_Shown]) -> tuple[tuple[int, int], ...]:
    return tuple((shown.item.height_px, shown.item.width_px) for shown in images)


def _raw_pixels(vits: Sequence[_Shown], stored: Sequence[_Shown], patch_px: int) -> dict[str, NDArray[np.generic]]:
    """`vit_pixels` uint8 [patches, p*p*3] and `vae_pixels` uint8 [bytes], each only if there is an image."""
    arrays: dict[str, NDArray[np.generic]] = {}
    if vits:
        arrays["vit_pixels"] = np.concatenate([patchify(shown.pixels, patch_px) for shown in vits])
    if stored:
        arrays["vae_pixels"] = np.concatenate([shown.pixels.reshape(-1) for shown in stored])
    return arrays


def _webp_pictures(vits: Sequence[_Shown], stored: Sequence[_Shown]) -> dict[str, bytes]:
    """Lossless WebP of every ViT image of the batch and of every stored VAE picture."""
    towers = (("vit", vits), ("vae", stored))
    return {
        f"{tower}_{number:03d}": encode_webp(shown.pixels)
        for tower, images in towers
        for number, shown in enumerate(images)
    }


def _data_indexes(sample: PlannedSample) -> dict[str, object]:
    return {
        "data_indexes": json.loads(sample.data_indexes),
        "worker_id": sample.worker_id,
        "dataset_name": sample.dataset_name,
    }


def _nothing_to_learn(pack: PlannedPack, layout: PackLayout, drops: Sequence[Drop]) -> SourceError:
    what = "no token" if layout.sequence_length == 0 else "no token with a loss"
    named = ", ".join(f"{drop.path} row {drop.row} ({drop.reason})" for drop in drops[:3]) or "none"
    return SourceError(
        f"pack {pack.pack} of lane {pack.lane} has {what} left after {len(drops)} of its {len(pack.samples)} samples "
        f"were dropped in render: {named}. A step on it would learn nothing and give NaN. Mend or remove these "
        "rows, or bake with check_images: decode, which finds them before anything is packed."
    )
