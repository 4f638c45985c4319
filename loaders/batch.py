"""PackedBatch: what a training step gets.

Attributes and methods are those of the batch object that BAGEL's and AutoModel's loops use (nemo-automodel 0.7.0,
`SimpleCustomBatch`), so that `batch.cuda(device).to_dict()` works unchanged:

    always                                    only if the pack has it
    sequence_length, sample_lens              packed_label_ids, ce_loss_indexes, ce_loss_weights       cross entropy
    packed_text_ids, packed_text_indexes      packed_vit_tokens, packed_vit_position_ids,              ViT images
    packed_position_ids                         packed_vit_token_indexes, vit_token_seqlens
    batch_data_indexes                        padded_images, patchified_vae_latent_shapes,             VAE images
    split_lens, attn_modes     (use_flex)       packed_latent_position_ids, packed_vae_token_indexes
    nested_attention_masks     (otherwise)      packed_timesteps, mse_loss_indexes

Indexes are int64, weights and timesteps float32. An attribute of an absent modality does not exist (`hasattr`), a key
is not there (`in`). Pixels stay as they are stored, uint8, in `vit_pixels` and `vae_pixels`: they cross the bus four
times smaller, and `packed_vit_tokens` and `padded_images` are made of them where the batch then is, when they are first
asked for.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from loaders.errors import FormatError
from loaders.format import DatasetManifest, Normalisation, PackHeader
from loaders.lazy import LazyDict, Pending
from loaders.masks import dense_masks
from loaders.pixels import pad_pictures, patch_tokens

__all__ = ["BatchRecipe", "PackedBatch"]

_ALWAYS = ("packed_text_ids", "packed_text_indexes", "packed_position_ids")
_VAE = ("packed_latent_position_ids", "packed_vae_token_indexes")
_VIT = ("packed_vit_position_ids", "packed_vit_token_indexes", "vit_token_seqlens")
_MSE = ("packed_timesteps", "mse_loss_indexes")
_CE = ("packed_label_ids", "ce_loss_indexes", "ce_loss_weights")
_PIXELS = ("vit_pixels", "vae_pixels")
_TENSORS = (*_ALWAYS, *_VAE, *_VIT, *_MSE, *_CE, *_PIXELS)
_MADE = ("packed_vit_tokens", "padded_images", "nested_attention_masks")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecipe:
    """What turning packs into batches needs to know beyond the pack.

    Attributes:
        use_flex: Append the pad split and give split lengths, instead of dense masks.
        max_num_tokens: Budget that the pad split fills up to.
        vit_patch_size: Side of a patch in pixels.
        normalisations: Mean and standard deviation per channel, by number.
        pixel_dtype: Dtype of `packed_vit_tokens` and `padded_images`.
    """

    use_flex: bool
    max_num_tokens: int
    vit_patch_size: int
    normalisations: tuple[Normalisation, ...]
    pixel_dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, manifest: DatasetManifest, pixel_dtype: torch.dtype = torch.float32) -> BatchRecipe:
        """The recipe of a bake."""
        return cls(
            use_flex=manifest.use_flex,
            max_num_tokens=manifest.max_num_tokens,
            vit_patch_size=manifest.vit_patch_size,
            normalisations=manifest.normalisations,
            pixel_dtype=pixel_dtype,
        )


class PackedBatch:
    """One pack, ready for a training step. See the module for its attributes.

    Attributes:
        header: The pack's `.json` member: splits without the pad, image sizes, provenance.
        lane: Lane the pack was read from.
        pack: Its number in the lane.
    """

    batch_data_indexes: list[dict[str, Any]]
    sequence_length: int
    sample_lens: list[int]
    split_lens: list[int]
    attn_modes: list[str]
    patchified_vae_latent_shapes: list[tuple[int, int]]
    packed_text_ids: torch.Tensor
    packed_text_indexes: torch.Tensor
    packed_position_ids: torch.Tensor
    packed_label_ids: torch.Tensor
    ce_loss_indexes: torch.Tensor
    ce_loss_weights: torch.Tensor
    packed_vit_position_ids: torch.Tensor
    packed_vit_token_indexes: torch.Tensor
    vit_token_seqlens: torch.Tensor
    packed_latent_position_ids: torch.Tensor
    packed_vae_token_indexes: torch.Tensor
    packed_timesteps: torch.Tensor
    mse_loss_indexes: torch.Tensor
    vit_pixels: torch.Tensor
    vae_pixels: torch.Tensor

    def __init__(
        self,
        header: PackHeader,
        arrays: Mapping[str, torch.Tensor],
        recipe: BatchRecipe,
        *,
        lane: int = -1,
        pack: int = -1,
    ) -> None:
        """A batch of a pack.

        Args:
            header: The pack's header.
            arrays: Its arrays by name, in their stored dtypes, on the CPU; what the pack or `fields` lacks is missing.
            recipe: Facts of the bake.
            lane: Lane the pack was read from.
            pack: Its number in the lane.

        Raises:
            FormatError: pixels and image sizes disagree.
        """
        self.header, self.lane, self.pack = header, lane, pack
        self._recipe = recipe
        _check_pixels(header, arrays, recipe)
        self.sequence_length = header.sequence_length
        self.sample_lens = list(header.sample_lens)
        self.batch_data_indexes = list(header.batch_data_indexes)
        self.use_flex = recipe.use_flex
        if recipe.use_flex:
            pad = recipe.max_num_tokens - header.sequence_length
            self.sample_lens.append(pad)
            self.split_lens = [*header.split_lens, pad]
            self.attn_modes = [*header.attn_modes, "causal"]
        for present, names in (
            (True, _ALWAYS),
            ("packed_vae_token_indexes" in arrays, _VAE),
            ("packed_vit_token_indexes" in arrays, _VIT),
            ("packed_timesteps" in arrays, _MSE),
            ("packed_label_ids" in arrays, _CE),
        ):
            if present:
                self.__dict__.update((name, _field(arrays.get(name))) for name in names)
        self.__dict__.update((name, arrays[name]) for name in _PIXELS if name in arrays)
        if "vae_pixels" in arrays:
            self.patchified_vae_latent_shapes = list(header.patchified_vae_latent_shapes)

    @property
    def device(self) -> torch.device:
        """Where the batch is."""
        return self.packed_position_ids.device

    @cached_property
    def packed_vit_tokens(self) -> torch.Tensor:
        """Normalised patches [patches, patch·patch·3] of `pixel_dtype`, on the batch's device; made on first use."""
        return self._make("packed_vit_tokens")()  # type: ignore[no-any-return]

    @cached_property
    def padded_images(self) -> torch.Tensor:
        """Normalised pictures [images, 3, height, width] of `pixel_dtype`, zero-padded; made on first use."""
        return self._make("padded_images")()  # type: ignore[no-any-return]

    @cached_property
    def nested_attention_masks(self) -> list[torch.Tensor]:
        """Additive mask float32 [tokens, tokens] of each sample (only without `use_flex`); made on first use."""
        return self._make("nested_attention_masks")()  # type: ignore[no-any-return]

    def pin_memory(self) -> PackedBatch:
        """Move the tensors to pinned memory, in place."""
        return self._replace_tensors({name: tensor.pin_memory() for name, tensor in self._tensors().items()})

    def cuda(self, device: torch.device | str | int | None = None, non_blocking: bool = False) -> PackedBatch:
        """Move the batch to a CUDA device (or any other that is named), in place, and return it."""
        target = torch.device("cuda") if device is None else device
        moved = {name: tensor.to(target, non_blocking=non_blocking) for name, tensor in self._tensors().items()}
        return self._replace_tensors(moved)

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> PackedBatch:
        """The batch on another device; this one stays as it is."""
        return copy.copy(self).cuda(device, non_blocking=non_blocking)

    def to_dict(self) -> dict[str, Any]:
        """The reference's dict: its keys in its order; absent modalities absent; pixels and masks made on first use."""
        batch = LazyDict(
            sequence_length=self.sequence_length,
            sample_lens=self.sample_lens,
            packed_text_ids=self.packed_text_ids,
            packed_text_indexes=self.packed_text_indexes,
            packed_position_ids=self.packed_position_ids,
            batch_data_indexes=self.batch_data_indexes,
        )
        keys = ["split_lens", "attn_modes"] if self.use_flex else ["nested_attention_masks"]
        if "vae_pixels" in self.__dict__:
            keys += ["padded_images", "patchified_vae_latent_shapes", *_VAE]
        if "vit_pixels" in self.__dict__:
            keys += ["packed_vit_tokens", *_VIT]
        keys += [name for name in (*_MSE, *_CE) if name in self.__dict__]
        for key in keys:
            batch[key] = self.__dict__[key] if key in self.__dict__ else Pending(self._make(key))
        return batch

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {name: self.__dict__[name] for name in _TENSORS if name in self.__dict__}

    def _replace_tensors(self, tensors: Mapping[str, torch.Tensor]) -> PackedBatch:
        for name in _MADE:  # made anew where the batch now is
            self.__dict__.pop(name, None)
        self.__dict__.update(tensors)
        return self

    def _make(self, name: str) -> partial[Any]:
        """What makes an attribute, holding on to nothing but what it needs."""
        header, recipe = self.header, self._recipe
        if name == "packed_vit_tokens" and "vit_pixels" in self.__dict__:
            patches = _num_patches(header, recipe.vit_patch_size)
            facts = (patches, header.vit_normalisation, recipe.normalisations, recipe.pixel_dtype)
            return partial(patch_tokens, self.vit_pixels, *facts)
        if name == "padded_images" and "vae_pixels" in self.__dict__:
            facts_of_pictures = (header.vae_image_sizes, header.vae_image_index, header.vae_normalisation)
            return partial(pad_pictures, self.vae_pixels, *facts_of_pictures, recipe.normalisations, recipe.pixel_dtype)
        if name == "nested_attention_masks" and not recipe.use_flex:
            return partial(dense_masks, header.sample_lens, header.split_lens, header.attn_modes, self.device)
        raise AttributeError(f"this batch has no {name}: the pack, the recipe or `fields` leaves it out")


