"""Sentences that are true of a scene."""

from __future__ import annotations

from pipeline.demo.scenes import Scene, with_article

__all__ = ["captions", "joined"]


def captions(scene: Scene) -> list[str]:
    """Several true descriptions of a scene of at least two things, most telling first."""
    names = [with_article(thing.name) for thing in scene.things]
    first, second = scene.things[0], scene.things[1]
    order = "from left to right" if scene.layout == "row" else "from top to bottom"
    return [
        f"{names[0]} {scene.relation(first, second)} {names[1]}",
        f"{names[1]} {scene.relation(second, first)} {names[0]}",
        f"a drawing of {joined(names)} on a {scene.background} background",
        f"{order}: {', '.join(names)}",
    ]


def joined(names: list[str]) -> str:
    """ "a, b and c"."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
