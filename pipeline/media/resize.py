"""The resizing rule: which size a picture gets, and the resampling itself.

The rule is written once; index, plan, render and validate all call it.
"""

from __future__ import annotations

import math

from PIL import Image

from pipeline.config import ImageTransformConfig

__all__ = ["planned_size", "resize"]


def planned_size(
    width_px: int,
    height_px: int,
    transform: ImageTransformConfig,
    num_images: int = 1,
    *,
    resize_area: bool = False,
) -> tuple[int, int]:
    """Size (width, height) in pixels that a picture of the given size is resized to.

    The longest edge at most `max_image_size`, the shortest at least `min_image_size`, both multiples of the stride and
    at least one stride; the area at most `max_pixels / num_images`. Worked: 3000x2000, max 1024, min 512, stride 16:
    scale 1024/3000, rounded 1024x683, strides 1024x688.

    Source: `MaxLongEdgeMinShortEdgeResize.forward`, equal to it for every size. There a picture above the area limit is
    scaled by the *ratio* of the areas, which makes it much smaller than allowed.

    Args:
        width_px: Width of the decoded picture, at least 1.
        height_px: Height of the decoded picture, at least 1.
        transform: Limits and stride.
        num_images: Pictures of the row, which share `max_pixels`.
        resize_area: Scale by the square root of the ratio instead (correction `resize_area`). Edges are then shortened
            further by single strides until the area fits, as far as one stride an edge allows.
    """
    stride = transform.image_stride
    budget_px = transform.max_pixels / num_images
    scale = min(transform.max_image_size / max(width_px, height_px), 1.0)
    scale = max(scale, transform.min_image_size / min(width_px, height_px))
    width, height = _scaled(width_px, height_px, scale, stride)

    if width * height > budget_px:
        scale = budget_px / (width * height)
        width, height = _scaled(width, height, math.sqrt(scale) if resize_area else scale, stride)

    if max(width, height) > transform.max_image_size:
        width, height = _scaled(width, height, transform.max_image_size / max(width, height), stride)

    if resize_area:
        while width * height > budget_px and max(width, height) > stride:
            if width >= height:
                width -= stride
            else:
                height -= stride
    return width, height


def resize(image: Image.Image, width_px: int, height_px: int) -> Image.Image:
    """`image` resampled to the given size, bicubic with Pillow's own antialiasing; itself if it has that size.

    Source: what `torchvision.transforms.functional.resize` calls for a PIL image, byte for byte.
    """
    if image.size == (width_px, height_px):
        return image
    return image.resize((width_px, height_px), Image.Resampling.BICUBIC)


def _scaled(width: int, height: int, scale: float, stride: int) -> tuple[int, int]:
    return _to_stride(round(width * scale), stride), _to_stride(round(height * scale), stride)


def _to_stride(edge: int, stride: int) -> int:
    """The multiple of `stride` nearest to `edge` (halves to even), at least one stride."""
    return max(stride, round(edge / stride) * stride)
