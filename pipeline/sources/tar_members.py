"""Tars by ranges: headers are read once, by the index; from then on a member is an offset and a length.

    header │ data …pad │ header │ data …pad │ …        member: (name, offset of its data, its length)

A compressed tar has no offsets that a ranged read could use, so it is decompressed once per process into a temporary
file, and offsets count in what was decompressed. PAX and GNU long names are followed; directories, links and devices
hold no data and are counted. A tar that breaks off gives the members before the break.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import tempfile
import threading
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Final, cast

from pipeline.ranged_file import RangedFile
from pipeline.storage import Storage

__all__ = ["TarContent", "TarMember", "TarReader", "list_members"]

_OPENERS: Final[Mapping[bytes, Callable[..., Any]]] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
_MAGIC_BYTES: Final = 6
_COPY_BYTES: Final = 1 << 20
_OPEN_COPIES: Final = 2

CUT: Final = "cut_tar"
"""The tar ends inside a member or header."""

NOT_A_TAR: Final = "not_a_tar"
"""Not even its first header can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TarMember:
    """A regular file in a tar: its name as it stands there, and where its data lie (after decompression)."""

    name: str
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TarContent:
    """What a tar holds.

    Attributes:
        members: Its regular files in the order of the tar, wholly there.
        skipped: Kind → entries that hold no data ("directory", "hard_link", "symbolic_link", "other").
        fault: `cut_tar` or `not_a_tar`, "" if it was read to its end.
    """

    members: tuple[TarMember, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)
    fault: str = ""


class TarReader:
    """Reads ranges of tars, compressed or not. Threads may share one for `read`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._is_plain: dict[str, bool] = {}
        self._lock = threading.Lock()
        self._copies: OrderedDict[str, tuple[BinaryIO, bool]] = OrderedDict()

    def read(self, url: str, offset: int, num_bytes: int) -> bytes:
        """Bytes of a tar; fewer where it ends before."""
        if self._plain(url):
            return self._storage.read_range(url, offset, offset + num_bytes)
        with self._lock:
            copy, _ = self._copy(url)
            copy.seek(offset)
            return copy.read(num_bytes)

    def member(self, url: str, offset: int, num_bytes: int) -> BinaryIO:
        """A member as a seekable file of its own; closing it is not needed."""
        return cast("BinaryIO", RangedFile(lambda start, end: self.read(url, offset + start, end - start), num_bytes))

    @contextmanager
    def opened(self, url: str) -> Iterator[tuple[BinaryIO, bool]]:
        """The decompressed tar as a seekable file, and whether it is whole."""
        if self._plain(url):
            with self._storage.open(url) as file:
                yield file, True
        else:
            yield self._copy(url)

    def close(self) -> None:
        """Drop the temporary copies."""
        for copy, _ in self._copies.values():
            copy.close()
        self._copies.clear()

    def _plain(self, url: str) -> bool:
        if url not in self._is_plain:
            head = self._storage.read_range(url, 0, _MAGIC_BYTES)
            self._is_plain[url] = not any(head.startswith(magic) for magic in _OPENERS)
        return self._is_plain[url]

    def _copy(self, url: str) -> tuple[BinaryIO, bool]:
        if url in self._copies:
            self._copies.move_to_end(url)
            return self._copies[url]
        while len(self._copies) >= _OPEN_COPIES:
            self._copies.popitem(last=False)[1][0].close()
        copy = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 (closed by `close`)
        self._copies[url] = (copy, self._decompress(url, copy))
        return self._copies[url]

    def _decompress(self, url: str, copy: BinaryIO) -> bool:
        """Write the decompressed tar into `copy`; False if the compressed stream breaks off."""
        head = self._storage.read_range(url, 0, _MAGIC_BYTES)
        opener = next(opener for magic, opener in _OPENERS.items() if head.startswith(magic))
        by_name = "fileobj" if opener is gzip.GzipFile else "filename"
        with self._storage.open(url) as file, opener(**{by_name: file}) as source:
            try:
                while block := source.read1(_COPY_BYTES):  # `read` would lose what came before a break
                    copy.write(block)
            except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, OSError):
                return False
        return True


def list_members(url: str, reader: TarReader) -> TarContent:
    """Read all headers of a tar; of the data, nothing."""
    with reader.opened(url) as (file, whole):
        content = _listed(file)
    return content if whole else replace(content, fault=content.fault or CUT)


def _listed(file: BinaryIO) -> TarContent:
    file.seek(0, 2)
    num_bytes = file.tell()
    file.seek(0)
    members: list[TarMember] = []
    skipped: Counter[str] = Counter()
    fault = ""
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            while (entry := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # or they would all be kept
                if not entry.isreg() or entry.issparse():
                    skipped[_kind(entry)] += 1
                elif entry.offset_data + entry.size > num_bytes:
                    fault = CUT
                else:
                    members.append(TarMember(name=entry.name, offset=entry.offset_data, num_bytes=entry.size))
            file.seek(tar.offset)
            if any(file.read(tarfile.BLOCKSIZE)):  # neither the end nor a block of zeros: a header that is none
                fault = CUT
    except (tarfile.TarError, UnicodeError, ValueError):
        fault = CUT if members or skipped else NOT_A_TAR
    return TarContent(members=tuple(members), skipped=dict(skipped), fault=fault)


def _kind(entry: tarfile.TarInfo) -> str:
    if entry.isdir():
        return "directory"
    return "hard_link" if entry.islnk() else "symbolic_link" if entry.issym() else "other"
