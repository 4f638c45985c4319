"""Pictures of scenes."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Literal

from PIL import Image, ImageDraw

from pipeline.demo.scenes import BACKGROUNDS, COLOURS, NUM_PLACES, Scene

__all__ = ["encode", "picture"]

_OVERSAMPLING = 2  # Pillow draws hard edges: drawn twice as large and reduced, they are smooth
_LARGE, _SMALL = 0.42, 0.24  # radius as a part of the shorter side of a place


def picture(scene: Scene, shift: float = 0.0) -> Image.Image:
    """The scene as an RGB picture of its size; `shift` moves all things along the layout, in places."""
    width, height = scene.width_px * _OVERSAMPLING, scene.height_px * _OVERSAMPLING
    image = Image.new("RGB", (width, height), BACKGROUNDS[scene.background])
    draw = ImageDraw.Draw(image)
    step_x, step_y = (width / NUM_PLACES, 0.0) if scene.layout == "row" else (0.0, height / NUM_PLACES)
    for thing in scene.things:
        along = thing.place + 0.5 + shift
        center = (step_x * along or width / 2, step_y * along or height / 2)
        side = min(step_x or width, step_y or height)
        radius = side * (_LARGE if thing.large else _SMALL)
        draw.polygon(_outline(thing.shape, center, radius), fill=COLOURS[thing.colour])
    return image.reduce(_OVERSAMPLING)


def encode(image: Image.Image, kind: Literal["JPEG", "PNG"]) -> bytes:
    """The bytes of an image file."""
    buffer = io.BytesIO()
    if kind == "JPEG":
        image.save(buffer, "JPEG", quality=92, subsampling=0)
    else:
        image.save(buffer, "PNG")
    return buffer.getvalue()


def _outline(shape: str, center: tuple[float, float], radius: float) -> Sequence[tuple[float, float]]:
    """Corners of a shape; the angles count clockwise from the top."""
    if shape == "square":
        return _corners(center, [(45 + 90 * n, radius) for n in range(4)])
    if shape == "star":
        return _corners(center, [(36 * n, radius if n % 2 == 0 else radius * 0.4) for n in range(10)])
    num_corners = {"triangle": 3, "diamond": 4, "circle": 120}[shape]
    return _corners(center, [(360 / num_corners * n, radius) for n in range(num_corners)])


def _corners(center: tuple[float, float], polar: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [
        (center[0] + radius * math.sin(math.radians(degrees)), center[1] - radius * math.cos(math.radians(degrees)))
        for degrees, radius in polar
    ]
