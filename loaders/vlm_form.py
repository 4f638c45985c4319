"""Packs of the VLM recipe as they are stored: arrays only, media as bytes or as float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from loaders.forms import PictureDamaged
from loaders.vlm_format import VlmPackHeader, parse_vlm_pack_header

__all__ = ["VlmForm"]

_FIELD_OF = {
    "pixel_values_u1": "images",
    "pixel_values_f4": "images",
    "image_grid_thw": "images",
    "pixel_values_videos_u1": "videos",
    "pixel_values_videos_f4": "videos",
    "video_grid_thw": "videos",
    "second_per_grid_ts": "videos",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VlmForm:
    """See `forms.PackForm`. Fields are "images" and "videos": their pixels, grids and counts."""

    @property
    def fields(self) -> frozenset[str]:
        """Kinds of media."""
        return frozenset(_FIELD_OF.values())

    def field_of(self, member: str) -> str:
        """The kind of media that an array is of."""
        return _FIELD_OF.get(member, "")

    def parse_header(self, content: bytes, where: str) -> VlmPackHeader:
        """See `vlm_format.parse_vlm_pack_header`."""
        return parse_vlm_pack_header(content, where)

    def decode_pictures(self, header: object, pictures: Mapping[str, memoryview]) -> dict[str, Tensor]:
        """This recipe encodes no pictures."""
        for name in pictures:
            raise PictureDamaged(name, "a VLM pack holds arrays only")
        return {}
