"""Chains of scenes in which every step does what its instructions say."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from pipeline.demo.scenes import BACKGROUNDS, Scene, Thing, draw_scene, with_article

__all__ = ["draw_chain"]

Step = tuple[Scene, list[str]]  # the scene after the step, and its phrasings


def draw_chain(draws: random.Random) -> tuple[list[Scene], list[list[str]]]:
    """Two to four scenes, and for each step from one to the next its instruction in several phrasings."""
    scenes = [draw_scene(draws)]
    instructions: list[list[str]] = []
    for _ in range(draws.randint(1, 3)):
        step = draws.choice(_STEPS)(draws, scenes[-1])
        scenes.append(step[0])
        instructions.append(step[1])
    return scenes, instructions


def _recolour(draws: random.Random, scene: Scene) -> Step:
    old = draws.choice(scene.things)
    colour = draws.choice(scene.unused_colours())
    return _replaced(scene, old, replace(old, colour=colour)), [
        f"make the {old.name} {colour}",
        f"paint the {old.shape} {colour}",
        f"turn the {old.name} into {with_article(f'{colour} one')}",
    ]


def _reshape(draws: random.Random, scene: Scene) -> Step:
    old = draws.choice(scene.things)
    shape = draws.choice(scene.unused_shapes())
    return _replaced(scene, old, replace(old, shape=shape)), [
        f"replace the {old.name} with {with_article(f'{old.colour} {shape}')}",
        f"turn the {old.shape} into {with_article(shape)}",
    ]


def _resize(draws: random.Random, scene: Scene) -> Step:
    old = draws.choice(scene.things)
    word, verb = ("smaller", "shrink") if old.large else ("larger", "enlarge")
    return _replaced(scene, old, replace(old, large=not old.large)), [
        f"make the {old.name} {word}",
        f"{verb} the {old.shape}",
    ]


def _exchange(draws: random.Random, scene: Scene) -> Step:
    first, second = draws.sample(scene.things, 2)
    moved = [replace(first, place=second.place), replace(second, place=first.place)]
    rest = [thing for thing in scene.things if thing not in (first, second)]
    return scene.with_things([*rest, *moved]), [
        f"swap the {first.name} and the {second.name}",
        f"let the {first.shape} and the {second.shape} change places",
    ]


def _add_or_remove(draws: random.Random, scene: Scene) -> Step:
    if free := scene.free_places():
        new = Thing(
            colour=draws.choice(scene.unused_colours()),
            shape=draws.choice(scene.unused_shapes()),
            place=draws.choice(free),
            large=True,
        )
        where = {
            "row": ("on the left", "in the middle", "on the right"),
            "column": ("on top", "in the middle", "below"),
        }
        place = where[scene.layout][new.place]
        return scene.with_things([*scene.things, new]), [
            f"add {with_article(new.name)} {place}",
            f"put {with_article(new.name)} {place}",
        ]
    old = draws.choice(scene.things)
    return scene.with_things([thing for thing in scene.things if thing != old]), [
        f"remove the {old.name}",
        f"erase the {old.shape}",
    ]


def _repaint(draws: random.Random, scene: Scene) -> Step:
    background = draws.choice([name for name in BACKGROUNDS if name != scene.background])
    return replace(scene, background=background), [
        f"make the background {background}",
        f"change the {scene.background} background to {background}",
    ]


def _replaced(scene: Scene, old: Thing, new: Thing) -> Scene:
    return scene.with_things([new if thing == old else thing for thing in scene.things])


_STEPS: tuple[Callable[[random.Random, Scene], Step], ...] = (
    _recolour,
    _recolour,
    _reshape,
    _resize,
    _exchange,
    _add_or_remove,
    _repaint,
)
