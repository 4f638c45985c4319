"""One data set of a meta file: a JSONL cut into byte ranges, or a JSON array read whole.

Reference: nemo-automodel 0.7.0 `vlm.datasets.make_meta_dataset`. Blank lines are no rows. A line that is no JSON ends
the reference's run; here it is a fault of that row. Media lie below `media_dir`; the reference also opens any absolute
path that a row names, which is refused here (`outside_root`) unless `allow_outside` is set.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.sources.conversations.forms import MediaReference, RowFault, from_sharegpt
from pipeline.sources.conversations.records import Draft
from pipeline.sources.json_text import JsonFault, parse_json
from pipeline.sources.jsonl_lines import iter_lines
from pipeline.storage import Storage
from pipeline.vlm_config import ConversationSourceConfig, ShareGptConfig
from pipeline.vlm_records import Medium

__all__ = ["drafts", "is_jsonl", "iter_rows"]


def is_jsonl(path: str) -> bool:
    """Whether a file is read line by line."""
    return path.endswith(".jsonl")


def iter_rows(storage: Storage, url: str, start: int, end: int) -> Iterator[tuple[int, int, bytes | None]]:
    """The lines of a range that are rows, as `iter_lines` gives them."""
    for offset, num_bytes, line in iter_lines(storage, url, start, end):
        if line is None or line.decode("utf-8", "replace").strip():
            yield offset, num_bytes, line


def drafts(source: ConversationSourceConfig, storage: Storage, start: int, end: int) -> Iterator[Draft]:
    """Rows of a JSONL's range, or of a whole JSON array; row numbers count from the first of them."""
    form = source.form
    if not is_jsonl(source.path):
        yield from _array_drafts(source, storage, form)
        return
    for number, (_, num_bytes, line) in enumerate(iter_rows(storage, source.path, start, end)):
        if line is None:
            yield Draft(row=number, fault="line_too_long", detail=f"{num_bytes} bytes")
            continue
        try:
            yield _draft(number, parse_json(line), form)
        except JsonFault as fault:
            yield Draft(row=number, fault=str(fault), detail=line[:80].decode("utf-8", "replace").strip())


def _array_drafts(source: ConversationSourceConfig, storage: Storage, form: ShareGptConfig) -> Iterator[Draft]:
    rows = parse_json(storage.read_bytes(source.path))
    if not isinstance(rows, list):
        raise JsonFault("not_an_array")
    for number, row in enumerate(rows):
        yield _draft(number, row, form)


def _draft(number: int, row: object, form: ShareGptConfig) -> Draft:
    if not isinstance(row, Mapping):
        return Draft(row=number, fault="not_an_object", detail=type(row).__name__)
    try:
        conversation = from_sharegpt(row, form)
        media = tuple(_medium(reference) for reference in conversation.media)
    except RowFault as fault:
        return Draft(row=number, fault=fault.reason, detail=fault.detail)
    meta = row.get("mm_inputs_meta")
    return Draft(
        row=number,
        messages=conversation.messages,
        media=media,
        text_tokens=_whole_number(row.get("_text_tokens")),
        media_meta=meta if isinstance(meta, Mapping) else None,
    )


def _medium(reference: MediaReference) -> Medium:
    value, extras = reference.value, reference.extras
    if reference.kind == "video" and isinstance(value, list) and all(isinstance(name, str) for name in value):
        wishes = {"files": value, "fps": extras.get("fps")}
        return Medium(kind="video", origin="frames", frames=json.dumps(wishes, ensure_ascii=False))
    if not isinstance(value, str):
        raise RowFault("media_not_a_path", f"a {reference.kind} is a {type(value).__name__}")
    if reference.kind == "image" and "::" in value:
        return Medium(kind="image", reference=value, fault="lmdb_not_supported")
    wishes = {"indexes": extras["frame_indices"]} if extras.get("frame_indices") is not None else {}
    frames = json.dumps(wishes) if wishes and reference.kind == "video" else ""
    return Medium(kind=reference.kind, reference=value, frames=frames)


def _whole_number(value: Any) -> int:
    try:
        return -1 if value is None or isinstance(value, bool) else int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
