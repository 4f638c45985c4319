"""PackedShards: a bake as a PyTorch dataset, one batch a step, for one data-parallel rank.

    dataset = PackedShards("s3://bucket/bake", rank=dp_rank, world_size=dp_size)
    loader = dataset.loader(num_workers=2, pin_memory=True)
    loader.load_state_dict(checkpoint["data"])
    for batch in loader:  # of a BAGEL bake a PackedBatch, of a VLM bake a dict
        loss = model(**batch.to(device, non_blocking=True).to_dict())
        checkpoint["data"] = loader.state_dict()

Worker i of k reads steps i, i + k, …, which is the order in which a DataLoader asks its workers: the worker count never
changes what a step reads. Under a plain DataLoader(batch_size=None) or torchdata's StatefulDataLoader, too.
"""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from loaders.errors import BakeUnfinished
from loaders.order import Tail, num_steps, positions_of_step
from loaders.reader import BakeReader
from loaders.recipe import ReadOptions
from loaders.recipes import recipe_of
from loaders.shard import StoredPack
from loaders.state import Place, place_from_state, state_of

if TYPE_CHECKING:
    from loaders.loader import PackLoader

__all__ = ["PackedShards"]


class PackedShards(IterableDataset[Any]):
    """The packs of a finished bake that one data-parallel rank trains on, batch by batch.

    What a batch is and in which order packs are read, the bake's recipe decides:

        bagel   one pack, a `PackedBatch`, in canonical order
        vlm     `local_batch_size` packs, collated to a dict with nemo-automodel's keys, in the order that PyTorch's
                `DistributedSampler` (or the recipe's own) gives each epoch

    Args:
        url: The bake's folder, any fsspec URL.
        rank: Data-parallel rank; default: torch.distributed if initialised, else the environment's RANK, else 0.
        world_size: Data-parallel size; default likewise (WORLD_SIZE, else 1). Give both or neither.
        fields: Modalities to read, of "vit" and "vae" (VLM: "images" and "videos"); bytes of the others are not read;
            default: all.
        verify: Check checksums on first touch.
        tail: "drop" the last packs where there is not one more for every rank, or start over to have one ("repeat");
            default: the recipe's ("drop"; VLM: "repeat", as `DistributedSampler` does).
        drop_last: Leave out a last batch of fewer packs than the others have; default: as the bake's recipe says.
        shuffle: Read windows of packs in another order in each epoch after the first (not VLM).
        shuffle_window: Packs of a window; they stay together, which keeps reads sequential.
        redraw_timesteps: Draw new timesteps in each epoch after the first (not VLM).
        seed: Of the order and of redrawing; default: the bake's.
        pixel_dtype: Dtype of normalised pixels; default: the recipe's (float32; VLM: bfloat16).
        cache_dir: Local folder for whole shards of a remote bake; default: ranged reads, no cache.
        cache_bytes: Bound of that folder.
        read_ahead: Packs that each worker reads ahead of need in threads; default: 2 if remote, none if local.
        storage_options: Options of the fsspec file system.

    Raises:
        BakeUnfinished: the bake is not finished, or holds no step for this world size.
        FormatError: it is of another format version, or contradicts itself.
        ValueError: an argument cannot be meant, or does not belong to the bake's recipe.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        rank: int | None = None,
        world_size: int | None = None,
        *,
        fields: Iterable[str] | None = None,
        verify: bool = False,
        tail: Tail | None = None,
        drop_last: bool | None = None,
        shuffle: bool = False,
        shuffle_window: int = 16,
        redraw_timesteps: bool = False,
        seed: int | None = None,
        pixel_dtype: torch.dtype | None = None,
        cache_dir: str | None = None,
        cache_bytes: int = 256 << 30,
        read_ahead: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.rank, self.world_size = _rank_and_size(rank, world_size)
        if tail not in (None, "drop", "repeat"):
            raise ValueError(f"tail is 'drop' or 'repeat', got {tail!r}")
        if shuffle_window < 1:
            raise ValueError(f"shuffle_window is a number of packs from 1 up, got {shuffle_window}")
        self.reader = BakeReader(
            os.fspath(url), verify=verify, cache_dir=cache_dir, cache_bytes=cache_bytes, storage_options=storage_options
        )
        known = self.reader.form.fields
        self.fields = known if fields is None else frozenset([fields] if isinstance(fields, str) else fields)
        if not self.fields <= known:
            raise ValueError(f"fields are {sorted(known)}, got {sorted(self.fields)}; name the modalities to read")
        options = ReadOptions(
            tail=tail,
            drop_last=drop_last,
            shuffle=shuffle,
            shuffle_window=shuffle_window,
            redraw_timesteps=redraw_timesteps,
            seed=seed,
            pixel_dtype=pixel_dtype,
        )
        self.recipe = recipe_of(self.reader.manifest, self.reader.order, options, self.reader.storage.read_bytes)
        self._read_ahead = (0 if self.reader.storage.is_local else 2) if read_ahead is None else read_ahead
        self._place = Place()  # of the running or last iteration, as this worker sees it
        self._resume: Place | None = None  # where the next iteration starts
        if len(self) == 0:
            raise BakeUnfinished(
                f"{url} holds {len(self.reader.order)} packs, fewer than one for each of {self.world_size} ranks; "
                f"no step can be made of them; bake more packs, train on fewer ranks, or pass tail='repeat'."
            )

    @property
    def stream(self) -> str:
        """What a saved state must have been saved for."""
        return self.reader.manifest.stream

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration reads."""
        return (self._resume or self._place).epoch

    def __len__(self) -> int:
        """Steps of a whole epoch; the same for every rank."""
        return self.steps_from(0)

    def steps_from(self, position: int) -> int:
        """Steps from a position to the end of the epoch; the same for every rank."""
        return num_steps(
            len(self.reader.order),
            self.world_size,
            start=position,
            tail=self.recipe.tail,
            packs_per_batch=self.recipe.packs_per_batch,
            drop_last=self.recipe.drop_last,
        )

    def place_after(self, start: Place, num_steps: int) -> Place:
        """Where a run stands that has made `num_steps` steps from `start` on."""
        packs_per_step = self.world_size * self.recipe.packs_per_batch
        return Place(start.epoch, min(start.position + num_steps * packs_per_step, len(self.reader.order)))

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration read `epoch` from its start; no effect where it would read that epoch anyway."""
        if epoch != self.epoch:
            self._resume = Place(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """The state after the batch that was handed out last (in a DataLoader's worker: this worker's share of it)."""
        return state_of(self._resume or self._place, self.stream)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration start where `state` was saved.

        Raises:
            StateMismatch: it was saved for another stream, in another form, or for a longer bake.
        """
        self._resume = place_from_state(state, self.stream, len(self.reader.order))

    def starting_at(self, place: Place) -> PackedShards:
        """A dataset like this one whose next iteration starts at `place`."""
        other = copy.copy(self)
        other._place, other._resume = place, place
        return other

    def loader(
        self,
        num_workers: int = 0,
        *,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        multiprocessing_context: str | None = None,
    ) -> PackLoader:
        """A loader whose state is exact whatever its workers have read ahead. See `PackLoader`."""
        from loaders.loader import PackLoader

        return PackLoader(
            self,
            num_workers=num_workers,
            pin_memory=pin_memory,
            prefetch_factor=prefetch_factor,
            multiprocessing_context=multiprocessing_context,
        )

    def pack_at(self, epoch: int, position: int) -> tuple[int, int]:
        """(lane, pack) that an epoch reads at a position."""
        return self.recipe.pack_at(epoch, position)

    def batch_at(self, epoch: int, position: int) -> Any:
        """The batch whose first pack an epoch reads at a position: this rank's next ones follow `world_size` apart.

        Raises:
            IndexError: the bake has no such position.
            ShardDamaged: its bytes are missing or wrong.
        """
        end = min(position + self.recipe.packs_per_batch * self.world_size, len(self.reader.order))
        turns = range(position, max(position + 1, end), self.world_size)
        return self.recipe.batch(epoch, [self._read(self.pack_at(epoch, turn)) for turn in turns])

    def __iter__(self) -> Iterator[Any]:
        start = self._resume or Place(self._place.epoch, 0)
        self._place, self._resume = start, None
        worker = get_worker_info()
        first, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        steps = range(first, self.steps_from(start.position), stride)
        for count, batch in enumerate(self._batches(start, steps), start=1):
            self._place = self.place_after(start, count * stride)
            yield batch

    def _batches(self, start: Place, steps: range) -> Iterator[Any]:
        places = (self.pack_at(start.epoch, turn) for step in steps for turn in self._positions(step, start.position))
        packs = _read_ahead(places, self._read, self._read_ahead)
        for step in steps:
            num_packs = len(self._positions(step, start.position))
            yield self.recipe.batch(start.epoch, list(islice(packs, num_packs)))

    def _positions(self, step: int, start: int) -> list[int]:
        """Positions of this rank's packs in a step counted from position `start`."""
        return positions_of_step(
            step,
            self.rank,
            self.world_size,
            start=start,
            num_packs=len(self.reader.order),
            tail=self.recipe.tail,
            packs_per_batch=self.recipe.packs_per_batch,
        )

    def _read(self, place: tuple[int, int]) -> StoredPack[Any]:
        return self.reader.read(*place, self.fields)


def _read_ahead(
    places: Iterator[tuple[int, int]], read: Callable[[tuple[int, int]], StoredPack[Any]], depth: int
) -> Iterator[StoredPack[Any]]:
    """`read(place)` in order, `depth` reads under way in threads while the caller uses the last one."""
    if depth == 0:
        yield from map(read, places)
        return
    with ThreadPoolExecutor(max_workers=depth, thread_name_prefix="parbake-read-ahead") as threads:
        under_way: deque[Future[StoredPack[Any]]] = deque()
        for place in places:
            under_way.append(threads.submit(read, place))
            if len(under_way) > depth:
                yield under_way.popleft().result()
        for future in under_way:
            yield future.result()


def _rank_and_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise ValueError(
            f"rank is {rank} and world_size {world_size}: one without the other would read the wrong packs; "
            f"give both (the data-parallel ones) or neither"
        )
    if rank is None or world_size is None:
        rank, world_size = _ambient_rank_and_size()
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of 0 … {world_size - 1}; give the data-parallel rank and size")
    return rank, world_size


def _ambient_rank_and_size() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
