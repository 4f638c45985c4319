"""The BAGEL recipe: one pack a step in canonical order, as the batch object that BAGEL's and AutoModel's loops use."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from loaders.batch import BatchRecipe, PackedBatch
from loaders.format import DatasetManifest, PackHeader
from loaders.order import CanonicalOrder, Tail, shuffled_pack
from loaders.recipe import ReadOptions, Recipe
from loaders.shard import StoredPack
from loaders.timesteps import redraw_timesteps

__all__ = ["BagelRecipe"]


class BagelRecipe(Recipe[PackHeader, PackedBatch]):
    """See `Recipe`. Epochs after the first may be shuffled and may redraw timesteps."""

    def __init__(self, manifest: DatasetManifest, order: CanonicalOrder, options: ReadOptions) -> None:
        self.packs_per_batch = 1
        self.tail: Tail = options.tail or "drop"
        self.drop_last = False  # a batch is one pack: it is there or not
        self._order = order
        self._seed = manifest.seed if options.seed is None else options.seed
        self._window = options.shuffle_window if options.shuffle else 0
        self._redraws = options.redraw_timesteps
        self._facts = BatchRecipe.of(manifest, options.pixel_dtype or torch.float32)

    def pack_at(self, epoch: int, position: int) -> tuple[int, int]:
        """Canonical order, windows of packs shuffled where that was asked for."""
        lane, pack = self._order.pack_at(position)
        if self._window:
            common = self._order.num_common
            pack = shuffled_pack(pack, num_common=common, window=self._window, seed=self._seed, epoch=epoch)
        return lane, pack

    def batch(self, epoch: int, packs: Sequence[StoredPack[PackHeader]]) -> PackedBatch:
        """The one pack of a step."""
        (stored,) = packs
        arrays = dict(stored.arrays)
        if self._redraws and epoch > 0 and "packed_timesteps" in arrays:
            drawn = redraw_timesteps(
                arrays["packed_timesteps"].numpy(),
                stored.header.patchified_vae_latent_shapes,
                seed=self._seed,
                epoch=epoch,
                lane=stored.lane,
                pack=stored.pack,
            )
            arrays["packed_timesteps"] = torch.from_numpy(drawn)
        return PackedBatch(stored.header, arrays, self._facts, lane=stored.lane, pack=stored.pack)

    def pin_memory(self, batch: PackedBatch) -> PackedBatch:
        """See `PackedBatch.pin_memory`."""
        return batch.pin_memory()
