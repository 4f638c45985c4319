"""The arrow schemas of the two tables that lie between stages; `records` has their rows as types."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["INDEX_SCHEMA", "PLAN_COLUMNS", "PLAN_SCHEMA"]

INDEX_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("row_group", pa.int32()),
        ("row_in_group", pa.int32()),
        ("label", pa.string()),
        ("fault", pa.string()),
        ("fault_after_draws", pa.bool_()),
        ("image_references", pa.list_(pa.string())),
        ("image_widths_px", pa.list_(pa.int32())),
        ("image_heights_px", pa.list_(pa.int32())),
        ("image_faults", pa.list_(pa.string())),
        ("image_conditions", pa.list_(pa.int32())),
        ("image_stamps", pa.list_(pa.int64())),
        ("num_frames", pa.int32()),
        ("video_is_folder", pa.bool_()),
        ("text_num_tokens", pa.list_(pa.int32())),
        ("text_ids", pa.list_(pa.list_(pa.int32()))),
        ("texts", pa.list_(pa.string())),
        ("text_group_sizes", pa.list_(pa.int32())),
        ("elements", pa.list_(pa.int8())),
        ("line_offset", pa.int64()),
        ("line_num_bytes", pa.int64()),
        ("conditions", pa.int32()),
    ]
)
"""Schema of `index/<source>/<unit>.parquet`; schema metadata carries the unit's fingerprint under `parbake`."""

PLAN_COLUMNS = tuple(name for name in INDEX_SCHEMA.names if name not in {"text_ids", "image_stamps"})
"""The index columns that the plan reads: everything but the token ids and what depends on the place."""

PLAN_SCHEMA = pa.schema(
    [
        ("lane", pa.int32()),
        ("pack", pa.int32()),
        ("shard", pa.int32()),
        ("sequence_length", pa.int32()),
        ("pixel_bytes", pa.int64()),
        (
            "samples",
            pa.list_(
                pa.struct(
                    [
                        ("source", pa.string()),
                        ("path", pa.string()),
                        ("row", pa.int64()),
                        ("unit", pa.string()),
                        ("index_row", pa.int32()),
                        ("num_items", pa.int32()),
                        ("data_indexes", pa.string()),
                        ("worker_id", pa.int32()),
                        ("dataset_name", pa.string()),
                    ]
                )
            ),
        ),
        (
            "items",  # of all samples one after another; samples[i].num_items tells where to cut
            pa.list_(
                pa.struct(
                    [
                        ("kind", pa.int8()),
                        ("loss", pa.bool_()),
                        ("enable_cfg", pa.bool_()),
                        ("kept", pa.bool_()),
                        ("num_tokens", pa.int32()),
                        ("text", pa.int32()),
                        ("token_ids", pa.list_(pa.int32())),
                        ("image", pa.int32()),
                        ("width_px", pa.int32()),
                        ("height_px", pa.int32()),
                        ("timestep", pa.float64()),
                    ]
                )
            ),
        ),
    ]
)
"""Schema of `plan/lane-00000.parquet`; schema metadata carries fingerprint and row accounting under `parbake`."""
