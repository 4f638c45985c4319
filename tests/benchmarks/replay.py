"""Replay against plain `read()` of the same files and against stock webdataset's `.decode()`, all in one process."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.benchmarks.measuring import fresh_process, report
from tests.benchmarks.photos import photo_recipe

__all__ = ["run"]

NUM_PACKS = 24


def run(folder: Path) -> bool:
    """Print both ratios."""
    recipe = photo_recipe(folder / "sources")
    config = recipe.write(
        folder / "config.yaml",
        output=str(folder / "bake"),
        length={"packs_per_lane": NUM_PACKS},
        executor="inline",
        shard_bytes="128MiB",
    )
    fresh_process("tests.benchmarks.worker", "stage", "run", str(config))
    speeds = fresh_process("tests.benchmarks.worker", "replay", str(folder / "bake")).result
    megabytes = {name: f"{speed / 1e6:,.0f} MB/s" for name, speed in speeds.items()}
    against_read = speeds["loader"] / speeds["read"]
    against_webdataset = speeds["loader"] / speeds["webdataset"]
    print(f"      {megabytes}", file=sys.stderr)
    return all(
        [
            report(
                "replay, over the speed of read()",
                against_read,
                "at least 0.6",
                against_read >= 0.6,
                f"{megabytes['loader']} against {megabytes['read']}, every page in memory; "
                f"{megabytes['copied']} with every byte copied on",
            ),
            report(
                "replay, over the speed of webdataset's decode()",
                against_webdataset,
                "at least 4",
                against_webdataset >= 4,
                f"{megabytes['loader']} against {megabytes['webdataset']}",
            ),
        ]
    )
