"""Where every token of a pack stands: a pure function of the planned samples and their token ids.

Rule: nemo-automodel 0.7.0 `PackedDataset.pack_sequence` and `to_tensor` (see bagel-semantics, "Packing"). One sample:

    item          text "a cat"           ViT image 2x2             VAE image 2x1, noised
    tokens        bos  a  cat  eos       <  v0 v1 v2 v3  >         <  z0 z1  >
    text index     0   1   2    3        4               9        10        13
    position       0   1   2    3        4  4  4  4  4   4         5   5  5  5       (the rope id stays at 5)
    split         causal, 4              full, 6                  noise, 4

Text moves the rope id by its tokens, an image by one, a noised image not at all. Of items removed by condition dropout
a text moves nothing, an image still moves the rope id by one. Each sample starts again at rope id 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from pipeline.media.patches import position_ids
from pipeline.records import Item, ItemKind, PlannedItem, PlannedSample
from pipeline.sequence import grid_shape, split_length

__all__ = ["LayoutRules", "PackLayout", "lay_out"]

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRules:
    """What the layout takes from the recipe and the tokenizer.

    Attributes:
        bos_token_id: `<|im_start|>`.
        eos_token_id: `<|im_end|>`.
        start_of_image: `<|vision_start|>`.
        end_of_image: `<|vision_end|>`.
        vit_patch_px: Side of a ViT patch.
        vit_max_per_side: Width of the grid that ViT position ids count on.
        vae_cell_px: Pixels a latent cell stands for, per side.
        vae_max_per_side: Width of the grid that latent position ids count on.
        interpolate_pos: Position ids are bucketised fractions instead of plain rows and columns.
    """

    bos_token_id: int
    eos_token_id: int
    start_of_image: int
    end_of_image: int
    vit_patch_px: int
    vit_max_per_side: int
    vae_cell_px: int
    vae_max_per_side: int
    interpolate_pos: bool

    def grid(self, item: Item) -> tuple[int, int]:
        """Rows and columns of patches or latent cells of an image."""
        cell_px = self.vit_patch_px if item.kind is ItemKind.VIT else self.vae_cell_px
        return grid_shape(item.height_px, item.width_px, cell_px)

    def positions(self, item: Item) -> Int32:
        """Position ids of an image's patches or latent cells, int32 [rows * columns]."""
        if item.kind is ItemKind.VIT:
            cell_px, max_per_side = self.vit_patch_px, self.vit_max_per_side
        else:
            cell_px, max_per_side = self.vae_cell_px, self.vae_max_per_side
        return position_ids(item.height_px, item.width_px, cell_px, max_per_side, self.interpolate_pos)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackLayout:
    """Everything a pack holds except pixels and provenance.

    Attributes:
        sequence_length: Tokens of the pack.
        sample_lens: Tokens of each sample, 0 where every item was dropped out.
        split_lens: Tokens of each kept item.
        attn_modes: "causal", "full" or "noise" for each split.
        patchified_vae_latent_shapes: (rows, columns) of each VAE image.
        num_text_tokens: Text and marker tokens.
        num_vit_tokens: ViT patches.
        num_vae_tokens: Latent cells.
        num_loss_tokens: Tokens that carry a loss, of either kind.
        arrays: Stored array name → array (dtypes: `loaders.format.ARRAY_DTYPES`), without pixels. The arrays of a
            modality are there if the pack has an item of it; those of the text loss, if any text has a loss.
    """

    sequence_length: int
    sample_lens: tuple[int, ...]
    split_lens: tuple[int, ...]
    attn_modes: tuple[str, ...]
    patchified_vae_latent_shapes: tuple[tuple[int, int], ...]
    num_text_tokens: int
    num_vit_tokens: int
    num_vae_tokens: int
    num_loss_tokens: int
    arrays: dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class _Split:
    """A kept item, where its tokens start in the pack and at which rope id."""

    planned: PlannedItem
    start: int
    rope_id: int

    @property
    def item(self) -> Item:
        return self.planned.item

    @property
    def length(self) -> int:
        return split_length(self.planned.item.num_tokens)

    @property
    def mode(self) -> str:
        if self.item.kind is ItemKind.TEXT:
            return "causal"
        return "noise" if self.item.kind is ItemKind.VAE and self.item.loss else "full"


