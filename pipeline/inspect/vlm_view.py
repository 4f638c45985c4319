"""What one VLM pack holds, worked out from its own arrays: documents, and in each its texts and media in order.

tokens     │<im_start> user \\n │v v v v v v│what is it? … │a circle <im_end>│   v: media tokens
is         │ text               │ an image  │ text         │ text with loss  │
positions  │ count up, or of an image the temporal axis of mRoPE
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import isqrt
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from loaders.vlm_format import VlmPackHeader, VlmSettings
from pipeline.inspect.view import Arrays, Decode, Pixels, SampleView, SplitView

__all__ = ["pictures_of_patches", "view_vlm_pack"]

_CHANNELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Medium:
    """One image or video: its tokens, what there is to see (frames side by side), and its grid of cells."""

    num_tokens: int
    pixels: Pixels
    grid: tuple[int, int]


def view_vlm_pack(
    header: VlmPackHeader, arrays: Arrays, settings: VlmSettings, decode: Decode | None
) -> tuple[SampleView, ...]:
    """The documents of a pack.

    Args:
        header: The pack's header.
        arrays: Its arrays by their stored names.
        settings: Of the bake.
        decode: Turns ids into text; None: only ids are shown.
    """
    media = {kind: _media(kind, arrays, settings) for kind in ("image", "video")}
    documents = []
    for number, (start, length) in enumerate(zip(_starts(header.seq_lens_padded), header.seq_lens, strict=True)):
        origin = header.provenance[number]
        documents.append(
            SampleView(
                source=origin.source,
                path=origin.path,
                row=origin.row,
                data_indexes="",
                start=start,
                num_tokens=length,
                splits=tuple(_splits(start, length, header, arrays, media, decode)),
                facts=tuple(_facts(number, header, start, length)),
            )
        )
    return tuple(documents)


def pictures_of_patches(patches: npt.NDArray[np.uint8], grid: tuple[int, int, int], merge: int, frames: int) -> Pixels:
    """A medium's patches in Qwen's order back to pictures, its frames side by side.

    Args:
        patches: uint8 [t·h·w, 3·frames·side·side]; patches of a merged square follow each other.
        grid: t, h, w in patches.
        merge: Side of a merged square in patches.
        frames: Frames that a row holds.

    Returns:
        uint8 [h·side, t·frames·w·side, 3].
    """
    t, h, w = grid
    side = isqrt(patches.shape[1] // (_CHANNELS * frames))
    # [t, h/m, w/m, m, m, channels, frames, side, side] -> [h/m, m, side | t, frames, w/m, m, side | channels]
    cut = patches.reshape(t, h // merge, w // merge, merge, merge, _CHANNELS, frames, side, side)
    return cut.transpose(1, 3, 7, 0, 6, 2, 4, 8, 5).reshape(h * side, t * frames * w * side, _CHANNELS)


def _starts(lengths: Sequence[int]) -> list[int]:
    return [0, *accumulate(lengths)][: len(lengths)]


def _facts(number: int, header: VlmPackHeader, start: int, length: int) -> Iterator[str]:
    told: Mapping[str, Any] = header.extra[number] if number < len(header.extra) else {}
    if "instead_of" in told:
        yield f"stands in for row {told['instead_of']} of the data set, which cannot be used"
    if "cut_from" in told:
        yield f"cut from {told['cut_from']:,} tokens"
    masked = sum(count for first, count in header.document_numbers_masked if start <= first < start + length)
    if masked:
        yield f"its picture was put in and is not attended to ({masked} tokens)"


def _splits(
    start: int,
    length: int,
    header: VlmPackHeader,
    arrays: Arrays,
    media: Mapping[str, Iterator[_Medium]],
    decode: Decode | None,
) -> Iterator[SplitView]:
    """Runs of one kind; a run of media tokens is cut where one medium ends. Media are taken from `media` in order."""
    here = slice(start, start + length)
    ids = np.asarray(arrays["input_ids"][here], dtype=np.int64)
    has_loss = arrays["labels"][here] != -100
    types = arrays["mm_token_type_ids"][here] if "mm_token_type_ids" in arrays else np.zeros(length, dtype=np.uint8)
    positions = arrays["position_ids"][0][here] if "position_ids" in arrays else np.arange(length)
    kinds = types.astype(np.int64) * 2 + (has_loss & (types == 0))
    bounds = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), length] if length else [0]
    left: dict[str, int] = {}  # tokens of a medium begun in an earlier run
    for first, end in pairwise(bounds):
        kind: Literal["text", "image", "video"] = ("text", "image", "video")[min(int(types[first]), 2)]
        while first < end:
            medium, taken = None, end - first
            if kind != "text":
                if not left.get(kind) and (medium := next(media[kind], None)) is not None:
                    left[kind] = medium.num_tokens
                taken = min(taken, left.get(kind) or taken)
                left[kind] = max(0, left.get(kind, 0) - taken)
            own = tuple(int(token) for token in ids[first : first + taken])
            yield SplitView(
                kind=kind,
                mode="causal",
                start=start + first,
                num_tokens=taken,
                first_position=int(positions[first]),
                last_position=int(positions[first + taken - 1]),
                token_ids=own if kind == "text" else (),
                text=None if decode is None or kind != "text" else decode(own),
                num_loss_tokens=int(has_loss[first : first + taken].sum()),
                pixels=None if medium is None else medium.pixels,
                grid=(0, 0) if medium is None else medium.grid,
            )
            first += taken


def _media(kind: str, arrays: Arrays, settings: VlmSettings) -> Iterator[_Medium]:
    """A pack's media of one kind in order."""
    key = "pixel_values" if kind == "image" else "pixel_values_videos"
    stored, frames = _as_bytes(key, arrays, settings)
    grids = arrays.get(f"{kind}_grid_thw")
    types = arrays.get("mm_token_type_ids")
    if stored is None or grids is None or types is None:
        return
    cells = np.prod(grids, axis=1, dtype=np.int64)
    tokens = int((types == (1 if kind == "image" else 2)).sum())
    merge = isqrt(int(cells.sum()) // tokens) if tokens else 1
    first = 0
    for (t, h, w), count in zip(grids.tolist(), cells.tolist(), strict=True):
        pixels = pictures_of_patches(stored[first : first + count], (t, h, w), merge, frames)
        yield _Medium(num_tokens=count // merge**2, pixels=pixels, grid=(h, w))
        first += count


def _as_bytes(key: str, arrays: Arrays, settings: VlmSettings) -> tuple[npt.NDArray[np.uint8] | None, int]:
    """Pixels as one sees them [patches, columns] and the frames of a row; floats are stretched to 0 … 255."""
    if f"{key}_u1" in arrays:
        table = settings.pixel_tables[key]
        return arrays[f"{key}_u1"], 1 if table.temporal_repeats else table.temporal
    if f"{key}_f4" not in arrays or arrays[f"{key}_f4"].ndim != 2:
        return None, 1
    values = arrays[f"{key}_f4"]
    span = float(values.max() - values.min()) or 1.0
    two_frames = values.shape[1] // (2 * _CHANNELS)
    frames = 2 if isqrt(two_frames) ** 2 * 2 * _CHANNELS == values.shape[1] else 1
    return ((values - values.min()) / span * 255).astype(np.uint8), frames
