from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from pipeline.errors import ConfigError
from pipeline.executor import InlineExecutor, make_executor


def test_inline_runs_one_unit_after_another_and_only_when_asked() -> None:
    ran: list[int] = []

    def double(unit: int) -> int:
        ran.append(unit)
        return 2 * unit

    results = InlineExecutor().map(double, iter([1, 2, 3]))
    assert next(results) == 2
    assert ran == [1]
    assert list(results) == [4, 6]


def test_an_unknown_executor_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="'slurm'"):
        make_executor("slurm")


def test_ray_is_not_imported_until_it_is_asked_for() -> None:
    program = "import sys, pipeline.executor as e; e.make_executor('inline').close(); sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_inline_lets_errors_pass() -> None:
    def fail(unit: int) -> int:
        raise KeyError(unit)

    results: Callable[[], Iterator[int]] = lambda: InlineExecutor().map(fail, [1])  # noqa: E731
    with pytest.raises(KeyError):
        next(results())
