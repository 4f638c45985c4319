"""Which rows a data set consists of, in what order: numbers only.

    meta      the data sets of the file by name; each: sample_ratio 1 its rows in order, below 1 a sample by Random(42),
              above 1 whole copies and a sampled remainder; shard_data cuts each into equal parts, one a rank
    others    rows in order

Reference: nemo-automodel 0.7.0 `vlm.datasets.make_meta_dataset`, `_load_jsonl_for_rank`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.records import SourceIndex
from pipeline.sources.conversations.meta import is_jsonl
from pipeline.vlm_config import ConversationSourceConfig, VlmConfig

__all__ = ["DatasetRows", "dataset_rows", "num_datasets", "sampled_rows", "sharded_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRows:
    """Where each row of the data set lies; rows may repeat.

    Attributes:
        source: int32 [rows], number of the source in `config.sources` and in the indexes.
        unit: int32 [rows], number of the index unit in its source.
        index_row: int32 [rows], row number inside that unit's index file.
    """

    source: npt.NDArray[np.int32]
    unit: npt.NDArray[np.int32]
    index_row: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.source)


def num_datasets(config: VlmConfig) -> int:
    """How many data sets there are: one, or one for each rank under `shard_data`."""
    return config.bake.world_size if config.shard_data else 1


def dataset_rows(config: VlmConfig, indexes: Sequence[SourceIndex], rank: int = 0) -> DatasetRows:
    """The rows of the data set in its order.

    Args:
        config: The recipe.
        indexes: One for each of `config.sources`, in the same order.
        rank: Whose data set, under `shard_data`.
    """
    sources, units, index_rows = [], [], []
    for number, (source, index) in enumerate(zip(config.sources, indexes, strict=True)):
        counts = np.array([unit.num_rows for unit in index.units], dtype=np.int64)
        ends = np.cumsum(counts)
        rows = sampled_rows(int(counts.sum()), source.sample_ratio)
        if config.shard_data and source.kind == "meta":
            rows = sharded_rows(rows, source, rank, config.bake.world_size)
        unit = np.searchsorted(ends, rows, side="right")
        sources.append(np.full(len(rows), number, dtype=np.int32))
        units.append(unit.astype(np.int32))
        index_rows.append((rows - (ends - counts)[unit] if len(rows) else rows).astype(np.int32))
    return DatasetRows(source=_joined(sources), unit=_joined(units), index_row=_joined(index_rows))


def sampled_rows(num_rows: int, ratio: float) -> npt.NDArray[np.int64]:
    """Row numbers that `sample_ratio` takes of a data set, in order.

    >>> sampled_rows(4, 2.5).tolist()
    [0, 1, 2, 3, 0, 1, 2, 3, 0, 3]
    """
    if ratio == 1.0 or num_rows == 0:
        return np.arange(num_rows, dtype=np.int64)
    if ratio < 1.0:
        wanted = max(1, math.floor(num_rows * ratio))
        return np.array(random.Random(42).sample(range(num_rows), wanted), dtype=np.int64)
    copies = int(ratio)
    extra = math.floor(num_rows * (ratio - copies))
    more = random.Random(42).sample(range(num_rows), extra) if extra > 0 else []
    return np.concatenate([np.tile(np.arange(num_rows, dtype=np.int64), copies), np.array(more, dtype=np.int64)])


def sharded_rows(
    rows: npt.NDArray[np.int64], source: ConversationSourceConfig, rank: int, world_size: int
) -> npt.NDArray[np.int64]:
    """The rank's part: contiguous for a JSONL that is sampled, strided otherwise; as many rows for every rank."""
    per_rank = len(rows) // world_size
    if is_jsonl(source.path) and source.sample_ratio != 1.0:
        return rows[rank * per_rank : (rank + 1) * per_rank]
    return rows[rank::world_size][:per_rank]


def _joined(parts: Sequence[npt.NDArray[np.int32]]) -> npt.NDArray[np.int32]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)
