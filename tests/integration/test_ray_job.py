"""What `infra/README.md` walks through: jobs submitted to a local head with a dashboard."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from loaders import PackedShards
from tests.integration.conftest import RayHead
from tests.laws.reading import snapshot

pytestmark = pytest.mark.ray


def test_a_submitted_job_bakes_the_same_bytes_and_they_are_read_back(
    ray_head: RayHead, demo_folder: Path, inline_bake: Path, tmp_path: Path
) -> None:
    output = tmp_path / "bake"
    config = str(demo_folder / "config.yaml")
    job = ray_head.submit(
        *("python", "-m", "pipeline", "run", config, "--output", str(output), "--executor", "ray"),
    )
    assert job.returncode == 0, job.stdout
    assert "24 packs in" in job.stdout
    assert re.search(r"^render +\d+/\d+ units", job.stdout, re.MULTILINE)
    assert snapshot(output) == snapshot(inline_bake)
    for rank in range(2):
        ours, expected = (PackedShards(str(folder), rank=rank, world_size=2) for folder in (output, inline_bake))
        batches = list(zip(ours.loader(num_workers=0), expected.loader(num_workers=0), strict=True))
        assert len(batches) == 12
        assert all(torch.equal(one.packed_text_ids, other.packed_text_ids) for one, other in batches)


def test_a_job_that_cannot_run_fails_with_its_sentence(ray_head: RayHead, tmp_path: Path) -> None:
    job = ray_head.submit("python", "-m", "pipeline", "run", str(tmp_path / "bad.yaml"), "--executor", "ray")
    assert job.returncode != 0
    assert f"{tmp_path}/bad.yaml" in job.stdout
    assert "Traceback" not in job.stdout


def test_driver_and_workers_run_the_code_that_was_shipped(ray_head: RayHead) -> None:
    job = ray_head.submit("python", "-m", "tests.integration.code_places")
    places = dict(re.findall(r"^(driver|worker) (\S+)$", job.stdout, re.MULTILINE))
    assert set(places) == {"driver", "worker"}, job.stdout
    assert all("/_ray_pkg_" in place for place in places.values())
