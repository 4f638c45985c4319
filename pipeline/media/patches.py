"""Pixels to patches and back, and the position ids of a grid. Arrays in, arrays out."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["patchify", "position_ids", "unpatchify"]


def patchify(pixels: NDArray[np.uint8], patch_px: int) -> NDArray[np.uint8]:
    """Cuts uint8 [height, width, 3] into uint8 [height/p · width/p, p·p·3]: patches row by row, channel fastest.

    Raises:
        ValueError: An edge is not a multiple of `patch_px`.

    Source: the reference's `patchify`; it cuts the normalised tensor, and normalising afterwards gives the same values.
    """
    height, width, channels = pixels.shape
    if height % patch_px or width % patch_px:
        raise ValueError(
            f"picture of {width}x{height} px does not divide into patches of {patch_px} px; "
            "tokens and pixels would disagree; set image_stride to a multiple of vit_patch_size"
        )
    # [rows, p, columns, p, 3] -> [rows, columns, p, p, 3]; a patch row is p·3 bytes in one piece
    grid = pixels.reshape(height // patch_px, patch_px, width // patch_px, patch_px * channels)
    return grid.transpose(0, 2, 1, 3).reshape(-1, patch_px * patch_px * channels)


def unpatchify(patches: NDArray[np.uint8], height_px: int, width_px: int, patch_px: int) -> NDArray[np.uint8]:
    """The inverse of `patchify`: uint8 [patches, p·p·3] to uint8 [height, width, 3]."""
    grid = patches.reshape(height_px // patch_px, width_px // patch_px, patch_px, -1)
    return grid.transpose(0, 2, 1, 3).reshape(height_px, width_px, -1)


def position_ids(
    height_px: int, width_px: int, cell_px: int, max_per_side: int, interpolate: bool
) -> NDArray[np.int32]:
    """Position id of every cell of a picture, row by row: int32 [height/cell · width/cell].

    Without `interpolate`: `row · max_per_side + column`, which repeats itself where a row has more cells than
    `max_per_side`. With: both coordinates as fractions of the side, put into `max_per_side` buckets.

    Source: `get_flattened_position_ids_extrapolate` and `…_interpolate`, equal to them for every grid.
    """
    rows, columns = height_px // cell_px, width_px // cell_px
    if interpolate:
        row_ids, column_ids = _buckets(rows, max_per_side), _buckets(columns, max_per_side)
    else:
        row_ids, column_ids = np.arange(rows, dtype=np.int32), np.arange(columns, dtype=np.int32)
    # [rows, 1] + [columns] -> [rows, columns] -> [rows · columns]
    return (row_ids[:, None] * np.int32(max_per_side) + column_ids).reshape(-1)


@lru_cache(maxsize=4096)
def _buckets(num_cells: int, max_per_side: int) -> NDArray[np.int32]:
    """Bucket of each of `num_cells` equal steps along a side: how many of the bucket bounds lie at or below it."""
    bounds = _torch_arange(1 / max_per_side, 1.0, 1 / max_per_side)
    fractions = _torch_arange(0.0, 1 - 1e-6, 1 / num_cells)
    buckets = np.searchsorted(bounds, fractions, side="right").astype(np.int32)
    buckets.flags.writeable = False
    return buckets


_LANES: Final = 8
"""float32 lanes of torch's `arange` kernel on x86: it is built for AVX2 and, on purpose, not for AVX-512."""


def _torch_arange(start: float, end: float, step: float) -> NDArray[np.float32]:
    """`torch.arange(start, end, step)` of the CPU, float32, to the last bit.

    The bits decide: many fractions fall exactly on a bucket bound. torch computes `start + step·i` in float64 for every
    `i`, rounding once; but whole pairs of vectors take the float32-rounded value of their first lane as base and add
    `step · lane` to it, rounding twice. Only the rest, shorter than two vectors, is rounded once.
    """
    count = math.ceil((end - start) / step)
    index = np.arange(count)
    values = (start + step * index).astype(np.float32)
    in_vectors = count // (2 * _LANES) * (2 * _LANES)
    lane = index[:in_vectors] % _LANES
    base = values[:in_vectors].reshape(-1, _LANES)[:, :1].repeat(_LANES, axis=1).reshape(-1)
    values[:in_vectors] = (base.astype(np.float64) + step * lane).astype(np.float32)
    return values
