"""Run independent tasks: the protocol, the inline executor, and what progress is told.

A stage hands an executor a function and picklable units; the executor returns results *in the order of completion*.
Units are deterministic and publish their own output atomically, so running one twice is harmless. The executor and the
progress display stand outside the stages and decide nothing about the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pipeline.errors import ConfigError

__all__ = ["Executor", "InlineExecutor", "Progress", "SilentProgress", "UnitDone", "make_executor"]

Unit = TypeVar("Unit")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitDone:
    """What one finished unit adds to the progress display."""

    rows: int = 0
    packs: int = 0
    num_bytes: int = 0


class Progress(Protocol):
    """Told how far a stage is; shows it (a bar on a terminal, a line every few seconds elsewhere) or not."""

    def start(self, stage: str, total_units: int, skipped_units: int = 0) -> None:
        """A stage begins; `skipped_units` of its units were found finished."""

    def advance(self, done: UnitDone) -> None:
        """One more unit is finished."""

    def finish(self) -> None:
        """The stage is over."""


class SilentProgress:
    """Shows nothing: for tests and library use."""

    def start(self, stage: str, total_units: int, skipped_units: int = 0) -> None:
        """Nothing to show."""

    def advance(self, done: UnitDone) -> None:
        """Nothing to show."""

    def finish(self) -> None:
        """Nothing to show."""


class Executor(Protocol):
    """Runs independent tasks."""

    def map(self, function: Callable[[Unit], Result], units: Iterable[Unit]) -> Iterator[Result]:
        """Apply `function` (importable at module level) to every unit (picklable) and yield results as they complete.

        A `ParbakeError` raised by a unit propagates as it is; the units still running are cancelled or awaited first,
        so that nothing is written after the error was raised. A crashed worker is retried a few times, then becomes
        `RunFailed`.
        """

    def close(self) -> None:
        """Release workers."""


class InlineExecutor:
    """One unit after another in this process."""

    def map(self, function: Callable[[Unit], Result], units: Iterable[Unit]) -> Iterator[Result]:
        """See `Executor.map`; completion order is the order of the units."""
        for unit in units:
            yield function(unit)

    def close(self) -> None:
        """Nothing to release."""


def make_executor(kind: str, *, address: str | None = None) -> Executor:
    """The executor that `bake.executor` names. Ray is imported, and started, only when it is asked for.

    Args:
        kind: "inline" or "ray".
        address: Ray cluster to join; default: the one in `RAY_ADDRESS` (set inside a Ray job), else a local one that is
            started here and ends with `close()`.

    Raises:
        ConfigError: No such kind.
        RunFailed: Ray cannot be started or reached.
    """
    if kind == "inline":
        return InlineExecutor()
    if kind == "ray":
        from pipeline.ray_executor import RayExecutor

        return RayExecutor(address)
    raise ConfigError(
        f"bake.executor is {kind!r}, which is no executor: the run would have nothing to run on. Use inline or ray."
    )
