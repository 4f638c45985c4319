"""PackLoader: a DataLoader over PackedShards whose state is exact.

The state counts the batches that were *handed out*, not those that workers have read ahead, so a checkpoint taken in
the loop body names the next pack whatever `num_workers` and `prefetch_factor` are, then or later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from loaders.dataset import PackedShards
from loaders.state import Place, place_from_state, state_of

__all__ = ["PackLoader"]


class PackLoader:
    """Yields one batch a step.

    An iteration reads one epoch: from where a loaded state stands, else from its start. When it has read all of it, the
    next iteration reads the next epoch. (An iteration that is left early is begun again by the next, as with any
    DataLoader.)

    Attributes:
        dataset: What it reads.
        num_workers: Worker processes; 0 reads in this one, which for mapped local shards copies nothing.
    """

    def __init__(
        self,
        dataset: PackedShards,
        *,
        num_workers: int = 0,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        multiprocessing_context: str | None = None,
    ) -> None:
        """See `PackedShards.loader`.

        Args:
            dataset: What to read.
            num_workers: Worker processes.
            pin_memory: Hand out batches in pinned memory (where there is an accelerator).
            prefetch_factor: Batches each worker reads ahead; None: PyTorch's default.
            multiprocessing_context: "fork", "spawn" or "forkserver"; None: PyTorch's default.
        """
        self.dataset = dataset
        self.num_workers = num_workers
        self._pin_memory = pin_memory and torch.accelerator.is_available()
        self._prefetch_factor = prefetch_factor
        self._context = multiprocessing_context
        self._place = Place(dataset.epoch, 0)
        self._resume: Place | None = None

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return len(self.dataset)

    @property
    def epoch(self) -> int:
        """The epoch that is being read, or that the next iteration reads."""
        return (self._resume or self._place).epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration read `epoch` from its start; no effect where it would read that epoch anyway."""
        if epoch != self.epoch:
            self._resume = Place(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """The state after the batch that was handed out last."""
        return state_of(self._resume or self._place, self.dataset.stream)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration start where `state` was saved, at any rank count and worker count.

        Raises:
            StateMismatch: it was saved for another stream, in another form, or for a longer bake.
        """
        self._resume = place_from_state(state, self.dataset.stream, len(self.dataset.reader.order))

    def __iter__(self) -> Iterator[Any]:
        start = self._resume or Place(self._place.epoch, 0)
        self._place, self._resume = start, None
        for num_steps, batch in enumerate(self._batches(self.dataset.starting_at(start)), start=1):
            self._place = self.dataset.place_after(start, num_steps)
            yield batch
        self._place = Place(start.epoch + 1, 0)

    def _batches(self, dataset: PackedShards) -> Iterable[Any]:
        if self.num_workers == 0:
            return map(dataset.recipe.pin_memory, dataset) if self._pin_memory else dataset
        return DataLoader(
            dataset,
            batch_size=None,
            num_workers=self.num_workers,
            pin_memory=self._pin_memory,
            prefetch_factor=self._prefetch_factor,
            multiprocessing_context=self._context,
            collate_fn=_as_it_is,
        )


def _as_it_is(batch: Any) -> Any:
    return batch
