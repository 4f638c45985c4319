"""Images as items: planned size, token count and conditions, the same for every source kind."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from pipeline.config import BakeConfig, DatasetConfig, ImageTransformConfig
from pipeline.media.resize import planned_size
from pipeline.records import Condition, Dropped, ImageEntry, Item, ItemKind, RowId, Sample

__all__ = ["PlannedImage", "image_item", "is_aliased", "num_stride_cells", "plan_image", "sample_of", "text_item"]

PlannedImage = tuple[int, int, int]
"""Width, height and conditions of a planned image."""


def plan_image(
    image: ImageEntry, transform: ImageTransformConfig, bake: BakeConfig | None, num_images: int = 1
) -> PlannedImage:
    """Size of the image after the transform, where `num_images` share its `max_pixels`."""
    resize_area = bake is not None and "resize_area" in bake.corrections
    return _planned(image.width_px, image.height_px, transform, num_images, resize_area)


@lru_cache(maxsize=1 << 16)
def _planned(
    width_px: int, height_px: int, transform: ImageTransformConfig, num_images: int, resize_area: bool
) -> PlannedImage:
    size = planned_size(width_px, height_px, transform, num_images, resize_area=resize_area)
    if _always_fits(width_px, height_px, transform, num_images):
        return *size, 0
    other = planned_size(width_px, height_px, transform, num_images, resize_area=not resize_area)
    return *size, int(Condition.RESIZE_AREA if size != other else Condition.NONE)


def _always_fits(width_px: int, height_px: int, transform: ImageTransformConfig, num_images: int) -> bool:
    """Whether `max_pixels` cannot matter: no edge is enlarged past the longest one allowed, and its square fits."""
    longest, shortest = max(width_px, height_px), min(width_px, height_px)
    if longest * transform.min_image_size > shortest * transform.max_image_size:
        return False
    return (transform.max_image_size + transform.image_stride) ** 2 * num_images <= transform.max_pixels


def is_aliased(item: Item, dataset: DatasetConfig) -> bool:
    """Whether a side has more cells than the position table, so that position ids repeat or leave the table."""
    if dataset.interpolate_pos:
        return False
    if item.kind is ItemKind.VIT:
        return max(item.width_px, item.height_px) // dataset.vit_patch_size > dataset.max_num_patch_per_side
    return max(item.width_px, item.height_px) // dataset.vae_image_downsample > dataset.max_latent_size


def num_stride_cells(planned: PlannedImage, transform: ImageTransformConfig) -> int:
    """What the image adds to a sample's `num_tokens`: `w*h // stride²`, whatever the patch size is."""
    return int(planned[0] * planned[1] // transform.image_stride**2)


def image_item(
    kind: ItemKind,
    image: int,
    planned: PlannedImage,
    dataset: DatasetConfig,
    *,
    loss: bool = False,
    enable_cfg: bool = False,
) -> Item:
    """The item of image number `image` of a row; its tokens are patches (ViT) or latent cells (VAE)."""
    width_px, height_px, _ = planned
    cell_px = dataset.vit_patch_size if kind is ItemKind.VIT else dataset.vae_image_downsample
    return _image_item(kind, image, width_px, height_px, cell_px, loss, enable_cfg)


# Items are immutable and few are different: looking one up costs a tenth of making it.


@lru_cache(maxsize=1 << 14)
def _image_item(
    kind: ItemKind, image: int, width_px: int, height_px: int, cell_px: int, loss: bool, enable_cfg: bool
) -> Item:
    return Item(
        kind=kind,
        loss=loss,
        enable_cfg=enable_cfg,
        num_tokens=(width_px // cell_px) * (height_px // cell_px),
        image=image,
        width_px=width_px,
        height_px=height_px,
    )


@lru_cache(maxsize=1 << 14)
def text_item(text: int, num_tokens: int, loss: bool, enable_cfg: bool = False) -> Item:
    """The item of text number `text` of a row."""
    return Item(kind=ItemKind.TEXT, loss=loss, enable_cfg=enable_cfg, num_tokens=num_tokens, text=text)


def sample_of(
    row_id: RowId,
    items: Sequence[Item],
    num_tokens: int,
    conditions: int,
    dataset: DatasetConfig,
    bake: BakeConfig | None,
) -> Sample | Dropped:
    """The finished sample; a side longer than the position table is a condition, in an improved stream a fault."""
    if any(is_aliased(item, dataset) for item in items if item.image >= 0):
        if bake is not None and bake.stream == "improved":
            return Dropped(reason="side_too_long")
        conditions |= int(Condition.ALIASED)
    return Sample(row=row_id, items=tuple(items), num_tokens=num_tokens, conditions=conditions)
