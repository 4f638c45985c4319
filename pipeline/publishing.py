"""Write a file so that readers see the old one or the new one, never a part: the mechanics behind `Storage.publishing`.

local          temporary beside the final name, under flock ─► fsync ─► rename ─► fsync of the folder
object store   multipart upload ─► completed on success, aborted on error
anything else  collected in memory ─► uploaded under a temporary name ─► renamed where it can
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

from fsspec import AbstractFileSystem

from pipeline.errors import RunFailed

__all__ = [
    "describe",
    "failing_as_run",
    "is_storage_error",
    "is_temporary",
    "publish_by_rename",
    "publish_local",
    "publish_object",
    "remove_if_dead",
]

_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{16}$")
_STORAGE_LIBRARIES = frozenset({"aiobotocore", "aiohttp", "botocore", "fsspec", "http", "s3fs", "urllib3"})
_BUFFER_BYTES = 1 << 20


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
        with failing_as_run(self._url, "write"):
            num_bytes = self._write(content)
        self._position += num_bytes
        return num_bytes


@contextlib.contextmanager
def _buffered(url: str, write: Callable[[Any], int]) -> Iterator[BinaryIO]:
    """A buffered file over `write`; after an error what is still in the buffer is forgotten, not written."""
    sink = _Sink(url, write)
    file = io.BufferedWriter(sink, _BUFFER_BYTES)
    try:
        yield cast("BinaryIO", file)
        if not file.closed:
            file.flush()
    finally:
        sink.close()  # a BufferedWriter over a closed raw file no longer tries to flush


@contextlib.contextmanager
def publish_local(url: str, path: str) -> Iterator[BinaryIO]:
    folder, name = os.path.split(path)
    with failing_as_run(url, "write"):
        os.makedirs(folder or ".", exist_ok=True)  # noqa: PTH103
        temporary, descriptor = _create_locked(folder, name)
    published = False
    try:
        with _buffered(url, lambda content: os.write(descriptor, content)) as file:
            yield file
        with failing_as_run(url, "write"):
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
def publish_object(url: str, filesystem: Any, path: str) -> Iterator[BinaryIO]:
    with failing_as_run(url, "write"):
        upload = filesystem.open(path, "wb")
    try:
        with _buffered(url, upload.write) as file:
            yield file
        with failing_as_run(url, "write"):
            upload.close()
    except BaseException:
        # fsspec completes the upload when the file is closed or collected: mark it closed, so that it never is.
        upload.closed = True
        with contextlib.suppress(RunFailed), failing_as_run(url, "abort"):  # a store out of reach cannot be told
            upload.discard()
        raise


@contextlib.contextmanager
def publish_by_rename(url: str, filesystem: Any, path: str) -> Iterator[BinaryIO]:
    """For filesystems whose open files are visible: collected in memory, uploaded under a temporary name, moved."""
    content = io.BytesIO()
    with _buffered(url, content.write) as file:
        yield file
    folder, _, name = path.rpartition("/")
    with failing_as_run(url, "write"):
        filesystem.makedirs(folder, exist_ok=True)
        if type(filesystem).mv is AbstractFileSystem.mv:  # a copy, no rename: then one write of all is the safest
            filesystem.pipe_file(path, content.getvalue())
            return
        temporary = f"{folder}/{_temporary_name(name)}"
        filesystem.pipe_file(temporary, content.getvalue())
        filesystem.mv(temporary, path)


@contextlib.contextmanager
def failing_as_run(url: str, verb: str) -> Iterator[None]:
    """Turns a storage error into `RunFailed`, in a sentence that names the file."""
    try:
        yield
    except Exception as error:
        if not is_storage_error(error):
            raise
        raise RunFailed(
            f"cannot {verb} {url}: {describe(error)}. Nothing half-written was left there and what was published "
            "before stays valid. Make room or see to the storage, then run the same command again."
        ) from error


def _temporary_name(name: str) -> str:
    return f".{name[:128]}.tmp-{secrets.token_hex(8)}"


def is_temporary(name: str) -> bool:
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


def remove_if_dead(path: str) -> bool:
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


def is_storage_error(error: Exception) -> bool:
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _STORAGE_LIBRARIES


def describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
