"""Laws 1 to 4 of one VLM pack: a pure function from its header and arrays to what is wrong with them.

law 1   media tokens match their pictures: types, grids, rows of pixels; every token has what it needs
law 2   documents add up to the pack, each aligned, one provenance each
law 3   a label is the token that follows in its document, or -100
law 4   pack_size, max_length and vocabulary are kept
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from loaders.vlm_format import VlmPackHeader, VlmSettings
from pipeline.law_report import Violation

__all__ = ["MEDIA", "MediaArrays", "vlm_pack_violations"]

Arrays = Mapping[str, npt.NDArray[Any]]

_NO_GRIDS: npt.NDArray[np.int32] = np.zeros((0, 3), dtype=np.int32)
_IGNORE = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaArrays:
    """Names of one kind of media: number in `mm_token_type_ids`, stem of its pixel arrays, its grids."""

    token_type: int
    pixels: str
    grids: str


MEDIA: Mapping[str, MediaArrays] = {
    "image": MediaArrays(token_type=1, pixels="pixel_values", grids="image_grid_thw"),
    "video": MediaArrays(token_type=2, pixels="pixel_values_videos", grids="video_grid_thw"),
}


def vlm_pack_violations(
    key: str, header: VlmPackHeader, arrays: Arrays, settings: VlmSettings, vocab_size: int
) -> list[Violation]:
    """Everything that is wrong with a pack.

    Args:
        key: The pack's key, for messages.
        header: Its header (consistent in itself: `parse_vlm_pack_header`).
        arrays: Its arrays in stored dtypes; a missing one is absent or empty.
        settings: Of the bake.
        vocab_size: Ids are below it.
    """
    lengths = list(_lengths(header, arrays, settings))
    complaints = [(2, complaint) for complaint in lengths]
    if not lengths:  # else nothing could be matched to anything
        complaints += [(1, complaint) for complaint in _media(header, arrays)]
        complaints += [(2, complaint) for complaint in _documents(header, arrays, settings)]
        complaints += [(3, complaint) for complaint in _labels(header, arrays, settings)]
        complaints += [(4, complaint) for complaint in _budgets(header, arrays, settings, vocab_size)]
    return [Violation(law=law, subject=f"pack {key}", complaint=complaint) for law, complaint in complaints]


def _lengths(header: VlmPackHeader, arrays: Arrays, settings: VlmSettings) -> Iterator[str]:
    for name in ("input_ids", "labels", "mm_token_type_ids", "attention_mask"):
        required = name in ("input_ids", "labels")
        if (required or name in arrays) and (name not in arrays or arrays[name].shape != (header.num_tokens,)):
            shown = arrays[name].shape if name in arrays else "no entries"
            yield f"{name} has {shown} for {header.num_tokens} tokens"
    shape = arrays["position_ids"].shape if "position_ids" in arrays else None
    if shape != ((3, header.num_tokens) if settings.mrope else None):
        yield f"position_ids have shape {shape} where mRoPE is {'on' if settings.mrope else 'off'}"


def _media(header: VlmPackHeader, arrays: Arrays) -> Iterator[str]:
    """Law 1. Tokens a picture are cells of its grid over a square that is the same for all pictures of a processor."""
    types = arrays.get("mm_token_type_ids")
    if types is not None and not np.isin(types, (0, *(of.token_type for of in MEDIA.values()))).all():
        yield "a token is neither text, image nor video"
    merges = set()
    for kind, of in MEDIA.items():
        grids = arrays.get(of.grids, _NO_GRIDS)
        counted = header.n_images if kind == "image" else header.n_videos
        if grids.ndim != 2 or grids.shape[1] != 3 or len(grids) != counted:
            yield f"{of.grids} has shape {grids.shape} for {counted} {kind}s"
            continue
        cells = np.prod(grids, axis=1, dtype=np.int64)
        pixels = next((arrays[name] for name in (f"{of.pixels}_u1", f"{of.pixels}_f4") if name in arrays), None)
        rows = 0 if pixels is None else len(pixels)
        if rows != cells.sum():
            yield f"{rows} rows of {of.pixels} for grids of {cells.sum()} cells"
        if pixels is not None and pixels.dtype == np.float32 and not np.isfinite(pixels).all():
            yield f"{of.pixels} holds values that are not finite"
        if types is None:
            continue
        tokens = int((types == of.token_type).sum())
        if bool(tokens) != bool(len(grids)) or (tokens and cells.sum() % tokens):
            yield f"{tokens} {kind} tokens for {len(grids)} {kind}s of {cells.sum()} cells"
        elif tokens:
            merges.add(int(cells.sum()) // tokens)
            yield from _torn(header, types == of.token_type, cells, kind)
    if len(merges) > 1:
        yield f"a media token stands for {' and for '.join(map(str, sorted(merges)))} cells in one pack"


def _torn(
    header: VlmPackHeader, is_media: npt.NDArray[np.bool_], cells: npt.NDArray[np.int64], kind: str
) -> Iterator[str]:
    """A picture's tokens all lie in one document: documents end where a picture ends."""
    merge = int(cells.sum()) // int(is_media.sum())
    ends_of_pictures = {0, *np.cumsum(cells // merge).tolist()}
    tokens_before = np.concatenate([[0], np.cumsum(is_media)])
    for number, end in enumerate(accumulate(header.seq_lens_padded)):
        if int(tokens_before[end]) not in ends_of_pictures:
            yield f"document {number} ends inside the tokens of a {kind}"
            return


def _documents(header: VlmPackHeader, arrays: Arrays, settings: VlmSettings) -> Iterator[str]:
    """Law 2 beyond what a header must hold to be parsed: no empty document, alignment, masks."""
    alignment = 2 * settings.cp_size if settings.packing_format == "thd" and settings.cp_size > 1 else 1
    for real, padded in zip(header.seq_lens, header.seq_lens_padded, strict=True):
        if real <= 0 or padded != -(-real // alignment) * alignment:
            yield f"a document of {real} tokens takes {padded} where documents are aligned to {alignment}"
            break
    if not header.seq_lens:
        yield "it holds no document"
    if settings.packing == "none" and len(header.seq_lens) > 1:
        yield f"it holds {len(header.seq_lens)} samples where nothing is packed"
    if header.extra and len(header.extra) != len(header.seq_lens):
        yield f"{len(header.extra)} sets of facts for {len(header.seq_lens)} documents"
    if settings.packing == "none" and header.document_numbers_masked:
        yield "document numbers are masked where nothing is packed"
    if "position_ids" in arrays and int(np.asarray(arrays["position_ids"], dtype=np.int64).min(initial=0)) < 0:
        yield "a position is negative"


def _labels(header: VlmPackHeader, arrays: Arrays, settings: VlmSettings) -> Iterator[str]:
    """Law 3. Packed: the label of token i is token i + 1 (the last one's is the token that the shift took)."""
    ids, labels = (np.asarray(arrays[name], dtype=np.int64) for name in ("input_ids", "labels"))
    start = 0
    for number, (real, padded) in enumerate(zip(header.seq_lens, header.seq_lens_padded, strict=True)):
        own_ids, own_labels = ids[start : start + real], labels[start : start + real]
        if settings.packing != "none":
            own_ids, own_labels = own_ids[1:], own_labels[:-1]
        if not ((own_labels == _IGNORE) | (own_labels == own_ids)).all():
            yield f"a label of document {number} is not the token it should predict"
            return
        if (labels[start + real : start + padded] != _IGNORE).any():
            yield f"the alignment of document {number} carries loss"
            return
        start += padded


def _budgets(header: VlmPackHeader, arrays: Arrays, settings: VlmSettings, vocab_size: int) -> Iterator[str]:
    """Law 4."""
    if settings.pack_size is not None and header.num_tokens > settings.pack_size:
        yield f"{header.num_tokens} tokens exceed pack_size {settings.pack_size}"
    shifted = 0 if settings.packing == "none" else 1
    longest = max(header.seq_lens, default=0) + shifted
    if settings.max_length is not None and longest > settings.max_length:
        yield f"a sample of {longest} tokens exceeds max_length {settings.max_length}"
    for name in ("input_ids", "labels"):
        ids = np.asarray(arrays[name], dtype=np.int64)
        outside = ids[((ids < 0) | (ids >= vocab_size)) & ~((ids == _IGNORE) & (name == "labels"))]
        if outside.size:
            yield f"{name} holds id {int(outside[0])}, the vocabulary ends at {vocab_size}"
