"""Collated batches of the VLM recipe, as nemo-automodel's collaters give them to its training loop.

    neat     input_ids, labels [B, S]; attention_mask bool [B, 1, S, S] or document numbers [B, S]; position_ids [B, S]
    or
             [3, B, S]; mm_token_type_ids; media concatenated, bfloat16; counts per pack
    thd      input_ids, labels [B, S]; seq_lens, seq_lens_padded [B, documents]; qkv_format "thd"; media likewise
    padded   unpacked samples, padded and shifted here

Sources of the rules: nemo-automodel 0.7.0 `vlm.collate_fns.neat_packed_vlm_collater`,
`packed_sequence_thd_vlm_collater` and `pad_collate_fn`. Padding is pad_token_id for ids, -100 for labels, 0 elsewhere;
documents are numbered 1, 2, … and 0 is padding. Absent media: absent keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["IGNORE_INDEX", "SEQ_LENS_SENTINEL", "VlmPack", "document_mask", "neat_batch", "padded_batch", "thd_batch"]

IGNORE_INDEX = -100
"""Label of a token without loss."""

SEQ_LENS_SENTINEL = -1000
"""Fills up the rows of `seq_lens` of packs with fewer documents."""

PIXEL_KEYS = ("pixel_values", "pixel_values_videos")


@dataclass(frozen=True, slots=True, kw_only=True)
class VlmPack:
    """One pack (or one unpacked sample) in memory.

    Attributes:
        input_ids: int64 [n].
        labels: int64 [n].
        document_ids: int64 [n], 1-based document numbers; 0 at masked tokens. Unpacked: the 0/1 attention mask.
        position_ids: int64 [n], or [3, n] with mRoPE. Unused when unpacked.
        mm_token_type_ids: int64 [n], 0 text, 1 image, 2 video; None if the processor gives none.
        seq_lens: Tokens of each document.
        seq_lens_padded: The same with alignment.
        media: pixel_values, pixel_values_videos (float32), image_grid_thw, video_grid_thw (int64 [media, 3]),
            second_per_grid_ts; only those the pack has.
    """

    input_ids: Tensor
    labels: Tensor
    document_ids: Tensor
    position_ids: Tensor
    mm_token_type_ids: Tensor | None
    seq_lens: tuple[int, ...]
    seq_lens_padded: tuple[int, ...]
    media: dict[str, Tensor]

    def count(self, grid: str) -> int:
        """Media of one kind: rows of its grid."""
        return self.media[grid].shape[0] if grid in self.media else 0


def neat_batch(
    packs: Sequence[VlmPack],
    *,
    pad_token_id: int,
    max_length: int | None = None,
    dense_mask: bool = True,
    pixel_dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:
    """Packs of documents that attend within themselves, causally.

    Args:
        packs: The packs of one step and rank.
        pad_token_id: Fills up `input_ids`.
        max_length: Common length; the longest pack's where None.
        dense_mask: `attention_mask` is bool [B, 1, S, S] (True: may attend); else the document numbers [B, S].
        pixel_dtype: Of pixels; the reference's is bfloat16.
    """
    length = _common_length(packs, max_length)
    documents = _stack(packs, lambda pack: pack.document_ids, 0, length)
    batch: dict[str, Any] = {
        "input_ids": _stack(packs, lambda pack: pack.input_ids, pad_token_id, length),
        "labels": _stack(packs, lambda pack: pack.labels, IGNORE_INDEX, length),
        "position_ids": _positions(packs, length),
        "attention_mask": document_mask(documents) if dense_mask else documents,
        "mm_token_type_ids": _stack(packs, _token_types, 0, length),
    }
    if not dense_mask or (documents.numel() > 0 and int(documents.max()) > 1):
        batch["_packed_seq_ids"] = documents
    _add_media(batch, packs, pixel_dtype)
    _add_counts(batch, packs)
    return batch


def thd_batch(
    packs: Sequence[VlmPack],
    *,
    pad_token_id: int,
    max_length: int | None = None,
    pixel_dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:
    """Packs in Transformer Engine's THD form; the padding at a row's end belongs to its last document's padded length.

    Raises:
        ValueError: A pack is longer than `max_length`.
    """
    longest = _common_length(packs, None)
    length = longest if max_length is None else max_length
    if longest > length:
        raise ValueError(
            f"a pack of {longest} tokens does not fit into collate_max_length {length}; THD batches are never cut; "
            f"raise collate_max_length to the pack size or leave it out."
        )
    padded = [
        [*pack.seq_lens_padded[:-1], pack.seq_lens_padded[-1] + length - pack.input_ids.shape[0]] for pack in packs
    ]
    batch: dict[str, Any] = {
        "input_ids": _stack(packs, lambda pack: pack.input_ids, pad_token_id, length),
        "labels": _stack(packs, lambda pack: pack.labels, IGNORE_INDEX, length),
        "position_ids": _positions(packs, length),
        "seq_lens": _ragged([list(pack.seq_lens) for pack in packs]),
        "seq_lens_padded": _ragged(padded),
        "qkv_format": "thd",
    }
    _add_media(batch, packs, pixel_dtype)
    _add_counts(batch, packs)
    return batch


def padded_batch(
    samples: Sequence[VlmPack],
    *,
    pad_token_id: int,
    max_length: int | None = None,
    pixel_dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:
    """Unpacked samples, padded to the longest (or to `max_length`, cut there), then shifted by one token."""
    length = _common_length(samples, max_length)
    batch: dict[str, Any] = {
        "input_ids": _stack(samples, lambda sample: sample.input_ids, pad_token_id, length)[:, :-1],
        "attention_mask": _stack(samples, lambda sample: sample.document_ids, 0, length)[:, :-1],
    }
    if any(sample.mm_token_type_ids is not None for sample in samples):
        batch["mm_token_type_ids"] = _stack(samples, _token_types, 0, length)[:, :-1]
    batch["labels"] = _stack(samples, lambda sample: sample.labels, IGNORE_INDEX, length)[:, 1:]
    for key in PIXEL_KEYS:
        _concatenate(batch, samples, key, pixel_dtype)
    _add_counts(batch, samples)
    for key in ("image_grid_thw", "video_grid_thw"):
        _concatenate(batch, samples, key)
    return batch


def document_mask(documents: Tensor) -> Tensor:
    """Block-causal mask of document numbers.

    Args:
        documents: int64 [B, S], 0 is padding.

    Returns:
        bool [B, 1, S, S], True where the row's token may attend to the column's.
    """
    same = documents.unsqueeze(2) == documents.unsqueeze(1)
    present = documents > 0
    return (same & present.unsqueeze(2)).tril_().unsqueeze(1)


def _common_length(packs: Sequence[VlmPack], max_length: int | None) -> int:
    return max_length if max_length is not None else max(pack.input_ids.shape[0] for pack in packs)


def _token_types(pack: VlmPack) -> Tensor:
    return pack.mm_token_type_ids if pack.mm_token_type_ids is not None else torch.zeros(0, dtype=torch.int64)


def _stack(packs: Sequence[VlmPack], field: Callable[[VlmPack], Tensor], fill: int, length: int) -> Tensor:
    """[B, length] of a per-token field, filled up (and cut, where a pack is longer) to `length`."""
    stacked = torch.full((len(packs), length), fill, dtype=torch.int64)
    for row, pack in zip(stacked, packs, strict=True):
        values = field(pack)[:length]
        row[: values.shape[0]] = values
    return stacked


def _positions(packs: Sequence[VlmPack], length: int) -> Tensor:
    if packs[0].position_ids.ndim == 1:
        return _stack(packs, lambda pack: pack.position_ids, 0, length)
    stacked = torch.zeros((packs[0].position_ids.shape[0], len(packs), length), dtype=torch.int64)
    for number, pack in enumerate(packs):
        stacked[:, number, : pack.position_ids.shape[1]] = pack.position_ids
    return stacked


def _ragged(rows: list[list[int]]) -> Tensor:
    widest = max(map(len, rows))
    return torch.tensor([row + [SEQ_LENS_SENTINEL] * (widest - len(row)) for row in rows], dtype=torch.int64)


def _concatenate(batch: dict[str, Any], packs: Sequence[VlmPack], key: str, dtype: torch.dtype | None = None) -> None:
    values = [pack.media[key] for pack in packs if key in pack.media]
    if values:
        joined = values[0] if len(values) == 1 else torch.cat(values, dim=0)
        batch[key] = joined if dtype is None else joined.to(dtype)


def _add_media(batch: dict[str, Any], packs: Sequence[VlmPack], pixel_dtype: torch.dtype) -> None:
    for key in PIXEL_KEYS:
        _concatenate(batch, packs, key, pixel_dtype)
    for key in ("image_grid_thw", "video_grid_thw", "second_per_grid_ts"):
        _concatenate(batch, packs, key)


def _add_counts(batch: dict[str, Any], packs: Sequence[VlmPack]) -> None:
    """Media per pack, needed to split the concatenated media again."""
    for name, grid in (("n_images_per_sample", "image_grid_thw"), ("n_videos_per_sample", "video_grid_thw")):
        counts = [pack.count(grid) for pack in packs]
        if any(counts):
            batch[name] = torch.tensor(counts, dtype=torch.int64)
