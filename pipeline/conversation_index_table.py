"""Index rows of conversations as arrow columns and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from pipeline.vlm_records import VLM_INDEX_SCHEMA, ConversationRow, Medium

__all__ = ["conversation_rows_to_table", "table_to_conversation_rows"]

_ROW_FIELDS = tuple(name for name in VLM_INDEX_SCHEMA.names if name != "media")
_MEDIUM_FIELDS = tuple(field.name for field in VLM_INDEX_SCHEMA.field("media").type.value_type)


def conversation_rows_to_table(rows: Sequence[ConversationRow]) -> pa.Table:
    """Rows as one table of VLM_INDEX_SCHEMA."""
    columns = {name: [getattr(row, name) for row in rows] for name in _ROW_FIELDS}
    columns["media"] = [
        [{name: getattr(medium, name) for name in _MEDIUM_FIELDS} for medium in row.media] for row in rows
    ]
    return pa.table([pa.array(columns[field.name], field.type) for field in VLM_INDEX_SCHEMA], schema=VLM_INDEX_SCHEMA)


def table_to_conversation_rows(table: pa.Table | pa.RecordBatch) -> Iterator[ConversationRow]:
    """The rows of a table of VLM_INDEX_SCHEMA, in its order; a column that was not read has its default."""
    names = [name for name in table.schema.names if name in VLM_INDEX_SCHEMA.names]
    for values in table.select(names).to_pylist():
        if "media" in values:
            values["media"] = tuple(Medium(**medium) for medium in values["media"])
        if "turn_ends" in values:
            values["turn_ends"] = tuple(values["turn_ends"])
        yield ConversationRow(**values)


def _fields(medium: Medium) -> dict[str, object]:
    return {name: getattr(medium, name) for name in _MEDIUM_FIELDS}
