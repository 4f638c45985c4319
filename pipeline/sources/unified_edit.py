"""`unified_edit`: in the making."""

from __future__ import annotations

from pipeline.config import BakeConfig, DatasetConfig, GroupConfig
from pipeline.records import Draws, Dropped, IndexRow, RowId, Sample
from pipeline.tokenizer import Tokenizer


def draw(
    row: IndexRow,
    row_id: RowId,
    group: GroupConfig,
    dataset: DatasetConfig,
    draws: Draws,
    tokenizer: Tokenizer,
    bake: BakeConfig | None = None,
) -> Sample | Dropped:
    """See `pipeline.sources.draw`."""
    raise NotImplementedError
