"""Codecs of the VLM recipe's plan: `plan/lane-00000.parquet` with VLM_PLAN_SCHEMA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.records import RowId
from pipeline.vlm_records import VLM_PLAN_SCHEMA, ConversationPack, ConversationSample

__all__ = ["conversation_packs_to_table", "table_to_conversation_packs"]

_SAMPLE_TYPE = VLM_PLAN_SCHEMA.field("samples").type.value_type
_SCALARS = tuple(name for name in VLM_PLAN_SCHEMA.names if name != "samples")


def conversation_packs_to_table(packs: Sequence[ConversationPack]) -> pa.Table:
    """Packs as a table of VLM_PLAN_SCHEMA, one row a pack."""
    samples = [sample for pack in packs for sample in pack.samples]
    ids = [sample.row for sample in samples]
    columns = {
        "source": [row.source for row in ids],
        "path": [row.path for row in ids],
        "row": [row.row for row in ids],
        "unit": [row.unit for row in ids],
        "index_row": [row.index_row for row in ids],
        "dataset_row": [sample.dataset_row for sample in samples],
        "instead_of": [sample.instead_of for sample in samples],
        "keep_tokens": [sample.keep_tokens for sample in samples],
        "num_tokens": [sample.num_tokens for sample in samples],
    }
    struct = pa.StructArray.from_arrays(
        [pa.array(columns[field.name], field.type) for field in _SAMPLE_TYPE], fields=list(_SAMPLE_TYPE)
    )
    offsets = np.zeros(len(packs) + 1, np.int32)
    np.cumsum([len(pack.samples) for pack in packs], out=offsets[1:])
    scalars = [pa.array([getattr(pack, name) for pack in packs], VLM_PLAN_SCHEMA.field(name).type) for name in _SCALARS]
    return pa.Table.from_arrays([*scalars, pa.ListArray.from_arrays(pa.array(offsets), struct)], schema=VLM_PLAN_SCHEMA)


def table_to_conversation_packs(table: pa.Table | pa.RecordBatch) -> Iterator[ConversationPack]:
    """The packs of a table of VLM_PLAN_SCHEMA, in its order. Exact inverse of `conversation_packs_to_table`."""
    for batch in table.to_batches() if isinstance(table, pa.Table) else [table]:
        lists = batch.column("samples")
        samples = _samples(lists)
        scalars = [batch.column(name).to_pylist() for name in _SCALARS]
        counts = pc.list_value_length(lists).to_pylist()
        for lane, pack, shard, number, num_tokens, num_media_tokens, num_bytes, count in zip(
            *scalars, counts, strict=True
        ):
            yield ConversationPack(
                lane=lane,
                pack=pack,
                shard=shard,
                number=number,
                num_tokens=num_tokens,
                num_media_tokens=num_media_tokens,
                num_bytes=num_bytes,
                samples=tuple(islice(samples, count)),
            )


def _samples(lists: pa.ListArray) -> Iterator[ConversationSample]:
    columns = [child.to_pylist() for child in lists.flatten().flatten()]
    for source, path, row, unit, index_row, dataset_row, instead_of, keep_tokens, num_tokens in zip(
        *columns, strict=True
    ):
        yield ConversationSample(
            row=RowId(source=source, path=path, row=row, unit=unit, index_row=index_row),
            dataset_row=dataset_row,
            instead_of=instead_of,
            keep_tokens=keep_tokens,
            num_tokens=num_tokens,
        )
