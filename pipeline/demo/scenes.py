"""What there is to see: coloured shapes in a row or in a column.

A scene has three places. In a row they are left, middle and right, in a column top, middle and bottom: "left of" and
"above" are true or false, never a matter of taste. No two things of a scene share a colour or a shape: "the circle" and
"the red one" name one thing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["BACKGROUNDS", "COLOURS", "NUM_PLACES", "SHAPES", "Scene", "Thing", "draw_scene", "with_article"]

COLOURS = {
    "red": (214, 39, 40),
    "blue": (31, 87, 200),
    "green": (34, 150, 60),
    "yellow": (240, 200, 20),
    "orange": (255, 127, 14),
    "purple": (130, 60, 170),
    "black": (25, 25, 25),
    "pink": (240, 120, 180),
}
BACKGROUNDS = {
    "white": (255, 255, 255),
    "light grey": (222, 222, 222),
    "pale blue": (205, 228, 250),
    "pale brown": (226, 206, 178),
}
SHAPES = ("circle", "square", "triangle", "star", "diamond")
NUM_PLACES = 3
_SIZES_PX = {"row": ((480, 320), (512, 256), (416, 320)), "column": ((320, 480), (256, 512), (320, 416))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """One shape at one place (0, 1 or 2, from the left or from the top)."""

    colour: str
    shape: str
    place: int
    large: bool

    @property
    def name(self) -> str:
        """ "red circle"."""
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A picture before it is drawn; `things` in the order of their places."""

    layout: Literal["row", "column"]
    background: str
    things: tuple[Thing, ...]
    width_px: int
    height_px: int

    def relation(self, first: Thing, second: Thing) -> str:
        """Where `first` is seen from `second`."""
        before, after = ("left of", "right of") if self.layout == "row" else ("above", "below")
        return before if first.place < second.place else after

    def with_things(self, things: Sequence[Thing]) -> Scene:
        """The same scene with other things in it."""
        return replace(self, things=tuple(sorted(things, key=lambda thing: thing.place)))

    def unused_colours(self) -> list[str]:
        """Colours that no thing has."""
        return [colour for colour in COLOURS if colour not in {thing.colour for thing in self.things}]

    def unused_shapes(self) -> list[str]:
        """Shapes that no thing has."""
        return [shape for shape in SHAPES if shape not in {thing.shape for thing in self.things}]

    def free_places(self) -> list[int]:
        """Places where nothing is."""
        return [place for place in range(NUM_PLACES) if place not in {thing.place for thing in self.things}]


def draw_scene(draws: random.Random, num_things: int | None = None) -> Scene:
    """A scene of two or three things (or of `num_things`)."""
    layout: Literal["row", "column"] = draws.choice(("row", "column"))
    width_px, height_px = draws.choice(_SIZES_PX[layout])
    count = draws.choice((2, 2, 3)) if num_things is None else num_things
    places = sorted(draws.sample(range(NUM_PLACES), count))
    colours, shapes = draws.sample(list(COLOURS), count), draws.sample(SHAPES, count)
    things = tuple(
        Thing(colour=colour, shape=shape, place=place, large=draws.random() < 0.7)
        for colour, shape, place in zip(colours, shapes, places, strict=True)
    )
    return Scene(
        layout=layout,
        background=draws.choice(list(BACKGROUNDS)),
        things=things,
        width_px=width_px,
        height_px=height_px,
    )


def with_article(name: str) -> str:
    """ "a red circle", "an orange circle"."""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
