"""Stored bytes of the VLM recipe back to the processor's pixels, in the dtype that training wants.

A table lookup per channel. Casting the table's 256 entries equals casting every pixel, so bfloat16 batches never exist
as float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loaders.vlm_format import PixelTable

__all__ = ["expand_pixels"]


def expand_pixels(stored: Tensor, table: PixelTable, dtype: torch.dtype = torch.float32) -> Tensor:
    """The processor's pixel values.

    Args:
        stored: uint8 [patches, channels * (1 or temporal) * pixels], or [images, channels, height, width].
        table: How they were stored.
        dtype: Of the result; float32 is bit-equal to the processor's output.

    Returns:
        [patches, channels * temporal * pixels], or [images, channels, height, width].
    """
    channels = len(table.tables)
    lookup = torch.tensor(table.tables, dtype=torch.float32).to(dtype)
    frames = 1 if table.temporal_repeats else table.temporal
    rows = stored.reshape(stored.shape[0], channels, frames, -1)
    values = torch.empty((rows.shape[0], channels, table.temporal, rows.shape[3]), dtype=dtype)
    for channel in range(channels):
        # One frame is looked up and broadcast to the others that repeat it. index_select: thrice as fast as indexing.
        places = rows[:, channel].int()
        values[:, channel] = lookup[channel].index_select(0, places.view(-1)).view(places.shape)
    return values.reshape(stored.shape) if stored.ndim == 4 else values.reshape(rows.shape[0], -1)
