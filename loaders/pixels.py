"""uint8 pixels to the float tensors that the reference trains on, to the bit, on whatever device the pixels are.

Reference: torchvision's `ToTensor` (x / 255 in float32) and `Normalize` (minus mean, over std in float32), then BAGEL's
`patchify`, or zero padding to the largest picture. Here the layout was settled when the shard was written; what is left
are the same three float32 operations in the same order. 255 is a tensor on the device: CUDA replaces a division by a
Python number with a multiplication by its reciprocal, which is not the same to the last bit. (A 256-entry table per
channel gives the same values; it was measured to be no faster on a CPU, and needs 4 more bytes a pixel of memory for
its indexes.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch

from loaders.format import Normalisation

__all__ = ["pad_pictures", "patch_tokens", "patchify"]


def patchify(pixels: npt.NDArray[np.uint8], patch: int) -> npt.NDArray[np.uint8]:
    """Pixels [height, width, 3] as patches [height/patch · width/patch, patch·patch·3], channel fastest."""
    height, width, channels = pixels.shape
    # [rows, patch, columns, patch, 3] -> [rows, columns, patch, patch, 3]
    grid = pixels.reshape(height // patch, patch, width // patch, patch, channels).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(grid).reshape(-1, patch * patch * channels)


def _normalise(pixels: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """In place, float32: over 255, minus mean, over std."""
    return pixels.div_(torch.tensor(255.0, device=pixels.device)).sub_(mean).div_(std)


def patch_tokens(
    vit_pixels: torch.Tensor,
    vit_token_seqlens: Sequence[int],
    normalisation_of: Sequence[int],
    normalisations: Sequence[Normalisation],
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """`packed_vit_tokens` of a batch.

    Args:
        vit_pixels: uint8 [patches, patch·patch·3], channel fastest.
        vit_token_seqlens: Patches of each image.
        normalisation_of: Number of each image's entry in `normalisations`.
        normalisations: Mean and standard deviation per channel.
        dtype: What to return; computed in float32 first.

    Returns:
        [patches, patch·patch·3] on the device of `vit_pixels`.
    """
    tokens = vit_pixels.to(torch.float32)
    repeats = tokens.shape[1] // 3
    start = 0
    runs = groupby(zip(normalisation_of, vit_token_seqlens, strict=True), key=lambda image: image[0])
    for number, images in runs:  # neighbouring images of one normalisation together
        end = start + sum(num_patches for _, num_patches in images)
        mean = torch.tensor(normalisations[number].mean, device=tokens.device).repeat(repeats)
        std = torch.tensor(normalisations[number].std, device=tokens.device).repeat(repeats)
        _normalise(tokens[start:end], mean, std)
        start = end
    return tokens.to(dtype)


def pad_pictures(
    vae_pixels: torch.Tensor,
    sizes: Sequence[tuple[int, int]],
    picture_of_image: Sequence[int],
    normalisation_of: Sequence[int],
    normalisations: Sequence[Normalisation],
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """`padded_images` of a batch: its VAE images, zero where a picture is smaller than the largest.

    Args:
        vae_pixels: uint8 [bytes], the stored pictures one after another, each [height, width, 3].
        sizes: (height, width) of each stored picture.
        picture_of_image: Stored picture of each image of the batch (`vae_image_index`).
        normalisation_of: Number of each *stored picture's* entry in `normalisations`.
        normalisations: Mean and standard deviation per channel.
        dtype: What to return; each picture is computed in float32 first.

    Returns:
        [images, 3, largest height, largest width] on the device of `vae_pixels`.
    """
    shown = [sizes[picture] for picture in picture_of_image]
    height, width = max(size[0] for size in shown), max(size[1] for size in shown)
    padded = torch.zeros((len(shown), 3, height, width), dtype=dtype, device=vae_pixels.device)
    starts = [0, *np.cumsum([3 * picture_height * picture_width for picture_height, picture_width in sizes]).tolist()]
    first_image: dict[int, int] = {}
    for image, picture in enumerate(picture_of_image):
        picture_height, picture_width = sizes[picture]
        place = padded[image, :, :picture_height, :picture_width]
        if picture in first_image:
            place.copy_(padded[first_image[picture], :, :picture_height, :picture_width])
            continue
        first_image[picture] = image
        # [height, width, 3] -> [3, height, width]
        stored = vae_pixels[starts[picture] : starts[picture + 1]].view(picture_height, picture_width, 3)
        mean = torch.tensor(normalisations[normalisation_of[picture]].mean, device=padded.device).view(3, 1, 1)
        std = torch.tensor(normalisations[normalisation_of[picture]].std, device=padded.device).view(3, 1, 1)
        if dtype == torch.float32:
            _normalise(place.copy_(stored.permute(2, 0, 1)), mean, std)
        else:
            place.copy_(_normalise(stored.permute(2, 0, 1).to(torch.float32), mean, std))
    return padded
