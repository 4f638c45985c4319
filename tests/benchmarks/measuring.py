"""Time and memory of a piece of work in a process of its own, so that neither side warms the other's caches."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Measure", "fresh_process", "measured", "report"]


@dataclass(frozen=True, slots=True)
class Measure:
    """What a piece of work cost.

    Attributes:
        cpu_s: CPU seconds of the process and its children.
        wall_s: Seconds on the clock.
        peak_bytes: Peak resident memory of the process, imports included.
        result: What the work returned.
    """

    cpu_s: float
    wall_s: float
    peak_bytes: int
    result: Any


def measured(work: Callable[[], Any]) -> Measure:
    """Run `work` here and measure it."""
    cpu, wall = _cpu_seconds(), time.perf_counter()
    result = work()
    return Measure(
        _cpu_seconds() - cpu,
        time.perf_counter() - wall,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        result,
    )


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def fresh_process(module: str, *arguments: str) -> Measure:
    """Run `python -m module arguments…`, which prints the JSON of its own `Measure` as its last line."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env=environment,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{done.stderr[-4000:]}")
    return Measure(**json.loads(done.stdout.splitlines()[-1]))


def report(name: str, value: float, target: str, holds: bool, detail: str) -> bool:
    """Print one line: what was measured, against what, and whether it holds."""
    print(f"{'ok  ' if holds else 'MISS'}  {name}: {value:,.3g} (target {target})   {detail}", flush=True)
    return holds