def _field(array: torch.Tensor | None) -> torch.Tensor:
    """A stored array as the batch has it. Without elements: float32 [0], which is what `torch.tensor([])` gives."""
    if array is None or array.numel() == 0:
        return torch.tensor([])
    return array.to(torch.int64) if array.dtype == torch.int32 else array


def _num_patches(header: PackHeader, patch: int) -> list[int]:
    return [(height // patch) * (width // patch) for height, width in header.vit_image_sizes]


def _check_pixels(header: PackHeader, arrays: Mapping[str, torch.Tensor], recipe: BatchRecipe) -> None:
    """Pixels have the bytes that the image sizes ask for: views of them would otherwise mix pictures."""
    num_patches = sum(_num_patches(header, recipe.vit_patch_size))
    wanted: dict[str, tuple[int, ...]] = {
        "vit_pixels": (num_patches, 3 * recipe.vit_patch_size**2),
        "vae_pixels": (sum(3 * height * width for height, width in header.vae_image_sizes),),
    }
    for name, shape in wanted.items():
        if name in arrays and tuple(arrays[name].shape) != shape:
            raise FormatError(
                f"{name} has shape {tuple(arrays[name].shape)}, the image sizes ask for {shape}; pictures "
                f"would be mixed up; the pack is damaged: render its shard again."
            )
