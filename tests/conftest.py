"""Fixtures that several folders of tests share."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import hypothesis
import pytest

from pipeline.demo import build_tokenizer, write_demo
from pipeline.executor import Executor, make_executor

hypothesis.settings.register_profile("parbake", deadline=None)  # a busy machine is no reason to fail
hypothesis.settings.load_profile("parbake")


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def pytest_configure(config: pytest.Config) -> None:
    """The S3 environment is there from the start, so that worker processes of every executor inherit it."""
    os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{free_port()}"
    os.environ["AWS_ACCESS_KEY_ID"] = "test"
    os.environ["AWS_SECRET_ACCESS_KEY"] = "test"
    os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Moto's S3 over real HTTP in a process of its own; the endpoint that `AWS_ENDPOINT_URL` names."""
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    port = endpoint.rpartition(":")[2]
    log = tmp_path_factory.mktemp("moto") / "log.txt"
    with log.open("wb") as log_file:
        server = subprocess.Popen(
            [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", port],
            stdout=log_file,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_until_listening(int(port), server, log)
        yield endpoint
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def s3(s3_endpoint: str, request: pytest.FixtureRequest) -> str:
    """The URL of a new, empty bucket: `s3://bucket-…`, reachable with the environment's credentials."""
    bucket = f"bucket-{os.getpid()}-{time.monotonic_ns()}"
    fsspec.filesystem("s3", endpoint_url=s3_endpoint).mkdir(bucket)
    return f"s3://{bucket}"


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo, written once: look, do not touch."""
    return Path(write_demo(str(tmp_path_factory.mktemp("demo")))).parent


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's small Qwen2-like tokenizer."""
    return Path(build_tokenizer(str(tmp_path_factory.mktemp("tokenizer"))))


def _wait_until_listening(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"moto did not start:\n{log.read_text()}")


@pytest.fixture(scope="session")
def ray_executor() -> Iterator[Executor]:
    """The one local Ray that all tests of this process share; starting it takes seconds."""
    executor = make_executor("ray")
    yield executor
    executor.close()
