"""What a pack of the VLM recipe holds: the same shards, sidecars and manifest as `loaders.format`, other members.

    00000-00000000.json      VlmPackHeader
    00000-00000000.<array>.npy  in the order of VLM_ARRAY_DTYPES, arrays without elements left out

A pack's documents are already shifted (`input_ids[:-1]`, `labels[1:]`) and concatenated; `packing: none` stores one
unshifted sample. Document numbers and 1-D positions follow from `seq_lens` and are not stored. Pixels are stored as the
256-value tables of `pixel_tables` allow: uint8, and without the temporal half that repeats the first where it does;
otherwise float32 as the processor gave them. The round trip was verified bit for bit when the pack was written.

Field names and meanings follow nemo-automodel 0.7.0 `neat_packing_vlm` and `collate_fns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from loaders.format import Provenance

__all__ = ["VLM_ARRAY_DTYPES", "PixelTable", "VlmPackHeader"]

VLM_ARRAY_DTYPES: Mapping[str, str] = MappingProxyType(
    {
        "input_ids": "<i4",
        "labels": "<i4",
        "attention_mask": "|u1",  # packing none only: zero at the tokens of an injected fake image
        "position_ids": "<i4",  # [3, n], mRoPE recipes only
        "mm_token_type_ids": "|u1",
        "image_grid_thw": "<i4",  # [images, 3]
        "video_grid_thw": "<i4",  # [videos, 3]
        "second_per_grid_ts": "<f4",  # [videos]
        "pixel_values_u1": "|u1",  # [patches, stored columns]; see PixelTable
        "pixel_values_f4": "<f4",  # [patches, columns]: the fall-back
        "pixel_values_videos_u1": "|u1",
        "pixel_values_videos_f4": "<f4",
    }
)
"""Arrays of a VLM pack with their stored dtype, in the order in which the tar holds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelTable:
    """How stored uint8 columns become the processor's float32 columns (`DatasetManifest.settings["pixel_tables"]`).

    The processor gives rows of `channels x temporal x pixels` values, whatever the shape they are in: Qwen's patches
    are [patches, channels * temporal * side * side], other processors' images [images, channels, height, width]
    (temporal 1). A stored byte b of channel k stands for the float32 `tables[k][b]`.

    Attributes:
        tables: Per channel, the float32 value of every byte, ascending (written so that it reads back exactly).
        temporal: Frames of a row.
        temporal_repeats: The frames of a row are equal (a still image): only the first is stored.
    """

    tables: tuple[tuple[float, ...], ...]
    temporal: int
    temporal_repeats: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VlmPackHeader:
    """The `.json` member of a VLM pack.

    Attributes:
        num_tokens: Length of `input_ids`.
        seq_lens: Tokens of each document.
        seq_lens_padded: The same rounded up to the alignment (equal where there is none); arrays hold the padded form.
        n_images: Images of the pack.
        n_videos: Videos of the pack.
        document_numbers_masked: (first token, token count) runs of injected fake images, whose document number is 0.
        number: Number of the pack in the planner's order.
        provenance: Where each document comes from.
        extra: Further facts per document, for people.
    """

    num_tokens: int
    seq_lens: tuple[int, ...]
    seq_lens_padded: tuple[int, ...]
    n_images: int = 0
    n_videos: int = 0
    document_numbers_masked: tuple[tuple[int, int], ...] = ()
    number: int = 0
    provenance: tuple[Provenance, ...] = ()
    extra: tuple[dict[str, Any], ...] = ()
