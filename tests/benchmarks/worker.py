"""The measured halves of the benchmarks: `python -m tests.benchmarks.worker WHAT arguments…`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import Measure, measured


def reference(recipe: str, num_packs: str) -> Measure:
    """nemo-automodel: so many packs in one process; the result is their lengths."""
    import torch

    from tests.parity.oracle import reference_loader

    torch.set_num_threads(1)
    loader = reference_loader(json.loads(Path(recipe).read_text()), 0, 1)
    return measured(lambda: [batch.sequence_length for batch in itertools.islice(loader, int(num_packs))])


def stage(name: str, config: str) -> Measure:
    """One stage of parbake (`index`, `plan`, `render`, or `run`) on the inline executor, imports left out."""
    import torch

    import pipeline.stages as stages
    from pipeline.config_reader import load_config

    torch.set_num_threads(1)
    loaded = load_config(config)
    run: Callable[[], Any] = {
        "index": lambda: stages.index(loaded),
        "plan": lambda: stages.plan(loaded),
        "render": lambda: stages.render(loaded),
        "run": lambda: stages.run(loaded),
    }[name]
    return dataclasses.replace(measured(run), result=None)


def main() -> None:
    """Run one half and print its measure."""
    warnings.simplefilter("ignore")
    what, *arguments = sys.argv[1:]
    measure = {"reference": reference, "stage": stage}[what](*arguments)
    print(json.dumps(dataclasses.asdict(measure)))


if __name__ == "__main__":
    main()
