"""Bytes of a bake, wherever it lies: mapped where the file is local, ranged requests where it is not.

LocalBytes    mmap, private and copy-on-write: no bytes are copied, a tensor may be written to, the file never
changes RemoteBytes   one request per 8 MiB, in parallel where the file system can
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

__all__ = ["BakeStorage", "ByteSource", "LocalBytes", "RemoteBytes"]

_REQUEST_BYTES = 8 << 20
_RETRY_DELAYS_S = (0.2, 1.0, 3.0)
_FINAL_ERRORS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_CLIENTS = frozenset({"aiohttp", "azure", "botocore", "google", "requests", "urllib3"})

Result = TypeVar("Result")


class ByteSource(Protocol):
    """One file that can be read anywhere."""

    def spans(self, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Writable memory with the bytes [start, end) of each span; EOFError where the file is shorter."""


class LocalBytes:
    """A local file, mapped span by span: memory and address space are freed with the last tensor that uses them."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb")  # noqa: SIM115  (closed with the object)
        self._num_bytes = os.fstat(self._file.fileno()).st_size

    def spans(self, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        """See ByteSource."""
        return [self._map(start, end) for start, end in spans]

    def _map(self, start: int, end: int) -> memoryview:
        if end > self._num_bytes:
            raise EOFError(f"the file ends at byte {self._num_bytes}")
        first = start - start % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(self._file.fileno(), end - first, access=mmap.ACCESS_COPY, offset=first)
        if hasattr(mmap, "MADV_WILLNEED") and not self._is_in_memory(start, end):
            mapped.madvise(mmap.MADV_WILLNEED)  # one large read now, instead of small ones at each page fault
        return memoryview(mapped)[start - first :]

    def _is_in_memory(self, start: int, end: int) -> bool:
        """Whether the page cache seems to hold a span: a hundred times cheaper to ask than to advise on."""
        if not hasattr(os, "RWF_NOWAIT"):
            return False
        probe = bytearray(1)
        try:
            return all(
                os.preadv(self._file.fileno(), [probe], at, os.RWF_NOWAIT)
                for at in (start, (start + end) // 2, end - 1)
            )
        except OSError:  # it would have to wait, or the file system cannot tell
            return False

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


class RemoteBytes:
    """An object in a store."""

    def __init__(self, filesystem: fsspec.AbstractFileSystem, path: str) -> None:
        self._filesystem = filesystem
        self._path = path

    def spans(self, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        """See ByteSource."""
        pieces = [
            (number, at, min(at + _REQUEST_BYTES, end))
            for number, (start, end) in enumerate(spans)
            for at in range(start, end, _REQUEST_BYTES)
        ]
        buffers = [bytearray(end - start) for start, end in spans]
        paths, starts, ends = [self._path] * len(pieces), [at for _, at, _ in pieces], [end for _, _, end in pieces]
        fetched = _with_retries(lambda: self._filesystem.cat_ranges(paths, starts, ends, on_error="raise"))
        for (number, at, end), content in zip(pieces, fetched, strict=True):
            if len(content) != end - at:
                raise EOFError(f"the object ends at byte {at + len(content)}")
            first = at - spans[number][0]
            buffers[number][first : first + len(content)] = content
        return [memoryview(buffer) for buffer in buffers]


class BakeStorage:
    """A bake's folder. Picklable: connections are made anew in each process.

    Args:
        url: Any fsspec URL or local path.
        storage_options: fsspec options, flat or by protocol (`{"s3": {"endpoint_url": …}}`).
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.url = url.rstrip("/")
        self._options = dict(storage_options or {})

    def read_bytes(self, relative: str) -> bytes:
        """A whole file.

        Raises:
            FileNotFoundError: there is none.
        """
        filesystem, path = self._resolve(relative)
        return _with_retries(lambda: bytes(filesystem.cat_file(path)))

    def open(self, relative: str) -> ByteSource:
        """A file for reading anywhere in it.

        Raises:
            FileNotFoundError: there is none (a remote file may only tell when it is read).
        """
        filesystem, path = self._resolve(relative)
        return LocalBytes(path) if isinstance(filesystem, LocalFileSystem) else RemoteBytes(filesystem, path)

    def download(self, relative: str, path: str) -> None:
        """Copy a file to a local path."""
        filesystem, remote = self._resolve(relative)
        _with_retries(lambda: filesystem.get_file(remote, path))

    @property
    def is_local(self) -> bool:
        """Whether files can be mapped."""
        return isinstance(self._resolve("")[0], LocalFileSystem)

    def _resolve(self, relative: str) -> tuple[fsspec.AbstractFileSystem, str]:
        # fsspec caches instances per process and forgets them after a fork
        by_protocol = self._options.get(self.url.partition("://")[0])
        options = by_protocol if isinstance(by_protocol, Mapping) else self._options
        filesystem, path = fsspec.core.url_to_fs(f"{self.url}/{relative}".rstrip("/"), **options)
        return filesystem, path


def _with_retries(read: Callable[[], Result]) -> Result:
    """`read()`, tried again after transient failures; what is missing or forbidden stays so."""
    for delay_s in _RETRY_DELAYS_S:
        try:
            return read()
        except Exception as error:
            if isinstance(error, _FINAL_ERRORS) or not _is_of_storage(error):
                raise
            time.sleep(delay_s)
    return read()


def _is_of_storage(error: Exception) -> bool:
    """The clients of object stores raise errors of their own that are no OSError."""
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _CLIENTS
