"""The measured halves of the benchmarks: `python -m tests.benchmarks.worker WHAT arguments…`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
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
    """One stage of parbake (`index`, `plan`, `render`, or `run`) on the inline executor.

    Imports and what they do once per process are left out, as on the reference's side, which has its tokenizer before
    its first pack.
    """
    import pandas  # noqa: F401  # pyarrow looks for it on its first array
    import torch

    import pipeline.stages as stages
    from pipeline.configuration.reader import load_config

    torch.set_num_threads(1)
    loaded = load_config(config)
    stages.recipe_stages(loaded)
    run: Callable[[], Any] = {
        "index": lambda: stages.index(loaded),
        "plan": lambda: stages.plan(loaded),
        "render": lambda: stages.render(loaded),
        "run": lambda: stages.run(loaded),
    }[name]
    return dataclasses.replace(measured(run), result=None)


def replay(folder: str) -> Measure:
    """Bytes a second of reading, replaying and decoding every shard, the best of five alternating rounds each."""
    import torch

    torch.set_num_threads(1)
    ways = {"read": _read_all, "loader": _replay_all, "copied": _copy_all, "webdataset": _decode_all}
    shards = sorted(Path(folder).glob("shards/*/*.tar"))
    num_bytes = sum(path.stat().st_size for path in shards)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(5):
        for name, way in ways.items():
            seconds[name].append(measured(lambda way=way: way(folder, shards)).wall_s)  # type: ignore[misc]
    whole = measured(lambda: None)
    return dataclasses.replace(whole, result={name: num_bytes / min(times) for name, times in seconds.items()})


READ_BYTES = 8 << 20
PAGE_BYTES = 4096


def _read_all(folder: str, shards: list[Path]) -> None:
    for path in shards:
        with path.open("rb", buffering=0) as stream:
            while stream.read(READ_BYTES):
                pass


def _stored_bytes(folder: str) -> Iterator[Any]:
    """Every tensor of every batch as flat bytes."""
    import torch

    from loaders import PackedShards

    for batch in PackedShards(folder, rank=0, world_size=1).loader(num_workers=0):
        for value in vars(batch).values():
            if isinstance(value, torch.Tensor) and value.numel():
                yield value.reshape(-1).view(torch.uint8)


def _replay_all(folder: str, shards: list[Path]) -> None:
    """Every batch with every page of it in memory: what the loader owes to whoever copies it to a device."""
    for values in _stored_bytes(folder):
        values[::PAGE_BYTES].max()


def _copy_all(folder: str, shards: list[Path]) -> None:
    """The same, and every byte copied once more through a buffer of the size that `read()` gets."""
    import torch

    buffer = torch.empty(READ_BYTES, dtype=torch.uint8)
    for values in _stored_bytes(folder):
        for part in values.split(READ_BYTES):
            buffer[: part.numel()].copy_(part)


def _decode_all(folder: str, shards: list[Path]) -> None:
    import webdataset

    for _ in webdataset.WebDataset([str(path) for path in shards], shardshuffle=False).decode():
        pass


def resume(folder: str, *positions: str) -> Measure:
    """CPU seconds from a state to its first pack, per position: the best of seven rounds that take turns.

    Every round opens the bake anew, so that nothing is cached; the opening (reading `dataset.json`, the same whatever
    the state says) is the measure itself and not in those seconds.
    """
    from loaders import PackedShards

    seconds: dict[str, list[float]] = {position: [] for position in positions}

    def first_batch(dataset: PackedShards, position: str) -> None:
        loader = dataset.loader(num_workers=0)
        loader.load_state_dict({**loader.state_dict(), "position": int(position)})
        next(iter(loader)).to_dict()

    for _ in range(7):
        for position in positions:
            opening = measured(lambda: PackedShards(folder, rank=0, world_size=1))
            seconds[position].append(measured(partial(first_batch, opening.result, position)).cpu_s)
    return dataclasses.replace(opening, result={position: min(times) for position, times in seconds.items()})


def main() -> None:
    """Run one half and print its measure."""
    warnings.simplefilter("ignore")
    what, *arguments = sys.argv[1:]
    halves: dict[str, Callable[..., Measure]] = {
        "reference": reference,
        "stage": stage,
        "replay": replay,
        "resume": resume,
    }
    measure = halves[what](*arguments)
    print(json.dumps(dataclasses.asdict(measure)))


if __name__ == "__main__":
    main()
