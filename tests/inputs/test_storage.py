"""inputs.md, "Storage": what changes, fails, or expires is neither lost nor taken for the data's own fault.

Disks that fill up, two runs at once and outputs that hold another bake: tests/laws.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image

from pipeline import stages
from pipeline.configuration.reader import load_config
from pipeline.errors import RunFailed
from tests.inputs.kitchen import STREAMS, Baked, Sources, bake, conversation
from tests.media.gallery import encode

PNG = encode(Image.new("RGB", (56, 42), (1, 2, 3)), "PNG")


class Moody(MemoryFileSystem):  # type: ignore[misc]
    """A memory file system whose reads fail as a store's do."""

    protocol = "moody"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    failures_left: ClassVar[int] = 0
    expired: ClassVar[bool] = False

    def _fail(self, path: str) -> None:
        if not path.endswith(".png"):
            return
        if Moody.expired:
            raise PermissionError("ExpiredToken: the provided token has expired")
        if Moody.failures_left:
            Moody.failures_left -= 1
            raise ConnectionResetError("connection reset by peer")

    def cat_file(self, path: str, *arguments: Any, **options: Any) -> bytes:
        self._fail(path)
        content: bytes = super().cat_file(path, *arguments, **options)
        return content

    def _open(self, path: str, mode: str = "rb", *arguments: Any, **options: Any) -> Any:
        if "r" in mode:
            self._fail(path)
        return super()._open(path, mode, *arguments, **options)


@pytest.fixture
def moody() -> type[Moody]:
    """The file system, in a good mood, empty."""
    fsspec.register_implementation("moody", Moody, clobber=True)
    Moody.store.clear()
    Moody.failures_left, Moody.expired = 0, False
    return Moody


def pictures_on(url: str, sources: Sources) -> None:
    """Three rows whose pictures lie on an object store."""
    names = [f"{number}.png" for number in range(3)]
    for name in names:
        with fsspec.open(f"{url}/{name}", "wb") as file:
            file.write(PNG)
    sources.add_lines("it", [{"image": name, "conversations": conversation("<image>What?")} for name in names])


def remote(sources: Sources, url: str, folder: Path, stream: str) -> Path:
    """The configuration file of a bake whose media lie at the URL."""
    recipe = sources.recipe()
    recipe.dataset["dataset_info"]["vlm_sft"]["it"]["data_dir"] = url
    bake: dict[str, Any] = {"output": str(folder / "bake"), "length": {"epochs": 2}, "stream": stream}
    bake |= {"pool_size": 2} if stream == "improved" else {}
    return recipe.write(folder / "config.yaml", executor="inline", max_dropped_fraction=1.0, **bake)


@pytest.mark.parametrize("stream", STREAMS)
def test_a_read_that_fails_twice_and_then_works(
    stream: str, moody: type[Moody], tmp_path: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    sources = Sources(tmp_path, tokenizer_folder)
    pictures_on("moody://media", sources)
    config = load_config(str(remote(sources, "moody://media", tmp_path, stream)))
    moody.failures_left = 2
    stages.index(config)
    assert not moody.failures_left
    moody.failures_left = 2
    stages.run(config)
    assert not moody.failures_left
    baked = Baked(tmp_path / "bake", tokenizer_folder, {})
    assert baked.dropped("vlm_sft/it") == {}
    assert all(baked.served("vlm_sft/it", row) is not None for row in range(3))


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("stage", ["index", "render"])
def test_expired_credentials_stop_the_run_which_goes_on_once_they_are_renewed(
    stage: str, stream: str, moody: type[Moody], tmp_path: Path, tokenizer_folder: Path
) -> None:
    sources = Sources(tmp_path, tokenizer_folder)
    pictures_on("moody://media", sources)
    config = load_config(str(remote(sources, "moody://media", tmp_path, stream)))
    if stage == "render":
        stages.plan(config)
    moody.expired = True
    with pytest.raises(RunFailed, match="run the same command again"):
        stages.run(config)
    assert not (tmp_path / "bake" / "dataset.json").exists()
    moody.expired = False
    stages.run(config)
    assert Baked(tmp_path / "bake", tokenizer_folder, {}).dropped("vlm_sft/it") == {}


def local_picture(sources: Sources) -> tuple[str, Path]:
    sources.add_picture("a.png", PNG)
    sources.add_lines("it", [{"image": "a.png", "conversations": conversation("<image>What?")}] * 2)
    return "vlm_sft/it", sources.media / "a.png"


def parquet_file(sources: Sources) -> tuple[str, Path]:
    table = pa.table({"image": [PNG, PNG], "captions": [json.dumps({"a": "b"})] * 2})
    sources.add_parquet("t2i_pretrain", "it", {"a.parquet": table})
    return "t2i_pretrain/it", sources.root / "t2i_pretrain" / "it" / "a.parquet"


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("make", [local_picture, parquet_file])
@pytest.mark.parametrize("change", ["grown", "gone"])
def test_a_file_that_changes_between_index_and_render_stops_the_run_and_is_named(
    change: str, make: Callable[[Sources], tuple[str, Path]], stream: str, tmp_path: Path, tokenizer_folder: Path
) -> None:
    sources = Sources(tmp_path, tokenizer_folder)
    source, file = make(sources)
    config_file = sources.recipe().write(
        tmp_path / "config.yaml",
        output=str(tmp_path / "bake"),
        length={"epochs": 1},
        stream=stream,
        executor="inline",
        **({"pool_size": 2} if stream == "improved" else {}),
    )
    config = load_config(str(config_file))
    stages.plan(config)
    if change == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(RunFailed) as caught:
        stages.render(config)
    assert source in str(caught.value)
    assert file.name in str(caught.value)
    assert not (tmp_path / "bake" / "dataset.json").exists()


@pytest.mark.parametrize("stream", STREAMS)
def test_a_line_edited_at_equal_length_is_another_stream(stream: str, tmp_path: Path, tokenizer_folder: Path) -> None:
    """Lines are sorted as they are written, so even a key that nothing reads decides their order."""
    streams = []
    for number in (1, 2):
        sources = Sources(tmp_path / str(number), tokenizer_folder)
        sources.add_lines("it", [{"id": number, "conversations": conversation("What?")}])
        done = bake(sources, stream, tmp_path / f"out-{number}", report=False)
        streams.append(json.loads((done.folder / "dataset.json").read_text())["stream"])
    assert streams[0] != streams[1]
