"""Whether a source may go on: judged over all of its rows, so that the verdict does not depend on scheduling."""

from __future__ import annotations

from typing import Protocol

from pipeline.errors import SourceError, TooManyDrops
from pipeline.index.records import UnitSummary

__all__ = ["JudgedSource", "refuse_many_drops", "refuse_unusable"]

_MOST_REASONS = 5


class JudgedSource(Protocol):
    """What a message about a source says of it."""

    @property
    def source(self) -> str:
        """Its name."""

    @property
    def root(self) -> str:
        """Where its rows and media lie."""

    @property
    def entry(self) -> str:
        """Words for its place in the configuration."""


def refuse_unusable(source: JudgedSource, summary: UnitSummary) -> None:
    """Stop at a source that has not one usable row.

    Raises:
        SourceError: It has none.
    """
    if summary.usable:
        return
    if not summary.rows:
        raise SourceError(
            f"{source.source}: no row was found under {source.root!r}, or no file there can be read"
            f"{_unreadable(summary)}. There would be nothing to draw from it. Correct {source.entry}."
        )
    raise SourceError(
        f"{source.source}: not one of its {summary.rows:,} rows can be used: {_reasons(summary)}. There "
        f"would be nothing to draw from it. Correct the rows or {source.entry} (media folder: {source.root!r})."
    )


def refuse_many_drops(source: JudgedSource, summary: UnitSummary, max_dropped_fraction: float) -> None:
    """Stop where a source lost a larger part of its rows than allowed.

    Raises:
        TooManyDrops: It did.
    """
    lost = summary.rows - summary.usable
    if lost <= max_dropped_fraction * summary.rows:
        return
    raise TooManyDrops(
        f"{source.source}: {lost:,} of {summary.rows:,} rows ({lost / summary.rows:.1%}) cannot be used: "
        f"{_reasons(summary)}. bake.max_dropped_fraction allows {max_dropped_fraction:.1%}; more than that is "
        "usually a mistake in a path. Correct the rows, or allow more."
    )


def _reasons(summary: UnitSummary) -> str:
    """`missing_file 12 (first: rows.jsonl row 4, a.jpg), …`, the most frequent first."""
    told = []
    for reason, rows in sorted(summary.lost.items(), key=lambda entry: (-entry[1], entry[0]))[:_MOST_REASONS]:
        path, row, detail = summary.examples[reason]
        told.append(f"{reason} {rows:,} (first: {path} row {row}{', ' + detail if detail else ''})")
    more = len(summary.lost) - _MOST_REASONS
    return ", ".join(told) + (f" and {more} reasons more" if more > 0 else "")


def _unreadable(summary: UnitSummary) -> str:
    return "".join(f" ({reason}: {path})" for reason, (path, _, _) in summary.examples.items())
