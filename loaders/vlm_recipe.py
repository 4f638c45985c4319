"""The VLM recipe: `local_batch_size` packs (or unpacked samples) a step, collated as nemo-automodel does.

Shards hold epoch 0's order; every other epoch's is computed and looked up:

    position ──this epoch's order──► number of the pack ──inverse of epoch 0's──► where it is stored ──► (lane, pack)

The order does not depend on how many ranks read: a permutation of all packs, padded by starting over. So a state stays
right when W changes, and for one W it is the order of `DistributedSampler`. The chunks of `length_grouped` hold one
batch of each rank that the bake was laid out for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from loaders.errors import FormatError
from loaders.format import DatasetManifest
from loaders.order import CanonicalOrder, Tail
from loaders.recipe import ReadOptions, Recipe
from loaders.shard import StoredPack
from loaders.vlm_batch import VlmPack, neat_batch, padded_batch, thd_batch
from loaders.vlm_format import VlmPackHeader, VlmSettings
from loaders.vlm_order import OrderRule, epoch_order
from loaders.vlm_pack import pack_in_memory

__all__ = ["VlmRecipe"]

Batch = dict[str, Any]


class VlmRecipe(Recipe[VlmPackHeader, Batch]):
    """See `Recipe`. Batches are dicts with exactly the keys of nemo-automodel's collaters."""

    def __init__(
        self,
        manifest: DatasetManifest,
        order: CanonicalOrder,
        options: ReadOptions,
        read_bytes: Callable[[str], bytes],
    ) -> None:
        """The recipe of a bake.

        Args:
            manifest: Its `dataset.json`.
            order: Canonical order of its packs.
            options: The caller's wishes.
            read_bytes: Reads a file of the bake.

        Raises:
            FormatError: the settings are not those of a VLM bake, or the lengths it needs are not there.
            ValueError: an option that only the BAGEL recipe has.
        """
        if options.shuffle or options.redraw_timesteps:
            raise ValueError(
                "shuffle and redraw_timesteps belong to the BAGEL recipe: a VLM bake has the order of its own "
                "configuration in every epoch; leave them out, or bake with another dataloader.shuffle or bake.order"
            )
        self.settings = VlmSettings.of(manifest.settings)
        self.packs_per_batch = self.settings.local_batch_size
        self.tail: Tail = options.tail or "repeat"
        self.drop_last = self.settings.drop_last if options.drop_last is None else options.drop_last
        self._order = order
        self._pixel_dtype = options.pixel_dtype or torch.bfloat16
        rule = OrderRule(
            order=self.settings.order,
            shuffle=self.settings.shuffle,
            seed=self.settings.order_seed if options.seed is None else options.seed,
            batch_size=self.settings.local_batch_size,
        )
        self._epochs = _epochs(rule, self.settings, manifest, len(order), read_bytes)

    def pack_at(self, epoch: int, position: int) -> tuple[int, int]:
        """Where the pack lies whose turn it is."""
        lane, pack = self._order.pack_at(position)
        if self.settings.shard_data:
            return lane, self._epochs[lane].stored_at(epoch, pack)
        return self._order.pack_at(self._epochs[0].stored_at(epoch, position))

    def batch(self, epoch: int, packs: Sequence[StoredPack[VlmPackHeader]]) -> Batch:
        """The collated batch of a step."""
        settings = self.settings
        loaded: list[VlmPack] = [pack_in_memory(pack, settings, self._pixel_dtype) for pack in packs]
        pad, length, dtype = settings.pad_token_id, settings.collate_max_length, self._pixel_dtype
        if settings.packing == "none":
            return padded_batch(loaded, pad_token_id=pad, max_length=length, pixel_dtype=dtype)
        if settings.packing_format == "thd":
            return thd_batch(loaded, pad_token_id=pad, max_length=length, pixel_dtype=dtype)
        dense = settings.mask == "dense"
        return neat_batch(loaded, pad_token_id=pad, max_length=length, dense_mask=dense, pixel_dtype=dtype)

    def pin_memory(self, batch: Batch) -> Batch:
        """Every tensor of the dict, in pinned memory."""
        return {key: value.pin_memory() if isinstance(value, torch.Tensor) else value for key, value in batch.items()}


class StoredOrder:
    """From an epoch's order of a set of packs to the places where epoch 0's order put them."""

    def __init__(
        self, rule: OrderRule, num_packs: int, world_size: int, lengths: npt.NDArray[np.integer[Any]] | None
    ) -> None:
        self._rule, self._num_packs, self._world_size, self._lengths = rule, num_packs, world_size, lengths
        self._never_changes = rule.order == "sequential" or (rule.order == "distributed" and not rule.shuffle)
        self._latest: tuple[int, npt.NDArray[np.int64]] | None = None  # epoch, place of each of its positions

    def stored_at(self, epoch: int, position: int) -> int:
        """Place, in epoch 0's order, of the pack that `epoch` reads at `position`."""
        if epoch == 0 or self._never_changes:
            return position
        if self._latest is None or self._latest[0] != epoch:
            stored_place = np.empty(self._num_packs, dtype=np.int64)
            stored_place[self._numbers(0)] = np.arange(self._num_packs)
            self._latest = (epoch, stored_place[self._numbers(epoch)])
        return int(self._latest[1][position])

    def _numbers(self, epoch: int) -> npt.NDArray[np.int64]:
        """Number of the pack at each position, without the padding that starts over."""
        order = epoch_order(self._rule, self._num_packs, self._world_size, epoch=epoch, lengths=self._lengths)
        return order[: self._num_packs]


def _epochs(
    rule: OrderRule,
    settings: VlmSettings,
    manifest: DatasetManifest,
    num_packs: int,
    read_bytes: Callable[[str], bytes],
) -> list[StoredOrder]:
    """One order of all packs; or with `shard_data` one of each lane."""
    if num_packs != settings.num_packs:
        raise FormatError(
            f"dataset.json lists {num_packs} packs in its lanes and {settings.num_packs} in its settings; epochs would "
            f"be read in another order than planned; it is damaged: run the bake again."
        )
    lengths = _lengths(settings, read_bytes)
    if not settings.shard_data:
        return [StoredOrder(rule, num_packs, manifest.world_size, lengths)]
    ends = list(accumulate(lane.num_packs for lane in manifest.lanes))
    return [
        StoredOrder(rule, lane.num_packs, 1, None if lengths is None else lengths[end - lane.num_packs : end])
        for lane, end in zip(manifest.lanes, ends, strict=True)
    ]


def _lengths(settings: VlmSettings, read_bytes: Callable[[str], bytes]) -> npt.NDArray[np.integer[Any]] | None:
    if not settings.lengths:
        return None
    try:
        lengths: npt.NDArray[Any] = np.load(BytesIO(read_bytes(settings.lengths)), allow_pickle=False)
    except (FileNotFoundError, ValueError) as error:
        raise FormatError(
            f"{settings.lengths} cannot be read ({error}); without the lengths the order of epochs is not known; copy "
            f"it beside the shards, or run the bake again."
        ) from error
    if lengths.shape != (settings.num_packs,) or not np.issubdtype(lengths.dtype, np.integer):
        raise FormatError(
            f"{settings.lengths} holds {lengths.dtype} {lengths.shape}, {settings.num_packs} lengths belong there; the "
            f"order of epochs cannot be known; copy it anew, or run the bake again."
        )
    return lengths
