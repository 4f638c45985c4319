"""nemo-automodel 0.7.0, live: the packs it would train on, read through its own DataLoader.

The oracle runs in a process of its own. Each request runs in a child forked from it, because the reference draws from
the process's global generators and sets Pillow's process-wide settings: no test may reach it, nor it a test.

    python -m tests.parity.oracle      reads one JSON request a line, answers with one JSON line each
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Oracle", "Request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to run.

    Attributes:
        recipe: The recipe as AutoModel spells it (`seed`, `tokenizer`, `dataset`, `dataloader`).
        world_size: Ranks to run one after another.
        packs_per_rank: Packs to take from each rank's loader.
        sorted_listing: Let `os.listdir` answer in sorted order, where the reference's choice depends on it.
        decode_videos_with_pyav: Lend the reference a `decord` made of PyAV (decord itself is not installed).
        parquet_info: Path added to every data set of `unified_edit` (the reference cannot do without, parbake can).
    """

    recipe: dict[str, Any]
    world_size: int
    packs_per_rank: int
    sorted_listing: bool = False
    decode_videos_with_pyav: bool = False
    parquet_info: str = ""


class Oracle:
    """The oracle's process, as the tests use it. One request at a time."""

    def __init__(self) -> None:
        """Start the process; it imports the reference once."""
        environment = {**os.environ, "PYTHONUTF8": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.parity.oracle"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # thousands of warnings about the broken pictures
            text=True,
            cwd=Path(__file__).parents[2],
            env=environment,
        )

    def packs(self, request: Request) -> list[list[dict[str, Any]]]:
        """Run a request: per rank, the batch dicts in the order in which its loader gives them."""
        import torch

        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "packs.pt"
            self._process.stdin.write(json.dumps({**asdict(request), "target": str(target)}) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline() or '{"error": "the oracle died"}')
            if answer["error"]:
                raise RuntimeError(f"the reference failed: {answer['error']}")
            return torch.load(target, weights_only=True)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Oracle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def load_tokenizer(path: str) -> tuple[Any, dict[str, int]]:
    """The tokenizer and special tokens as AutoModel's BAGEL recipe makes them."""
    from nemo_automodel.components.datasets.multimodal import add_special_tokens
    from transformers import AutoTokenizer

    tokenizer, special_tokens, _ = add_special_tokens(AutoTokenizer.from_pretrained(path, use_fast=False))
    return tokenizer, special_tokens


def reference_loader(recipe: dict[str, Any], rank: int, world_size: int) -> Any:
    """The dataloader that AutoModel's recipe would build on this rank, from nothing but its own classes."""
    from nemo_automodel.components.datasets.multimodal.datasets import BagelDatasetConfig
    from nemo_automodel.components.datasets.multimodal.loader import BagelDataloaderConfig

    tokenizer, special_tokens = load_tokenizer(recipe["tokenizer"]["pretrained_model_name_or_path"])
    dataset = {key: value for key, value in recipe["dataset"].items() if key != "_target_"}
    return (
        BagelDataloaderConfig(
            dataset_config=BagelDatasetConfig(**dataset),
            num_workers=recipe["dataloader"]["num_workers"],
            pin_memory=False,
        )
        .build(
            tokenizer=tokenizer,
            special_tokens=special_tokens,
            rank=rank,
            world_size=world_size,
            batch_size=1,
            global_seed=int(recipe.get("seed", 4396) or 0),
        )
        .dataloader
    )


def _run(request: dict[str, Any]) -> None:
    import itertools

    import torch

    torch.set_num_threads(1)
    torch.multiprocessing.set_sharing_strategy("file_system")
    if request["sorted_listing"]:
        listdir = os.listdir
        os.listdir = lambda *arguments: sorted(listdir(*arguments))
    if request["decode_videos_with_pyav"]:
        from nemo_automodel.components.datasets.multimodal import video

        from tests.parity import decord_from_pyav

        video.decord = decord_from_pyav
    recipe = request["recipe"]
    if request["parquet_info"]:
        for entry in recipe["dataset"]["dataset_info"]["unified_edit"].values():
            entry["parquet_info_path"] = request["parquet_info"]
    ranks = []
    for rank in range(request["world_size"]):
        loader = reference_loader(recipe, rank, request["world_size"])
        # Cloned: a batch of a worker lives in shared memory.
        ranks.append([_cloned(batch.to_dict()) for batch in itertools.islice(loader, request["packs_per_rank"])])
    torch.save(ranks, request["target"])


def _cloned(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, list):
        return [_cloned(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _cloned(entry) for key, entry in value.items()}
    return value


def _run_in_child(request: dict[str, Any]) -> str:
    """Run the request in a forked child; the error's text, "" if there was none."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        error = ""
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            _run(request)
        except BaseException as fault:
            error = f"{type(fault).__name__}: {fault}"
        os.write(writing, error.encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        error = stream.read().decode("utf-8", "replace")
    _, status = os.waitpid(child, 0)
    return error or (f"the child ended with status {status}" if status else "")


def main() -> None:
    """Answer requests until standard input ends."""
    import logging

    import nemo_automodel.components.datasets.multimodal.loader
    import nemo_automodel.components.datasets.multimodal.packing  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import torchvision.transforms  # noqa: F401
    import transformers  # noqa: F401

    logging.getLogger("nemo_automodel").setLevel(logging.ERROR)
    for line in sys.stdin:
        print(json.dumps({"error": _run_in_child(json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
