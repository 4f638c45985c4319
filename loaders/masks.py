"""Attention masks from splits: dense additive ones for each sample, or a predicate for flex attention.

One sample: a caption (causal), a noised target (noise), the same picture as a condition (full). Rows ask, columns
answer:

             causal  noise  full
    causal   ◣       ·      ·          a causal split sees itself up to the diagonal,
    noise    ■       ■      ·          noise and full splits see all of themselves,
    full     ■       ·      ■          everyone sees what came before, but nobody else's noise

Rule: BAGEL's `prepare_attention_mask_per_sample` and `create_sparse_mask`, which agree; the tests hold one against the
other and against nemo-automodel 0.7.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["MaskMod", "block_mask", "dense_mask", "dense_masks", "mask_mod", "splits_of_samples"]

MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(batch, head, query index, key index) → bool tensor: may the query see the key?"""


def splits_of_samples(sample_lens: Iterable[int], split_lens: Sequence[int]) -> list[slice]:
    """Which splits belong to each sample; an empty slice for a sample of length 0.

    Raises:
        ValueError: the splits do not add up to the samples.
    """
    slices, split = [], 0
    for number, sample_len in enumerate(sample_lens):
        first, length = split, 0
        while length < sample_len and split < len(split_lens):
            length += split_lens[split]
            split += 1
        if length != sample_len:
            raise ValueError(
                f"splits {first} to {split} hold {length} tokens, sample {number} has {sample_len}; "
                f"masks would mix samples; the pack is damaged"
            )
        slices.append(slice(first, split))
    return slices


def dense_mask(
    split_lens: Sequence[int], attn_modes: Sequence[str], device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Additive mask of one sample: float32 [tokens, tokens], 0 where row may see column and -inf elsewhere."""
    num_tokens = sum(split_lens)
    mask = torch.full((num_tokens, num_tokens), float("-inf"), device=device)
    start = 0
    for length, mode in zip(split_lens, attn_modes, strict=True):
        rows = slice(start, start + length)
        mask[rows, :start] = 0.0
        mask[rows, rows] = torch.triu(mask[rows, rows], diagonal=1) if mode == "causal" else 0.0
        start += length
    start = 0
    for length, mode in zip(split_lens, attn_modes, strict=True):
        if mode == "noise":
            mask[start + length :, start : start + length] = float("-inf")
        start += length
    return mask


def dense_masks(
    sample_lens: Iterable[int],
    split_lens: Sequence[int],
    attn_modes: Sequence[str],
    device: torch.device | str = "cpu",
) -> list[torch.Tensor]:
    """`dense_mask` of every sample of a pack (without a pad entry): the reference's `nested_attention_masks`."""
    return [dense_mask(split_lens[own], attn_modes[own], device) for own in splits_of_samples(sample_lens, split_lens)]


def mask_mod(
    sample_lens: Sequence[int],
    split_lens: Sequence[int],
    attn_modes: Sequence[str],
    device: torch.device | str = "cpu",
) -> MaskMod:
    """The same rule for a whole pack as a flex attention predicate, samples hidden from each other.

    Args:
        sample_lens: Tokens of each sample, the pad entry included if the batch has one (`use_flex`).
        split_lens: Tokens of each split, likewise.
        attn_modes: Mode of each split.
        device: Where the index tensors that the predicate reads live.
    """
    splits = torch.tensor(split_lens, dtype=torch.int64, device=device)
    numbers = torch.arange(len(split_lens), device=device)
    causal = torch.tensor([mode == "causal" for mode in attn_modes], dtype=torch.bool, device=device)
    noise = torch.tensor([mode == "noise" for mode in attn_modes], dtype=torch.bool, device=device)
    samples = torch.tensor(sample_lens, dtype=torch.int64, device=device)
    split_of = numbers.repeat_interleave(splits)
    causal_of = causal.repeat_interleave(splits)
    noise_of = noise.repeat_interleave(splits)
    sample_of = torch.arange(len(sample_lens), device=device).repeat_interleave(samples)

    def may_see(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        same_split = split_of[query] == split_of[key]
        reaches = (key <= query) | (same_split & ~causal_of[query])
        hidden_noise = noise_of[key] & ~same_split
        return reaches & ~hidden_noise & (sample_of[query] == sample_of[key])

    return may_see


def block_mask(
    sample_lens: Sequence[int],
    split_lens: Sequence[int],
    attn_modes: Sequence[str],
    *,
    num_heads: int | None = None,
    device: torch.device | str = "cpu",
    block_size: int = 128,
    compiled: bool = False,
) -> BlockMask:
    """`mask_mod` as a flex attention BlockMask over the whole pack.

    Args:
        sample_lens: As for `mask_mod`.
        split_lens: As for `mask_mod`.
        attn_modes: As for `mask_mod`.
        num_heads: Heads to repeat the mask for; None: one mask for all.
        device: Where the mask lives.
        block_size: Side of a block in tokens.
        compiled: Build it with torch.compile, without ever holding the tokens × tokens matrix.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    num_tokens = sum(sample_lens)
    return create_block_mask(
        mask_mod(sample_lens, split_lens, attn_modes, device),
        B=None if num_heads is None else 1,
        H=num_heads,
        Q_LEN=num_tokens,
        KV_LEN=num_tokens,
        device=str(device),
        BLOCK_SIZE=block_size,
        _compile=compiled,
    )
