"""What a parquet row becomes: faults by name, and the storage forms of pictures, captions and instructions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import Config, SourceConfig
from pipeline.records import IndexRow
from pipeline.tokenizer import load_tokenizer
from tests.datamaker import encode, picture, write_tokenizer
from tests.sources.rows import config_of, group_of, rows_of

JPEG = encode(picture(1, 40, 30))
HF_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def written(folder: Path, tokenizer: Path, kind: str, table: pa.Table, **bake: Any) -> Config:
    (folder / "data").mkdir(exist_ok=True)
    pq.write_table(table, folder / "data" / "a.parquet")
    source = SourceConfig(name=f"{kind}/one", data_dir=str(folder / "data"), num_used_data=1)
    return config_of(folder / "bake", tokenizer, group_of(kind, [source]), **bake)


def rows(config: Config) -> list[IndexRow]:
    return [row for _, row in rows_of(config)]


def texts(config: Config, row: IndexRow) -> list[str]:
    tokenizer = load_tokenizer(config.tokenizer_path)
    return [tokenizer.decode(ids) for ids in row.text_ids]


CAPTIONS = {
    '{"a": "one", "b": "two"}': "",
    '{"a": ""}': "",
    "{}": "",
    None: "captions_null",
    "plain words": "captions_invalid_json",
    '"a json string"': "captions_not_an_object",
    '["a", "list"]': "captions_not_an_object",
    "3": "captions_not_an_object",
    "": "captions_invalid_json",
    '{"a": 3}': "caption_not_text",
    '{"a": ["nested"]}': "caption_not_text",
    '{"a": null}': "caption_not_text",
    '{"a": "half \\ud83d"}': "lone_surrogate",
    "[" * 600 + "]" * 600: "captions_nested_too_deep",
}


def test_captions_that_are_no_object_of_texts_are_faults(tmp_path: Path, tokenizer_path: Path) -> None:
    table = pa.table({"image": [JPEG] * len(CAPTIONS), "captions": pa.array(list(CAPTIONS), pa.string())})
    assert [row.fault for row in rows(written(tmp_path, tokenizer_path, "t2i_pretrain", table))] == list(
        CAPTIONS.values()
    )


def test_an_empty_set_of_captions_is_a_space_that_nothing_is_drawn_for(tmp_path: Path, tokenizer_path: Path) -> None:
    table = pa.table({"image": [JPEG, JPEG], "captions": ["{}", '{"a": "b"}']})
    config = written(tmp_path, tokenizer_path, "t2i_pretrain", table)
    assert [(row.text_group_sizes, texts(config, row)) for row in rows(config)] == [((0,), [" "]), ((1,), ["b"])]


@pytest.mark.parametrize(
    ("captions", "reference", "improved"),
    [
        (pa.array([{"x": "one", "y": None, "z": "two"}]), "captions_not_json", ["one", "two"]),
        (pa.array([["one", "two"]]), "captions_not_json", ["one", "two"]),
        (pa.array(["just words"]), "captions_invalid_json", ["just words"]),
        (pa.array(['"quoted"']), "captions_not_an_object", ['"quoted"']),
        (pa.array(['["one", "two"]']), "captions_not_an_object", ["one", "two"]),
        (pa.array([b'{"a": "bytes"}'], pa.binary()), "", ["bytes"]),
        (pa.array(['{"a": "json"}'], pa.large_string()), "", ["json"]),
        (pa.array(['{"a": "view"}'], pa.string_view()), "", ["view"]),
    ],
)
def test_captions_in_other_forms_are_dropped_by_the_reference_and_read_by_the_improved_stream(
    tmp_path: Path, tokenizer_path: Path, captions: pa.Array, reference: str, improved: list[str]
) -> None:
    table = pa.table({"image": [JPEG, JPEG], "captions": pa.concat_arrays([captions, captions])})
    good = pa.table({"image": [JPEG], "captions": ['{"a": "b"}']})
    (tmp_path / "data").mkdir()
    pq.write_table(good, tmp_path / "data" / "b.parquet")
    for stream, fault in (("reference", reference), ("improved", "")):
        config = written(tmp_path, tokenizer_path, "t2i_pretrain", table, stream=stream)
        source = config.dataset.groups[0].sources[0].model_copy(update={"num_used_data": 2})
        config = config_of(tmp_path / stream, tokenizer_path, group_of("t2i_pretrain", [source]), stream=stream)
        first = rows(config)[0]
        assert first.fault == fault
        if not fault:
            assert texts(config, first) == improved


@pytest.mark.parametrize(
    "images",
    [
        pa.array([JPEG], pa.binary()),
        pa.array([JPEG], pa.large_binary()),
        pa.array([JPEG], pa.binary_view()),
        pa.array([{"bytes": JPEG, "path": "x"}], HF_IMAGE),
        pa.array([list(JPEG)], pa.list_(pa.uint8())),
        pa.array([{"bytes": None, "path": "beside.jpg"}], HF_IMAGE),
    ],
)
def test_a_picture_is_read_from_every_kind_of_cell(tmp_path: Path, tokenizer_path: Path, images: pa.Array) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "beside.jpg").write_bytes(JPEG)
    table = pa.table({"image": images, "captions": ['{"a": "b"}']})
    (row,) = rows(written(tmp_path, tokenizer_path, "t2i_pretrain", table))
    assert (row.fault, row.images[0].width_px, row.images[0].height_px) == ("", 40, 30)


@pytest.mark.parametrize(
    ("kind", "chain"),
    [
        (pa.list_(pa.binary()), [JPEG, None, b"no", JPEG]),
        (pa.large_list(pa.large_binary()), [JPEG, None, b"no", JPEG]),
        (pa.list_(pa.binary_view()), [JPEG, b"", b"no", JPEG]),
        (
            pa.list_(HF_IMAGE),
            [{"bytes": JPEG}, {"bytes": None, "path": None}, {"bytes": b"no"}, {"bytes": JPEG, "path": "x"}],
        ),
    ],
)
def test_chains_of_pictures_keep_their_faults_to_themselves(
    tmp_path: Path, tokenizer_path: Path, kind: pa.DataType, chain: list[Any]
) -> None:
    good = [chain[0], chain[3]]
    table = pa.table(
        {"image_list": pa.array([chain, good], kind), "instruction_list": [[["a"], ["b", "c"], []], [["d"]]]}
    )
    config = written(tmp_path, tokenizer_path, "unified_edit", table)
    row, _ = rows(config)
    assert row.fault == ""
    assert [image.fault for image in row.images] == ["", "zero_bytes", "not_an_image", ""]
    assert (row.text_group_sizes, row.texts) == ((1, 2, 0), ("a", "b", "c"))


def test_instruction_lists_of_any_shape_are_written_down(tmp_path: Path, tokenizer_path: Path) -> None:
    steps = [[["a"], None, ["b", None]], None, [], [["c"]]]
    chains = [[JPEG] * 4] * 3 + [[JPEG] * 2]
    table = pa.table(
        {
            "image_list": pa.array([*chains, None, [], [JPEG]], pa.list_(pa.binary())),
            "instruction_list": pa.array([*steps, None, None, None], pa.list_(pa.list_(pa.string()))),
        }
    )
    found = rows(written(tmp_path, tokenizer_path, "unified_edit", table))
    assert [row.text_group_sizes for row in found[:4]] == [(1, -1, 2), (), (), (1,)]
    assert [count >= 0 for count in found[0].text_num_tokens] == [True, True, False]
    assert [row.fault for row in found] == ["", "", "", "", "images_null", "too_few_images", "too_few_images"]


def test_one_plain_instruction_is_one_phrasing_to_an_improved_stream(tmp_path: Path, tokenizer_path: Path) -> None:
    table = pa.table({"image_list": [[JPEG, JPEG]], "instruction_list": [["go"]]})
    (row,) = rows(written(tmp_path, tokenizer_path, "unified_edit", table))
    assert row.texts == ("g", "o")
    (row,) = rows(written(tmp_path, tokenizer_path, "unified_edit", table, stream="improved"))
    assert row.texts == ("go",)


def test_rows_know_their_row_group_and_their_label(tmp_path: Path, tokenizer_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame(
        {"image": [JPEG] * 5, "captions": [json.dumps({"a": str(number)}) for number in range(5)]},
        index=pd.Index([7, 1, 0, 3, 9]),
    )
    config = written(tmp_path, tokenizer_path, "t2i_pretrain", pa.Table.from_pandas(frame))
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "data" / "a.parquet", row_group_size=2)
    found = rows(config)
    assert [(row.row, row.row_group, row.row_in_group, row.label) for row in found] == [
        (0, 0, 0, "7"),
        (1, 0, 1, ""),
        (2, 1, 0, ""),
        (3, 1, 1, "3"),
        (4, 2, 0, "9"),
    ]
