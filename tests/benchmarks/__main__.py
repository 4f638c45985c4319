"""`python -m tests.benchmarks [NAME …]`: ratios measured side by side in one run; all benchmarks without a name."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.benchmarks import bake, packing, plan, replay, resume, vlm

BENCHMARKS = {
    "bake": bake.run,
    "plan": plan.run,
    "packing": packing.run,
    "replay": replay.run,
    "resume": resume.run,
    "vlm": vlm.run,
}


def main() -> int:
    """Run the benchmarks named, all by default; 1 if a target is missed."""
    names = sys.argv[1:] or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        print(f"no benchmark is called {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
        return 2
    holds = True
    for name in names:
        with tempfile.TemporaryDirectory(prefix="parbake-bench-") as folder:
            holds &= BENCHMARKS[name](Path(folder))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
