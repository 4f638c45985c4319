"""Lines sorted out of core come in the order of Python's `sorted` on what text mode reads."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.plan.line_sort import LineFile, RawLines, sort_lines

ENDS = (b"\n", b"\r\n", b"\r")


def line_file(pieces: list[bytes], rank: int) -> LineFile:
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    return LineFile(
        content=np.frombuffer(b"".join(pieces), np.uint8),
        offsets=np.cumsum(sizes) - sizes,
        num_bytes=sizes,
        rank=rank,
    )


def expected_order(files: list[tuple[list[bytes], int]]) -> list[int]:
    """What the reference does: read in text mode, sort (line, media root) tuples; stable."""
    tuples = []
    for pieces, rank in files:
        for piece in pieces:
            text = piece.decode().replace("\r\n", "\n").replace("\r", "\n")
            tuples.append((text, rank))
    return sorted(range(len(tuples)), key=lambda number: tuples[number])


def check(files: list[tuple[list[bytes], int]], budgets: tuple[int, ...] = (0, 500, 1 << 20)) -> None:
    lines = RawLines([line_file(pieces, rank) for pieces, rank in files])
    for budget in budgets:
        assert sort_lines(lines, budget).tolist() == expected_order(files)


def test_line_ends_of_every_kind_compare_as_one_newline() -> None:
    check([([b"b\r\n", b"b\n", b"b\r", b"a\n", b"b"], 0)])


def test_a_line_without_end_sorts_before_the_same_line_with_one() -> None:
    check([([b"same\n", b"same"], 0)])


def test_a_long_common_prefix_is_skipped_and_decided_late() -> None:
    prefix = b'{"image": "' + b"x" * 5000
    check([([prefix + b"%d\n" % number for number in (3, 1, 20, 2, 10)], 0)])


def test_lines_that_are_prefixes_of_each_other_keep_their_order() -> None:
    check([([b"abcdefgh" * count + b"\n" for count in (5, 3, 1, 4, 2, 9, 8)], 0)])


def test_equal_lines_go_by_media_root_and_then_by_place() -> None:
    check([([b"x\n", b"a\n", b"x\n"], 5), ([b"x\n", b"x\n"], 2), ([b"x\n"], 5)])


def test_trailing_nuls_are_told_from_the_end_of_a_line() -> None:
    check([([b"a\x00\x00\n", b"a", b"a\x00", b"a\x00\x00\x00\x00\x00\x00\x00\x00\x00", b"a\n", b"a\x00\n"], 0)])


def test_code_points_beyond_the_basic_plane_sort_as_python_sorts_them() -> None:
    check([(["\U0001f600\n".encode(), "\uffee\n".encode(), "é\n".encode(), b"z\n"], 0)])


def test_two_equal_lines_of_many_megabytes_do_not_take_eight_bytes_at_a_time() -> None:
    long = b"y" * (3 << 20)
    check([([long + b"2\n", long + b"1\n", long + b"\n"], 0)], budgets=(1 << 20,))


def test_a_thousand_random_lines_of_three_files() -> None:
    draws = random.Random(5)
    words = ["cat", "dog", '{"id": ', "0", "é", "\U0001f600"]
    files = []
    for rank in (1, 0, 1):
        pieces = [
            ("".join(draws.choices(words, k=draws.randrange(8)))).encode() + draws.choice(ENDS[:2]) for _ in range(400)
        ]
        files.append((pieces, rank))
    check(files)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.text(alphabet="ab\x00é{", max_size=20), st.sampled_from(ENDS)), max_size=12),
            st.integers(0, 2),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_lines_sort_as_python_sorts_them(files: list[tuple[list[tuple[str, bytes]], int]]) -> None:
    check([([text.encode() + end for text, end in pieces], rank) for pieces, rank in files], budgets=(0, 300))


@pytest.mark.parametrize("content", [b"", b"\n", b"x"])
def test_a_file_of_one_line_or_none_is_fine(content: bytes, tmp_path: Path) -> None:
    check([([content] if content else [], 0)])
