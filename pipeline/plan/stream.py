"""One group of one lane as a stream of samples without end: rows are repeated for ever, in the same order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from pipeline.config import GroupConfig
from pipeline.errors import SourceError
from pipeline.plan.accounts import Accounts
from pipeline.plan.packer import Drawn
from pipeline.plan.partition import Partition
from pipeline.plan_table import RowCounts
from pipeline.records import Dropped, IndexRow, RowId, Sample

__all__ = ["DrawRow", "GroupStream"]

MAX_BARREN_ROWS = 1000

DrawRow = Callable[[IndexRow, RowId], Sample | Dropped]
"""`sources.draw` bound to a group and a lane's random streams."""


class GroupStream:
    """The samples of one group.

    Attributes:
        num_drawn: Rows drawn so far, all passes together.
    """

    def __init__(
        self, number: int, group: GroupConfig, partition: Partition, draw_row: DrawRow, accounts: Accounts
    ) -> None:
        self._number = number
        self._group = group
        self._partition = partition
        self._draw_row = draw_row
        self._accounts = accounts
        self._samples = self._repeat()
        self.num_drawn = 0

    @property
    def num_passes(self) -> int:
        """Passes that are complete: their last row was drawn."""
        return self.num_drawn // self._partition.num_rows if self._partition.num_rows else 0

    def next(self) -> Drawn:
        """The next sample; SourceError if there will never be one."""
        return next(self._samples)

    def _repeat(self) -> Iterator[Drawn]:
        pass_number = 0
        barren = 0
        while True:
            drawn_before = self.num_drawn
            num_samples = 0
            doomed = True
            reasons: Counter[str] = Counter()
            accounts: dict[str, RowCounts] = {}
            for row, row_id, ordinal in self._partition.read():
                counts = accounts.get(row_id.source)
                if counts is None:
                    counts = accounts[row_id.source] = self._accounts.open(row_id.source)
                counts.drawn += 1
                self.num_drawn += 1
                outcome = self._draw_row(row, row_id)
                if isinstance(outcome, Dropped):
                    doomed = doomed and bool(row.fault)
                    reasons[outcome.reason] += 1
                    self._accounts.drop_row(counts, row_id, outcome.reason)
                    continue
                num_samples += 1
                yield Drawn(outcome, self._number, pass_number, self._data_indexes(row, ordinal), counts)
            pass_number += 1
            # A row without a fault may be dropped by luck of the draw (an edit step without instructions): look again.
            barren = 0 if num_samples else barren + self.num_drawn - drawn_before
            if not num_samples and (doomed or barren >= MAX_BARREN_ROWS):
                self._give_up(reasons)

    def _data_indexes(self, row: IndexRow, ordinal: int) -> str:
        """The reference's `data_indexes`: what its kind of group counts, in the worker's own list."""
        if self._group.reads_lines:
            return str(ordinal)
        label = row.label or row.row_in_group
        if self._group.kind == "t2i_pretrain":
            return f"[{ordinal},{row.row_group},{label}]"
        return f"[{ordinal},{label}]"

    def _give_up(self, reasons: Counter[str]) -> None:
        found = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(5)) or "its files are empty"
        raise SourceError(
            f"group {self._group.name} has no usable row in lane {self._partition.lane} "
            f"({self._partition.num_rows} rows: {found}), so the lane would search for ever; "
            "repair the source, or lay the bake out for fewer ranks and workers."
        )
