"""A training process of its own: reads a bake from given states on and says what it saw.

    python -m tests.laws.replay_process < request.json

The request is `{"folder", "rank", "world_size", "num_workers", "states": [state or null, …], "steps"}`; the answer, one
per state, `{"packs": [digest of the batch's dict, …], "states": [state after each step, the one before first]}`.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from loaders import PackedShards

__all__ = ["batch_digest", "replay_in_fresh_process"]


def batch_digest(batch: Any) -> str:
    """SHA-256 over every field of a batch's dict."""
    digest = hashlib.sha256()
    for key, value in sorted(batch.to_dict().items()):
        digest.update(key.encode())
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, torch.Tensor):
                digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
                digest.update(part.contiguous().numpy().tobytes())
            else:
                digest.update(json.dumps(part, sort_keys=True).encode())
    return digest.hexdigest()


def replay_in_fresh_process(
    folder: Path | str,
    *,
    states: list[dict[str, Any] | None],
    steps: int,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
) -> list[dict[str, Any]]:
    """Run this module in a new interpreter; one answer per state."""
    request = {
        "folder": str(folder),
        "rank": rank,
        "world_size": world_size,
        "num_workers": num_workers,
        "states": states,
        "steps": steps,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.laws.replay_process"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def _answer(request: dict[str, Any], state: dict[str, Any] | None) -> dict[str, Any]:
    dataset = PackedShards(request["folder"], rank=request["rank"], world_size=request["world_size"])
    loader = dataset.loader(num_workers=request["num_workers"])
    if state is not None:
        loader.load_state_dict(state)
    packs, states = [], [loader.state_dict()]
    for step, batch in enumerate(loader, start=1):
        packs.append(batch_digest(batch))
        states.append(loader.state_dict())
        if step == request["steps"]:
            break
    return {"packs": packs, "states": states}


if __name__ == "__main__":
    torch.set_num_threads(1)
    asked = json.loads(sys.stdin.read())
    print(json.dumps([_answer(asked, state) for state in asked["states"]]))
