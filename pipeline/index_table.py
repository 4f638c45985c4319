"""Index rows as arrow columns and back, and `source.json`.

`iter_rows` runs once per row in every pass of a plan, so it never builds nested Python objects through arrow: each
column becomes flat Python lists once per batch, and a row is a handful of slices of them.

    image_widths_px   offsets [0, 2, 2, 3]   values [640, 512, 800]   row 0 → (640, 512), row 1 → (), row 2 → (800,)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.records import ImageEntry, IndexedUnit, IndexRow, SourceIndex
from pipeline.schemas import INDEX_SCHEMA

__all__ = [
    "INDEX_ROW_GROUP_SIZE",
    "content_digest",
    "iter_rows",
    "rows_to_table",
    "source_index_from_json",
    "source_index_to_json",
]

INDEX_ROW_GROUP_SIZE = 1024
"""Rows of a row group of an index file: small, so that render fetches the token ids of scattered rows cheaply."""

_ROW_FIELDS = (
    "row",
    "row_group",
    "row_in_group",
    "label",
    "fault",
    "fault_after_draws",
    "num_frames",
    "video_is_folder",
    "text_num_tokens",
    "text_ids",
    "texts",
    "text_group_sizes",
    "elements",
    "line_offset",
    "line_num_bytes",
    "conditions",
)
_IMAGE_FIELDS = {
    "image_references": "reference",
    "image_widths_px": "width_px",
    "image_heights_px": "height_px",
    "image_faults": "fault",
    "image_conditions": "conditions",
    "image_stamps": "stamp",
}


def rows_to_table(rows: Sequence[IndexRow]) -> pa.Table:
    """Rows as one table of `INDEX_SCHEMA` (a single chunk)."""
    columns: dict[str, list[Any]] = {name: [getattr(row, name) for row in rows] for name in _ROW_FIELDS}
    for column, name in _IMAGE_FIELDS.items():
        columns[column] = [[getattr(image, name) for image in row.images] for row in rows]
    return pa.table([pa.array(columns[field.name], field.type) for field in INDEX_SCHEMA], schema=INDEX_SCHEMA)


def iter_rows(rows: pa.Table | pa.RecordBatch, columns: Sequence[str] | None = None) -> Iterator[IndexRow]:
    """Rows of a table or batch, in order; fields whose column is absent (or not among `columns`) have their default.

    The plan reads `PLAN_COLUMNS`: without `text_ids` a row costs a few microseconds.
    """
    if columns is not None:
        rows = rows.select([name for name in columns if name in rows.schema.names])
    for batch in rows.to_batches() if isinstance(rows, pa.Table) else (rows,):
        if batch.num_rows:
            yield from _iter_batch(batch)


def _iter_batch(batch: pa.RecordBatch) -> Iterator[IndexRow]:
    names = set(batch.schema.names)

    def column(name: str, default: object) -> Sequence[Any]:
        return _python_column(batch.column(name)) if name in names else [default] * batch.num_rows

    fields = zip(
        *(column(name, IndexRow.__dataclass_fields__[name].default) for name in _ROW_FIELDS if name != "row"),
        _image_tuples(batch),
        strict=True,
    )
    for row, values in zip(column("row", 0), fields, strict=True):
        (
            row_group,
            row_in_group,
            label,
            fault,
            fault_after_draws,
            num_frames,
            video_is_folder,
            text_num_tokens,
            text_ids,
            texts,
            text_group_sizes,
            elements,
            line_offset,
            line_num_bytes,
            conditions,
            images,
        ) = values
        yield IndexRow(
            row=row,
            row_group=row_group,
            row_in_group=row_in_group,
            label=label,
            fault=fault,
            fault_after_draws=fault_after_draws,
            images=images,
            num_frames=num_frames,
            video_is_folder=video_is_folder,
            text_num_tokens=text_num_tokens,
            text_ids=text_ids,
            texts=texts,
            text_group_sizes=text_group_sizes,
            elements=elements,
            line_offset=line_offset,
            line_num_bytes=line_num_bytes,
            conditions=conditions,
        )


def _image_tuples(batch: pa.RecordBatch) -> Sequence[tuple[ImageEntry, ...]]:
    """The images of each row."""
    present = [name for name in _IMAGE_FIELDS if name in batch.schema.names]
    if not present:
        return [()] * batch.num_rows
    offsets = _offsets(batch.column(present[0]))
    num_images = offsets[-1] - offsets[0]
    flat: dict[str, Sequence[Any]] = {}
    for name, attribute in _IMAGE_FIELDS.items():
        default = ImageEntry.__dataclass_fields__[attribute].default
        flat[attribute] = _python_column(batch.column(name).flatten()) if name in present else [default] * num_images
    entries = tuple(
        ImageEntry(
            reference=reference, width_px=width_px, height_px=height_px, fault=fault, conditions=conditions, stamp=stamp
        )
        for reference, width_px, height_px, fault, conditions, stamp in zip(*flat.values(), strict=True)
    )
    return _cut(offsets, entries)


def _python_column(array: pa.Array) -> Sequence[Any]:
    """A column as flat Python objects; lists become tuples, all cut from one flat tuple."""
    if pa.types.is_list(array.type):
        offsets = _offsets(array)
        if offsets[0] == offsets[-1]:
            return [()] * len(array)
        return _cut(offsets, tuple(_python_column(array.flatten())))
    if pa.types.is_string(array.type) and pc.max(pc.binary_length(array)).as_py() in (0, None):
        return [""] * len(array)
    values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()  # several times faster than to_pylist
    return values


def _offsets(array: pa.ListArray) -> list[int]:
    """Where each list begins in the flattened values, and where the last one ends."""
    offsets = array.offsets.to_numpy()
    rebased: list[int] = (offsets - offsets[0]).tolist()
    return rebased


def _cut(offsets: Sequence[int], flat: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return [flat[start:end] for start, end in pairwise(offsets)]


def content_digest(batch: pa.RecordBatch | pa.Table, digest: Any) -> None:
    """Feed the rows to a hashlib object, stamps left out: the same rows give the same bytes in every arrow version.

    Integers count as little-endian int64, a list as its lengths followed by its values, a text as UTF-8.
    """
    for name in batch.schema.names:
        if name == "image_stamps":
            continue
        column = batch.column(name)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        digest.update(name.encode())
        _digest_array(column, digest)


def _digest_array(array: pa.Array, digest: Any) -> None:
    if pa.types.is_list(array.type):
        digest.update(np.diff(array.offsets.to_numpy()).astype("<i8").tobytes())
        _digest_array(array.flatten(), digest)
    elif pa.types.is_struct(array.type):
        for field, values in zip(array.type, array.flatten(), strict=True):
            if field.name != "stamp":
                digest.update(field.name.encode())
                _digest_array(values, digest)
    elif pa.types.is_string(array.type):
        texts = [text.encode() for text in array.to_pylist()]
        digest.update(np.array([len(text) for text in texts], "<i8").tobytes())
        digest.update(b"".join(texts))
    else:
        digest.update(array.to_numpy(zero_copy_only=False).astype("<i8").tobytes())


def source_index_to_json(index: SourceIndex, extra: Mapping[str, object] | None = None) -> str:
    """`source.json`: one unit a line. `extra` is what the index stage itself wants to find again in the head."""
    units = ",\n".join("    " + json.dumps(asdict(unit), ensure_ascii=False) for unit in index.units)
    head = json.dumps({"source": index.source, "rows_unused": index.rows_unused, **(extra or {})}, ensure_ascii=False)
    return f'{{\n  "source_index": {head},\n  "units": [\n{units}\n  ]\n}}\n'


def source_index_from_json(text: str | bytes) -> SourceIndex:
    """Read `source.json`.

    Raises:
        ValueError: The text is not what `source_index_to_json` writes.
    """
    try:
        written = json.loads(text)
        head = written["source_index"]
        units = tuple(
            IndexedUnit(**{**unit, "row_group_sizes": tuple(unit["row_group_sizes"])}) for unit in written["units"]
        )
        return SourceIndex(source=head["source"], units=units, rows_unused=head["rows_unused"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a source index: {error!r}") from error
