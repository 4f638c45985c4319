from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.integration.conftest import REPOSITORY, environment
from tests.laws.reading import snapshot

pytestmark = pytest.mark.ray


def test_a_worker_killed_in_the_middle_of_render_costs_nothing(
    demo_folder: Path, inline_bake: Path, tmp_path: Path
) -> None:
    output = tmp_path / "bake"
    run = subprocess.Popen(
        [
            *(sys.executable, "-m", "pipeline", "run", str(demo_folder / "config.yaml")),
            *("--output", str(output), "--executor", "ray"),
        ],
        cwd=REPOSITORY,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    killed = kill_a_worker_in_render(run, output)
    text, _ = run.communicate(timeout=300)
    assert killed, text
    assert run.returncode == 0, text
    assert snapshot(output) == snapshot(inline_bake)


def kill_a_worker_in_render(run: subprocess.Popen[str], output: Path) -> bool:
    """Wait for the first bytes of a shard, then `kill -9` one worker that is at work."""
    while run.poll() is None:
        if any(output.glob("shards/lane-*/*")) or any(output.glob("shards/lane-*/.*")):
            for process in psutil.Process(run.pid).children(recursive=True):
                if at_work(process):
                    process.kill()
                    return True
        time.sleep(0.002)
    return False


def at_work(process: psutil.Process) -> bool:
    """Ray names a worker after the task it runs."""
    try:
        return process.cmdline()[:1] == ["ray::_run"]
    except psutil.Error:
        return False
