"""Tars from strangers: whatever the bytes are, members lie inside the file, and nothing is written or executed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.sources.tar_members import TarContent, TarReader, list_members
from pipeline.storage import Storage

QUICK = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


def entry(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    """A member."""
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, target, len(content)
    return made, content


def packed(*entries: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar of them."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for made, content in entries:
            tar.addfile(made, io.BytesIO(content))
    return stream.getvalue()


NASTY = packed(
    entry("../escaped.txt", b"outside"),
    entry("/absolute.txt", b"outside"),
    entry("link", kind=tarfile.SYMTYPE, target="/etc/passwd"),
    entry("hard", kind=tarfile.LNKTYPE, target="../escaped.txt"),
    entry("device", kind=tarfile.CHRTYPE),
    entry("pipe", kind=tarfile.FIFOTYPE),
    entry("folder", kind=tarfile.DIRTYPE),
    entry("x" * 300, b"a long name"),
    entry("./dotted.jpg", b"dotted"),
    entry("twice", b"first"),
    entry("twice", b"second"),
)


def listed(content: bytes, folder: Path) -> TarContent:
    """Write the bytes, list them, and look whether anything else appeared."""
    path = folder / "it.tar"
    path.write_bytes(content)
    reader = TarReader(Storage())
    try:
        found = list_members(str(path), reader)
        for member in found.members:
            assert len(reader.read(str(path), member.offset, member.num_bytes)) == member.num_bytes
    finally:
        reader.close()
    assert [file.name for file in folder.iterdir()] == ["it.tar"]
    return found


def test_a_malicious_tar_is_only_a_list_of_names(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    found = listed(NASTY, folder)
    names = ["../escaped.txt", "/absolute.txt", "x" * 300, "./dotted.jpg", "twice", "twice"]
    assert [member.name for member in found.members] == names
    assert sum(found.skipped.values()) == 5
    assert not (tmp_path / "escaped.txt").exists()
    assert not Path("/absolute.txt").exists()


@QUICK
@given(content=st.binary(max_size=3000))
def test_any_bytes_are_a_tar_or_a_named_fault(content: bytes, tmp_path: Path) -> None:
    assert listed(content, tmp_path).fault in ("", "cut_tar", "not_a_tar")


@QUICK
@given(
    injuries=st.lists(st.tuples(st.integers(0, len(NASTY) - 1), st.integers(0, 255)), max_size=12),
    cut=st.integers(0, len(NASTY)),
    compress=st.sampled_from([bytes, gzip.compress, bz2.compress, lzma.compress]),
)
def test_any_damaged_tar_is_a_tar_or_a_named_fault(
    injuries: list[tuple[int, int]], cut: int, compress: object, tmp_path: Path
) -> None:
    content = bytearray(NASTY[:cut])
    for place, value in injuries:
        if place < len(content):
            content[place] = value
    assert callable(compress)
    assert listed(compress(bytes(content)), tmp_path).fault in ("", "cut_tar", "not_a_tar")


@QUICK
@given(
    injuries=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6),
    compress=st.sampled_from([gzip.compress, bz2.compress, lzma.compress]),
)
def test_any_damaged_compression_is_a_tar_or_a_named_fault(
    injuries: list[tuple[float, int]], compress: object, tmp_path: Path
) -> None:
    assert callable(compress)
    content = bytearray(compress(NASTY))
    for place, value in injuries:
        content[int(place * len(content))] = value
    assert listed(bytes(content), tmp_path).fault in ("", "cut_tar", "not_a_tar")


@pytest.mark.parametrize("field", ["size", "mtime"])
def test_numbers_that_are_no_numbers_are_no_crash(field: str, tmp_path: Path) -> None:
    content = bytearray(packed(entry("a", b"b"), form=tarfile.USTAR_FORMAT))
    place = {"size": 124, "mtime": 136}[field]
    content[place : place + 12] = b"\xff" * 12
    assert listed(bytes(content), tmp_path).fault in ("", "cut_tar", "not_a_tar")