def lay_out(samples: Sequence[PlannedSample], token_ids: Sequence[Int32], rules: LayoutRules) -> PackLayout:
    """Lay the samples of a pack out one after another.

    Args:
        samples: The pack's samples, dropped items included (they still move the rope id).
        token_ids: Raw token ids, int32 [num_tokens], of each *kept* text of all samples in order.
        rules: Special tokens and grids.

    Raises:
        ValueError: `token_ids` does not match the plan's kept texts in number or length.
    """
    splits = _splits(samples)
    texts = [split for split in splits if split.item.kind is ItemKind.TEXT]
    vits = [split for split in splits if split.item.kind is ItemKind.VIT]
    vaes = [split for split in splits if split.item.kind is ItemKind.VAE]
    planned_lengths = [split.item.num_tokens for split in texts]
    if planned_lengths != [len(ids) for ids in token_ids]:
        raise ValueError(f"texts of {[len(ids) for ids in token_ids]} tokens where the plan has {planned_lengths}")

    owner = _token_owners(splits)
    indexes = {kind: np.flatnonzero(owner == kind).astype(np.int32) for kind in ItemKind}
    arrays: dict[str, NDArray[np.generic]] = {
        "packed_text_ids": _text_ids(splits, token_ids, rules),
        "packed_text_indexes": indexes[ItemKind.TEXT],
        "packed_position_ids": _position_ids(splits),
    }
    arrays |= _text_loss(texts, token_ids, rules)
    if vits:
        arrays["packed_vit_position_ids"] = np.concatenate([rules.positions(split.item) for split in vits])
        arrays["packed_vit_token_indexes"] = indexes[ItemKind.VIT]
        arrays["vit_token_seqlens"] = np.array([split.item.num_tokens for split in vits], np.int32)
    if vaes:
        arrays["packed_latent_position_ids"] = np.concatenate([rules.positions(split.item) for split in vaes])
        arrays["packed_vae_token_indexes"] = indexes[ItemKind.VAE]
        arrays |= _image_loss(vaes, indexes[ItemKind.VAE])
    lengths = iter(split.length for split in splits)
    return PackLayout(
        sequence_length=len(owner),
        sample_lens=tuple(sum(next(lengths) for item in sample.items if item.kept) for sample in samples),
        split_lens=tuple(split.length for split in splits),
        attn_modes=tuple(split.mode for split in splits),
        patchified_vae_latent_shapes=tuple(rules.grid(split.item) for split in vaes),
        num_text_tokens=len(indexes[ItemKind.TEXT]),
        num_vit_tokens=len(indexes[ItemKind.VIT]),
        num_vae_tokens=len(indexes[ItemKind.VAE]),
        num_loss_tokens=sum(arrays[name].size for name in ("ce_loss_indexes", "mse_loss_indexes") if name in arrays),
        arrays=arrays,
    )


def _splits(samples: Sequence[PlannedSample]) -> list[_Split]:
    """The kept items, each with its first token and rope id."""
    splits = []
    start = 0
    for sample in samples:
        rope_id = 0
        for planned in sample.items:
            if planned.kept:
                splits.append(_Split(planned, start, rope_id))
                start += split_length(planned.item.num_tokens)
            rope_id += _rope_advance(planned)
    return splits


def _rope_advance(planned: PlannedItem) -> int:
    if planned.item.kind is ItemKind.TEXT:
        return split_length(planned.item.num_tokens) if planned.kept else 0
    noised = planned.item.kind is ItemKind.VAE and planned.item.loss and planned.kept
    return 0 if noised else 1


