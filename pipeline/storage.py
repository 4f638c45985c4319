"""Every URL is fsspec: open, list, ranged read, publish atomically.

A URL without a protocol, or with `file://`, is a local path; every other protocol goes to fsspec (`s3://` to s3fs).

Nothing half-written is ever listed. A local file is written under a temporary name beside its own, flushed to the disk
and renamed; an object becomes visible when its upload is completed, and an upload that fails is aborted. A temporary
is held under an exclusive `flock` for as long as it is written, so a temporary whose lock can be taken has no living
writer, and `sweep` may remove it while other runs go on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar, cast

import fsspec

from pipeline.errors import RunFailed

__all__ = ["FileIdentity", "Storage"]

Answer = TypeVar("Answer")

_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{16}$")
_ATOMIC_UPLOADS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})  # visible only when completed
_STAMP_KEYS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created")
_FINAL_ERRORS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_TRANSIENT_LIBRARIES = frozenset({"aiobotocore", "aiohttp", "botocore", "fsspec", "http", "s3fs", "urllib3"})
_READ_AHEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """Changes when the file changes: its size, and its mtime in nanoseconds (local) or its etag (object store)."""

    num_bytes: int
    stamp: str


@dataclass(frozen=True, slots=True)
class Storage:
    """Reads and publishes files by URL. Holds no connection: it can be pickled, forked and shared between threads.

    Errors: what is missing or forbidden is the built-in `FileNotFoundError`, `PermissionError`, `IsADirectoryError` or
    `NotADirectoryError`, at once, and the caller's to judge. Everything else is tried again after each of
    `retry_delays_s`, then becomes `RunFailed`. Whatever prevents publishing is `RunFailed`.

    Attributes:
        options: fsspec options, flat or by protocol (`{"s3": {"endpoint_url": …}}`). For S3 the environment's
            `AWS_ENDPOINT_URL` stands in for a missing `endpoint_url`. May hold secrets: never printed.
        retry_delays_s: Pauses before the second, third, … attempt of a read.
    """

    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    retry_delays_s: tuple[float, ...] = (0.2, 1.0, 4.0)

    def local_path(self, url: str) -> str | None:
        """The path of a local URL, `None` for one that is not local."""
        protocol, separator, path = url.partition("://")
        if not separator:
            return os.path.expanduser(url)  # noqa: PTH111 (a string stays as it is spelt)
        return path if protocol in {"file", "local"} else None

    def exists(self, url: str) -> bool:
        """Whether there is a file or a folder (on an object store: any object below it)."""
        local = self.local_path(url)
        if local is not None:
            return os.path.exists(local)  # noqa: PTH110
        filesystem, path = self._filesystem(url)
        return bool(self._retrying(url, lambda: filesystem.exists(path)))

    def identity(self, url: str) -> FileIdentity:
        """Size and stamp of a file, asked from the storage itself, never from a cache."""
        local = self.local_path(url)
        if local is not None:
            status = self._retrying(url, lambda: os.stat(local))  # noqa: PTH116
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), url)
            return FileIdentity(num_bytes=status.st_size, stamp=str(status.st_mtime_ns))
        filesystem, path = self._filesystem(url)
        entry = self._retrying(url, lambda: filesystem.info(path))
        if entry["type"] == "directory":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)
        stamp = next((entry[key] for key in _STAMP_KEYS if entry.get(key)), "")
        return FileIdentity(num_bytes=int(entry["size"]), stamp=str(stamp).strip('"'))

    def read_bytes(self, url: str) -> bytes:
        """A whole file."""
        local = self.local_path(url)
        if local is not None:
            return self._retrying(url, Path(local).read_bytes)
        filesystem, path = self._filesystem(url)
        return self._retrying(url, lambda: bytes(filesystem.cat_file(path)))

    def read_range(self, url: str, start: int, end: int) -> bytes:
        """Bytes `start` (inclusive) to `end` (exclusive); fewer where the file ends before."""
        if end <= start:
            return b""
        local = self.local_path(url)
        if local is not None:
            return self._retrying(url, lambda: _read_local_range(local, start, end))
        filesystem, path = self._filesystem(url)
        return self._retrying(url, lambda: bytes(filesystem.cat_file(path, start=start, end=end)))

    def open(self, url: str) -> BinaryIO:
        """A seekable binary file; a remote one is read by ranges, each with its own retries, 1 MiB ahead."""
        local = self.local_path(url)
        if local is not None:
            return self._retrying(url, lambda: cast("BinaryIO", open(local, "rb")))
        ranges = _RangedFile(self, url, self.identity(url).num_bytes)
        return cast("BinaryIO", io.BufferedReader(ranges, _READ_AHEAD_BYTES))

    def list_files(self, url: str, *, recursive: bool = False) -> list[str]:
        """Names of the files in a folder, relative to it, with `/` between parts, sorted by code point.

        Temporaries of unfinished writers are left out. Raises FileNotFoundError where there is no such folder (on an
        object store: no object below it).
        """
        local = self.local_path(url)
        if local is not None:
            names = self._retrying(url, lambda: _list_local(local, recursive))
        else:
            filesystem, path = self._filesystem(url)
            names = self._retrying(url, lambda: _list_remote(filesystem, path.rstrip("/"), recursive))
        return sorted(name for name in names if not _is_temporary(name))

    def publish_bytes(self, url: str, content: bytes) -> None:
        """Write a whole small file: readers see the old one or the new one, never a part."""
        with self.publishing(url) as file:
            file.write(content)

    @contextlib.contextmanager
    def publishing(self, url: str) -> Iterator[BinaryIO]:
        """A binary file to write from front to back; it is published when the block ends well and never otherwise.

        Replaces a file that is already there. The file cannot seek; `tell()` counts the bytes written. Closing it
        early is allowed and publishes nothing by itself.

        Raises:
            RunFailed: The storage refused a byte (full disk, missing right, broken connection).
        """
        local = self.local_path(url)
        if local is not None:
            writing = _publish_local(url, local)
        else:
            filesystem, path = self._filesystem(url)
            protocol = url.partition("://")[0]
            writing = (_publish_object if protocol in _ATOMIC_UPLOADS else _publish_by_rename)(url, filesystem, path)
        with writing as file:
            yield file

    def remove(self, url: str) -> None:
        """Remove a file, if it is there."""
        local = self.local_path(url)
        with _failing_as_run(url, "remove"), contextlib.suppress(FileNotFoundError):
            if local is not None:
                os.unlink(local)  # noqa: PTH108
                return
            filesystem, path = self._filesystem(url)
            filesystem.rm_file(path)

    def sweep(self, folder_url: str) -> int:
        """Remove the temporaries of dead writers anywhere below a folder; returns how many there were.

        An object store has none: an upload that was never completed is not an object.
        """
        local = self.local_path(folder_url)
        if local is None:
            return 0
        temporaries = [
            os.path.join(folder, name)  # noqa: PTH118
            for folder, _, names in os.walk(local)
            for name in names
            if _is_temporary(name)
        ]
        return sum(_remove_if_dead(path) for path in temporaries)

    def _filesystem(self, url: str) -> tuple[Any, str]:
        """The fsspec filesystem of a URL and the path in it. fsspec keeps one instance per process and options."""
        protocol = url.partition("://")[0]
        nested = self.options.get(protocol)
        options = dict(nested if isinstance(nested, Mapping) else self.options)
        if protocol in {"s3", "s3a"} and "AWS_ENDPOINT_URL" in os.environ:
            options.setdefault("endpoint_url", os.environ["AWS_ENDPOINT_URL"])
        filesystem = fsspec.filesystem(protocol, use_listings_cache=False, **options)
        return filesystem, filesystem._strip_protocol(url)

    def _retrying(self, url: str, attempt: Callable[[], Answer]) -> Answer:
        """What `attempt` returns; transient errors are tried again, then become `RunFailed`."""
        for delay_s in (*self.retry_delays_s, None):
            try:
                return attempt()
            except Exception as error:
                if isinstance(error, _FINAL_ERRORS) or not _is_storage_error(error):
                    raise
                if delay_s is None or _is_hopeless(error):
                    raise RunFailed(
                        f"cannot read {url}: {_describe(error)}. The run cannot go on without it. "
                        "What is already published stays valid: see to the storage and run the same command again."
                    ) from error
                time.sleep(delay_s)
        raise AssertionError("the last attempt returns or raises")


class _RangedFile(io.RawIOBase):
    """A remote file of known size, read by ranges."""

    def __init__(self, storage: Storage, url: str, num_bytes: int) -> None:
        self._storage = storage
        self._url = url
        self._num_bytes = num_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._num_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + len(buffer), self._num_bytes)
        content = self._storage.read_range(self._url, self._position, end)
        if len(content) < end - self._position:
            raise RunFailed(
                f"{self._url} ended at byte {self._position + len(content)} of {self._num_bytes}: it changed while it "
                "was read. What was made of it would mix two versions. Keep sources still and run again."
            )
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


class _Sink(io.RawIOBase):
    """Where a published file's bytes go; turns the storage's errors into `RunFailed`, and counts."""

    def __init__(self, url: str, write: Callable[[Any], int]) -> None:
        self._url = url
        self._write = write
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, content: Any) -> int:
        with _failing_as_run(self._url, "write"):
            num_bytes = self._write(content)
        self._position += num_bytes
        return num_bytes


@contextlib.contextmanager
def _buffered(url: str, write: Callable[[Any], int]) -> Iterator[BinaryIO]:
    """A buffered file over `write`; after an error what is still in the buffer is forgotten, not written."""
    sink = _Sink(url, write)
    file = io.BufferedWriter(sink, _READ_AHEAD_BYTES)
    try:
        yield cast("BinaryIO", file)
        if not file.closed:
            file.flush()
    finally:
        sink.close()  # a BufferedWriter over a closed raw file no longer tries to flush


@contextlib.contextmanager
def _publish_local(url: str, path: str) -> Iterator[BinaryIO]:
    folder, name = os.path.split(path)
    with _failing_as_run(url, "write"):
        os.makedirs(folder or ".", exist_ok=True)  # noqa: PTH103
        temporary, descriptor = _create_locked(folder, name)
    published = False
    try:
        with _buffered(url, lambda content: os.write(descriptor, content)) as file:
            yield file
        with _failing_as_run(url, "write"):
            os.fsync(descriptor)
            os.rename(temporary, path)  # noqa: PTH104
            published = True
            _sync_folder(folder or ".")
    finally:
        if not published:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)  # noqa: PTH108
        os.close(descriptor)


@contextlib.contextmanager
def _publish_object(url: str, filesystem: Any, path: str) -> Iterator[BinaryIO]:
    with _failing_as_run(url, "write"):
        upload = filesystem.open(path, "wb")
    try:
        with _buffered(url, upload.write) as file:
            yield file
        with _failing_as_run(url, "write"):
            upload.close()
    except BaseException:
        # fsspec completes the upload when the file is closed or collected: mark it closed, so that it never is.
        upload.closed = True
        with contextlib.suppress(OSError):  # the store forgets an upload it cannot be told to abort
            upload.discard()
        raise


@contextlib.contextmanager
def _publish_by_rename(url: str, filesystem: Any, path: str) -> Iterator[BinaryIO]:
    """For filesystems whose open files are visible: collected in memory, uploaded under a temporary name, moved."""
    content = io.BytesIO()
    with _buffered(url, content.write) as file:
        yield file
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/{_temporary_name(name)}"
    with _failing_as_run(url, "write"):
        filesystem.makedirs(folder, exist_ok=True)
        filesystem.pipe_file(temporary, content.getvalue())
        filesystem.mv(temporary, path)


@contextlib.contextmanager
def _failing_as_run(url: str, verb: str) -> Iterator[None]:
    """Turns a storage error into `RunFailed`, in a sentence that names the file."""
    try:
        yield
    except Exception as error:
        if not _is_storage_error(error):
            raise
        raise RunFailed(
            f"cannot {verb} {url}: {_describe(error)}. Nothing half-written was left there and what was published "
            "before stays valid. Make room or see to the storage, then run the same command again."
        ) from error


def _temporary_name(name: str) -> str:
    return f".{name[:128]}.tmp-{secrets.token_hex(8)}"


def _is_temporary(name: str) -> bool:
    base = name.rpartition("/")[2]
    return base.startswith(".") and _TEMPORARY.search(base) is not None


def _create_locked(folder: str, name: str) -> tuple[str, int]:
    """A new temporary, locked. A sweeper may take it between its creation and its lock: then another is made."""
    while True:
        path = os.path.join(folder, _temporary_name(name))  # noqa: PTH118
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        try:
            with _ignoring_missing_locks():
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.exists(path):  # noqa: PTH110
                return path, descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _remove_if_dead(path: str) -> bool:
    """Remove a temporary unless its writer lives, which then holds the lock. A file that cannot be locked stays."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)  # noqa: PTH108
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


