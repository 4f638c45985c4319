"""Which files a group uses, and how often."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.config import SourceConfig
from pipeline.errors import SourceError
from pipeline.sources.listing import list_group
from pipeline.storage import Storage
from tests.sources.rows import group_of


def folder_of(path: Path, *names: str) -> str:
    path.mkdir(parents=True)
    for name in names:
        (path / name).touch()
    return str(path)


@pytest.mark.parametrize(
    ("num_used_data", "used", "unused"),
    [
        (2, ["a", "b"], ["c"]),
        (3, ["a", "b", "c"], []),
        (7, ["a", "b", "c", "a", "b", "c", "a"], []),
        (0, [], ["a", "b", "c"]),
    ],
)
def test_the_listing_is_repeated_until_num_used_data_is_reached(
    tmp_path: Path, num_used_data: int, used: list[str], unused: list[str]
) -> None:
    root = folder_of(tmp_path / "data", "b.parquet", "c.parquet", "a.parquet", "notes.txt", "a.parquet.bak")
    source = SourceConfig(name="t2i_pretrain/one", data_dir=root, num_used_data=num_used_data)
    (files,) = list_group(group_of("t2i_pretrain", [source]), Storage())
    assert [use.path for use in files.uses] == [f"{name}.parquet" for name in used]
    assert [use.spelled for use in files.uses] == [f"{root}/{name}.parquet" for name in used]
    assert list(files.unused) == [f"{name}.parquet" for name in unused]
    assert {use.num_row_groups for use in files.uses} <= {None}


def test_parquet_info_of_all_sources_together_says_which_files_count(tmp_path: Path) -> None:
    one = folder_of(tmp_path / "one", "a.parquet", "b.parquet")
    two = folder_of(tmp_path / "two", "a.parquet")
    (tmp_path / "info.json").write_text(
        json.dumps({f"{one}/b.parquet": {"num_row_groups": 3}, f"{two}/a.parquet": {"num_row_groups": 1}})
    )
    sources = [
        SourceConfig(
            name="unified_edit/one", data_dir=one, num_used_data=4, parquet_info_path=str(tmp_path / "info.json")
        ),
        SourceConfig(name="unified_edit/two", data_dir=two + "/", num_used_data=1),
    ]
    first, second = list_group(group_of("unified_edit", sources), Storage())
    assert [(use.path, use.num_row_groups) for use in first.uses] == [("b.parquet", 3)] * 2
    assert first.unused == ("a.parquet",)
    assert [(use.spelled, use.num_row_groups) for use in second.uses] == [(f"{two}/a.parquet", 1)]


def test_without_parquet_info_every_file_counts(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "one", "a.parquet")
    source = SourceConfig(name="unified_edit/one", data_dir=root, num_used_data=1)
    (files,) = list_group(group_of("unified_edit", [source]), Storage())
    assert [use.num_row_groups for use in files.uses] == [None]


def test_parquet_info_that_matches_no_file_shows_both_spellings(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "one", "a.parquet")
    (tmp_path / "info.json").write_text(json.dumps({"elsewhere/a.parquet": {"num_row_groups": 3}}))
    source = SourceConfig(
        name="unified_edit/one", data_dir=root, num_used_data=1, parquet_info_path=str(tmp_path / "info.json")
    )
    with pytest.raises(SourceError, match=r"one/a.parquet', keys like 'elsewhere/a.parquet'"):
        list_group(group_of("unified_edit", [source]), Storage())


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("t2i_pretrain", {"data_dir": "nowhere"}, "does not exist"),
        ("t2i_pretrain", {"data_dir": "empty"}, "holds no file ending in .parquet"),
        ("vlm_sft", {"jsonl_path": "lines.jsonl"}, "does not exist"),
        ("unified_edit", {"data_dir": "full", "parquet_info_path": "none.json"}, "does not exist"),
        ("unified_edit", {"data_dir": "full", "parquet_info_path": "bad.json"}, "not a parquet_info file"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, kind: str, changes: dict[str, str], message: str) -> None:
    folder_of(tmp_path / "empty")
    folder_of(tmp_path / "full", "a.parquet")
    (tmp_path / "bad.json").write_text("[1]")
    places = {key: str(tmp_path / name) for key, name in changes.items()}
    source = SourceConfig(name=f"{kind}/one", num_used_data=1, **{"data_dir": str(tmp_path), **places})
    with pytest.raises(SourceError, match=message):
        list_group(group_of(kind, [source]), Storage())
