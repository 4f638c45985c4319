"""The books of a VLM plan: what became of every row of the data set, exactly, and the figures of the plan report.

rows of the data set = packed in their own right + dropped by reason + replaced by reason + cut by max_packs
                       `packed`                    `dropped[…]`        `dropped["replaced: …"]`  `waiting`

A replaced row is lost like a dropped one; what is rendered in its place is one more copy of another row. Rows of the
sources that the data set does not take (`sample_ratio`, the rest of `shard_data`) are `not_assigned`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import Bug
from pipeline.plan.conversation_index import IndexEntries
from pipeline.plan.conversation_packing import CUT, PACKED, PackedDataSet
from pipeline.plan_table import RowCounts
from pipeline.records import Condition
from pipeline.vlm_config import VlmConfig

__all__ = ["DataSet", "not_assigned", "order_seed", "plan_statistics", "row_accounts"]

MAX_EXAMPLES = 5
"""Rows named per source and reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """One data set: the index entry of each of its rows, and its packs."""

    entries: npt.NDArray[np.int64]
    packed: PackedDataSet


def row_accounts(entries: IndexEntries, data_set: DataSet) -> dict[str, list[dict[str, Any]]]:
    """Source → its account of the one pass, as `LanePlan.rows` holds it.

    Raises:
        Bug: the documents in the packs are not those that the fates promise.
    """
    packed = data_set.packed
    sources = entries.source_of(data_set.entries)
    accounts = {}
    for number, source in enumerate(entries.sources):
        fates = np.bincount(packed.fates[sources == number], minlength=len(packed.reasons)).tolist()
        by_reason = dict(zip(packed.reasons, fates, strict=True))
        counts = RowCounts(
            drawn=sum(fates),
            packed=by_reason.pop(PACKED),
            waiting=by_reason.pop(CUT, 0),
            dropped={reason: count for reason, count in sorted(by_reason.items()) if count},
        )
        if counts.drawn:
            accounts[source] = [dataclasses.asdict(counts)]
    own = int((packed.instead_of < 0).sum())
    if own != sum(passes[0]["packed"] for passes in accounts.values()):
        raise Bug(f"{own} rows are in packs in their own right and the accounts say otherwise; please report it.")
    return accounts


def not_assigned(entries: IndexEntries, data_sets: Sequence[DataSet]) -> dict[str, int]:
    """Source → rows that are in no data set."""
    used = np.zeros(len(entries), dtype=bool)
    for data_set in data_sets:
        used[data_set.entries] = True
    unused = np.bincount(entries.source_of(np.flatnonzero(~used)), minlength=len(entries.sources))
    return {source: int(count) for source, count in zip(entries.sources, unused, strict=True)}


def plan_statistics(config: VlmConfig, entries: IndexEntries, data_sets: Sequence[DataSet]) -> dict[str, Any]:
    """What the plan report prints, and the figures that a reader of `plan.json` may want."""
    packs = [data_set.packed for data_set in data_sets]
    num_packs = sum(packed.num_packs for packed in packs)
    tokens = sum(int(packed.num_tokens.sum()) for packed in packs)
    shift = 0 if config.packing == "none" else 1
    real = sum(int((packed.keep_tokens - shift).sum()) for packed in packs)
    budget = config.pack_size or max((int(packed.num_tokens.max()) for packed in packs if packed.num_packs), default=0)
    documents = [data_set.entries[data_set.packed.rows] for data_set in data_sets]
    return {
        "recipe": config.recipe,
        "packing": config.packing,
        "order_seed": order_seed(config),
        "packs": num_packs,
        "samples": sum(len(packed.rows) for packed in packs),
        "replacements": sum(int((packed.instead_of >= 0).sum()) for packed in packs),
        "truncated": sum(
            int((packed.keep_tokens < entries.table.num_tokens[chosen]).sum())
            for packed, chosen in zip(packs, documents, strict=True)
        ),
        "tokens": {"total": tokens, "media": sum(int(packed.num_media_tokens.sum()) for packed in packs)},
        "real_tokens": real,
        "pack_size": budget,
        "fill": real / (num_packs * budget) if num_packs and budget else 0.0,
        "estimate": _estimate(config, entries, data_sets),
        "conditions": _conditions(entries, documents),
        "drop_examples": _examples(entries, data_sets),
        "shard_bytes": config.bake.shard_bytes,
    }


def order_seed(config: VlmConfig) -> int:
    """Seed of the epochs' order: DistributedSampler has one of its own, 0; the others take the recipe's."""
    return 0 if config.order == "distributed" else config.seed or 0


def _estimate(config: VlmConfig, entries: IndexEntries, data_sets: Sequence[DataSet]) -> dict[str, int]:
    """How far the reference's estimated lengths are off: rows that it would take for too short or too long."""
    rows = np.concatenate([data_set.entries for data_set in data_sets])
    rows = rows[entries.table.fault[rows] < 0]
    real, estimated = entries.table.num_tokens[rows].astype(np.int64), entries.reference_length[rows].astype(np.int64)
    return {
        "real_tokens": int(real.sum()),
        "estimated_tokens": int(estimated.sum()),
        "rows_underestimated": int((estimated < real).sum()),
        "rows_overestimated": int((estimated > real).sum()),
    }


def _conditions(entries: IndexEntries, documents: Sequence[npt.NDArray[np.int64]]) -> dict[str, dict[str, int]]:
    """Source → condition → documents in packs that have it."""
    chosen = np.concatenate(documents)
    sources = entries.source_of(chosen)
    found: dict[str, dict[str, int]] = {}
    for number, source in enumerate(entries.sources):
        bits = entries.conditions[chosen[sources == number]]
        counts = {flag.name or "": int(((bits & flag.value) != 0).sum()) for flag in Condition}
        found[source] = {name: count for name, count in counts.items() if count}
    return {source: counts for source, counts in found.items() if counts}


def _examples(entries: IndexEntries, data_sets: Sequence[DataSet]) -> dict[str, dict[str, list[list[Any]]]]:
    """Source → reason → the first rows lost for it."""
    examples: dict[str, dict[str, list[list[Any]]]] = {}
    for data_set in data_sets:
        for number, reason in enumerate(data_set.packed.reasons):
            if reason in (PACKED, CUT):
                continue
            lost = data_set.entries[data_set.packed.fates == number]
            sources = entries.source_of(lost)
            for source in np.unique(sources).tolist():
                rows = examples.setdefault(entries.sources[source], {}).setdefault(reason, [])
                for row in entries.row_ids(lost[sources == source][: MAX_EXAMPLES - len(rows)]):
                    rows.append([row.path, row.row])
    return examples
