"""The books of a lane: what became of every row it drew (law 5), and the first rows lost for each reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from pipeline.errors import Bug
from pipeline.plan.packer import Drawn, count_drop
from pipeline.plan_table import RowCounts
from pipeline.records import RowId

__all__ = ["MAX_EXAMPLES", "Accounts"]

MAX_EXAMPLES = 5
"""Rows named per source and reason."""


class Accounts:
    """One `RowCounts` per source and pass.

    The k-th account of a source is that of pass k, because a pass ends only when every row of the lane was drawn.
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[RowCounts]] = {}
        self.examples: dict[str, dict[str, list[list[Any]]]] = {}

    def open(self, source: str) -> RowCounts:
        """The account of a source's next pass."""
        counts = RowCounts()
        self._rows.setdefault(source, []).append(counts)
        return counts

    def drop_row(self, counts: RowCounts, row: RowId, reason: str) -> None:
        """A row yields no sample."""
        counts.dropped[reason] = counts.dropped.get(reason, 0) + 1
        self._example(row, reason)

    def drop_sample(self, drawn: Drawn, reason: str) -> None:
        """The packer cannot use a sample."""
        count_drop(drawn, reason)
        self._example(drawn.sample.row, reason)

    def close(self, waiting: Iterable[Drawn]) -> dict[str, list[dict[str, Any]]]:
        """The finished accounts as `LanePlan.rows` holds them.

        Raises:
            Bug: a row was drawn and nobody knows what became of it.
        """
        for drawn in waiting:
            drawn.counts.waiting += 1
        for source, passes in self._rows.items():
            for number, counts in enumerate(passes):
                known = counts.packed + sum(counts.dropped.values()) + counts.discarded + counts.waiting
                if known != counts.drawn:
                    raise Bug(
                        f"{counts.drawn} rows of {source} were drawn in pass {number}, {known} have a known fate; "
                        "the plan would lose rows in silence; please report it."
                    )
        return {source: [dataclasses.asdict(counts) for counts in passes] for source, passes in self._rows.items()}

    def _example(self, row: RowId, reason: str) -> None:
        rows = self.examples.setdefault(row.source, {}).setdefault(reason, [])
        if len(rows) < MAX_EXAMPLES and [row.path, row.row] not in rows:
            rows.append([row.path, row.row])
