"""A seekable file over anything that can be read by ranges: an object in a store, a member of a tar."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

__all__ = ["RangedFile"]


class RangedFile(io.RawIOBase):
    """Every read is one call of `read_range`, nothing is kept.

    Args:
        read_range: Bytes from a start up to an end; fewer where the file proves to be shorter.
        num_bytes: Length of the file.
    """

    def __init__(self, read_range: Callable[[int, int], bytes], num_bytes: int) -> None:
        self._read_range = read_range
        self._num_bytes = num_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        if size is None or size < 0:
            size = self._num_bytes
        end = min(self._position + size, self._num_bytes)
        if end <= self._position:
            return b""
        content = self._read_range(self._position, end)
        self._position += len(content)
        return content

    def readall(self) -> bytes:
        return self.read()  # one call; RawIOBase would ask for 8 KiB at a time

    def readinto(self, buffer: Any) -> int:
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)
