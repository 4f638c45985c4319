from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipeline.errors import RunFailed
from pipeline.storage import Storage

STORAGE = Storage(retry_delays_s=(0.0, 0.0, 0.0))
NUM_BYTES_ABOVE_ONE_PART = 60 << 20  # s3fs uploads in parts of 50 MiB


@pytest.fixture(params=["folder", "s3", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return str(request.getfixturevalue("s3")) + "/some/prefix"
    return f"memory://{tmp_path.name}" if request.param == "memory" else str(tmp_path / "new" / "folder")


# ---- what every storage does alike


def test_what_was_published_is_read_back_whole_and_by_range(root: str) -> None:
    url = f"{root}/deep/er/file.bin"
    STORAGE.publish_bytes(url, b"0123456789")
    assert STORAGE.read_bytes(url) == b"0123456789"
    assert STORAGE.read_range(url, 2, 5) == b"234"
    assert STORAGE.read_range(url, 8, 50) == b"89"
    assert STORAGE.read_range(url, 50, 60) == b""
    assert STORAGE.read_range(url, 3, 3) == b""
    assert STORAGE.exists(url)
    assert STORAGE.exists(f"{root}/deep")


def test_an_empty_file_is_a_file(root: str) -> None:
    STORAGE.publish_bytes(f"{root}/empty", b"")
    assert STORAGE.identity(f"{root}/empty").num_bytes == 0
    assert STORAGE.read_bytes(f"{root}/empty") == b""


def test_names_are_listed_relative_sorted_and_at_one_depth_unless_asked(root: str) -> None:
    for name in ["b.json", "a b.json", "sub/c.json", "sub/deeper/ü#?.json", "B.json"]:
        STORAGE.publish_bytes(f"{root}/{name}", b"x")
    assert STORAGE.list_files(root) == ["B.json", "a b.json", "b.json"]
    assert STORAGE.list_files(root, recursive=True) == [
        "B.json",
        "a b.json",
        "b.json",
        "sub/c.json",
        "sub/deeper/ü#?.json",
    ]
    assert STORAGE.list_files(f"{root}/") == STORAGE.list_files(root)


def test_listings_and_identities_are_never_stale(root: str) -> None:
    other = fsspec.url_to_fs(root)[0]  # another client, as another machine would be
    STORAGE.publish_bytes(f"{root}/one", b"1")
    before = STORAGE.identity(f"{root}/one")
    assert STORAGE.list_files(root) == ["one"]
    other.pipe_file(other._strip_protocol(f"{root}/two"), b"2")
    other.pipe_file(other._strip_protocol(f"{root}/one"), b"one")
    assert STORAGE.list_files(root) == ["one", "two"]
    after = STORAGE.identity(f"{root}/one")
    assert (before.num_bytes, after.num_bytes) == (1, 3)
    assert before.stamp != after.stamp


@pytest.mark.parametrize("name", ["missing", "missing/deeper", "nul\0byte", "half-an-emoji-\ud83d", "long" * 500])
def test_what_is_not_there_is_a_missing_file_whatever_its_name(root: str, name: str) -> None:
    STORAGE.publish_bytes(f"{root}/present", b"x")
    url = f"{root}/{name}"
    assert not STORAGE.exists(url)
    for read in (STORAGE.read_bytes, STORAGE.identity, STORAGE.open, STORAGE.list_files):
        with pytest.raises(FileNotFoundError):
            read(url)
    with pytest.raises(FileNotFoundError):
        STORAGE.list_files(url, recursive=True)
    with pytest.raises(FileNotFoundError):
        STORAGE.read_range(url, 0, 1)


def test_removing_twice_is_harmless(root: str) -> None:
    STORAGE.publish_bytes(f"{root}/kept", b"x")
    STORAGE.publish_bytes(f"{root}/file", b"x")
    STORAGE.remove(f"{root}/file")
    STORAGE.remove(f"{root}/file")
    assert STORAGE.list_files(root) == ["kept"]


def test_parquet_is_written_and_read_through_open_files(root: str) -> None:
    table = pa.table({"number": list(range(300_000))})
    with STORAGE.publishing(f"{root}/t.parquet") as file:
        pq.write_table(table, file, row_group_size=1024)
    with STORAGE.open(f"{root}/t.parquet") as source:
        assert pq.ParquetFile(source).read_row_group(7)["number"][0].as_py() == 7 * 1024


def test_open_files_seek_and_read_like_local_ones(root: str) -> None:
    content = bytes(range(256)) * 9000  # more than the read-ahead
    STORAGE.publish_bytes(f"{root}/f", content)
    with STORAGE.open(f"{root}/f") as file:
        assert file.seek(-3, os.SEEK_END) == len(content) - 3
        assert file.read() == content[-3:]
        assert file.read(1) == b""
        file.seek(1_000_000)
        assert file.read(5) == content[1_000_000:1_000_005]
        assert file.tell() == 1_000_005
        file.seek(0)
        assert file.read() == content


def test_nothing_is_visible_before_the_block_ends(root: str) -> None:
    with STORAGE.publishing(f"{root}/big") as file:
        file.write(bytes(NUM_BYTES_ABOVE_ONE_PART))
        assert file.tell() == NUM_BYTES_ABOVE_ONE_PART
        assert not STORAGE.exists(f"{root}/big")
    assert STORAGE.identity(f"{root}/big").num_bytes == NUM_BYTES_ABOVE_ONE_PART


@pytest.mark.parametrize("num_bytes", [0, 10, NUM_BYTES_ABOVE_ONE_PART])
def test_a_block_that_fails_publishes_nothing_and_keeps_the_old_file(root: str, num_bytes: int) -> None:
    STORAGE.publish_bytes(f"{root}/file", b"old")

    def fail_after_writing() -> None:
        with STORAGE.publishing(f"{root}/file") as file:
            file.write(bytes(num_bytes))
            raise KeyError("in the middle")

    with pytest.raises(KeyError):
        fail_after_writing()
    assert STORAGE.read_bytes(f"{root}/file") == b"old"
    assert STORAGE.list_files(root, recursive=True) == ["file"]


@pytest.mark.parametrize("root", ["folder", "s3"], indirect=True)  # memory is one process's own
def test_storage_works_after_pickling_in_threads_and_in_forked_and_spawned_processes(root: str) -> None:
    copy = pickle.loads(pickle.dumps(STORAGE))
    STORAGE.publish_bytes(f"{root}/parent", b"x")
    threads = [threading.Thread(target=copy.publish_bytes, args=(f"{root}/thread-{n}", b"x")) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for method in ("fork", "spawn"):
        child = get_context(method).Process(target=copy.publish_bytes, args=(f"{root}/{method}", b"x"))
        child.start()
        child.join()
        assert child.exitcode == 0
    assert STORAGE.list_files(root) == ["fork", "parent", "spawn", *(f"thread-{n}" for n in range(4))]


# ---- local


def test_plain_paths_and_file_urls_are_the_same_file(tmp_path: Path) -> None:
    STORAGE.publish_bytes(f"file://{tmp_path}/f", b"x")
    assert STORAGE.read_bytes(f"{tmp_path}/f") == b"x"
    assert STORAGE.local_path(f"file://{tmp_path}/f") == STORAGE.local_path(f"{tmp_path}/f") == f"{tmp_path}/f"
    assert STORAGE.local_path("s3://bucket/f") is None


def test_a_published_file_has_the_rights_of_an_ordinary_one(tmp_path: Path) -> None:
    STORAGE.publish_bytes(str(tmp_path / "published"), b"x")
    (tmp_path / "ordinary").write_bytes(b"x")
    assert (tmp_path / "published").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_a_name_of_the_longest_length_can_be_published(tmp_path: Path) -> None:
    STORAGE.publish_bytes(str(tmp_path / ("n" * 255)), b"x")
    assert STORAGE.list_files(str(tmp_path)) == ["n" * 255]


def test_a_file_closed_early_inside_the_block_is_still_published_whole(tmp_path: Path) -> None:
    with STORAGE.publishing(str(tmp_path / "f")) as file:
        file.write(b"whole")
        file.close()
    assert (tmp_path / "f").read_bytes() == b"whole"


def test_a_folder_where_a_file_is_wanted_is_said_to_be_one(tmp_path: Path) -> None:
    for read in (STORAGE.identity, STORAGE.read_bytes, STORAGE.open):
        with pytest.raises(IsADirectoryError):
            read(str(tmp_path))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real filesystem of 1 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {mounted.stderr.decode()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("num_bytes", [2 << 20, (1 << 20) + 1])  # fails while writing; fails at the last flush
def test_a_full_disk_is_a_failed_run_that_names_the_file_and_leaves_no_temporary(
    small_disk: Path, num_bytes: int
) -> None:
    STORAGE.publish_bytes(str(small_disk / "old"), b"old")
    with pytest.raises(RunFailed, match=r"disk/new: No space left on device\. .* run the same command again") as caught:
        STORAGE.publish_bytes(str(small_disk / "new"), bytes(num_bytes))
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert os.listdir(small_disk) == ["old"]  # noqa: PTH208
    STORAGE.publish_bytes(str(small_disk / "new"), bytes(1 << 19))  # the room is free again


def test_an_output_that_cannot_be_made_is_a_failed_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RunFailed, match=r"cannot write .*file/below: "):
        STORAGE.publish_bytes(str(tmp_path / "file" / "below"), b"x")


_WRITE_AND_WAIT = """
import sys, time
from pipeline.storage import Storage
with Storage().publishing(sys.argv[1]) as file:
    file.write(bytes(5 << 20))
    print("writing", flush=True)
    time.sleep(600)
"""


def test_the_temporary_of_a_killed_writer_is_swept_and_that_of_a_living_one_kept(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITE_AND_WAIT, str(tmp_path / "sub" / name)], stdout=subprocess.PIPE)
        for name in ("dead", "living")
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"writing\n"
        writers[0].send_signal(signal.SIGKILL)
        writers[0].wait()
        assert len(os.listdir(tmp_path / "sub")) == 2  # noqa: PTH208
        assert STORAGE.list_files(str(tmp_path), recursive=True) == []
        assert STORAGE.sweep(str(tmp_path)) == 1
        (left,) = os.listdir(tmp_path / "sub")  # noqa: PTH208
        assert left.startswith(".living.tmp-")
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert STORAGE.sweep(str(tmp_path)) == 1
    assert STORAGE.sweep(str(tmp_path / "missing")) == 0


def test_two_writers_of_one_file_both_publish_it_whole(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    with STORAGE.publishing(path) as first, STORAGE.publishing(path) as second:
        first.write(b"same")
        second.write(b"same")
        assert STORAGE.sweep(str(tmp_path)) == 0
    assert (tmp_path / "f").read_bytes() == b"same"
    assert os.listdir(tmp_path) == ["f"]  # noqa: PTH208


# ---- object stores and failing reads


def test_an_aborted_upload_leaves_no_parts_behind(s3: str) -> None:
    def fail_after_a_part() -> None:
        with STORAGE.publishing(f"{s3}/big") as file:
            file.write(bytes(NUM_BYTES_ABOVE_ONE_PART))
            raise KeyError

    with pytest.raises(KeyError):
        fail_after_a_part()
    filesystem = fsspec.filesystem("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    assert filesystem.list_multipart_uploads(s3.removeprefix("s3://")) == []


def test_an_options_endpoint_is_used_before_the_environments(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    STORAGE.publish_bytes(f"{s3}/f", b"x")
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert Storage({"endpoint_url": endpoint}).read_bytes(f"{s3}/f") == b"x"
    assert Storage({"s3": {"endpoint_url": endpoint}}).read_bytes(f"{s3}/f") == b"x"


def test_a_bucket_that_is_not_there_fails_the_write_in_one_sentence(s3: str) -> None:
    with pytest.raises(RunFailed, match="cannot write s3://no-such-bucket-at-all/f: "):
        STORAGE.publish_bytes("s3://no-such-bucket-at-all/f", b"x")


def test_secrets_in_the_options_are_not_printed() -> None:
    assert "hidden" not in repr(Storage({"secret": "hidden"}))


class FlakyFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """A remote filesystem whose reads fail with `error` while `failures` lasts."""

    protocol = "flaky"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    failures = 0
    attempts = 0
    error: Exception = OSError(errno.EIO, "connection reset")

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: object) -> bytes:
        cls = type(self)
        cls.attempts += 1
        if cls.failures:
            cls.failures -= 1
            raise cls.error
        return bytes(super().cat_file(path, start, end))


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> type[FlakyFileSystem]:
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    STORAGE.publish_bytes("flaky://bucket/f", b"content")
    for name, value in {"failures": 0, "attempts": 0, "error": OSError(errno.EIO, "connection reset")}.items():
        monkeypatch.setattr(FlakyFileSystem, name, value)
    return FlakyFileSystem


def test_a_read_that_fails_twice_and_then_works_has_worked(flaky: type[FlakyFileSystem]) -> None:
    flaky.failures = 2
    assert STORAGE.read_bytes("flaky://bucket/f") == b"content"
    flaky.failures = 2
    assert STORAGE.read_range("flaky://bucket/f", 1, 4) == b"ont"
    flaky.failures = 2
    with STORAGE.open("flaky://bucket/f") as file:
        assert file.read() == b"content"


def test_a_read_that_keeps_failing_is_a_failed_run_after_four_attempts(flaky: type[FlakyFileSystem]) -> None:
    flaky.failures = 100
    with pytest.raises(RunFailed, match="cannot read flaky://bucket/f: connection reset"):
        STORAGE.read_bytes("flaky://bucket/f")
    assert flaky.attempts == 4


def test_what_the_store_forbids_is_a_failed_run_at_once_never_a_bad_row(flaky: type[FlakyFileSystem]) -> None:
    flaky.failures, flaky.error = 100, PermissionError("The provided token has expired.")
    with pytest.raises(RunFailed, match="token has expired"):
        STORAGE.read_bytes("flaky://bucket/f")
    assert flaky.attempts == 1


def test_an_error_that_is_not_the_storages_passes_unchanged(flaky: type[FlakyFileSystem]) -> None:
    flaky.failures, flaky.error = 100, KeyError("a bug")
    with pytest.raises(KeyError, match="a bug"):
        STORAGE.read_bytes("flaky://bucket/f")
    assert flaky.attempts == 1


def test_reads_wait_between_attempts(flaky: type[FlakyFileSystem], monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    flaky.failures = 3
    assert Storage().read_bytes("flaky://bucket/f") == b"content"
    assert pauses == sorted(pauses)
    assert len(pauses) == 3
