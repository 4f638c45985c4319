"""Parquet sources: `t2i_pretrain` (image, captions) and `unified_edit` (image_list, instruction_list)."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.datamaker.pictures import encode, picture

__all__ = ["edit_row", "phrase", "t2i_row", "write_edit", "write_parquet", "write_parquet_info", "write_t2i"]

WORDS = (
    *("a", "red", "circle", "left", "of", "the", "blue", "square", "while", "two", "small", "triangles", "watch"),
    *("draw", "move", "paint", "remove", "turn", "brighten", "green", "yellow", "ünïcödé", "日本", "picture"),
)


def phrase(draws: random.Random, low: int = 1, high: int = 14) -> str:
    """A few words."""
    return " ".join(draws.choice(WORDS) for _ in range(draws.randint(low, high)))


def t2i_row(draws: random.Random, image: bytes | None = None, num_captions: int | None = None) -> dict[str, object]:
    """One good row: a JPEG and some captions."""
    if image is None:
        size = draws.randint(24, 160), draws.randint(24, 160)
        image = encode(picture(draws.getrandbits(31), *size), "JPEG", quality=85)
    count = draws.randint(1, 4) if num_captions is None else num_captions
    return {"image": image, "captions": json.dumps({f"caption_{n}": phrase(draws) for n in range(count)})}


def edit_row(draws: random.Random, num_images: int, images: Sequence[bytes] = ()) -> dict[str, object]:
    """One chain of `num_images` pictures with 1..3 phrasings a step; `images` replaces the first ones."""
    pictures = list(images[:num_images])
    while len(pictures) < num_images:
        size = draws.randint(24, 130), draws.randint(24, 130)
        pictures.append(encode(picture(draws.getrandbits(31), *size), draws.choice(["JPEG", "PNG"])))
    steps = [[phrase(draws, 1, 8) for _ in range(draws.randint(1, 3))] for _ in range(num_images - 1)]
    return {"image_list": pictures, "instruction_list": steps}


T2I_SCHEMA = pa.schema([("image", pa.binary()), ("captions", pa.string())])
EDIT_SCHEMA = pa.schema([("image_list", pa.list_(pa.binary())), ("instruction_list", pa.list_(pa.list_(pa.string())))])


def write_parquet(path: Path, rows: Sequence[dict[str, object]], schema: pa.Schema, rows_per_group: int) -> Path:
    """One file with row groups of `rows_per_group` rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path, row_group_size=rows_per_group)
    return path


def write_t2i(
    folder: Path,
    *,
    seed: int = 0,
    num_files: int = 4,
    rows_per_file: int = 6,
    rows_per_group: int = 3,
    extra_rows: Sequence[dict[str, object]] = (),
) -> Path:
    """A folder of files; `extra_rows` (faulty or awkward ones) are dealt out over the files and shuffled in."""
    draws = random.Random(seed)
    for number in range(num_files):
        rows = [t2i_row(draws) for _ in range(rows_per_file)] + list(extra_rows[number::num_files])
        draws.shuffle(rows)
        write_parquet(folder / f"part-{number:03d}.parquet", rows, T2I_SCHEMA, rows_per_group)
    return folder


def write_edit(
    folder: Path,
    *,
    seed: int = 0,
    num_files: int = 3,
    rows_per_file: int = 8,
    rows_per_group: int = 3,
    extra_rows: Sequence[dict[str, object]] = (),
) -> Path:
    """A folder of chains of 2..5 pictures; `extra_rows` as in `write_t2i`."""
    draws = random.Random(seed)
    for number in range(num_files):
        rows = [edit_row(draws, draws.randint(2, 5)) for _ in range(rows_per_file)]
        rows += list(extra_rows[number::num_files])
        draws.shuffle(rows)
        write_parquet(folder / f"chains-{number:03d}.parquet", rows, EDIT_SCHEMA, rows_per_group)
    return folder


def write_parquet_info(path: Path, folders: Sequence[Path], leave_out: Sequence[str] = ()) -> Path:
    """The `parquet_info` JSON of the given folders: `{absolute path: {"num_row_groups": n}}`."""
    listing = {
        str(file): {"num_row_groups": pq.ParquetFile(file).num_row_groups}
        for folder in folders
        for file in sorted(folder.glob("*.parquet"))
        if file.name not in leave_out
    }
    path.write_text(json.dumps(listing))
    return path
