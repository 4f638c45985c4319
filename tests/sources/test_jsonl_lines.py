"""JSONL by byte ranges: every line belongs to exactly one range, and lines end where Python says they do."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.sources.jsonl_lines import cut_ranges, iter_lines
from pipeline.storage import Storage

contents = st.lists(st.sampled_from([b"{}", b"a", b"\n", b"\r", b"\r\n", "\u2028".encode(), b"long line "])).map(
    b"".join
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=contents, range_bytes=st.integers(1, 12), block_bytes=st.integers(1, 9))
def test_ranges_of_any_size_cover_every_line_once(
    tmp_path: Path, content: bytes, range_bytes: int, block_bytes: int
) -> None:
    (tmp_path / "lines").write_bytes(content)
    found = [
        line
        for start, end in cut_ranges(len(content), range_bytes)
        for line in iter_lines(Storage(), str(tmp_path / "lines"), start, end, block_bytes=block_bytes)
    ]
    expected = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").readlines()
    texts = [(line or b"").decode().replace("\r\n", "\n").replace("\r", "\n") for _, _, line in found]
    assert texts == expected
    assert b"".join(line or b"" for _, _, line in found) == content
    assert [(offset, num_bytes) for offset, num_bytes, _ in found] == [
        (sum(len(line or b"") for _, _, line in found[:number]), len(line or b""))
        for number, (_, _, line) in enumerate(found)
    ]


def test_a_line_beyond_the_limit_keeps_its_place_and_loses_its_content(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"short\n" + b"x" * 50 + b"\nend")
    lines = iter_lines(Storage(), str(tmp_path / "lines"), 0, 60, max_line_bytes=20, block_bytes=16)
    assert list(lines) == [(0, 6, b"short\n"), (6, 51, None), (57, 3, b"end")]


@pytest.mark.parametrize("block_bytes", [7, 1 << 20])
def test_a_long_line_is_read_by_the_range_it_begins_in(tmp_path: Path, block_bytes: int) -> None:
    (tmp_path / "lines").write_bytes(b"a\n" + b"b" * 100 + b"\nc\n")
    url = str(tmp_path / "lines")
    parts = [
        list(iter_lines(Storage(), url, *part, block_bytes=block_bytes)) for part in [(0, 40), (40, 80), (80, 105)]
    ]
    assert [[line[0] for line in part] for part in parts] == [[0, 2], [], [103]]


def test_an_empty_file_is_one_empty_range(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"")
    assert cut_ranges(0, 10) == [(0, 0)]
    assert list(iter_lines(Storage(), str(tmp_path / "lines"), 0, 0)) == []
