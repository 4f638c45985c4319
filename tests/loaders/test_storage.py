"""Bytes come whole or not at all, wherever they lie."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

from loaders import storage as storage_module
from loaders.shard_cache import ShardCache
from loaders.storage import BakeStorage, LocalBytes, RemoteBytes

CONTENT = bytes(range(256)) * 64


@pytest.fixture
def memory_file(monkeypatch: pytest.MonkeyPatch) -> Callable[[], RemoteBytes]:
    """A file of CONTENT in fsspec's memory file system, read by requests of 1,000 bytes."""
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe_file("/bake/file", CONTENT)
    monkeypatch.setattr(storage_module, "_REQUEST_BYTES", 1000)
    monkeypatch.setattr(storage_module, "_RETRY_DELAYS_S", (0.0, 0.0))
    return lambda: RemoteBytes(filesystem, "/bake/file")


SPANS = [(0, 1), (5, 4096), (4095, 4097), (10_000, len(CONTENT))]


def test_local_and_remote_spans_are_the_bytes_of_the_file(
    memory_file: Callable[[], RemoteBytes], tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    for source in (LocalBytes(str(path)), memory_file()):
        views = source.spans(SPANS)
        assert [bytes(view) for view in views] == [CONTENT[start:end] for start, end in SPANS]
        assert not any(view.readonly for view in views)


def test_a_span_past_the_end_is_an_end_of_file(memory_file: Callable[[], RemoteBytes], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    for source in (LocalBytes(str(path)), memory_file()):
        with pytest.raises(EOFError, match=f"ends at byte {len(CONTENT)}"):
            source.spans([(0, len(CONTENT) + 1)])


class Flaky:
    """Fails a number of times, then works."""

    def __init__(self, failures: list[Exception]) -> None:
        self.failures = failures
        self.calls = 0

    def cat_file(self, path: str) -> bytes:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return b"content"


def read_through(flaky: Flaky, monkeypatch: pytest.MonkeyPatch) -> bytes:
    storage = BakeStorage("memory://bake")
    monkeypatch.setattr(storage_module, "_RETRY_DELAYS_S", (0.0, 0.0))
    monkeypatch.setattr(storage, "_resolve", lambda relative: (flaky, relative))
    return storage.read_bytes("dataset.json")


def test_transient_failures_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_through(Flaky([OSError("reset"), TimeoutError()]), monkeypatch) == b"content"


@pytest.mark.parametrize(("error", "calls"), [(FileNotFoundError, 1), (PermissionError, 1), (OSError, 3)])
def test_hopeless_failures_are_not(error: type[Exception], calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    flaky = Flaky([error() for _ in range(9)])
    with pytest.raises(error):
        read_through(flaky, monkeypatch)
    assert flaky.calls == calls


def test_a_storage_travels_without_connections() -> None:
    storage = pickle.loads(pickle.dumps(BakeStorage("memory://bake/", {"skip_instance_cache": True})))
    assert storage.url == "memory://bake"


class Counting(BakeStorage):
    """Counts downloads."""

    downloads = 0

    def download(self, relative: str, path: str) -> None:
        self.downloads += 1
        super().download(relative, path)


@pytest.fixture
def counting(tmp_path: Path) -> Counting:
    for number in range(3):
        (tmp_path / f"{number}.tar").write_bytes(bytes([number]) * 100)
    return Counting(str(tmp_path))


def fetch(cache: ShardCache, storage: BakeStorage, number: int, num_bytes: int = 100) -> str:
    return cache.fetch(storage, f"{number}.tar", f"digest{number}", num_bytes)


def test_workers_who_want_one_shard_download_it_once(counting: Counting, tmp_path: Path) -> None:
    cache = ShardCache(str(tmp_path / "cache"), 1000)
    with ThreadPoolExecutor(8) as threads:
        paths = list(threads.map(lambda _: fetch(cache, counting, 1), range(16)))
    assert counting.downloads == 1
    assert {Path(path).read_bytes() for path in paths} == {bytes([1]) * 100}


def test_the_shard_used_longest_ago_makes_room(counting: Counting, tmp_path: Path) -> None:
    cache = ShardCache(str(tmp_path / "cache"), 200)
    for number in (0, 1, 0, 2):
        fetch(cache, counting, number)
    assert sorted(path.name for path in (tmp_path / "cache").glob("*.tar")) == ["digest0.tar", "digest2.tar"]
    assert counting.downloads == 3


def test_a_shard_larger_than_the_cache_is_kept_alone(counting: Counting, tmp_path: Path) -> None:
    cache = ShardCache(str(tmp_path / "cache"), 10)
    for number in (0, 1):
        assert Path(fetch(cache, counting, number)).exists()
    assert [path.name for path in (tmp_path / "cache").glob("*.tar")] == ["digest1.tar"]


def test_a_cached_shard_of_another_size_is_fetched_again(counting: Counting, tmp_path: Path) -> None:
    cache = ShardCache(str(tmp_path / "cache"), 1000)
    Path(fetch(cache, counting, 0)).write_bytes(b"cut")
    assert Path(fetch(cache, counting, 0)).stat().st_size == 100


def test_a_download_of_another_size_leaves_nothing_behind(counting: Counting, tmp_path: Path) -> None:
    cache = ShardCache(str(tmp_path / "cache"), 1000)
    with pytest.raises(EOFError, match="has 100 bytes"):
        fetch(cache, counting, 0, num_bytes=99)
    assert not list((tmp_path / "cache").glob("*.tar"))
    assert not list((tmp_path / "cache").glob("*.part"))


def test_a_cold_file_is_advised_on_and_a_warm_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    source = LocalBytes(str(path))
    asked: list[Any] = []
    monkeypatch.setattr(LocalBytes, "_is_in_memory", lambda self, *span: bool(asked.append(span)))
    assert bytes(source.spans([(10, 20)])[0]) == CONTENT[10:20]
    assert asked == [(10, 20)]
