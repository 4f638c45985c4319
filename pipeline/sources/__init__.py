"""Sources: rows in, samples out. One file per kind, all behind the functions below.

listing    what files a group has, how often each is used, how a JSONL is cut into units
measure    one source file or range → IndexRows           (index stage)
draw       IndexRow + random draws → Sample or Dropped    (plan stage; draws exactly as the reference does)
reader     (row, image) → encoded bytes or a frame        (render stage)
"""

from __future__ import annotations

from pipeline.config import BakeConfig, DatasetConfig, GroupConfig
from pipeline.errors import Bug
from pipeline.records import Draws, Dropped, IndexRow, RowId, Sample
from pipeline.sources import t2i_pretrain, unified_edit, vlm_sft
from pipeline.tokenizer import Tokenizer

__all__ = ["draw"]


def draw(
    row: IndexRow,
    row_id: RowId,
    group: GroupConfig,
    dataset: DatasetConfig,
    draws: Draws,
    tokenizer: Tokenizer,
    bake: BakeConfig | None = None,
) -> Sample | Dropped:
    """Turn a measured row into a sample, spending exactly the draws that the reference spends on it.

    Raises nothing for a bad row: it comes back as `Dropped(reason)`, with the draws made before the fault spent.

    Args:
        row: As `iter_rows` gives it (`PLAN_COLUMNS` are enough).
        row_id: Its stable id.
        group: The group it is drawn for (transforms, frame sampler).
        dataset: Patch and latent sizes.
        draws: The two random streams of the lane.
        tokenizer: For texts that are composed here (joined edit instructions).
        bake: `corrections`, and whether the stream is the improved one; None: the reference.
    """
    if group.kind == "t2i_pretrain":
        return t2i_pretrain.draw(row, row_id, group, dataset, draws, tokenizer, bake)
    if group.kind == "unified_edit":
        return unified_edit.draw(row, row_id, group, dataset, draws, tokenizer, bake)
    if group.reads_lines:
        return vlm_sft.draw(row, row_id, group, dataset, draws, tokenizer, bake)
    raise Bug(
        f"No source draws rows of kind {group.kind!r}; the configuration should have refused it; please report it."
    )
