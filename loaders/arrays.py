"""The arrays of a pack: their names, stored dtypes and order in the tar, for both recipes. No name is in both."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["ARRAY_DTYPES", "STORED_ARRAYS", "VLM_ARRAY_DTYPES"]

ARRAY_DTYPES: Mapping[str, str] = MappingProxyType(
    {
        "packed_text_ids": "<i4",
        "packed_text_indexes": "<i4",
        "packed_position_ids": "<i4",
        "packed_label_ids": "<i4",
        "ce_loss_indexes": "<i4",
        "ce_loss_weights": "<f4",
        "packed_vit_position_ids": "<i4",
        "packed_vit_token_indexes": "<i4",
        "vit_token_seqlens": "<i4",
        "packed_latent_position_ids": "<i4",
        "packed_vae_token_indexes": "<i4",
        "packed_timesteps": "<f4",
        "mse_loss_indexes": "<i4",
        "vit_pixels": "|u1",
        "vae_pixels": "|u1",
    }
)
"""Arrays of a BAGEL pack with their stored dtype, in the order in which the tar holds them."""

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
        "pixel_values_u1": "|u1",  # [patches, stored columns]; see `vlm_format.PixelTable`
        "pixel_values_f4": "<f4",  # [patches, columns]: the fall-back
        "pixel_values_videos_u1": "|u1",
        "pixel_values_videos_f4": "<f4",
    }
)
"""Arrays of a VLM pack with their stored dtype, in the order in which the tar holds them."""

STORED_ARRAYS: Mapping[str, str] = MappingProxyType({**ARRAY_DTYPES, **VLM_ARRAY_DTYPES})
"""Every array that a shard may hold; a sidecar that names another, or another dtype, is damaged."""
