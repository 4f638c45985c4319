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
import io
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar, cast

import fsspec

from pipeline.errors import RunFailed
from pipeline.publishing import (
    describe,
    failing_as_run,
    is_storage_error,
    is_temporary,
    publish_by_rename,
    publish_local,
    publish_object,
    remove_if_dead,
)
from pipeline.ranged_file import RangedFile

__all__ = ["FileIdentity", "Storage"]

Answer = TypeVar("Answer")

_ATOMIC_UPLOADS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})  # visible only when completed
_STAMP_KEYS = ("ETag", "etag", "md5Hash", "blob_id", "mtime", "LastModified", "last_modified", "created")
_CALLERS_ERRORS = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_HOPELESS_NUMBERS = frozenset({errno.EINVAL, errno.EACCES, errno.EPERM, errno.ENOSYS})  # waiting does not cure these
_HOPELESS_NAMES = frozenset({"NoCredentialsError", "PartialCredentialsError", "ParamValidationError"})
_IMPOSSIBLE_NAMES = frozenset({errno.ENAMETOOLONG, errno.ELOOP})
_READ_AHEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """Changes when the file changes: its size, and its mtime in nanoseconds (local) or its etag (object store)."""

    num_bytes: int
    stamp: str


@dataclass(frozen=True, slots=True)
class Storage:
    """Reads and publishes files by URL. Holds no connection: it can be pickled, forked and shared between threads.

    Errors of reading: what is missing (or has a name no file can have) is `FileNotFoundError`, `IsADirectoryError` or
    `NotADirectoryError`, what a local disk forbids is `PermissionError`: at once, and the caller's to judge. What an
    object store forbids is `RunFailed` at once: expired credentials must not look like bad rows. Everything else is
    tried again after each of `retry_delays_s`, then becomes `RunFailed`. Whatever prevents publishing is `RunFailed`.

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
        with contextlib.suppress(FileNotFoundError):
            return bool(self._retrying(url, lambda: filesystem.exists(path)))
        return False

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
        return self._retrying(url, lambda: _read_remote_range(filesystem, path, start, end))

    def open(self, url: str) -> BinaryIO:
        """A seekable binary file; a remote one is read by ranges, each with its own retries, 1 MiB ahead."""
        local = self.local_path(url)
        if local is not None:
            return self._retrying(url, lambda: cast("BinaryIO", open(local, "rb")))
        num_bytes = self.identity(url).num_bytes
        ranges = RangedFile(lambda start, end: self._whole_range(url, start, end, num_bytes), num_bytes)
        return cast("BinaryIO", io.BufferedReader(ranges, _READ_AHEAD_BYTES))

    def _whole_range(self, url: str, start: int, end: int, num_bytes: int) -> bytes:
        content = self.read_range(url, start, end)
        if len(content) < end - start:
            raise RunFailed(
                f"{url} ended at byte {start + len(content)} of {num_bytes}: it changed while it was read. What was "
                "made of it would mix two versions. Keep sources still and run again."
            )
        return content

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
        return sorted(name for name in names if not is_temporary(name))

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
            writing = publish_local(url, local)
        else:
            filesystem, path = self._filesystem(url)
            protocol = url.partition("://")[0]
            writing = (publish_object if protocol in _ATOMIC_UPLOADS else publish_by_rename)(url, filesystem, path)
        with writing as file:
            yield file

    def remove(self, url: str) -> None:
        """Remove a file, if it is there."""
        local = self.local_path(url)
        with failing_as_run(url, "remove"), contextlib.suppress(FileNotFoundError):
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
            if is_temporary(name)
        ]
        return sum(remove_if_dead(path) for path in temporaries)

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
        if not _can_be_a_name(url):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)
        local = self.local_path(url) is not None
        for delay_s in (*self.retry_delays_s, None):
            try:
                return attempt()
            except Exception as error:
                if isinstance(error, _CALLERS_ERRORS) or not is_storage_error(error):
                    raise
                number = error.errno if isinstance(error, OSError) else None
                if number in _IMPOSSIBLE_NAMES:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from error
                if local and isinstance(error, PermissionError):
                    raise
                if delay_s is None or _is_hopeless(error):
                    raise RunFailed(
                        f"cannot read {url}: {describe(error)}. The run cannot go on without it. "
                        "What is already published stays valid: see to the storage and run the same command again."
                    ) from error
                time.sleep(delay_s)
        raise AssertionError("the last attempt returns or raises")


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


def _read_remote_range(filesystem: Any, path: str, start: int, end: int) -> bytes:
    try:
        return bytes(filesystem.cat_file(path, start=start, end=end))
    except OSError as error:
        if _store_code(error) in {"InvalidRange", "416"}:  # the file ends before `start`
            return b""
        raise


def _store_code(error: BaseException) -> str:
    """The object store's own error code (`NoSuchKey`, `ExpiredToken`, …), "" if there is none."""
    response = getattr(error.__cause__, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def _can_be_a_name(url: str) -> bool:
    """Paths come from data sets: a NUL or half an emoji is in no file's name."""
    try:
        return b"\0" not in os.fsencode(url)
    except UnicodeEncodeError:
        return False


def _is_hopeless(error: Exception) -> bool:
    """Whether waiting cannot cure an error: forbidden, no credentials, a request that the store does not understand."""
    if isinstance(error, OSError):
        return isinstance(error, PermissionError) or error.errno in _HOPELESS_NUMBERS
    return type(error).__name__ in _HOPELESS_NAMES
