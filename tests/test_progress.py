"""What a person sees while a stage runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pipeline.executor import UnitDone
from pipeline.progress import LineProgress, Tally, TerminalProgress, clock_time, make_progress


class Clock:
    """A clock that tests move by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_line_names_units_packs_rates_and_the_time_left() -> None:
    tally = Tally(stage="render", total_units=40)
    for _ in range(12):
        tally.add(UnitDone(rows=1000, packs=100, num_bytes=5_000_000))

    assert (
        tally.line(10.0, finished=False)
        == "render     12/40 units, 1,200 packs, 1,200 rows/s, 6.0 MB/s, 0:23 left"
    )  # fmt: skip


def test_what_a_stage_does_not_count_is_not_shown() -> None:
    tally = Tally(stage="index", total_units=2)
    tally.add(UnitDone())

    assert tally.line(1.0, finished=False) == "index      1/2 units, 0:01 left"


def test_units_found_finished_count_as_done_but_not_for_the_time_left() -> None:
    tally = Tally(stage="index", total_units=10, skipped_units=6)
    assert tally.seconds_left(5.0) is None

    tally.add(UnitDone(rows=10))

    assert tally.line(2.0, finished=False) == "index      7/10 units, 6 already there, 5 rows/s, 0:06 left"


def test_a_stage_that_found_everything_finished_ends_in_one_line() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream, clock=Clock())

    progress.start("plan", 3, skipped_units=3)
    progress.finish()

    assert stream.getvalue() == "plan       3/3 units, 3 already there, 0:00 in all\n"


def test_lines_come_every_few_seconds_and_at_the_end() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = LineProgress(stream, every_s=5.0, clock=clock)

    progress.start("render", 4)
    for _ in range(4):
        clock.now_s += 3.0
        progress.advance(UnitDone(packs=2))
    progress.finish()

    assert stream.getvalue().splitlines() == [
        "render     2/4 units, 4 packs, 0:06 left",
        "render     4/4 units, 8 packs, 0:00 left",
        "render     4/4 units, 8 packs, 0:12 in all",
    ]


def test_nothing_is_written_before_a_stage_starts_or_after_it_is_over() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream, every_s=0.0)

    progress.advance(UnitDone())
    progress.finish()

    assert stream.getvalue() == ""


def test_a_terminal_shows_a_bar_that_stays_with_its_figures() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    progress = TerminalProgress(console)

    progress.start("render", 2, skipped_units=1)
    progress.advance(UnitDone(packs=7, rows=30, num_bytes=10))
    progress.finish()
    progress.start("next", 0)
    progress.finish()

    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "render" in shown
    assert "2/2 units" in shown
    assert "7 packs" in shown


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (65.4, "1:05"), (3600, "1:00:00"), (7384, "2:03:04")])
def test_times_read_like_a_clock(seconds: float, text: str) -> None:
    assert clock_time(seconds) == text


def test_a_pipe_gets_lines() -> None:
    assert isinstance(make_progress(io.StringIO()), LineProgress)
