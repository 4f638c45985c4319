"""Questions about scenes and their right answers."""

from __future__ import annotations

import random

from pipeline.demo.captions import captions, joined
from pipeline.demo.scenes import Scene, with_article

__all__ = ["Exchange", "comparison", "motion", "questions", "riddle"]

Exchange = tuple[str, str]  # question, answer

_NUMBERS = ("no", "one", "two", "three")


def questions(draws: random.Random, scene: Scene) -> list[Exchange]:
    """Every question that the scene answers, in random order."""
    thing = draws.choice(scene.things)
    first, second = draws.sample(scene.things, 2)
    asked = draws.choice((scene.relation(first, second), scene.relation(second, first)))
    end = "on the far left" if scene.layout == "row" else "at the top"
    exchanges = [
        ("How many shapes are in the picture?", f"There are {_NUMBERS[len(scene.things)]} shapes."),
        (f"What colour is the {thing.shape}?", f"The {thing.shape} is {thing.colour}."),
        (f"Which shape is {thing.colour}?", f"The {thing.shape} is {thing.colour}."),
        (f"What is {end}?", f"{with_article(scene.things[0].name).capitalize()}."),
        ("What colour is the background?", f"The background is {scene.background}."),
        ("Describe the picture.", f"{captions(scene)[draws.choice((0, 2, 3))].capitalize()}."),
        (
            f"Is the {first.shape} {asked} the {second.shape}?",
            f"{'Yes' if asked == scene.relation(first, second) else 'No'}, "
            f"it is {scene.relation(first, second)} the {second.shape}.",
        ),
    ]
    draws.shuffle(exchanges)
    return exchanges


def comparison(draws: random.Random, scenes: list[Scene]) -> Exchange:
    """A question about two pictures."""
    first, second = ({thing.shape for thing in scene.things} for scene in scenes)
    if only := sorted(first ^ second):
        shape = draws.choice(only)
        which = "first" if shape in first else "second"
        return f"Which picture has {with_article(shape)} in it?", f"The {which} picture has {with_article(shape)}."
    return "Which shapes are in both pictures?", f"{joined(sorted(first)).capitalize()}."


def motion(scene: Scene, forward: bool) -> Exchange:
    """A question about a clip in which the scene's things move along its layout."""
    words = ("to the right", "to the left") if scene.layout == "row" else ("down", "up")
    name = scene.things[0].name
    return f"Which way does the {name} move?", f"The {name} moves {words[0] if forward else words[1]}."


def riddle(draws: random.Random, scene: Scene) -> Exchange:
    """A question that needs no picture."""
    first, second = draws.sample(scene.things, 2)
    there, back = scene.relation(first, second), scene.relation(second, first)
    fact = f"{with_article(first.name).capitalize()} is {there} {with_article(second.name)}."
    return f"{fact} What is {back} the {first.shape}?", f"The {second.name}."
