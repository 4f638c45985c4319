"""PackedShards: a bake as a PyTorch dataset, one PackedBatch a step, for one data-parallel rank.

    dataset = PackedShards("s3://bucket/bake", rank=dp_rank, world_size=dp_size)
    loader = dataset.loader(num_workers=2, pin_memory=True)
    loader.load_state_dict(checkpoint["data"])
    for batch in loader:
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
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from loaders.batch import BatchRecipe, PackedBatch
from loaders.errors import BakeUnfinished
from loaders.order import Tail, num_steps, position_of_step, shuffled_pack
from loaders.reader import BakeReader
from loaders.shard import FIELDS, StoredPack
from loaders.state import Place, place_from_state, state_of
from loaders.timesteps import redraw_timesteps as redrawn

if TYPE_CHECKING:
    from loaders.loader import PackLoader

__all__ = ["PackedShards"]


class PackedShards(IterableDataset[PackedBatch]):
    """The packs of a finished bake that one data-parallel rank trains on, in canonical order.

    Args:
        url: The bake's folder, any fsspec URL.
        rank: Data-parallel rank; default: torch.distributed if initialised, else the environment's RANK, else 0.
        world_size: Data-parallel size; default likewise (WORLD_SIZE, else 1). Give both or neither.
        fields: Modalities to read, of "vit" and "vae"; bytes of the others are not read.
        verify: Check checksums on first touch.
        tail: "drop" the last packs where they do not fill a step, or fill it up from the front ("repeat").
        shuffle: Read windows of packs in another order in each epoch after the first.
        shuffle_window: Packs of a window; they stay together, which keeps reads sequential.
        redraw_timesteps: Draw new timesteps in each epoch after the first.
        seed: Of shuffling and redrawing; default: the bake's.
        pixel_dtype: Dtype of normalised pixels.
        cache_dir: Local folder for whole shards of a remote bake; default: ranged reads, no cache.
        cache_bytes: Bound of that folder.
        read_ahead: Packs that each worker reads ahead of need in threads; default: 2 if remote, none if local.
        storage_options: Options of the fsspec file system.

    Raises:
        BakeUnfinished: the bake is not finished, or holds no step for this world size.
        FormatError: it is of another format version.
    """

    def __init__(
        self,
        url: str,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        fields: Iterable[str] = ("vit", "vae"),
        verify: bool = False,
        tail: Tail = "drop",
        shuffle: bool = False,
        shuffle_window: int = 16,
        redraw_timesteps: bool = False,
        seed: int | None = None,
        pixel_dtype: torch.dtype = torch.float32,
        cache_dir: str | None = None,
        cache_bytes: int = 256 << 30,
        read_ahead: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.rank, self.world_size = _rank_and_size(rank, world_size)
        self.fields = frozenset(fields)
        if not self.fields <= FIELDS:
            raise ValueError(f"fields are {sorted(FIELDS)}, got {sorted(self.fields)}; name the modalities to read")
        if tail not in ("drop", "repeat"):
            raise ValueError(f"tail is 'drop' or 'repeat', got {tail!r}")
        if shuffle_window < 1:
            raise ValueError(f"shuffle_window is a number of packs from 1 up, got {shuffle_window}")
        self.reader = BakeReader(
            url, verify=verify, cache_dir=cache_dir, cache_bytes=cache_bytes, storage_options=storage_options
        )
        self._recipe = BatchRecipe.of(self.reader.manifest, pixel_dtype)
        self._tail: Tail = tail
        self._shuffle_window = shuffle_window if shuffle else 0
        self._redraws = redraw_timesteps
        self._seed = self.reader.manifest.seed if seed is None else seed
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
        return num_steps(len(self.reader.order), self.world_size, start=position, tail=self._tail)

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
        lane, pack = self.reader.order.pack_at(position)
        if self._shuffle_window:
            pack = shuffled_pack(
                pack,
                num_common=self.reader.order.num_common,
                window=self._shuffle_window,
                seed=self._seed,
                epoch=epoch,
            )
        return lane, pack

    def batch_at(self, epoch: int, position: int) -> PackedBatch:
        """The batch that an epoch reads at a position.

        Raises:
            IndexError: the bake has no such position.
            ShardDamaged: its bytes are missing or wrong.
        """
        lane, pack = self.pack_at(epoch, position)
        return self._batch(epoch, lane, pack, self.reader.read(lane, pack, self.fields))

    def __iter__(self) -> Iterator[PackedBatch]:
        start = self._resume or Place(self._place.epoch, 0)
        self._place, self._resume = start, None
        worker = get_worker_info()
        first, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        steps = range(first, self.steps_from(start.position), stride)
        for count, batch in enumerate(self._batches(start, steps), start=1):
            position = min(start.position + count * stride * self.world_size, len(self.reader.order))
            self._place = Place(start.epoch, position)
            yield batch

    def _batches(self, start: Place, steps: range) -> Iterator[PackedBatch]:
        num_packs = len(self.reader.order)
        positions = (
            position_of_step(step, self.rank, self.world_size, start=start.position, num_packs=num_packs)
            for step in steps
        )
        packs = (self.pack_at(start.epoch, position) for position in positions)
        for (lane, pack), stored in _read_ahead(packs, self._read, self._read_ahead):
            yield self._batch(start.epoch, lane, pack, stored)

    def _read(self, place: tuple[int, int]) -> StoredPack:
        return self.reader.read(*place, self.fields)

    def _batch(self, epoch: int, lane: int, pack: int, stored: StoredPack) -> PackedBatch:
        arrays = dict(stored.arrays)
        if self._redraws and epoch > 0 and "packed_timesteps" in arrays:
            drawn = redrawn(
                arrays["packed_timesteps"].numpy(),
                stored.header.patchified_vae_latent_shapes,
                seed=self._seed,
                epoch=epoch,
                lane=lane,
                pack=pack,
            )
            arrays["packed_timesteps"] = torch.from_numpy(drawn)
        return PackedBatch(stored.header, arrays, self._recipe, lane=lane, pack=pack)


def _read_ahead(
    places: Iterator[tuple[int, int]], read: Callable[[tuple[int, int]], StoredPack], depth: int
) -> Iterator[tuple[tuple[int, int], StoredPack]]:
    """`(place, read(place))` in order, `depth` reads under way in threads while the caller uses the last one."""
    if depth == 0:
        yield from ((place, read(place)) for place in places)
        return
    with ThreadPoolExecutor(max_workers=depth, thread_name_prefix="parbake-read-ahead") as threads:
        under_way: deque[tuple[tuple[int, int], Future[StoredPack]]] = deque()
        for place in places:
            under_way.append((place, threads.submit(read, place)))
            if len(under_way) > depth:
                due, future = under_way.popleft()
                yield due, future.result()
        for due, future in under_way:
            yield due, future.result()


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
