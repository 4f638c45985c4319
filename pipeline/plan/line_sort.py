"""Sort the raw lines of JSONL files without holding them: `sorted(lines)` of the reference, out of core.

    order ──8 bytes of every line──► uint64 keys ──argsort──► runs of equal keys ──the next 8 bytes──► …
                                                         └──few bytes left──► read and sort in memory

A line counts as the reference reads it, in text mode: its end (`\\n`, `\\r\\n`, `\\r`) is one `\\n`; the last line may
have none. Python compares text by code point; UTF-8 keeps that order, so bytes are compared. (A line that is no valid
UTF-8 is an error there; here it has a place, by its bytes.) Equal lines go by media root, then by place in the sources.

Memory: about 40 bytes a line at the peak (offset, size, position and key), plus BUDGET_BYTES; never the texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.plan.order import Positions

__all__ = ["LineFile", "RawLines", "sort_lines"]

BUDGET_BYTES = 4 << 20
LINE_OVERHEAD_BYTES = 96  # of a Python bytes object and its place in a list
KEY_BYTES = 8
GATHER_LINES = 1 << 18

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFile:
    """Lines of one file, of which any subset may be sorted.

    Attributes:
        content: The file's bytes (mapped).
        offsets: Byte offset of each line, int64 [n].
        num_bytes: Length of each line with its end, int64 [n].
        rank: Equal lines of two files are ordered by this number.
    """

    content: Bytes
    offsets: Positions
    num_bytes: Positions
    rank: int


class RawLines:
    """The lines of several files under one numbering: those of the first file, then those of the second, …

    A line's text is its content followed by `\\n` if it had any line end.
    """

    def __init__(self, files: Sequence[LineFile]) -> None:
        self._contents = [file.content for file in files]
        counts = [len(file.offsets) for file in files]
        self.file = np.repeat(np.arange(len(files), dtype=np.int32), counts)
        self.rank = np.array([file.rank for file in files], np.int32)
        self._offsets = _concatenated([file.offsets for file in files])
        ends = _concatenated([_end_lengths(file) for file in files])
        self._content_sizes = _concatenated([file.num_bytes for file in files]) - ends
        self.sizes = self._content_sizes + (ends > 0)

    def __len__(self) -> int:
        return len(self.sizes)

    def text(self, line: int, start: int = 0, end: int | None = None) -> bytes:
        """Bytes [start, end) of a line's text."""
        size = int(self.sizes[line])
        content = int(self._content_sizes[line])
        stop = size if end is None else min(end, size)
        first = int(self._offsets[line])
        cut: bytes = self._contents[self.file[line]][first + start : first + max(start, min(stop, content))].tobytes()
        return cut + b"\n" if start <= content < stop else cut

    def keys(self, lines: Positions, depth: int) -> npt.NDArray[np.uint64]:
        """Bytes [depth, depth + 8) of each line's text as a big-endian number, zeros where the text has ended."""
        keys = np.zeros(len(lines), np.uint64)
        for first in range(0, len(lines), GATHER_LINES):
            part = slice(first, first + GATHER_LINES)
            keys[part] = self._keys(lines[part], depth)
        return keys

    def _keys(self, lines: Positions, depth: int) -> npt.NDArray[np.uint64]:
        octets = np.zeros((len(lines), KEY_BYTES), np.uint8)
        content = self._content_sizes[lines]
        offsets = self._offsets[lines]
        files = self.file[lines]
        for number in np.unique(files).tolist():
            members = np.flatnonzero(files == number)
            for octet in range(KEY_BYTES):
                inside = members[content[members] > depth + octet]
                octets[inside, octet] = self._contents[number][offsets[inside] + (depth + octet)]
        ended = np.flatnonzero((self.sizes[lines] > content) & (content >= depth) & (content < depth + KEY_BYTES))
        octets[ended, content[ended] - depth] = ord("\n")
        return octets.view(">u8").reshape(-1).astype(np.uint64)


