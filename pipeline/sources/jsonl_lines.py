"""JSONL by byte ranges: any range of a file knows its own lines without reading what comes before it.

A line belongs to the range that holds its first byte. Lines end as Python's universal newlines end them: at "\\n",
"\\r\\n" or a lone "\\r", and nowhere else.

    bytes      {"a":1}\\n{"a":2}\\r\\n{"a":3}
    ranges     [0 ───── 9)[9 ─────── 20)     [9, 20) looks at byte 8, is inside line 2, and starts at line 3
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.storage import Storage

__all__ = ["MAX_LINE_BYTES", "cut_ranges", "iter_lines"]

MAX_LINE_BYTES = 256 << 20
"""A longer line is a fault (`line_too_long`): it would have to be held in memory whole."""

_BLOCK_BYTES = 4 << 20


def cut_ranges(num_bytes: int, range_bytes: int) -> list[tuple[int, int]]:
    """Cut a file into ranges of `range_bytes` (the last one shorter); an empty file is one empty range."""
    return [(start, min(start + range_bytes, num_bytes)) for start in range(0, max(num_bytes, 1), range_bytes)]


def iter_lines(
    storage: Storage,
    url: str,
    start: int,
    end: int,
    *,
    max_line_bytes: int = MAX_LINE_BYTES,
    block_bytes: int = _BLOCK_BYTES,
) -> Iterator[tuple[int, int, bytes | None]]:
    """The lines whose first byte lies in [start, end): (offset, number of bytes, content).

    The content includes the line end, as it is in the file; it is None for a line longer than `max_line_bytes`.
    """
    offset = max(0, start - 1)  # the piece from start - 1 to the next line end belongs to the range before
    pieces: list[bytes] = []
    num_bytes = 0
    position = offset
    while offset < end:
        block = _read_block(storage, url, position, block_bytes)
        position += len(block)
        for piece in block.splitlines(keepends=True):
            num_bytes += len(piece)
            if num_bytes <= max_line_bytes:
                pieces.append(piece)
            if not piece.endswith((b"\n", b"\r")):
                continue  # the last piece of the block: its line goes on
            if start <= offset < end:
                yield offset, num_bytes, b"".join(pieces) if num_bytes <= max_line_bytes else None
            offset += num_bytes
            pieces, num_bytes = [], 0
        if not block:
            break
    if num_bytes and start <= offset < end:  # the file's last line has no line end
        yield offset, num_bytes, b"".join(pieces) if num_bytes <= max_line_bytes else None


def _read_block(storage: Storage, url: str, position: int, block_bytes: int) -> bytes:
    """The next bytes; never ending between "\\r" and "\\n"."""
    block = storage.read_range(url, position, position + block_bytes)
    while block.endswith(b"\r"):
        following = storage.read_range(url, position + len(block), position + len(block) + 1)
        block += following
        if following != b"\r":
            break
    return block
