"""`make demo`: generate the demo data, bake its three recipes, validate, inspect and replay them.

python -m pipeline.demo.walkthrough DIR
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["main"]

RECIPES = {"config.yaml": "bake", "vlm.yaml": "vlm-bake", "nemotron.yaml": "nemotron-bake"}
"""Configuration → output folder, both in the demo's folder."""

MIDDLE = 1
"""Step after which a replay is stopped and resumed."""


def main(folder: str) -> int:
    """Run the whole walk in `folder`; returns the exit code of the first command that fails, else 0."""
    root = Path(folder)
    page = root / "pack.html"
    commands = [["demo", str(root)]]
    for config, bake in RECIPES.items():
        commands.append(["run", str(root / config), "--output", str(root / bake)])
        commands.append(["validate", str(root / bake)])
    commands.append(["inspect", str(root / "bake"), "--position", "1", "--html", str(page)])
    for arguments in commands:
        print(f"\n$ parbake {' '.join(arguments)}", flush=True)
        code = subprocess.run([sys.executable, "-m", "pipeline", *arguments], env=_environment()).returncode
        if code:
            return code
    for bake in RECIPES.values():
        print(f"\n# replay of {bake}: what rank 0 of 2 trains on, and a resume in the middle", flush=True)
        if not _replay(str(root / bake)):
            return 1
    print(f"\nThe reports: {', '.join(str(root / bake / 'report' / 'report.html') for bake in RECIPES.values())}")
    print(f"A pack:      {page}", flush=True)
    return 0


def _replay(bake: str) -> bool:
    """Read rank 0's steps, then start again from the state saved in the middle; whether the same steps came."""
    import torch

    whole, states = [], []
    loader = _loader(bake)
    for step, batch in enumerate(loader):
        whole.append(_ids(batch))
        states.append(loader.state_dict())
        print(f"step {step:2}: {_told(batch)}", flush=True)
    resumed = _loader(bake)
    resumed.load_state_dict(states[MIDDLE])
    again = [_ids(batch) for batch in resumed]
    same = len(again) == len(whole) - MIDDLE - 1 and all(map(torch.equal, again, whole[MIDDLE + 1 :]))
    print(f"resumed after step {MIDDLE} from {states[MIDDLE]}: {'the same steps' if same else 'OTHER STEPS'}")
    return same


def _loader(bake: str) -> Any:
    from loaders import PackedShards

    return PackedShards(bake, rank=0, world_size=2).loader(num_workers=0)


def _ids(batch: Any) -> Tensor:
    """Token ids of a batch of either recipe."""
    ids: Tensor = batch["input_ids"] if isinstance(batch, Mapping) else batch.packed_text_ids
    return ids


def _told(batch: Any) -> str:
    """A batch in a line."""
    if isinstance(batch, Mapping):
        rows, length = batch["input_ids"].shape
        num_answers = int((batch["labels"] != -100).sum())
        num_patches = sum(len(batch[key]) for key in ("pixel_values", "pixel_values_videos") if key in batch)
        return (
            f"{rows} packs of {length:5,} tokens, {num_answers:3} of them answers, {num_patches:5,} patches of pixels"
        )
    num_answers = len(batch.to_dict().get("ce_loss_indexes", ()))
    return f"{batch.sequence_length:5,} tokens, {num_answers:3} of them answers"


def _environment() -> dict[str, str]:
    """The commands import the same `pipeline` as this process, wherever it is run from."""
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:2] or ["demo-data"]))
