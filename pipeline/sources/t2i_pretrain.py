"""`t2i_pretrain`: a parquet row holds one image and its captions; a sample is one caption, then the image to generate.

    image     encoded bytes (or Hugging Face's {bytes, path})
    captions  a JSON object {name: caption}; an improved stream also reads a struct, and a plain string as one caption

Reference: `T2IIterableDataset`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipeline.config import BakeConfig, DatasetConfig, GroupConfig
from pipeline.records import Draws, Dropped, IndexRow, ItemKind, RowId, Sample
from pipeline.sources.cells import measure_cell
from pipeline.sources.draft import Draft
from pipeline.sources.items import image_item, num_stride_cells, plan_image, sample_of, text_item
from pipeline.sources.json_text import JsonFault, parse_json
from pipeline.sources.settings import MeasureSettings
from pipeline.storage import Storage
from pipeline.tokenizer import Tokenizer, is_encodable

__all__ = ["COLUMNS", "draw", "measure"]

COLUMNS = ("image", "captions")
NO_CAPTION = " "
"""What the reference tokenises where a row has an empty set of captions; nothing is drawn then."""


class _CaptionFault(Exception):
    """The captions cannot be used; the message is the reason."""


def measure(cells: Mapping[str, object], row: IndexRow, settings: MeasureSettings, storage: Storage) -> Draft:
    """Measure one parquet row; `row` says where it lies. Never raises for a bad row."""
    cell = cells["image"]
    if settings.improved and isinstance(cell, list) and len(cell) == 1:
        cell = cell[0]
    image = measure_cell(cell, settings, storage)
    row = replace(row, images=(image,), fault=image.fault)
    if row.fault:
        return Draft(row=row, detail=image.reference)
    try:
        captions = _read_captions(cells["captions"], settings)
    except (_CaptionFault, JsonFault) as fault:
        reason = str(fault) if isinstance(fault, _CaptionFault) else f"captions_{fault}"
        return Draft(row=replace(row, fault=reason), detail=repr(cells["captions"])[:80])
    return Draft(row=replace(row, text_group_sizes=(len(captions),)), texts=captions or [NO_CAPTION])


def _read_captions(cell: object, settings: MeasureSettings) -> list[str]:
    """The captions of a cell, in order.

    Raises:
        _CaptionFault: The cell is null, no JSON object, or holds something other than texts.
        JsonFault: The cell is no JSON.
    """
    if cell is None:
        raise _CaptionFault("captions_null")
    captions: object = cell
    if isinstance(cell, str | bytes):
        captions = _parse_captions(cell, settings)
    elif not settings.improved:
        raise _CaptionFault("captions_not_json")
    if isinstance(captions, list) and settings.improved:
        captions = dict(enumerate(captions))
    if not isinstance(captions, dict):
        raise _CaptionFault("captions_not_an_object")
    texts = list(captions.values())
    if settings.improved:
        texts = [text for text in texts if text is not None]  # a struct has a field for every caption any row has
    if not all(isinstance(text, str) for text in texts):
        raise _CaptionFault("caption_not_text")
    if not all(is_encodable(text) for text in texts):
        raise _CaptionFault("lone_surrogate")
    return texts


def _parse_captions(cell: str | bytes, settings: MeasureSettings) -> object:
    try:
        parsed = parse_json(cell)
    except JsonFault:
        if not settings.improved or isinstance(cell, bytes) or cell.lstrip()[:1] in ("{", "["):
            raise
        return {"caption": cell}
    return parsed if isinstance(parsed, dict | list) or not settings.improved else {"caption": str(cell)}


def draw(
    row: IndexRow,
    row_id: RowId,
    group: GroupConfig,
    dataset: DatasetConfig,
    draws: Draws,
    tokenizer: Tokenizer,
    bake: BakeConfig | None = None,
) -> Sample | Dropped:
    """One caption (drawn only if there is any), then the image as VAE with loss. See `pipeline.sources.draw`."""
    del tokenizer
    if row.fault:
        return Dropped(reason=row.fault)
    text = draws.choice(row.text_group_sizes[0]) if row.text_group_sizes[0] else 0
    planned = plan_image(row.images[0], group.image_transform, bake)
    num_text_tokens = row.text_num_tokens[text]
    items = (
        text_item(text, num_text_tokens, loss=False, enable_cfg=True),
        image_item(ItemKind.VAE, 0, planned, dataset, loss=True),
    )
    return sample_of(
        row_id,
        items,
        num_stride_cells(planned, group.image_transform) + num_text_tokens,
        row.conditions | row.images[0].conditions | planned[2],
        dataset,
        bake,
    )
