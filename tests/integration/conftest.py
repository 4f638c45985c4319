"""The demo baked by one process, and a Ray head of the tests' own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import free_port

REPOSITORY = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """This process's environment, in which `python` and `ray` are the tests' own."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "200",
        "TERM": "dumb",
    }


def run_parbake(*arguments: str) -> str:
    """Run `python -m pipeline …` from the checkout; what it printed, which must not be an error."""
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *arguments],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def inline_bake(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process makes of the demo."""
    folder = tmp_path_factory.mktemp("inline") / "bake"
    run_parbake("run", str(demo_folder / "config.yaml"), "--output", str(folder), "--executor", "inline")
    return folder


@dataclass(frozen=True)
class RayHead:
    """A head with a dashboard on loopback."""

    address: str
    environment: dict[str, str] = field(repr=False)

    def submit(self, *entrypoint: str) -> subprocess.CompletedProcess[str]:
        """`ray job submit --working-dir . -- …` from the checkout, to its end."""
        return subprocess.run(
            ["ray", "job", "submit", "--address", self.address, "--working-dir", ".", "--", *entrypoint],
            cwd=REPOSITORY,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )


@pytest.fixture(scope="session")
def ray_head() -> Iterator[RayHead]:
    """`ray start --head` in a process of its own, with ports, folder and token of its own."""
    folder = tempfile.mkdtemp(prefix="ray")  # short: Ray puts sockets below it
    port = free_port()
    settings = {**environment(), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef"}
    settings.pop("RAY_ADDRESS", None)
    with Path(folder, "head.log").open("wb") as log:
        head = subprocess.Popen(
            [
                *("ray", "start", "--head", "--block", "--num-cpus=2", f"--temp-dir={folder}"),
                *("--dashboard-host=127.0.0.1", f"--dashboard-port={port}", f"--port={free_port()}"),
                *(f"--dashboard-agent-listen-port={free_port()}", f"--dashboard-agent-grpc-port={free_port()}"),
                *(f"--metrics-export-port={free_port()}", f"--ray-client-server-port={free_port()}"),
                *("--object-store-memory=200000000", "--disable-usage-stats"),
            ],
            env=settings,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    ready = RayHead(f"http://127.0.0.1:{port}", settings)
    try:
        _wait_until_it_answers(ready, head, Path(folder, "head.log"))
        yield ready
    finally:
        head.send_signal(signal.SIGTERM)  # with --block it ends all that it started
        head.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_it_answers(ready: RayHead, head: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and head.poll() is None:
        question = ["ray", "job", "list", "--address", ready.address]
        if subprocess.run(question, env=ready.environment, capture_output=True).returncode == 0:
            return
        time.sleep(0.5)
    raise RuntimeError(f"the Ray head did not start:\n{log.read_text()}")
