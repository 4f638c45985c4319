"""What a recipe decides about a training run: which pack is read when, and what a step's packs become.

PackedShards does the rest for every recipe alike: ranks, steps, workers, reading ahead, state.

    position ──pack_at──► (lane, pack) ──read──► StoredPack ─┐
    …                                                        ├──batch──► what the training loop gets
    packs_per_batch of them                                  ┘
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from loaders.order import Tail
from loaders.shard import StoredPack

__all__ = ["ReadOptions", "Recipe"]

HeaderT = TypeVar("HeaderT")
BatchT = TypeVar("BatchT")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What the caller of PackedShards asked for; None: what the recipe does by itself. See `PackedShards`."""

    tail: Tail | None = None
    drop_last: bool | None = None
    shuffle: bool = False
    shuffle_window: int = 16
    redraw_timesteps: bool = False
    seed: int | None = None
    pixel_dtype: torch.dtype | None = None


class Recipe(ABC, Generic[HeaderT, BatchT]):
    """One recipe on one bake. Implementations are `bagel_recipe.BagelRecipe` and `vlm_recipe.VlmRecipe`.

    Attributes:
        packs_per_batch: Packs of a batch of one rank.
        tail: What happens to the last packs where they do not suffice for one more pack on every rank.
        drop_last: Whether a last batch of fewer packs is left out.
    """

    packs_per_batch: int
    tail: Tail
    drop_last: bool

    @abstractmethod
    def pack_at(self, epoch: int, position: int) -> tuple[int, int]:
        """(lane, pack) that an epoch reads at a position of [0, packs of the bake): a bijection in every epoch."""

    @abstractmethod
    def batch(self, epoch: int, packs: Sequence[StoredPack[HeaderT]]) -> BatchT:
        """What a step gets of its packs.

        Raises:
            FormatError: a pack contradicts itself or the bake.
        """

    @abstractmethod
    def pin_memory(self, batch: BatchT) -> BatchT:
        """The batch with its tensors in pinned memory."""
