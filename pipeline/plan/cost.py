"""What a pack costs to train on, in token equivalents: one formula, used to balance steps and to report imbalance.

    cost = tokens
         + PAIR_COST · Σ attention pairs          causal split of s tokens after p visible ones: s·p + s·(s+1)/2
                                                  full or noise split:                           s·p + s²
         + VIT_TOKEN_COST · patches + VIT_PAIR_COST · Σ patches² per image
         + VAE_TOKEN_COST · latent cells          (encoding the pictures)

A noise split is hidden from every other split, so it never counts among the p visible tokens of a later one; attention
never crosses samples. The constants are the forward-pass FLOPs of BAGEL's towers relative to one token through the
language model (Qwen2.5-7B: 7.6e9 weights, 28 layers of width 3,584; SigLIP so400m: 0.4e9 weights, 27 layers of width
1,152): 2·7.6e9 a token, 4·3,584·28 a pair; 2·0.4e9 a patch, 4·1,152·27 a pair of patches; the convolutional VAE encoder
about 5e8 per latent cell. Training multiplies all of them alike.
"""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.records import ItemKind, PlannedItem
from pipeline.sequence import split_length

__all__ = ["PAIR_COST", "VAE_TOKEN_COST", "VIT_PAIR_COST", "VIT_TOKEN_COST", "sample_cost"]

_TOKEN_FLOPS = 2 * 7.6e9
PAIR_COST = 4 * 3584 * 28 / _TOKEN_FLOPS
VIT_TOKEN_COST = 2 * 0.4e9 / _TOKEN_FLOPS
VIT_PAIR_COST = 4 * 1152 * 27 / _TOKEN_FLOPS
VAE_TOKEN_COST = 5e8 / _TOKEN_FLOPS


def sample_cost(items: Iterable[PlannedItem]) -> float:
    """Cost of one sample in token equivalents; the cost of a pack is the sum over its samples."""
    tokens = pairs = patches = patch_pairs = cells = visible = 0
    for planned in items:
        if not planned.kept:
            continue
        item = planned.item
        kind, num_tokens = item.kind, item.num_tokens
        length = split_length(num_tokens)
        tokens += length
        if kind is ItemKind.TEXT:
            pairs += length * visible + length * (length + 1) // 2
            visible += length
            continue
        pairs += length * visible + length * length
        if kind is ItemKind.VIT:
            patches += num_tokens
            patch_pairs += num_tokens * num_tokens
            visible += length
        else:
            cells += num_tokens
            visible += 0 if item.loss else length
    return tokens + PAIR_COST * pairs + VIT_TOKEN_COST * patches + VIT_PAIR_COST * patch_pairs + VAE_TOKEN_COST * cells
