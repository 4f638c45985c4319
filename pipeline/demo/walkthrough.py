"""`make demo`: generate the demo data, bake it, validate it, look at a pack, replay it; each step by its own command.

python -m pipeline.demo.walkthrough DIR
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["main"]


def main(folder: str) -> int:
    """Run the whole walk in `folder`; returns the exit code of the first command that fails, else 0."""
    root = Path(folder)
    config, bake, page = root / "config.yaml", root / "bake", root / "pack.html"
    commands = (
        ["demo", str(root)],
        ["run", str(config), "--output", str(bake)],
        ["validate", str(bake)],
        ["inspect", str(bake), "--position", "1", "--html", str(page)],
    )
    for arguments in commands:
        print(f"\n$ parbake {' '.join(arguments)}", flush=True)
        code = subprocess.run([sys.executable, "-m", "pipeline", *arguments], env=_environment()).returncode
        if code:
            return code
    print("\n# replay: what rank 0 of 2 trains on, and a resume in the middle", flush=True)
    _replay(str(bake))
    print(f"\nThe report: {bake / 'report' / 'report.html'}\nA pack:     {page}", flush=True)
    return 0


def _replay(bake: str) -> None:
    """Read rank 0's steps, then start again from the state saved in the middle and get the same steps."""
    import torch

    from loaders import PackedShards

    def steps_from(state: dict[str, object] | None) -> list[torch.Tensor]:
        loader = PackedShards(bake, rank=0, world_size=2).loader(num_workers=0)
        if state is not None:
            loader.load_state_dict(state)
        texts = []
        for step, batch in enumerate(loader):
            texts.append(batch.packed_text_ids)
            if step == middle:
                states.append(loader.state_dict())
            if state is None:
                num_answers = len(batch.to_dict().get("ce_loss_indexes", ()))
                print(f"step {step:2}: {batch.sequence_length:5,} tokens, {num_answers:3} of them answers", flush=True)
        return texts

    middle, states = 3, list[dict[str, object]]()
    whole = steps_from(None)
    again = steps_from(states[0])
    same = len(again) == len(whole) - middle - 1 and all(map(torch.equal, again, whole[middle + 1 :]))
    print(f"resumed after step {middle} from {states[0]}: {'the same steps' if same else 'OTHER STEPS'}")
    if not same:
        raise SystemExit(1)


def _environment() -> dict[str, str]:
    """The commands import the same `pipeline` as this process, wherever it is run from."""
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:2] or ["demo-data"]))
