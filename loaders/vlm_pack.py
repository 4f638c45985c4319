"""A stored VLM pack as tensors: what is not stored (document numbers, positions that count up) is made here."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from loaders.errors import FormatError
from loaders.shard import StoredPack
from loaders.vlm_batch import PIXEL_KEYS, VlmPack
from loaders.vlm_format import VlmPackHeader, VlmSettings
from loaders.vlm_pixels import expand_pixels

__all__ = ["pack_in_memory"]

_OTHER_MEDIA = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")


def pack_in_memory(stored: StoredPack[VlmPackHeader], settings: VlmSettings, pixel_dtype: torch.dtype) -> VlmPack:
    """A pack as nemo-automodel's builder gives it to its collaters (0.7.0, `_build_packed_vlm_sample`).

    Raises:
        FormatError: an array has another length than the header says, or pixels have no table.
    """
    header, arrays = stored.header, stored.arrays
    _check_lengths(header, arrays)
    types = arrays.get("mm_token_type_ids")
    return VlmPack(
        input_ids=arrays["input_ids"].long(),
        labels=arrays["labels"].long(),
        document_ids=_attention(header, arrays, settings),
        position_ids=_positions(header, arrays),
        mm_token_type_ids=None if types is None else types.long(),
        seq_lens=header.seq_lens,
        seq_lens_padded=header.seq_lens_padded,
        media=_media(arrays, settings, pixel_dtype),
    )


def _attention(header: VlmPackHeader, arrays: Mapping[str, Tensor], settings: VlmSettings) -> Tensor:
    """Document numbers 1, 2, …, or the mask of an unpacked sample; 0 at the tokens of injected pictures."""
    if settings.packing == "none":
        mask = arrays.get("attention_mask")
        return torch.ones(header.num_tokens, dtype=torch.int64) if mask is None else mask.long()
    numbers = torch.arange(1, len(header.seq_lens_padded) + 1)
    documents = numbers.repeat_interleave(torch.tensor(header.seq_lens_padded, dtype=torch.int64))
    for first, count in header.document_numbers_masked:
        documents[first : first + count] = 0
    return documents


def _positions(header: VlmPackHeader, arrays: Mapping[str, Tensor]) -> Tensor:
    """mRoPE's three rows, or counting up from 0 in every document, its alignment included."""
    if "position_ids" in arrays:
        return arrays["position_ids"].long()
    return torch.cat([torch.arange(length) for length in header.seq_lens_padded])


def _media(arrays: Mapping[str, Tensor], settings: VlmSettings, pixel_dtype: torch.dtype) -> dict[str, Tensor]:
    media = {}
    for key in PIXEL_KEYS:
        if f"{key}_f4" in arrays:
            media[key] = arrays[f"{key}_f4"].to(pixel_dtype)
        elif f"{key}_u1" in arrays:
            if key not in settings.pixel_tables:
                raise FormatError(
                    f"{key} are stored as bytes and dataset.json has no table for them; their values are not known; "
                    f"it is damaged: run the bake again."
                )
            media[key] = expand_pixels(arrays[f"{key}_u1"], settings.pixel_tables[key], pixel_dtype)
    for key in _OTHER_MEDIA:
        if key in arrays:
            media[key] = arrays[key].long() if arrays[key].dtype == torch.int32 else arrays[key]
    return media


def _check_lengths(header: VlmPackHeader, arrays: Mapping[str, Tensor]) -> None:
    for name in ("input_ids", "labels", "attention_mask", "position_ids", "mm_token_type_ids"):
        required = name in ("input_ids", "labels")
        found = arrays[name].shape[-1] if name in arrays else (0 if required else header.num_tokens)
        if found != header.num_tokens:
            raise FormatError(
                f"{name} has {found} entries, the header counts {header.num_tokens} tokens; documents would be cut "
                f"in the wrong places; the pack is damaged: render its shard again."
            )
