"""S3 is as good as a folder: a bake from it and to it, and replay from it."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest
import torch

from loaders import PackedShards
from pipeline.storage import Storage
from tests.integration.conftest import run_parbake
from tests.laws.reading import snapshot

pytestmark = pytest.mark.s3


@pytest.fixture
def demo_on_s3(s3: str, demo_folder: Path) -> str:
    """URL of the demo, its recipe naming S3 everywhere but for the tokenizer."""
    storage = Storage()
    for path in demo_folder.rglob("*"):
        if path.is_file() and path.name != "config.yaml":
            storage.publish_bytes(f"{s3}/demo/{path.relative_to(demo_folder).as_posix()}", path.read_bytes())
    text = (demo_folder / "config.yaml").read_text()
    for name in ("t2i", "edits", "answers/media"):
        text = text.replace(f"data_dir: {name}", f"data_dir: {s3}/demo/{name}")
    text = text.replace("jsonl_path: answers", f"jsonl_path: {s3}/demo/answers")
    text = text.replace(
        "pretrained_model_name_or_path: tokenizer", f"pretrained_model_name_or_path: {demo_folder}/tokenizer"
    )
    assert text.count(s3) == 4
    storage.publish_bytes(f"{s3}/demo/config.yaml", text.encode())
    return f"{s3}/demo"


@pytest.mark.ray
def test_a_bake_from_and_to_s3_has_the_bytes_of_a_local_one(
    demo_on_s3: str, s3: str, inline_bake: Path, tmp_path: Path
) -> None:
    run_parbake("run", f"{demo_on_s3}/config.yaml", "--output", f"{s3}/bake", "--executor", "ray")
    copy = tmp_path / "copy"
    filesystem = fsspec.filesystem("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    filesystem.get(f"{s3}/bake/", f"{copy}/", recursive=True)
    assert without_index(snapshot(copy)) == without_index(snapshot(inline_bake))
    assert filesystem.list_multipart_uploads(s3.removeprefix("s3://")) == []


def without_index(files: dict[str, str]) -> dict[str, str]:
    """An index unit remembers the identity of its source file, which lies elsewhere."""
    return {name: digest for name, digest in files.items() if not name.startswith("index/")}


def test_replay_from_s3_gives_the_packs_of_a_local_replay(s3: str, inline_bake: Path) -> None:
    storage = Storage()
    for path in inline_bake.rglob("*"):
        if path.is_file():
            storage.publish_bytes(f"{s3}/bake/{path.relative_to(inline_bake).as_posix()}", path.read_bytes())
    for num_workers in (0, 1):
        local, remote = (
            PackedShards(url, rank=1, world_size=3).loader(num_workers=num_workers)
            for url in (str(inline_bake), f"{s3}/bake")
        )
        batches = list(zip(local, remote, strict=True))
        assert len(batches) == 8
        for one, other in batches:
            expected, found = one.to_dict(), other.to_dict()
            assert list(expected) == list(found)
            for name, value in expected.items():
                if isinstance(value, torch.Tensor):
                    assert torch.equal(value, found[name]), name
