"""What lane and packers pass to each other, and the draws that both packers make in the same way.

    GroupStream ──Drawn──► Packer ──list[Placed]──► lane: PlannedPack, shard boundaries, accounts

A packer is a pure function of its draws: no I/O, no clock. `greedy` draws dropout when it packs, `best_fit` when
it draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline.config import DatasetConfig
from pipeline.errors import ConfigError, SourceError
from pipeline.plan.random import LaneRandom
from pipeline.plan_table import RowCounts
from pipeline.records import Item, ItemKind, PlannedItem, Sample
from pipeline.sequence import split_length

__all__ = ["TOO_LONG", "Draw", "Drawn", "Drop", "GroupChoice", "Packer", "Placed", "SpinGuard", "count_drop", "spend"]

TOO_LONG = "too_long"
"""Reason of a sample above `max_num_tokens_per_sample`."""

SPIN_PASSES = 2
SPIN_SAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Drawn:
    """A sample that a group gave to the packer.

    Attributes:
        sample: Its content, every draw about it spent.
        group: Number of its group.
        pass_number: Pass over the lane's rows of the group, counted from 0.
        data_indexes: JSON text of the reference's `data_indexes`.
        counts: The account of its source and pass.
    """

    sample: Sample
    group: int
    pass_number: int
    data_indexes: str
    counts: RowCounts


@dataclass(frozen=True, slots=True)
class Placed:
    """A sample in a pack: after dropout, with the tokens of its kept items together."""

    drawn: Drawn
    items: tuple[PlannedItem, ...]
    num_tokens: int


class Packer(Protocol):
    """Fills packs. One object per lane; `next_pack` never ends as long as the lane has a usable row.

    Attributes:
        draws: Samples taken per group by weight.
        mandatory_draws: Samples taken per group because it is mandatory.
    """

    draws: list[int]
    mandatory_draws: list[int]

    def next_pack(self) -> list[Placed]:
        """The samples of the next pack in sequence order; SourceError if no row of the lane can ever be used."""

    def waiting(self) -> list[Drawn]:
        """Samples drawn but neither in a pack that was handed out nor lost: buffer, pool, unfinished packs."""

    def comparison(self) -> dict[str, int]:
        """Statistics (`greedy_packs`, `greedy_tokens`) of what the reference's packer would have made of the draws."""


def spend(items: Sequence[Item], rules: DatasetConfig, random: LaneRandom) -> tuple[tuple[PlannedItem, ...], int]:
    """Condition dropout and timesteps of one sample, in item order, and the tokens of what is kept.

    Reference: `PackedDataset.pack_sequence`. One `uniform()` per item that takes part in dropout; one `randn()` per VAE
    image with loss, drawn only if the image is kept.
    """
    dropout = (rules.text_cond_dropout_prob, rules.vit_cond_dropout_prob, rules.vae_cond_dropout_prob)  # by ItemKind
    planned: list[PlannedItem] = []
    num_tokens = 0
    for item in items:
        if item.enable_cfg and random.uniform() < dropout[item.kind]:
            planned.append(PlannedItem(item=item, kept=False))
            continue
        num_tokens += split_length(item.num_tokens)
        if item.loss and item.kind is ItemKind.VAE:
            planned.append(PlannedItem(item=item, timestep=random.randn()))
        else:
            planned.append(PlannedItem(item=item))
    return tuple(planned), num_tokens


class GroupChoice:
    """Picks a group by cumulative weight: one `uniform()` a draw, compared in double precision as the reference does.

    The last cumulative probability is sum/sum, which is exactly 1, but rounding may leave an earlier sum of the same
    weights above it; a number that no bound exceeds falls to group 0.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        total = sum(weights)
        if not total > 0.0:
            raise ConfigError(
                f"the weights of the groups add up to {total}, so no group can ever be chosen; "
                "give at least one entry of `grouped_datasets` a weight above 0."
            )
        self._bounds = [sum(weights[: number + 1]) / total for number in range(len(weights))]

    def pick(self, random: LaneRandom) -> int:
        """Number of the group to draw from."""
        drawn = random.uniform()
        for group, bound in enumerate(self._bounds):
            if drawn < bound:
                return group
        return 0


class SpinGuard:
    """Notices a packer that would search for a sample short enough for ever.

    Raised only when every group it could have taken one from was read twice over, at least 1,000 samples together,
    without one that fits: captions of different lengths deserve a second look, endless loops do not.
    """

    def __init__(self, names: Sequence[str], limit: int) -> None:
        self._names = names
        self._limit = limit
        self._passes: dict[int, tuple[int, int]] = {}
        self._dropped = 0

    def placed(self) -> None:
        """A sample could be used."""
        if self._dropped:
            self._dropped = 0
            self._passes.clear()

    def dropped(self, drawn: Drawn, groups: Sequence[int]) -> None:
        """A sample was too long; `groups` are all those that the search may draw from.

        Raises:
            SourceError: the search cannot end.
        """
        self._dropped += 1
        first, _ = self._passes.get(drawn.group, (drawn.pass_number, 0))
        self._passes[drawn.group] = (first, drawn.pass_number)
        if self._dropped < SPIN_SAMPLES:
            return
        if all(self._searched(group) for group in groups):
            names = ", ".join(self._names[group] for group in groups)
            raise SourceError(
                f"every sample of {names} in this lane is longer than max_num_tokens_per_sample ({self._limit}), "
                "so packing would search for ever; raise that limit or let the image transform make smaller images."
            )

    def _searched(self, group: int) -> bool:
        first, last = self._passes.get(group, (0, 0))
        return last - first >= SPIN_PASSES


Draw = Callable[[int], Drawn]
"""The next sample of a group by its number; repeats the group's rows for ever."""

Drop = Callable[[Drawn, str], None]
"""Told of a sample that the packer cannot use, and why."""


def count_drop(drawn: Drawn, reason: str) -> None:
    """The plainest `Drop`: counts the row in its account."""
    drawn.counts.dropped[reason] = drawn.counts.dropped.get(reason, 0) + 1
