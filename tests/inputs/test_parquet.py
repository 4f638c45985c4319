"""inputs.md, "Parquet": each file is baked under both streams; pictures, captions, reasons and counts are right."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pipeline.errors import SourceError
from pipeline.sources import parquet_rows
from pipeline.storage import Storage
from tests.inputs.kitchen import STREAMS, Baked, Sources, bake
from tests.laws.reading import snapshot
from tests.media.gallery import encode

COLOUR = (10, 20, 30)
PNG = encode(Image.new("RGB", (56, 42), COLOUR), "PNG")
HF_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
GOOD_CAPTIONS = json.dumps({"a": "good"})


def t2i(images: pa.Array, captions: pa.Array | None = None) -> pa.Table:
    """Rows of a picture and its captions."""
    captions = pa.array([GOOD_CAPTIONS] * len(images)) if captions is None else captions
    return pa.table({"image": images, "captions": captions})


def with_caption(caption: object, kind: pa.DataType | None = None) -> pa.Table:
    """Row 0 has the caption, row 1 is good (or of the same kind)."""
    good: object = GOOD_CAPTIONS if kind is None else caption
    return t2i(pa.array([PNG, PNG]), pa.array([caption, good], kind))


def file_of(table: pa.Table, rows_per_group: int = 1) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream, row_group_size=rows_per_group)
    return stream.getvalue()


GOOD = t2i(pa.array([PNG, PNG]))


@dataclass(frozen=True, slots=True)
class FileCase:
    """One source: its files; what row 0 of `a.parquet` becomes (its caption, or the reason why it is dropped)."""

    files: dict[str, pa.Table | bytes]
    reference: str
    improved: str | None = None
    dropped: bool = False  # `reference` is a reason
    dropped_too: bool = False  # ... and so is `improved`
    unreadable: dict[str, list[str]] = field(default_factory=dict)


def one(table: pa.Table) -> dict[str, pa.Table | bytes]:
    return {"a.parquet": table}


CASES: dict[str, FileCase] = {
    "pictures as binary": FileCase(one(t2i(pa.array([PNG], pa.binary()))), "good"),
    "pictures as large_binary": FileCase(one(t2i(pa.array([PNG], pa.large_binary()))), "good"),
    "pictures as binary_view": FileCase(one(t2i(pa.array([PNG], pa.binary_view()))), "good"),
    "pictures as a struct of bytes and path": FileCase(
        one(t2i(pa.array([{"bytes": PNG, "path": "x.png"}], HF_IMAGE))), "good"
    ),
    "a list of one picture": FileCase(
        {"a.parquet": t2i(pa.array([[PNG]], pa.list_(pa.binary()))), "b.parquet": GOOD},
        "image_not_bytes",
        "good",
        dropped=True,
    ),
    "a null picture": FileCase(
        one(t2i(pa.array([None, PNG], pa.binary()))), "zero_bytes", dropped=True, dropped_too=True
    ),
    "null captions": FileCase(one(with_caption(None)), "captions_null", dropped=True, dropped_too=True),
    "captions as a JSON string": FileCase(one(with_caption('{"a": "cat", "b": "cat"}')), "cat"),
    "captions as a struct": FileCase(
        {
            "a.parquet": with_caption({"a": "cat", "b": None}, pa.struct([("a", pa.string()), ("b", pa.string())])),
            "b.parquet": GOOD,
        },
        "captions_not_json",
        "cat",
        dropped=True,
    ),
    "a caption as a plain string": FileCase(one(with_caption("a cat")), "captions_invalid_json", "a cat", dropped=True),
    "captions that are empty": FileCase(one(with_caption("{}")), " "),
    "captions of nothing": FileCase(one(with_caption("")), "captions_invalid_json", "", dropped=True),
    "a file without rows beside a good one": FileCase({"a.parquet": GOOD, "b.parquet": GOOD.slice(0, 0)}, "good"),
    "row groups without rows": FileCase(
        {"a.parquet": file_of(GOOD), "b.parquet": file_of(pa.concat_tables([GOOD, GOOD.slice(0, 0)]))}, "good"
    ),
    "a file cut short beside a good one": FileCase(
        {"a.parquet": GOOD, "b.parquet": file_of(GOOD)[:-60]}, "good", unreadable={"unreadable_file": ["b.parquet"]}
    ),
    "a file of zero bytes beside a good one": FileCase(
        {"a.parquet": GOOD, "b.parquet": b""}, "good", unreadable={"unreadable_file": ["b.parquet"]}
    ),
}
NAMES = list(CASES)


@pytest.fixture(scope="module")
def baked(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Callable[[str], Baked]:
    """Every case in a folder of its own."""
    sources = Sources(tmp_path_factory.mktemp("parquet"), tokenizer_folder)
    for number, case in enumerate(CASES.values()):
        sources.add_parquet("t2i_pretrain", str(number), case.files)
    sources.add_parquet("unified_edit", "lengths", {"a.parquet": chains()})
    done: dict[str, Baked] = {}

    def baked_under(stream: str) -> Baked:
        if stream not in done:
            done[stream] = bake(sources, stream, tmp_path_factory.mktemp(stream), length={"epochs": 3})
        return done[stream]

    return baked_under


def chains() -> pa.Table:
    """Chains of two pictures: one instruction list, none, two; pictures that are null; a chain of one."""
    pairs = [[PNG, PNG], [PNG, PNG], [PNG, PNG], [PNG, None], [PNG], None]
    steps = [[["one"]], [], [["one"], ["one too many"]], [["one"]], [], [["one"]]]
    return pa.table(
        {
            "image_list": pa.array(pairs, pa.list_(pa.binary())),
            "instruction_list": pa.array(steps, pa.list_(pa.list_(pa.string()))),
        }
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stream", STREAMS)
def test_file(stream: str, name: str, baked: Callable[[str], Baked]) -> None:
    case, bake, source = CASES[name], baked(stream), f"t2i_pretrain/{NAMES.index(name)}"
    corrected = stream == "improved" and case.improved is not None
    expected = case.improved if corrected else case.reference
    served = bake.served(source, 0, "a.parquet")
    if (case.dropped and not corrected) or (case.dropped_too and stream == "improved"):
        assert served is None
        assert set(bake.dropped(source)) == {expected}
        assert bake.reason(source, 0) == expected
    else:
        assert bake.dropped(source) == {}
        assert served is not None
        assert served.texts == (expected,)
        assert (served.pictures[0] == COLOUR).all()
    assert bake.report["figures"]["plan"]["unreadable_files"].get(source, {}) == case.unreadable


@pytest.mark.parametrize("stream", STREAMS)
def test_chains_whose_lists_do_not_fit_each_other(stream: str, baked: Callable[[str], Baked]) -> None:
    bake, source = baked(stream), "unified_edit/lengths"
    assert [bake.served(source, row) is not None for row in range(6)] == [True, False, True, False, False, False]
    assert bake.dropped(source) == {"no_instructions": 1, "zero_bytes": 1, "too_few_images": 1, "images_null": 1}
    reasons = [bake.reason(source, row) for row in range(6)]
    assert reasons == ["", "no_instructions", "", "zero_bytes", "too_few_images", "images_null"]


@pytest.mark.parametrize("stream", STREAMS)
def test_a_row_group_larger_than_a_slice_gives_the_same_bytes(
    stream: str, tmp_path: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row group of 2 GB is read as this one is: never as one array."""
    sources = Sources(tmp_path, tokenizer_folder)
    noise = np.random.default_rng(1).integers(0, 256, (8, 56, 42, 3), dtype=np.uint8)
    pictures = pa.array([encode(Image.fromarray(picture), "PNG") for picture in noise])
    sources.add_parquet("t2i_pretrain", "large", {"a.parquet": t2i(pictures)}, rows_per_group=8)
    whole = bake(sources, stream, tmp_path / "whole", report=False)
    monkeypatch.setattr(parquet_rows, "SLICE_BYTES", 20_000)
    with parquet_rows.opened_parquet(str(tmp_path / "t2i_pretrain" / "large" / "a.parquet"), Storage()) as file:
        assert len(list(parquet_rows.iter_slices(file, 0, ["image"]))) > 2
    sliced = bake(sources, stream, tmp_path / "sliced", report=False)
    assert snapshot(sliced.folder / "shards") == snapshot(whole.folder / "shards")


@pytest.mark.parametrize("stream", STREAMS)
def test_a_missing_column_stops_with_the_columns_that_there_are(
    stream: str, tmp_path: Path, tokenizer_folder: Path
) -> None:
    sources = Sources(tmp_path, tokenizer_folder)
    sources.add_parquet("t2i_pretrain", "it", one(pa.table({"picture": [PNG], "captions": ["{}"]})))
    with pytest.raises(SourceError, match=r"no column 'image'; its columns are 'picture', 'captions'"):
        bake(sources, stream, tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"no parquet at all"])
def test_a_folder_of_nothing_but_unreadable_files_stops_and_names_one(
    content: bytes, tmp_path: Path, tokenizer_folder: Path
) -> None:
    sources = Sources(tmp_path, tokenizer_folder)
    sources.add_parquet("t2i_pretrain", "it", {"a.parquet": content})
    with pytest.raises(SourceError, match=r"unreadable_file: a\.parquet"):
        bake(sources, "improved", tmp_path / "out")
