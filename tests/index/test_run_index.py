"""The index stage: cached units, changed files, ranges of a JSONL, and when a source stops the run."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.bake import BakeFolder
from pipeline.config import Config, SourceConfig
from pipeline.errors import RunFailed, SourceError, TooManyDrops
from pipeline.executor import SilentProgress
from pipeline.index import run, run_index, unit
from pipeline.records import SourceIndex
from pipeline.schemas import INDEX_SCHEMA
from pipeline.storage import Storage
from pipeline.tokenizer import load_tokenizer
from tests.datamaker import encode, picture, write_edit, write_t2i, write_tokenizer
from tests.datamaker.jsonl import conversation, write_conversations
from tests.datamaker.parquet import write_parquet_info
from tests.sources.rows import config_of, group_of, index_of, rows_of

JPEG = encode(picture(1, 40, 30))


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


class Counted:
    """An inline executor that writes down which units really ran."""

    def __init__(self) -> None:
        self.units: list[str] = []

    def map(self, function: Callable[[Any], Any], units: Iterable[Any]) -> Iterator[Any]:
        for given in units:
            self.units.append(given.unit)
            yield function(given)

    def close(self) -> None:
        pass


def ran(config: Config) -> tuple[list[str], tuple[SourceIndex, ...]]:
    """Units that were handed out, and the index."""
    executor = Counted()
    indexes = run_index(
        config,
        BakeFolder(config.bake.output),
        Storage(),
        load_tokenizer(config.tokenizer_path),
        executor,
        SilentProgress(),
    )
    return executor.units, indexes


def t2i_config(folder: Path, tokenizer: Path, *, num_used_data: int = 4, **bake: Any) -> Config:
    source = SourceConfig(name="t2i_pretrain/one", data_dir=str(folder / "t2i"), num_used_data=num_used_data)
    return config_of(folder / "bake", tokenizer, group_of("t2i_pretrain", [source]), **bake)


def vlm_config(folder: Path, tokenizer: Path, lines: list[object], *, used: int = 999, **bake: Any) -> Config:
    path = write_conversations(folder / "lines.jsonl", lines, last_line_end=lines != [b""])
    source = SourceConfig(name="vlm_sft/one", data_dir=str(folder), jsonl_path=str(path), num_used_data=used)
    shuffle = bake.pop("shuffle_lines", False)
    return config_of(folder / "bake", tokenizer, group_of("vlm_sft", [source], shuffle_lines=shuffle), **bake)


def line(number: int) -> dict[str, object]:
    return {"conversations": conversation(("human", f"number {number}"), ("gpt", "yes"))}


def test_a_second_run_finds_everything_done(tmp_path: Path, tokenizer_path: Path) -> None:
    write_t2i(tmp_path / "t2i")
    config = t2i_config(tmp_path, tokenizer_path)
    units, first = ran(config)
    assert units == [f"part-{number:03d}.parquet" for number in range(4)]
    assert ran(config) == ([], first)
    schema = pq.read_schema(tmp_path / "bake/index/t2i_pretrain%2Fone/part-000.parquet.parquet")
    assert schema.remove_metadata() == INDEX_SCHEMA


def test_only_the_unit_of_a_changed_file_is_measured_again(
    tmp_path: Path, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_t2i(tmp_path / "t2i")
    config = t2i_config(tmp_path, tokenizer_path)
    _, first = ran(config)
    shutil.copy(tmp_path / "t2i/part-001.parquet", tmp_path / "t2i/part-002.parquet")
    measured = []
    opened = unit.opened_parquet
    monkeypatch.setattr(unit, "opened_parquet", lambda url, storage: measured.append(url) or opened(url, storage))
    _, second = ran(config)
    assert [Path(url).name for url in measured] == ["part-002.parquet"]
    assert second[0].units[2].content == first[0].units[1].content
    assert second[0].units[0] == first[0].units[0]


def test_a_lost_index_file_is_made_again(tmp_path: Path, tokenizer_path: Path) -> None:
    write_t2i(tmp_path / "t2i")
    config = t2i_config(tmp_path, tokenizer_path)
    _, first = ran(config)
    (tmp_path / "bake/index/t2i_pretrain%2Fone/part-001.parquet.parquet").unlink()
    _, second = ran(config)
    assert second == first
    (tmp_path / "bake/index/t2i_pretrain%2Fone/source.json").unlink()
    (tmp_path / "bake/index/t2i_pretrain%2Fone/part-003.parquet.parquet").write_bytes(b"not what was published")
    assert ran(config)[1] == first
    assert rows_of(config)


@pytest.mark.parametrize("change", [{"check_images": "header"}, {"stream": "improved"}, {"corrections": ("exif",)}])
def test_another_way_of_measuring_measures_again(tmp_path: Path, tokenizer_path: Path, change: dict[str, Any]) -> None:
    write_t2i(tmp_path / "t2i")
    ran(t2i_config(tmp_path, tokenizer_path))
    units, _ = ran(t2i_config(tmp_path, tokenizer_path, **change))
    assert len(units) == 4
    units, _ = ran(t2i_config(tmp_path, tokenizer_path, **change, shard_bytes=5, max_dropped_fraction=0.5))
    assert units == []


def test_the_same_sources_in_another_place_have_the_same_content(tmp_path: Path, tokenizer_path: Path) -> None:
    for place in ("here", "there"):
        write_t2i(tmp_path / place / "t2i")
        (tmp_path / place / "a.jpg").write_bytes(JPEG)
        os.utime(tmp_path / place / "a.jpg", ns=(len(place), len(place)))
    configs = [
        config
        for place in ("here", "there")
        for config in (
            t2i_config(tmp_path / place, tokenizer_path),
            vlm_config(
                tmp_path / place,
                tokenizer_path,
                [{"image": "a.jpg", "conversations": conversation(("human", "<image>"), ("gpt", "a"))}],
            ),
        )
    ]
    here_t2i, here_vlm, there_t2i, there_vlm = [index_of(config) for config in configs]
    assert here_t2i == there_t2i
    assert here_vlm == there_vlm


def test_files_beyond_num_used_data_are_only_counted(tmp_path: Path, tokenizer_path: Path) -> None:
    write_t2i(tmp_path / "t2i", rows_per_file=5)
    (tmp_path / "t2i/part-003.parquet").write_bytes(b"broken, and not looked into")
    units, (index,) = ran(t2i_config(tmp_path, tokenizer_path, num_used_data=2))
    assert units == ["part-000.parquet", "part-001.parquet"]
    assert index.rows_unused == 5
    units, (index,) = ran(t2i_config(tmp_path, tokenizer_path, num_used_data=9))
    assert [indexed.fault for indexed in index.units] == ["", "", "", "unreadable_file"]
    assert index.rows_unused == 0


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more"])
def test_an_unreadable_file_is_named_and_the_others_go_on(tmp_path: Path, tokenizer_path: Path, content: bytes) -> None:
    write_t2i(tmp_path / "t2i")
    (tmp_path / "t2i/part-001.parquet").write_bytes(content)
    _, (index,) = ran(t2i_config(tmp_path, tokenizer_path))
    assert [(indexed.num_rows, indexed.fault) for indexed in index.units] == [
        (6, ""),
        (0, "unreadable_file"),
        (6, ""),
        (6, ""),
    ]


def test_a_file_cut_short_or_linked_to_nothing_is_named(tmp_path: Path, tokenizer_path: Path) -> None:
    write_t2i(tmp_path / "t2i")
    content = (tmp_path / "t2i/part-001.parquet").read_bytes()
    (tmp_path / "t2i/part-001.parquet").write_bytes(content[: len(content) // 2])
    (tmp_path / "t2i/part-002.parquet").unlink()
    (tmp_path / "t2i/part-002.parquet").symlink_to(tmp_path / "nowhere")
    _, (index,) = ran(t2i_config(tmp_path, tokenizer_path))
    assert index.units[1].fault == "unreadable_file"
    assert {indexed.path: indexed.fault for indexed in index.units}.get("part-002.parquet", "missing_file") == (
        "missing_file"
    )


def test_a_row_group_that_breaks_off_is_faulty_as_a_whole(tmp_path: Path, tokenizer_path: Path) -> None:
    write_t2i(tmp_path / "t2i", num_files=1)
    path = tmp_path / "t2i/part-000.parquet"
    file = pq.ParquetFile(path)
    column = file.metadata.row_group(1).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    file.close()
    content = bytearray(path.read_bytes())
    content[start : start + 40] = b"\xff" * 40
    path.write_bytes(content)
    rows = [row for _, row in rows_of(t2i_config(tmp_path, tokenizer_path, num_used_data=1))]
    assert [row.fault for row in rows] == [""] * 3 + ["unreadable_row_group"] * 3
    assert [(row.row, row.row_group, row.row_in_group) for row in rows[3:]] == [(3, 1, 0), (4, 1, 1), (5, 1, 2)]


def test_files_and_row_groups_without_rows_are_no_fault(tmp_path: Path, tokenizer_path: Path) -> None:
    write_t2i(tmp_path / "t2i", num_files=1)
    schema = pa.schema([("image", pa.binary()), ("captions", pa.string())])
    pq.write_table(schema.empty_table(), tmp_path / "t2i/empty.parquet")
    with pq.ParquetWriter(tmp_path / "t2i/holes.parquet", schema) as writer:
        writer.write_table(schema.empty_table())
        writer.write_table(pa.table({"image": [JPEG], "captions": ['{"a": "b"}']}, schema=schema))
        writer.write_table(schema.empty_table())
    _, (index,) = ran(t2i_config(tmp_path, tokenizer_path))
    assert [(indexed.path, indexed.num_rows, indexed.fault) for indexed in index.units] == [
        ("empty.parquet", 0, ""),
        ("holes.parquet", 1, ""),
        ("part-000.parquet", 6, ""),
    ]


@pytest.mark.parametrize("range_bytes", [1, 50, 100, 333, 1 << 20])
@pytest.mark.parametrize(("used", "shuffle"), [(999, False), (7, False), (1, False), (7, True)])
def test_ranges_of_a_jsonl_number_its_lines_and_stop_at_num_used_data(
    tmp_path: Path,
    tokenizer_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    range_bytes: int,
    used: int,
    shuffle: bool,
) -> None:
    monkeypatch.setattr(run, "JSONL_RANGE_BYTES", range_bytes if range_bytes > 1 else 37)
    config = vlm_config(tmp_path, tokenizer_path, [line(n) for n in range(12)], used=used, shuffle_lines=shuffle)
    (index,) = index_of(config)
    expected = 12 if shuffle else min(used, 12)
    found = rows_of(config)
    assert [row_id.row for row_id, _ in found] == list(range(expected))
    content = (tmp_path / "lines.jsonl").read_bytes().splitlines(keepends=True)
    lines = [
        (tmp_path / "lines.jsonl").read_bytes()[row.line_offset : row.line_offset + row.line_num_bytes]
        for _, row in found
    ]
    assert lines == content[:expected]
    assert index.rows_unused == 12 - expected


def test_a_file_that_changes_while_it_is_read_fails_the_run(
    tmp_path: Path, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_t2i(tmp_path / "t2i", num_files=1)
    opened = unit.opened_parquet

    def touched(url: str, storage: Storage) -> Any:
        os.utime(url, ns=(1, 1))
        return opened(url, storage)

    monkeypatch.setattr(unit, "opened_parquet", touched)
    with pytest.raises(RunFailed, match=r"part-000.parquet changed while it was indexed"):
        ran(t2i_config(tmp_path, tokenizer_path, num_used_data=1))
    assert not list((tmp_path / "bake/index").rglob("*.parquet"))


def test_a_missing_column_stops_the_run_and_lists_the_columns(tmp_path: Path, tokenizer_path: Path) -> None:
    (tmp_path / "t2i").mkdir()
    pq.write_table(pa.table({"jpg": [JPEG], "captions": ["{}"]}), tmp_path / "t2i/a.parquet")
    with pytest.raises(SourceError, match="no column 'image'; its columns are 'jpg', 'captions'"):
        ran(t2i_config(tmp_path, tokenizer_path, num_used_data=1))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"messages": [], "id": 1}] * 3, "no_conversations 3 .first: lines.jsonl row 0, .*its keys: messages, id"),
        (
            [{"image": f"{n}.jpg", "conversations": conversation(("gpt", "a"))} for n in range(4)],
            "missing_file 4 .first: lines.jsonl row 0, 0.jpg",
        ),
        ([b""], "no row was found"),
    ],
)
def test_a_source_without_a_usable_row_stops_the_run_and_says_why(
    tmp_path: Path, tokenizer_path: Path, lines: list[object], message: str
) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        ran(vlm_config(tmp_path, tokenizer_path, lines))
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(SourceError, match=message):  # and again, from the finished index
        ran(vlm_config(tmp_path, tokenizer_path, lines))


def test_a_source_whose_files_are_all_unreadable_stops_the_run(tmp_path: Path, tokenizer_path: Path) -> None:
    (tmp_path / "t2i").mkdir()
    (tmp_path / "t2i/a.parquet").write_bytes(b"nothing")
    with pytest.raises(SourceError, match=r"unreadable_file: a.parquet"):
        ran(t2i_config(tmp_path, tokenizer_path, num_used_data=1))


def test_too_many_drops_stop_the_run_after_all_of_them_are_counted(tmp_path: Path, tokenizer_path: Path) -> None:
    lines: list[object] = [line(0), {"image": "none.jpg"}, line(1), "{bad", line(2), {"image": "none.jpg"}, line(3)]
    message = r"3 of 7 rows .42.9%.* missing_file 2 .first: lines.jsonl row 1, none.jpg., invalid_json 1"
    with pytest.raises(TooManyDrops, match=message):
        ran(vlm_config(tmp_path, tokenizer_path, lines, max_dropped_fraction=0.4))
    _, (index,) = ran(vlm_config(tmp_path, tokenizer_path, lines, max_dropped_fraction=0.43))
    assert index.units[0].num_rows == 7


def test_a_chain_that_no_draw_can_use_counts_as_lost(tmp_path: Path, tokenizer_path: Path) -> None:
    chains = [[JPEG, b"", JPEG], [JPEG, JPEG, b""], [b"", JPEG, JPEG], [JPEG]]
    steps = [[["a"], ["b"]], [["a"], ["b"]], [["a"], []], []]
    (tmp_path / "edit").mkdir()
    table = pa.table(
        {
            "image_list": pa.array(chains, pa.list_(pa.binary())),
            "instruction_list": pa.array(steps, pa.list_(pa.list_(pa.string()))),
        }
    )
    pq.write_table(table, tmp_path / "edit/a.parquet")
    source = SourceConfig(name="unified_edit/one", data_dir=str(tmp_path / "edit"), num_used_data=1)
    index_of(config_of(tmp_path / "bake", tokenizer_path, group_of("unified_edit", [source])))
    written = json.loads((tmp_path / "bake/index/unified_edit%2Fone/source.json").read_text())
    summary = written["source_index"]["summary"]
    assert (summary["usable"], summary["lost"]) == (1, {"zero_bytes": 2, "too_few_images": 1})


def test_a_source_that_parquet_info_leaves_out_has_no_rows_and_no_say(tmp_path: Path, tokenizer_path: Path) -> None:
    write_edit(tmp_path / "one", num_files=1)
    write_edit(tmp_path / "two", num_files=1, rows_per_file=4)
    info = write_parquet_info(tmp_path / "info.json", [tmp_path / "one"])
    sources = [
        SourceConfig(
            name=f"unified_edit/{name}",
            data_dir=str(tmp_path / name),
            num_used_data=1,
            parquet_info_path=str(info) if name == "one" else None,
        )
        for name in ("one", "two")
    ]
    config = config_of(tmp_path / "bake", tokenizer_path, group_of("unified_edit", sources))
    _, (one, two) = ran(config)
    assert (len(one.units), two.units, two.rows_unused) == (1, (), 4)
    assert ran(config)[0] == []


class Flaky(Storage):
    """Reads of parquet files fail, as a broken connection does after all retries."""

    def read_range(self, url: str, start: int, end: int) -> bytes:
        if url.endswith(".parquet") and start < 2000 and "/index/" not in url:
            raise RunFailed(f"cannot read {url}: broken connection")
        return Storage.read_range(self, url, start, end)


def test_a_storage_that_fails_in_the_middle_of_a_file_is_no_fault_of_its_rows(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    import fsspec

    write_t2i(tmp_path / "t2i", num_files=1)
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe_file("/flaky/t2i/a.parquet", (tmp_path / "t2i/part-000.parquet").read_bytes())
    source = SourceConfig(name="t2i_pretrain/one", data_dir="memory://flaky/t2i", num_used_data=1)
    config = config_of(tmp_path / "bake", tokenizer_path, group_of("t2i_pretrain", [source]))
    with pytest.raises(RunFailed, match="broken connection"):
        index_of(config, Flaky())
    assert len(rows_of(config)) == 6


def test_odd_file_names_make_file_names(tmp_path: Path, tokenizer_path: Path) -> None:
    write_t2i(tmp_path / "t2i", num_files=1)
    names = ["a b%2F#?.parquet", "é" * 100 + ".parquet", "x" * 240 + "1.parquet", "x" * 240 + "2.parquet"]
    for name in names:
        shutil.copy(tmp_path / "t2i/part-000.parquet", tmp_path / "t2i" / name)
    units, (index,) = ran(t2i_config(tmp_path, tokenizer_path, num_used_data=5))
    assert {indexed.path for indexed in index.units} == {*names, "part-000.parquet"}
    assert len(set(units)) == 5


def test_an_object_store_gives_the_same_index(tmp_path: Path, tokenizer_path: Path, s3: str) -> None:
    import fsspec

    (tmp_path / "a.jpg").write_bytes(JPEG)
    lines: list[object] = [
        {"image": name, "conversations": conversation(("human", "<image>"), ("gpt", "a"))}
        for name in ("a.jpg", "none.jpg", "../a.jpg")
    ]
    write_t2i(tmp_path / "t2i")
    local = [index_of(t2i_config(tmp_path, tokenizer_path)), index_of(vlm_config(tmp_path, tokenizer_path, lines))]
    filesystem = fsspec.filesystem("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    for name in ("a.jpg", "lines.jsonl", *(f"t2i/part-{number:03d}.parquet" for number in range(4))):
        filesystem.put_file(str(tmp_path / name), f"{s3}/{name}")
    t2i = SourceConfig(name="t2i_pretrain/one", data_dir=f"{s3}/t2i", num_used_data=4)
    vlm = SourceConfig(name="vlm_sft/one", data_dir=s3, jsonl_path=f"{s3}/lines.jsonl", num_used_data=999)
    groups = [group_of("t2i_pretrain", [t2i]), group_of("vlm_sft", [vlm])]
    config = config_of(tmp_path, tokenizer_path, *groups, output=f"{s3}/bake")
    assert list(index_of(config)) == [local[0][0], local[1][0]]
    assert ran(config)[0] == []
