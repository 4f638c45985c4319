"""Helpers: a configuration of one group, its index read back, and its rows by place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline.bake import BakeFolder
from pipeline.config import (
    BakeConfig,
    Config,
    DatasetConfig,
    FrameSamplerConfig,
    GroupConfig,
    ImageTransformConfig,
    LengthConfig,
    SourceConfig,
)
from pipeline.executor import InlineExecutor, SilentProgress
from pipeline.index import run_index
from pipeline.index_table import iter_rows
from pipeline.records import IndexRow, RowId, SourceIndex
from pipeline.storage import Storage
from pipeline.tokenizer import load_tokenizer

VAE = ImageTransformConfig(max_image_size=96, min_image_size=32, image_stride=16)
VIT = ImageTransformConfig(max_image_size=84, min_image_size=28, image_stride=14, max_pixels=9000)


def group_of(kind: str, sources: Sequence[SourceConfig], **changes: Any) -> GroupConfig:
    """A group of a kind with small transforms."""
    arguments: dict[str, Any] = {
        "name": kind,
        "kind": kind,
        "weight": 1.0,
        "is_mandatory": False,
        "sources": tuple(sources),
        "image_transform": VIT if kind == "vlm_sft" else VAE,
        "vit_image_transform": VIT if kind == "unified_edit" else None,
        "frame_sampler": FrameSamplerConfig(max_num_frames=6, min_num_frames=3) if kind == "vlm_sft" else None,
    }
    return GroupConfig(**{**arguments, **changes})


def config_of(folder: Path, tokenizer: Path, *groups: GroupConfig, **bake: Any) -> Config:
    """A configuration that bakes into `folder`; every fraction of drops is allowed unless said otherwise."""
    arguments = {"output": str(folder), "length": LengthConfig(packs_per_lane=1), "max_dropped_fraction": 1.0, **bake}
    return Config(tokenizer_path=str(tokenizer), dataset=DatasetConfig(groups=groups), bake=BakeConfig(**arguments))


def index_of(config: Config, storage: Storage | None = None) -> tuple[SourceIndex, ...]:
    """Run the index stage inline."""
    return run_index(
        config,
        BakeFolder(config.bake.output),
        storage or Storage(),
        load_tokenizer(config.tokenizer_path),
        InlineExecutor(),
        SilentProgress(),
    )


def rows_of(config: Config, storage: Storage | None = None) -> list[tuple[RowId, IndexRow]]:
    """Every row of every source, in the order of the index, measured now."""
    storage = storage or Storage()
    found = []
    for index in index_of(config, storage):
        for unit in index.units:
            with storage.open(BakeFolder(config.bake.output).index_unit(index.source, unit.unit)) as file:
                table = pq.read_table(file)
            for number, row in enumerate(iter_rows(table)):
                row_id = RowId(
                    source=index.source,
                    path=unit.path,
                    row=unit.first_row + row.row,
                    unit=unit.unit,
                    index_row=number,
                )
                found.append((row_id, row))
    return found