def _token_owners(splits: Sequence[_Split]) -> NDArray[np.int8]:
    """Kind of index each token belongs to: the markers around an image are text.

    Every token has one owner, so text, ViT and VAE indexes partition the sequence by construction (law 1).
    """
    # [1, n, 1] tokens a split: marker, content, marker
    runs = np.array([(1, split.item.num_tokens, 1) for split in splits], np.int64).reshape(-1)
    kinds = np.array([(ItemKind.TEXT, split.item.kind, ItemKind.TEXT) for split in splits], np.int8).reshape(-1)
    return np.repeat(kinds, runs)


def _text_ids(splits: Sequence[_Split], token_ids: Sequence[Int32], rules: LayoutRules) -> Int32:
    """Ids of all text and marker tokens, int32 [text tokens]."""
    text_markers = np.array([[rules.bos_token_id], [rules.eos_token_id]], np.int32)
    image_markers = np.array([rules.start_of_image, rules.end_of_image], np.int32)
    texts = iter(token_ids)
    pieces: list[Int32] = []
    for split in splits:
        if split.item.kind is ItemKind.TEXT:
            pieces += (text_markers[0], next(texts), text_markers[1])
        else:
            pieces.append(image_markers)
    return _concatenate(pieces)


def _position_ids(splits: Sequence[_Split]) -> Int32:
    """Rope id of every token, int32 [sequence_length]: counting up in texts, one id for a whole image."""
    lengths = np.array([split.length for split in splits], np.int64)
    first = np.repeat(np.array([split.rope_id for split in splits], np.int32), lengths)
    starts = np.repeat(np.array([split.start for split in splits], np.int32), lengths)
    counts_up = np.repeat(np.array([split.item.kind is ItemKind.TEXT for split in splits], np.bool_), lengths)
    return first + np.where(counts_up, np.arange(len(first), dtype=np.int32) - starts, np.int32(0))


def _text_loss(
    texts: Sequence[_Split], token_ids: Sequence[Int32], rules: LayoutRules
) -> dict[str, NDArray[np.generic]]:
    """Labels, positions and weights of the text loss: `bos + ids` predict `ids + eos`, each weighing length^-1/2.

    The length counts bos. The weight is the float64 quotient rounded to float32 once, as `torch.tensor` rounds it.
    """
    with_loss = [(split, ids) for split, ids in zip(texts, token_ids, strict=True) if split.item.loss]
    if not with_loss:
        return {}
    eos = np.array([rules.eos_token_id], np.int32)
    lengths = [1 + len(ids) for _, ids in with_loss]
    weights = np.array([1 / length**0.5 for length in lengths], np.float64).astype(np.float32)
    return {
        "packed_label_ids": _concatenate([piece for _, ids in with_loss for piece in (ids, eos)]),
        "ce_loss_indexes": _ranges([split.start for split, _ in with_loss], lengths),
        "ce_loss_weights": np.repeat(weights, lengths),
    }


def _image_loss(vaes: Sequence[_Split], vae_indexes: Int32) -> dict[str, NDArray[np.generic]]:
    """Timestep of every latent cell, -inf where the image only conditions, and the indexes of the noised ones."""
    cells = [split.item.num_tokens for split in vaes]
    noised = np.repeat(np.array([split.item.loss for split in vaes], np.bool_), cells)
    timesteps = [split.planned.timestep if split.item.loss else float("-inf") for split in vaes]
    return {
        "packed_timesteps": np.repeat(np.array(timesteps, np.float64).astype(np.float32), cells),
        "mse_loss_indexes": vae_indexes[noised],
    }


def _ranges(starts: Sequence[int], lengths: Sequence[int]) -> Int32:
    """`start, start + 1, …` for each (start, length), one after another."""
    ends = list(accumulate(lengths))
    # shift of each range against a plain count over all of them
    shifts = np.array([start - (end - length) for start, end, length in zip(starts, ends, lengths, strict=True)])
    indexes: Int32 = (np.arange(ends[-1]) + np.repeat(shifts, lengths)).astype(np.int32)
    return indexes


def _concatenate(pieces: Sequence[Int32]) -> Int32:
    joined: Int32 = np.concatenate([np.empty(0, np.int32), *pieces])
    return joined
