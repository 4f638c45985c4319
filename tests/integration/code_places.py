"""Prints where the driver and a Ray worker have the package `pipeline` from."""

from __future__ import annotations

import pipeline
from pipeline.executor import make_executor


def place(_: int) -> str:
    """The file that `import pipeline` finds."""
    return str(pipeline.__file__)


if __name__ == "__main__":
    from tests.integration.code_places import place as importable

    executor = make_executor("ray")
    print("driver", pipeline.__file__)
    print("worker", *executor.map(importable, [0]))
    executor.close()
