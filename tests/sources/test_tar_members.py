"""Tars as the world sends them: long names, links, cut, compressed; a member is read by its range."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from pipeline.sources.tar_members import TarContent, TarReader, list_members
from pipeline.storage import Storage
from tests.datamaker.conversations import tar_bytes


def listed(path: Path, content: bytes) -> tuple[TarContent, list[bytes]]:
    """What a tar holds, and the bytes of each member read by range."""
    path.write_bytes(content)
    reader = TarReader(Storage())
    found = list_members(str(path), reader)
    contents = [reader.read(str(path), member.offset, member.num_bytes) for member in found.members]
    reader.close()
    return found, contents


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type = kind
    entry.linkname = target
    return entry


FILES = [("a.png", b"first"), ("dir/b.png", b"x" * 1000), ("empty.png", b"")]


def test_members_are_read_by_range(tmp_path: Path) -> None:
    found, contents = listed(tmp_path / "a.tar", tar_bytes(FILES))
    assert [member.name for member in found.members] == ["a.png", "dir/b.png", "empty.png"]
    assert contents == [b"first", b"x" * 1000, b""]
    assert (found.skipped, found.fault) == ({}, "")


def test_long_names_are_followed(tmp_path: Path) -> None:
    name = "deep/" * 60 + "über.png"
    found, contents = listed(tmp_path / "a.tar", tar_bytes([(name, b"here"), ("./b.png", b"there")]))
    assert [member.name for member in found.members] == [name, "./b.png"]
    assert contents == [b"here", b"there"]


def test_directories_and_links_hold_no_data_and_are_counted(tmp_path: Path) -> None:
    entries = [
        special("dir", tarfile.DIRTYPE),
        *FILES,
        special("hard", tarfile.LNKTYPE, "a.png"),
        special("soft", tarfile.SYMTYPE, "/etc/passwd"),
        special("pipe", tarfile.FIFOTYPE),
    ]
    found, contents = listed(tmp_path / "a.tar", tar_bytes(entries))
    assert found.skipped == {"directory": 1, "hard_link": 1, "symbolic_link": 1, "other": 1}
    assert contents == [b"first", b"x" * 1000, b""]


def test_the_same_name_twice_is_two_members(tmp_path: Path) -> None:
    _, contents = listed(tmp_path / "a.tar", tar_bytes([("a.png", b"old"), ("a.png", b"new")]))
    assert contents == [b"old", b"new"]


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_a_compressed_tar_is_read_whatever_it_is_called(tmp_path: Path, mode: str) -> None:
    found, contents = listed(tmp_path / "a.tar", tar_bytes(FILES, mode))
    assert contents == [b"first", b"x" * 1000, b""]
    assert found.fault == ""


def test_a_tar_cut_inside_a_member_gives_the_members_before(tmp_path: Path) -> None:
    content = tar_bytes(FILES)
    inside = content.index(b"x" * 1000) + 500
    found, contents = listed(tmp_path / "a.tar", content[:inside])
    assert contents == [b"first"]
    assert found.fault == "cut_tar"


def test_a_tar_cut_inside_a_header_gives_the_members_before(tmp_path: Path) -> None:
    content = tar_bytes(FILES)
    found, contents = listed(tmp_path / "a.tar", content[: content.index(b"dir/b.png") + 100])
    assert contents == [b"first"]
    assert found.fault == "cut_tar"


def test_a_compressed_tar_that_breaks_off_gives_the_members_before(tmp_path: Path) -> None:
    file = io.BytesIO()
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=0) as zipped:  # stored, so that a cut is a cut
        zipped.write(tar_bytes(FILES))
    content = file.getvalue()
    found, contents = listed(tmp_path / "a.tar", content[: content.index(b"x" * 1000) + 500])
    assert contents == [b"first"]
    assert found.fault == "cut_tar"


@pytest.mark.parametrize("content", [b"", b"no tar", b"no tar " * 500])
def test_what_is_no_tar_says_so(tmp_path: Path, content: bytes) -> None:
    found, _ = listed(tmp_path / "a.tar", content)
    assert (found.members, found.fault) == ((), "not_a_tar")


def test_headers_are_all_that_is_read(tmp_path: Path) -> None:
    class Counting(Storage):
        """Counts the bytes that are asked for by range."""

        def read_range(self, url: str, start: int, end: int) -> bytes:
            asked.append(end - start)
            return super().read_range(url, start, end)

    asked: list[int] = []
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("a.png", b"x" * 100_000), ("b.png", b"y" * 100_000)]))
    reader = TarReader(Counting())
    found = list_members(str(path), reader)
    assert reader.read(str(path), found.members[1].offset, 3) == b"yyy"
    assert asked == [6, 3]
