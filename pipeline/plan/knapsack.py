"""Neat packing: rows into bins of `capacity` tokens, on true lengths.

Source of the rules: nemo-automodel 0.7.0 `llm.neat_packing.greedy_knapsack` and `vlm.neat_packing_vlm`. Rows are taken
by descending length, equal lengths in row order; each goes into the *least filled* bin if it fits there, else opens a
new one (if it does not fit the least filled bin, it fits none). It is neither first-fit nor best-fit:

    lengths 5 4 3 2, capacity 7     5 → [5]   4 → [4]   3 → least filled [4] → [4 3]   2 → [5 2]
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["aligned_length", "balance_by_media", "greedy_knapsack"]


def greedy_knapsack(lengths: npt.NDArray[np.integer], capacity: int) -> list[list[int]]:
    """Row numbers of every bin; rows longer than `capacity` are in none.

    Args:
        lengths: [rows] tokens of each row.
        capacity: Tokens a bin may hold.
    """
    bins: list[list[int]] = []
    least_filled: list[tuple[int, int]] = []  # heap of (tokens, bin); equal fill: the older bin
    for row in np.argsort(-lengths.astype(np.int64), kind="stable").tolist():
        length = int(lengths[row])
        if length > capacity:
            continue
        if least_filled and least_filled[0][0] + length <= capacity:
            fill, number = least_filled[0]
            heapq.heapreplace(least_filled, (fill + length, number))
            bins[number].append(row)
        else:
            heapq.heappush(least_filled, (length, len(bins)))
            bins.append([row])
    return bins


def balance_by_media(bins: Sequence[list[int]], media_tokens: npt.NDArray[np.integer]) -> list[list[int]]:
    """The bins by ascending media tokens (equal: as they were), so that neighbours cost the vision tower alike."""
    totals = [int(media_tokens[rows].sum()) for rows in bins]
    return [bins[number] for number in sorted(range(len(bins)), key=totals.__getitem__)]


def aligned_length(length: int, alignment: int) -> int:
    """`length` rounded up to a multiple of `alignment`; 0 stays 0."""
    return -(-length // alignment) * alignment
