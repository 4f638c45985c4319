"""`unified_edit`: a parquet row holds a chain of n images and, for each of its n-1 steps, equivalent instructions.

    image_list        [image 0, image 1, … image n-1]
    instruction_list  [[phrasings of step 0→1], [phrasings of step 1→2], …]

A sample is a stretch of the chain of one or two steps:

    one edit      VAE(0)c VIT(0)c text(0→1) VAE(1)L
    two edits     VAE(0)c VIT(0)c text(0→1) VAE(1)L VAE(1)c VIT(1)c text(1→2) VAE(2)L
    joined        VAE(0)c VIT(0)c text(0→1 and 1→2, one text) VAE(2)L          c: conditioning, L: loss

Reference: `UnifiedEditIterableDataset.parse_row`. Its draws come in this order; a fault strikes where it is met, and
what was drawn before stays drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate, pairwise

from pipeline.config import BakeConfig, DatasetConfig, GroupConfig, ImageTransformConfig
from pipeline.records import Draws, Dropped, IndexRow, Item, ItemKind, RowId, Sample
from pipeline.sources.cells import measure_cell
from pipeline.sources.draft import Draft
from pipeline.sources.items import image_item, num_stride_cells, plan_image, sample_of, text_item
from pipeline.sources.settings import MeasureSettings
from pipeline.storage import Storage
from pipeline.tokenizer import Tokenizer, is_encodable

__all__ = ["COLUMNS", "draw", "lost_reason", "measure"]

COLUMNS = ("image_list", "instruction_list")
_LONGEST_STRETCH = 3  # images: start, and at most two steps on


class _Fault(Exception):
    """The row ends here; the message is the reason."""


def measure(cells: Mapping[str, object], row: IndexRow, settings: MeasureSettings, storage: Storage) -> Draft:
    """Measure one parquet row, all its images; `row` says where it lies. Never raises for a bad row.

    A faulty image or instruction does not fault the row: only the samples that use it.
    """
    cells_of_images = cells["image_list"]
    if not isinstance(cells_of_images, list):
        return Draft(row=replace(row, fault="images_null" if cells_of_images is None else "images_not_a_list"))
    if len(cells_of_images) < 2:
        return Draft(row=replace(row, fault="too_few_images"), detail=f"{len(cells_of_images)} images")
    images = tuple(measure_cell(cell, settings, storage) for cell in cells_of_images)
    steps = [_alternatives(step, settings) for step in _sequence(cells["instruction_list"]) or ()]
    texts = [text if isinstance(text, str) and is_encodable(text) else None for step in steps for text in step or ()]
    sizes = tuple(-1 if step is None else len(step) for step in steps)
    return Draft(row=replace(row, images=images, text_group_sizes=sizes), texts=texts, keep_texts=True)


def _sequence(value: object) -> list[object] | None:
    """What `random.choice` can choose from: the entries of a list, the characters of a string, the bytes of bytes."""
    return list(value) if isinstance(value, list | str | bytes) else None


def _alternatives(step: object, settings: MeasureSettings) -> list[object] | None:
    """The phrasings of a step. One plain string is one phrasing to an improved stream, to the reference its letters."""
    return [step] if settings.improved and isinstance(step, str) else _sequence(step)


def lost_reason(row: IndexRow) -> str:
    """Why no draw can make a sample of the row; "" if some draw can: two neighbours and a text between them."""
    if row.fault:
        return row.fault
    ends = list(accumulate((max(size, 0) for size in row.text_group_sizes), initial=0))
    for step, (before, after) in enumerate(pairwise(row.images)):
        has_text = step < len(ends) - 1 and any(
            count >= 0 for count in row.text_num_tokens[ends[step] : ends[step + 1]]
        )
        if has_text and not before.fault and not after.fault:
            return ""
    return next((image.fault for image in row.images if image.fault), "no_instructions")


def draw(
    row: IndexRow,
    row_id: RowId,
    group: GroupConfig,
    dataset: DatasetConfig,
    draws: Draws,
    tokenizer: Tokenizer,
    bake: BakeConfig | None = None,
) -> Sample | Dropped:
    """A stretch of the chain, its instructions one text or several. See `pipeline.sources.draw`."""
    if row.fault:
        return Dropped(reason=row.fault)
    num_images = len(row.images)
    start = draws.choice(num_images - 1)
    end = start + 1 + draws.choice(min(start + _LONGEST_STRETCH, num_images) - start - 1)
    chain = _Chain(row, group, dataset, bake)
    try:
        chain.add_condition(start)
        if end - start > 1 and draws.uniform() < 0.5:
            if end == num_images - 1:
                end -= 1
            chosen = [_choose(row, step, draws) for step in range(start, end)]
            chain.add_text(_joined([row.texts[text] for text in chosen], tokenizer, bake))
            chain.add_target(end)
        else:
            for image in range(start + 1, end + 1):
                text = _choose(row, image - 1, draws)
                chain.add_text(text_item(text, row.text_num_tokens[text], loss=False, enable_cfg=True))
                chain.add_target(image)
                if image != end:
                    chain.add_condition(image)
    except _Fault as fault:
        return Dropped(reason=str(fault))
    return sample_of(row_id, chain.items, chain.num_tokens, chain.conditions, dataset, bake)


def _choose(row: IndexRow, step: int, draws: Draws) -> int:
    """Number of the text drawn for a step; nothing is drawn where there is no list to draw from."""
    sizes = row.text_group_sizes
    if step >= len(sizes) or sizes[step] < 0:
        raise _Fault("no_instructions")
    if sizes[step] == 0:
        raise _Fault("empty_instructions")
    first = list(accumulate((max(size, 0) for size in sizes[:step]), initial=0))[-1]
    text = first + draws.choice(sizes[step])
    if row.text_num_tokens[text] < 0:
        raise _Fault("instruction_not_text")
    return text


def _joined(texts: list[str], tokenizer: Tokenizer, bake: BakeConfig | None) -> Item:
    """Several instructions as one text, each followed by ". ", the end stripped."""
    keep_control_text = bake is not None and "control_tokens" in bake.corrections
    joined = "".join(f"{text}. " for text in texts).rstrip()
    token_ids = tuple(tokenizer.encode(joined, keep_control_text=keep_control_text))
    return Item(kind=ItemKind.TEXT, enable_cfg=True, num_tokens=len(token_ids), token_ids=token_ids)


class _Chain:
    """The sample as it grows: items, the reference's token count, conditions of the images used."""

    def __init__(self, row: IndexRow, group: GroupConfig, dataset: DatasetConfig, bake: BakeConfig | None) -> None:
        self._row = row
        self._transform = group.image_transform
        self._vit_transform = group.vit_image_transform or group.image_transform
        self._dataset = dataset
        self._bake = bake
        self.items: list[Item] = []
        self.num_tokens = 0
        self.conditions = row.conditions

    def add_text(self, item: Item) -> None:
        self.items.append(item)
        self.num_tokens += item.num_tokens

    def add_target(self, image: int) -> None:
        """The image as something to generate: VAE with loss, never dropped out."""
        self._add(ItemKind.VAE, image, self._transform, loss=True, enable_cfg=False)

    def add_condition(self, image: int) -> None:
        """The image as something to look at: VAE without loss, then ViT."""
        self._add(ItemKind.VAE, image, self._transform, loss=False, enable_cfg=True)
        self._add(ItemKind.VIT, image, self._vit_transform, loss=False, enable_cfg=True)

    def _add(
        self, kind: ItemKind, image: int, transform: ImageTransformConfig, *, loss: bool, enable_cfg: bool
    ) -> None:
        entry = self._row.images[image]
        if entry.fault:
            raise _Fault(entry.fault)
        planned = plan_image(entry, transform, self._bake)
        self.items.append(image_item(kind, image, planned, self._dataset, loss=loss, enable_cfg=enable_cfg))
        self.num_tokens += num_stride_cells(planned, transform)
        self.conditions |= entry.conditions | planned[2]
