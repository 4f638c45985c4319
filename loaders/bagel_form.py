"""Packs of the BAGEL recipe as they are stored: two towers of pixels, raw or one lossless WebP a picture."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from loaders.errors import LoaderError
from loaders.format import VAE_FIELDS, VIT_FIELDS, PackHeader, parse_pack_header
from loaders.forms import PictureDamaged
from loaders.pixels import patchify

__all__ = ["BagelForm"]

_TOWERS = ("vit", "vae")


@dataclass(frozen=True, slots=True, kw_only=True)
class BagelForm:
    """See `forms.PackForm`. Fields are the towers, "vit" and "vae".

    Attributes:
        vit_patch_size: Side of a patch in pixels, which ViT pictures are cut into.
    """

    vit_patch_size: int

    @property
    def fields(self) -> frozenset[str]:
        """The towers."""
        return frozenset(_TOWERS)

    def field_of(self, member: str) -> str:
        """The tower of an array or picture."""
        if member in VIT_FIELDS or member.startswith("vit_"):
            return "vit"
        return "vae" if member in VAE_FIELDS or member.startswith("vae_") else ""

    def parse_header(self, content: bytes, where: str) -> PackHeader:
        """See `format.parse_pack_header`."""
        return parse_pack_header(content, where)

    def decode_pictures(self, header: object, pictures: Mapping[str, memoryview]) -> dict[str, Tensor]:
        """`vit_pixels` and `vae_pixels` of the pictures that are there."""
        assert isinstance(header, PackHeader)
        arrays = {}
        for tower, sizes in zip(_TOWERS, (header.vit_image_sizes, header.vae_image_sizes), strict=True):
            names = [name for name in pictures if name.startswith(f"{tower}_")]
            if not names:
                continue
            if len(names) != len(sizes):
                raise PictureDamaged(names[0], f"{len(names)} pictures are stored, the header counts {len(sizes)}")
            decoded = [_picture(name, pictures[name], size) for name, size in zip(names, sizes, strict=True)]
            parts = [patchify(p, self.vit_patch_size) if tower == "vit" else p.reshape(-1) for p in decoded]
            arrays[f"{tower}_pixels"] = torch.from_numpy(np.concatenate(parts))
        return arrays


def _picture(name: str, encoded: memoryview, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Pixels [height, width, 3] of a lossless WebP."""
    try:
        pixels = _decode_webp(encoded)
    except (OSError, ValueError) as error:
        raise PictureDamaged(name, f"it is no readable WebP ({error})") from error
    if pixels.shape != (*size, 3):
        raise PictureDamaged(name, f"it decodes to {pixels.shape}, the header says {(*size, 3)}")
    return pixels


def _decode_webp(encoded: memoryview) -> npt.NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError as error:
        raise LoaderError(
            "this bake stores pictures as WebP (pixels: webp) and Pillow is not installed; they cannot be decoded; "
            "pip install 'parbake[webp]', or bake with pixels: raw."
        ) from error
    with Image.open(io.BytesIO(encoded), formats=("WEBP",)) as image:
        return np.asarray(image.convert("RGB"))