@contextlib.contextmanager
def _ignoring_missing_locks() -> Iterator[None]:
    """Some network filesystems know no locks; there a temporary is never swept."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}:
            raise


def _sync_folder(folder: str) -> None:
    """Make a rename durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:  # not every filesystem can
            raise
    finally:
        os.close(descriptor)


def _read_local_range(path: str, start: int, end: int) -> bytes:
    with cast("IO[bytes]", open(path, "rb", buffering=0)) as file:
        file.seek(start)
        parts: list[bytes] = []
        remaining = end - start
        while remaining and (part := file.read(remaining)):
            parts.append(part)
            remaining -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _list_local(path: str, recursive: bool) -> list[str]:
    if not recursive:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_file()]
    root = Path(path)
    if not root.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return [
        (Path(folder) / name).relative_to(root).as_posix()
        for folder, _, names in os.walk(path)
        for name in names
        if (Path(folder) / name).is_file()
    ]


def _list_remote(filesystem: Any, path: str, recursive: bool) -> list[str]:
    entries = filesystem.find(path, detail=True).values() if recursive else filesystem.ls(path, detail=True)
    prefix = f"{path}/"
    names = [entry["name"] for entry in entries if entry["type"] == "file"]
    names = [name[len(prefix) :] for name in names if name.startswith(prefix) and not name.endswith("/")]
    if recursive and not names and not filesystem.isdir(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return names


def _is_storage_error(error: Exception) -> bool:
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _TRANSIENT_LIBRARIES


def _is_hopeless(error: Exception) -> bool:
    """Errors that waiting does not cure: missing or expired credentials, a request the store cannot understand."""
    return type(error).__name__ in {"NoCredentialsError", "PartialCredentialsError", "ParamValidationError"}


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
