"""A file that is read by its head first, and as a whole only if the head does not do."""

from __future__ import annotations

import io
from typing import BinaryIO, Final

__all__ = ["HEAD_BYTES", "HeadFirst"]

HEAD_BYTES: Final = 1 << 16
"""Holds the header of nearly every JPEG and PNG: one small request where the file is remote."""


class HeadFirst(io.BytesIO):
    """The first `HEAD_BYTES` of `source` in memory; whoever reads past them fetches all the rest, once.

    An error of the source itself is kept in `error`, so that a storage failure is never mistaken for a bad image.
    Pillow reads, seeks and tells; nothing else is supported beyond the head.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        source.seek(0)
        head = _read_fully(source, HEAD_BYTES)
        super().__init__(head)
        self._available = len(head)
        self._complete = len(head) < HEAD_BYTES
        self.error: Exception | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        if not self._complete and (size is None or size < 0 or self.tell() + size > self._available):
            self._fetch_rest()
        return super().read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if not self._complete and whence == io.SEEK_END:
            self._fetch_rest()
        return super().seek(offset, whence)

    def whole(self) -> bytes:
        """The whole content."""
        if not self._complete:
            self._fetch_rest()
        return self.getvalue()

    def tail(self, num_bytes: int) -> tuple[bytes, int]:
        """The last `num_bytes` of the source (all that is known, if that is more) and the offset where they begin."""
        if self._complete:
            return self.getvalue(), 0
        try:
            end = self._source.seek(0, io.SEEK_END)
            offset = self._source.seek(max(0, end - num_bytes))
            return _read_fully(self._source, num_bytes), offset
        except Exception as error:
            self.error = error
            raise

    def _fetch_rest(self) -> None:
        position = self.tell()
        try:
            self._source.seek(self._available)
            rest = self._source.read()
        except Exception as error:
            self.error = error
            raise
        super().seek(self._available)
        self.write(rest)
        self._complete = True
        super().seek(position)


def _read_fully(source: BinaryIO, num_bytes: int) -> bytes:
    """Reads until `num_bytes` are there or the file ends: raw files may return less than asked."""
    parts: list[bytes] = []
    missing = num_bytes
    while missing > 0 and (part := source.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
