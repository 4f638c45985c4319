"""Store a processor's float pixels as bytes, without losing a bit.

A processor that resizes in uint8 and then normalises can give only 256 values per channel. Which ones is read off the
processor itself, by showing it a picture that holds every byte; whether a pack really holds no others is verified value
by value when it is written, and a pack that does is stored as float32 and counted.

    pixel_values float32 [patches, 3 · 2 · 14 · 14] ──► uint8 [patches, 3 · 14 · 14]      an eighth of the bytes
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from loaders.vlm_format import PixelTable

__all__ = ["calibrate", "encode_pixels"]

CHANNELS = 3
BYTES = 256


def calibrate(image_processor: Any, *, temporal_repeats: bool) -> PixelTable | None:
    """The table of an image processor, None if its output is not of that kind.

    Args:
        image_processor: Called with one RGB PIL image and `do_resize=False`.
        temporal_repeats: Whether a row's frames are one picture repeated (images) or differ (videos).
    """
    from PIL import Image

    side = int(getattr(image_processor, "patch_size", 16)) * int(getattr(image_processor, "merge_size", 1))
    cells = -(-BYTES // (side * side))  # squares needed to hold every byte once
    every_byte = np.resize(np.arange(BYTES, dtype=np.uint8), (side, side * cells))
    picture = Image.fromarray(np.repeat(every_byte[:, :, None], CHANNELS, axis=2))
    try:
        values = image_processor(images=[picture], do_resize=False, return_tensors="np")["pixel_values"]
    except (TypeError, ValueError, KeyError):
        return None
    temporal = int(getattr(image_processor, "temporal_patch_size", 1))
    rows = _rows(np.asarray(values, dtype=np.float32), temporal)
    if rows is None:
        return None
    tables = [np.unique(rows[:, channel]) for channel in range(CHANNELS)]
    if any(len(table) != BYTES for table in tables):
        return None
    return PixelTable(
        tables=tuple(tuple(float(value) for value in table) for table in tables),
        temporal=temporal,
        temporal_repeats=temporal_repeats,
    )


def encode_pixels(values: npt.NDArray[np.float32], table: PixelTable) -> npt.NDArray[np.uint8] | None:
    """Bytes that `loaders.vlm_pixels.expand_pixels` turns back into exactly `values`, None if there are none.

    Args:
        values: float32 [patches, channels * temporal * pixels], or [images, channels, height, width].

    Returns:
        uint8 of the same shape, a row's frames stored once where `temporal_repeats`.
    """
    rows = _rows(values, table.temporal)
    if rows is None:
        return None
    if table.temporal_repeats and table.temporal > 1:
        if not (rows[:, :, :1] == rows).all():
            return None
        rows = rows[:, :, :1]
    stored = np.empty(rows.shape, dtype=np.uint8)
    for channel, entries in enumerate(table.tables):
        known = np.array(entries, dtype=np.float32)
        scale = np.float32((BYTES - 1) / (entries[-1] - entries[0]))
        guessed = np.clip(np.rint((rows[:, channel] - known[0]) * scale), 0, BYTES - 1).astype(np.uint8)
        if not np.array_equal(known[guessed], rows[:, channel]):
            return None
        stored[:, channel] = guessed
    return stored.reshape(len(values), -1) if values.ndim == 2 else stored.reshape(values.shape)


def _rows(values: npt.NDArray[np.float32], temporal: int) -> npt.NDArray[np.float32] | None:
    """`values` as [rows, channels, temporal, pixels], None if they do not divide so."""
    if values.ndim == 4 and values.shape[1] == CHANNELS and temporal == 1:
        return values.reshape(len(values), CHANNELS, 1, -1)
    if values.ndim == 2 and values.shape[1] % (CHANNELS * temporal) == 0:
        return values.reshape(len(values), CHANNELS, temporal, -1)
    return None
