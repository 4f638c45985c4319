"""What condition dropout took out of a pack: only the plan knows, because a dropped item leaves no token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow.parquet as pq

from pipeline.bake import BakeFolder
from pipeline.inspect.view import SampleView
from pipeline.plan_table import table_to_packs
from pipeline.records import ItemKind, PlannedItem, PlannedSample
from pipeline.storage import Storage

__all__ = ["describe_item", "planned_samples", "with_dropped"]

_NAMES = {ItemKind.VIT: "ViT image", ItemKind.VAE: "VAE image"}


def planned_samples(storage: Storage, folder: BakeFolder, lane: int, pack: int) -> tuple[PlannedSample, ...]:
    """The plan's samples of a pack; empty where the plan was not kept beside the shards."""
    url = folder.plan_lane(lane)
    if not storage.exists(url):
        return ()
    with storage.open(url) as file:
        table = pq.read_table(file, filters=[("pack", "==", pack)])
    return tuple(sample for planned in table_to_packs(table) for sample in planned.samples)


def with_dropped(samples: Sequence[SampleView], planned: Sequence[PlannedSample]) -> tuple[SampleView, ...]:
    """The samples, each with what the plan says was dropped from it.

    Both are in sequence order; render may have left samples out, never added or moved one.
    """
    remaining = iter(planned)
    described = []
    for sample in samples:
        for candidate in remaining:
            if (candidate.row.source, candidate.row.path, candidate.row.row) == (
                sample.source,
                sample.path,
                sample.row,
            ):
                dropped = tuple(describe_item(item) for item in candidate.items if not item.kept)
                described.append(replace(sample, dropped=dropped))
                break
        else:
            described.append(sample)
    return tuple(described)


def describe_item(planned: PlannedItem) -> str:
    """`text of 12 tokens`, `ViT image of 224x112 px`."""
    item = planned.item
    if item.kind is ItemKind.TEXT:
        return f"text of {item.num_tokens} tokens"
    return f"{_NAMES[item.kind]} of {item.width_px}x{item.height_px} px"
