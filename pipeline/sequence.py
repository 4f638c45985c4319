"""How many tokens an item costs and how long a sample is: the one place that index, plan, render and validate ask.

text   bos + ids + eos                 num_tokens + 2
image  start + patches or cells + end  num_tokens + 2
"""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.records import ItemKind, PlannedItem

__all__ = ["MARKER_TOKENS_PER_ITEM", "grid_shape", "split_length", "stored_pictures"]

MARKER_TOKENS_PER_ITEM = 2


def split_length(num_tokens: int) -> int:
    """Tokens that a kept item of `num_tokens` raw tokens, patches or latent cells takes in the sequence."""
    return num_tokens + MARKER_TOKENS_PER_ITEM


def grid_shape(height_px: int, width_px: int, cell_px: int) -> tuple[int, int]:
    """Rows and columns of the patch or latent grid of an image whose cells are `cell_px` wide."""
    return height_px // cell_px, width_px // cell_px


def stored_pictures(items: Iterable[PlannedItem]) -> tuple[tuple[ItemKind, int], ...]:
    """The pictures one sample stores, each once, as (kind, image number), in order of first use.

    An edit target that also conditions the next step is one VAE picture: same image number, same planned size.
    """
    return tuple(
        dict.fromkeys(
            (planned.item.kind, planned.item.image)
            for planned in items
            if planned.kept and planned.item.kind is not ItemKind.TEXT
        )
    )