def sort_lines(lines: RawLines, budget_bytes: int = BUDGET_BYTES) -> Positions:
    """Numbers of the lines in sorted order, int64 [n]."""
    order = np.arange(len(lines), dtype=np.int64)
    # Runs [start, end) of `order` whose texts agree in their first `depth` bytes and still want sorting.
    runs: list[tuple[int, int, int]] = [(0, len(order), 0)]
    while runs:
        start, end, depth = runs.pop()
        run = order[start:end]  # a view: sorting it sorts `order`
        left = int(np.maximum(lines.sizes[run] - depth, 0).sum()) + LINE_OVERHEAD_BYTES * len(run)
        if left <= budget_bytes:
            run[:] = _sorted_in_memory(lines, run, depth)
            continue
        depth += _skip(lines, run, depth, budget_bytes)
        runs.extend((start + first, start + last, depth + KEY_BYTES) for first, last in _split(lines, run, depth))
    return order


def _sorted_in_memory(lines: RawLines, run: Positions, depth: int) -> list[int]:
    texts = {line: lines.text(line, depth) for line in run.tolist()}
    ranks = lines.rank[lines.file[run]].tolist()
    return [line for _, _, line in sorted(zip(texts.values(), ranks, texts, strict=True))]


def _split(lines: RawLines, run: Positions, depth: int) -> list[tuple[int, int]]:
    """Sort a run by its next 8 bytes; the parts that are still undecided.

    Texts that end within the key and agree in it differ in trailing NULs at most: the shorter one is a prefix of all
    the others of its part, so it comes first.
    """
    keys = lines.keys(run, depth)
    by_key = np.argsort(keys, kind="stable")
    run[:] = run[by_key]
    keys = keys[by_key]
    bounds = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1], [True])))
    undecided: list[tuple[int, int]] = []
    for index in np.flatnonzero(np.diff(bounds) > 1).tolist():
        first, last = int(bounds[index]), int(bounds[index + 1])
        part = run[first:last]
        ended = lines.sizes[part] <= depth + KEY_BYTES
        if ended.any():
            short = part[ended]
            ordered = np.lexsort((short, lines.rank[lines.file[short]], lines.sizes[short]))
            part[:] = np.concatenate((short[ordered], part[~ended]))
            first += len(short)
        if last - first > 1:
            undecided.append((first, last))
    return undecided


def _skip(lines: RawLines, run: Positions, depth: int, budget_bytes: int) -> int:
    """Bytes after `depth` that all texts of a run of few, long lines have in common (0 if it does not pay to look)."""
    reach = min(int(lines.sizes[run].min()) - depth, budget_bytes // len(run))
    if reach <= 64 * KEY_BYTES:
        return 0
    first = np.frombuffer(lines.text(int(run[0]), depth, depth + reach), np.uint8)
    for line in run[1:].tolist():
        other = np.frombuffer(lines.text(line, depth, depth + len(first)), np.uint8)
        differing = np.flatnonzero(first != other)
        if len(differing):
            first = first[: int(differing[0])]
    return len(first)


def _end_lengths(file: LineFile) -> Positions:
    r"""Bytes of each line's end: 2 for `\r\n`, 1 for `\n` and for a lone `\r`, 0 for a last line without one."""
    last = file.offsets + file.num_bytes - 1
    filled = file.num_bytes > 0
    final = np.where(filled, file.content[np.where(filled, last, 0)], 0) if len(file.content) else np.zeros(0, np.uint8)
    before = np.where(file.num_bytes > 1, file.content[np.maximum(last - 1, 0)], 0) if len(file.content) else final
    newline, carriage = final == ord("\n"), final == ord("\r")
    lengths: Positions = (newline | carriage).astype(np.int64) + (newline & (before == ord("\r")))
    return lengths


def _concatenated(arrays: Sequence[Positions]) -> Positions:
    return np.concatenate([*arrays, np.zeros(0, np.int64)])
