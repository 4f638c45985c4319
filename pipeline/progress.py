"""What a person sees while a stage runs: a bar on a terminal, a line every few seconds elsewhere.

Progress stands outside the stages: it is told what is finished, owns the only clock, and decides nothing.

    render     12/40 shards done, 1,234 packs, 5,678 rows/s, 12.3 MB/s, 1:05 left
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from pipeline.executor import Progress as ProgressProtocol
from pipeline.executor import UnitDone

__all__ = ["LineProgress", "Tally", "TerminalProgress", "make_progress"]

SECONDS_BETWEEN_LINES = 5.0


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a stage has done so far. Rates and the time left count only the units of this run, not the skipped ones."""

    stage: str
    total_units: int
    skipped_units: int = 0
    finished_units: int = 0
    rows: int = 0
    packs: int = 0
    num_bytes: int = 0

    def add(self, done: UnitDone) -> None:
        """One more unit is finished."""
        self.finished_units += 1
        self.rows += done.rows
        self.packs += done.packs
        self.num_bytes += done.num_bytes

    @property
    def units_there(self) -> int:
        """Units that are finished, by this run or before it."""
        return min(self.total_units, self.skipped_units + self.finished_units)

    def seconds_left(self, elapsed_s: float) -> float | None:
        """Estimate from the mean time of a unit; None before the first."""
        if self.finished_units == 0:
            return None
        return elapsed_s / self.finished_units * (self.total_units - self.units_there)

    def rates(self, elapsed_s: float) -> str:
        """Packs, rows and bytes as far as the stage counts them: `1,234 packs, 5,678 rows/s, 12.3 MB/s`."""
        elapsed_s = max(elapsed_s, 1e-9)
        parts = [f"{self.packs:,} packs"] if self.packs else []
        parts += [f"{self.rows / elapsed_s:,.0f} rows/s"] if self.rows else []
        parts += [f"{self.num_bytes / elapsed_s / 1e6:,.1f} MB/s"] if self.num_bytes else []
        return ", ".join(parts)

    def line(self, elapsed_s: float, *, finished: bool) -> str:
        """The stage in one line of text."""
        parts = [f"{self.stage:<10} {self.units_there:,}/{self.total_units:,} units"]
        parts += [f"{self.skipped_units:,} already there"] if self.skipped_units else []
        parts += [rates] if (rates := self.rates(elapsed_s)) else []
        left = self.seconds_left(elapsed_s)
        if finished:
            parts.append(f"{clock_time(elapsed_s)} in all")
        elif left is not None:
            parts.append(f"{clock_time(left)} left")
        return ", ".join(parts)


def clock_time(seconds: float) -> str:
    """`1:05`, or `2:03:04` from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class LineProgress:
    """One line at most every `every_s` seconds, and one at the end of each stage."""

    def __init__(
        self,
        stream: TextIO,
        *,
        every_s: float = SECONDS_BETWEEN_LINES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._every_s = every_s
        self._clock = clock
        self._tally: Tally | None = None
        self._started_s = self._written_s = 0.0

    def start(self, stage: str, total_units: int, skipped_units: int = 0) -> None:
        """See `executor.Progress`."""
        self._tally = Tally(stage=stage, total_units=total_units, skipped_units=skipped_units)
        self._started_s = self._written_s = self._clock()

    def advance(self, done: UnitDone) -> None:
        """See `executor.Progress`."""
        if self._tally is None:
            return
        self._tally.add(done)
        now_s = self._clock()
        if now_s - self._written_s >= self._every_s:
            self._write(now_s, finished=False)

    def finish(self) -> None:
        """See `executor.Progress`."""
        if self._tally is not None:
            self._write(self._clock(), finished=True)
            self._tally = None

    def _write(self, now_s: float, *, finished: bool) -> None:
        assert self._tally is not None
        print(self._tally.line(now_s - self._started_s, finished=finished), file=self._stream, flush=True)
        self._written_s = now_s


class _Rates(ProgressColumn):
    """Packs, rows/s and MB/s of the running stage, and the time left."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally

    def render(self, task: Task) -> Text:
        elapsed_s = task.elapsed or 0.0
        left = self._tally.seconds_left(elapsed_s)
        ending = clock_time(elapsed_s) if task.finished else f"{clock_time(left)} left" if left is not None else ""
        return Text(", ".join(part for part in (self._tally.rates(elapsed_s), ending) if part))


class TerminalProgress:
    """A bar per stage, which stays on the screen when the stage is over."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._tally: Tally | None = None

    def start(self, stage: str, total_units: int, skipped_units: int = 0) -> None:
        """See `executor.Progress`."""
        self.finish()
        self._tally = Tally(stage=stage, total_units=total_units, skipped_units=skipped_units)
        self._bar = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=30),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} units"),
            _Rates(self._tally),
            console=self._console,
        )
        self._bar.add_task(stage, total=total_units, completed=self._tally.units_there)
        self._bar.start()

    def advance(self, done: UnitDone) -> None:
        """See `executor.Progress`."""
        if self._bar is not None and self._tally is not None:
            self._tally.add(done)
            self._bar.update(self._bar.task_ids[0], completed=self._tally.units_there)

    def finish(self) -> None:
        """See `executor.Progress`."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._tally = None


def make_progress(stream: TextIO | None = None) -> ProgressProtocol:
    """A bar if `stream` (stderr if None) is a terminal, lines otherwise."""
    stream = stream or sys.stderr
    if stream.isatty():
        return TerminalProgress(Console(file=stream))
    return LineProgress(stream)
