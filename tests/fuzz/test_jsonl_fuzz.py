"""Lines from strangers: any bytes are a row or a named fault, from any range of the file, in bounded time and depth."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.records import IndexRow
from pipeline.sources.json_text import MAX_JSON_DEPTH, JsonFault, parse_json
from pipeline.sources.jsonl_lines import cut_ranges, iter_lines
from pipeline.sources.settings import MeasureSettings
from pipeline.sources.vlm_sft import measure, named_media
from pipeline.storage import Storage

QUICK = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
PATHS = st.sampled_from(["a.jpg", "../a.jpg", "/etc/passwd", "", ".", "a\0b", "file:///etc/passwd", "s3://x/y", "~"])
TURN = st.fixed_dictionaries(
    {},
    optional={
        "from": st.sampled_from(["human", "gpt", "system", 3, None]),
        "role": st.sampled_from(["user", "assistant", "tool"]),
        "value": st.text(max_size=30) | st.sampled_from(["<image>", "<video>", "<image><image>x"]) | JSON,
        "content": JSON | st.lists(st.dictionaries(st.sampled_from(["type", "text", "image_url", "image"]), JSON)),
    },
)
ROW = st.fixed_dictionaries(
    {},
    optional={
        "image": PATHS | st.lists(PATHS | JSON, max_size=3) | JSON,
        "video": PATHS | JSON,
        "conversations": st.lists(TURN | JSON, max_size=4) | JSON,
        "messages": st.lists(TURN | JSON, max_size=4) | JSON,
    },
)
REASON_CHARACTERS = set("abcdefghijklmnopqrstuvwxyz_0123456789")


def read(line: bytes, root: Path, *, improved: bool) -> str:
    """The fault of a line."""
    chosen = MeasureSettings(
        kind="vlm_sft",
        source="group/it",
        root=str(root),
        corrections=("placeholders", "system_turns") if improved else (),
        decode=False,
        improved=improved,
        allow_outside=False,
        may_draw_no_frame=False,
    )
    named_media(line, 0, chosen)
    fault = measure(line, IndexRow(row=0, line_offset=0, line_num_bytes=len(line)), chosen, Storage()).row.fault
    assert set(fault) <= REASON_CHARACTERS, fault
    return fault


@QUICK
@given(row=ROW, improved=st.booleans())
def test_any_row_is_measured_or_has_a_named_fault(row: dict[str, Any], improved: bool, tmp_path: Path) -> None:
    read(json.dumps(row).encode() + b"\n", tmp_path, improved=improved)


@QUICK
@given(line=st.binary(max_size=200), improved=st.booleans())
def test_any_bytes_are_a_row_or_a_named_fault(line: bytes, improved: bool, tmp_path: Path) -> None:
    read(line, tmp_path, improved=improved)


@QUICK
@given(row=ROW, place=st.integers(0, 400), injury=st.binary(max_size=3), improved=st.booleans())
def test_any_damaged_row_is_a_row_or_a_named_fault(
    row: dict[str, Any], place: int, injury: bytes, improved: bool, tmp_path: Path
) -> None:
    line = json.dumps(row).encode()
    read(line[:place] + injury + line[place + 1 :], tmp_path, improved=improved)


@QUICK
@given(
    pieces=st.lists(
        st.sampled_from([b"{}", b"\r", b"\n", b"\r\n", b"", b"x" * 30, b"\xe2\x80\xa8", b"\x0b"]), max_size=20
    ),
    range_bytes=st.integers(1, 60),
    block_bytes=st.integers(1, 20),
)
def test_any_file_comes_apart_into_the_same_lines_whatever_the_ranges(
    pieces: list[bytes], range_bytes: int, block_bytes: int, tmp_path: Path
) -> None:
    content = b"".join(pieces)
    path = tmp_path / "it.jsonl"
    path.write_bytes(content)
    found = [
        line
        for start, end in cut_ranges(len(content), range_bytes)
        for line in iter_lines(Storage(), str(path), start, end, max_line_bytes=50, block_bytes=block_bytes)
    ]
    short = [line for line in content.splitlines(keepends=True) if len(line) <= 50]
    assert [line for _, _, line in found if line is not None] == short
    assert sum(num_bytes for _, num_bytes, _ in found) == len(content)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10**6,
        "[" * 10**6 + "]" * 10**6,
        '{"a":' * 10**5 + "1" + "}" * 10**5,
        '"' + "\\" * 10**6,
        '["' + "[" * 10**6,
        "1" * 10**5,
        '{"a": ' + "9" * 10**5 + "}",
        ("[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH + ",") * 200,
        '["\\u' * 10**5,
    ],
)
def test_texts_made_to_hurt_are_faults_within_seconds(text: str) -> None:
    start = time.process_time()
    with pytest.raises(JsonFault):
        parse_json(text)
    assert time.process_time() - start < 10


def test_brackets_inside_a_string_are_no_nesting() -> None:
    assert parse_json(json.dumps("[" * 10**5)) == "[" * 10**5
