"""Laws 1 to 4, of one pack: a pure function from its header and arrays to what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loaders.format import ATTENTION_MODES, PackHeader
from loaders.masks import splits_of_samples
from pipeline.law_report import Violation

__all__ = ["PackLimits", "pack_violations"]

Arrays = Mapping[str, npt.NDArray[np.generic]]

_NOTHING: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackLimits:
    """What law 4 holds packs to.

    Attributes:
        max_num_tokens: Tokens of a pack.
        max_num_tokens_per_sample: Tokens of a sample; 0: unknown.
        vocab_size: Ids are below it.
        counts_only: Budgets are counted, not judged: the greedy packer exceeds them where the reference does.
        vae_image_downsample: Side of a latent cell in pixels.
        vit_patch_size: Side of a patch in pixels.
    """

    max_num_tokens: int
    max_num_tokens_per_sample: int
    vocab_size: int
    counts_only: bool
    vae_image_downsample: int
    vit_patch_size: int


def pack_violations(key: str, header: PackHeader, arrays: Arrays, limits: PackLimits) -> list[Violation]:
    """Everything that is wrong with a pack.

    Args:
        key: The pack's key, for messages.
        header: Its header.
        arrays: Its arrays in stored dtypes; a missing one is empty.
        limits: Budgets and vocabulary.
    """
    complaints = (
        *((1, complaint) for complaint in _partition(header, arrays, limits)),
        *((2, complaint) for complaint in _sums(header)),
        *((3, complaint) for complaint in _losses(arrays)),
        *((4, complaint) for complaint in _budgets(header, arrays, limits)),
    )
    return [Violation(law=law, subject=f"pack {key}", complaint=complaint) for law, complaint in complaints]


def _partition(header: PackHeader, arrays: Arrays, limits: PackLimits) -> Iterator[str]:
    """Law 1: text, ViT and VAE token indexes partition [0, sequence_length), and each token has what it needs."""
    names = ("packed_text_indexes", "packed_vit_token_indexes", "packed_vae_token_indexes")
    indexes = np.concatenate([arrays.get(name, _NOTHING) for name in names])
    length = header.sequence_length
    if indexes.size != length or not np.array_equal(np.sort(indexes), np.arange(length)):
        yield f"its {indexes.size} token indexes do not partition [0, {length})"
    vit_patches = [
        (height // limits.vit_patch_size) * (width // limits.vit_patch_size) for height, width in header.vit_image_sizes
    ]
    vae_cells = [rows * columns for rows, columns in header.patchified_vae_latent_shapes]
    for name, wanted in (
        ("packed_position_ids", length),
        ("packed_text_ids", arrays.get("packed_text_indexes", _NOTHING).size),
        ("packed_vit_position_ids", arrays.get("packed_vit_token_indexes", _NOTHING).size),
        ("packed_vit_token_indexes", sum(vit_patches)),
        ("packed_latent_position_ids", arrays.get("packed_vae_token_indexes", _NOTHING).size),
        ("packed_vae_token_indexes", sum(vae_cells)),
        ("packed_timesteps", sum(vae_cells)),
    ):
        if arrays.get(name, _NOTHING).size != wanted:
            yield f"{name} has {arrays.get(name, _NOTHING).size} entries for {wanted} tokens"
    if arrays.get("vit_token_seqlens", _NOTHING).tolist() != vit_patches:
        yield "vit_token_seqlens are not the patches of its ViT images"
    cell = limits.vae_image_downsample
    for image, picture in enumerate(header.vae_image_index):
        height, width = header.vae_image_sizes[picture]
        if (height // cell, width // cell) != tuple(header.patchified_vae_latent_shapes[image]):
            yield f"VAE image {image} of {height}x{width} px has another latent grid than its size gives"


def _sums(header: PackHeader) -> Iterator[str]:
    """Law 2: splits add up to samples, samples to the sequence; one mode a split; one provenance a sample."""
    split_sum, sample_sum = sum(header.split_lens), sum(header.sample_lens)
    if not split_sum == sample_sum == header.sequence_length:
        yield f"splits sum to {split_sum}, samples to {sample_sum}, the sequence is {header.sequence_length}"
    else:
        try:
            splits_of_samples(header.sample_lens, header.split_lens)
        except ValueError as error:
            yield str(error)
    if len(header.attn_modes) != len(header.split_lens) or not set(header.attn_modes) <= set(ATTENTION_MODES):
        yield f"{len(header.split_lens)} splits have the modes {sorted(set(header.attn_modes))}"
    if not len(header.sample_lens) == len(header.batch_data_indexes) == len(header.provenance):
        yield (
            f"{len(header.sample_lens)} samples have {len(header.batch_data_indexes)} data indexes and "
            f"{len(header.provenance)} provenances"
        )


def _losses(arrays: Arrays) -> Iterator[str]:
    """Law 3: every label has a place and a weight, every noised token a finite timestep, and no other token has one."""
    labels, places, weights = (
        arrays.get(name, _NOTHING) for name in ("packed_label_ids", "ce_loss_indexes", "ce_loss_weights")
    )
    if not labels.size == places.size == weights.size:
        yield f"{labels.size} labels, {places.size} loss indexes and {weights.size} loss weights"
    if np.unique(places).size != places.size or not np.isin(places, arrays.get("packed_text_indexes", _NOTHING)).all():
        yield "cross entropy points at tokens that are no text, or twice at one"
    weight = np.asarray(weights, dtype=np.float32)
    if not (np.isfinite(weight).all() and (weight > 0).all()):
        yield "a loss weight is not a positive number"
    cells, noised = arrays.get("packed_vae_token_indexes", _NOTHING), arrays.get("mse_loss_indexes", _NOTHING)
    timesteps = np.asarray(arrays.get("packed_timesteps", _NOTHING), dtype=np.float32)
    if np.unique(noised).size != noised.size or not np.isin(noised, cells).all():
        yield "mse_loss_indexes point at tokens of no VAE image, or twice at one"
    elif timesteps.size == cells.size:
        is_noised = np.isin(cells, noised)
        if not np.isfinite(timesteps[is_noised]).all():
            yield "a noised VAE token has no finite timestep"
        if not np.isneginf(timesteps[~is_noised]).all():
            yield "a VAE token without loss has a timestep other than -inf"
    if not (labels.size or noised.size):
        yield "nothing in it carries loss"


def _budgets(header: PackHeader, arrays: Arrays, limits: PackLimits) -> Iterator[str]:
    """Law 4: budgets (only counted where the packer is the reference's) and ids within the vocabulary."""
    if not limits.counts_only:
        if header.sequence_length > limits.max_num_tokens:
            yield f"{header.sequence_length} tokens exceed max_num_tokens {limits.max_num_tokens}"
        longest = max(header.sample_lens, default=0)
        if 0 < limits.max_num_tokens_per_sample < longest:
            yield f"a sample of {longest} tokens exceeds max_num_tokens_per_sample {limits.max_num_tokens_per_sample}"
    for name in ("packed_text_ids", "packed_label_ids"):
        ids = np.asarray(arrays.get(name, _NOTHING), dtype=np.int64)
        outside = ids[(ids < 0) | (ids >= limits.vocab_size)]
        if outside.size:
            yield f"{name} holds id {int(outside[0])}, the vocabulary ends at {limits.vocab_size}"
