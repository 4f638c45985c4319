from __future__ import annotations

import random
from itertools import pairwise

import pytest

from pipeline.demo.captions import captions, joined
from pipeline.demo.drawing import picture
from pipeline.demo.edits import draw_chain
from pipeline.demo.questions import comparison, motion, questions, riddle
from pipeline.demo.scenes import BACKGROUNDS, COLOURS, NUM_PLACES, Scene, Thing, draw_scene, with_article

RED_CIRCLE = Thing(colour="red", shape="circle", place=0, large=True)
BLUE_SQUARE = Thing(colour="blue", shape="square", place=2, large=False)
ROW = Scene(layout="row", background="white", things=(RED_CIRCLE, BLUE_SQUARE), width_px=480, height_px=320)


def seen_colour(scene: Scene, place: int) -> tuple[int, int, int]:
    """The colour in the middle of a place of the drawn picture."""
    image = picture(scene)
    along = (place + 0.5) / NUM_PLACES
    center = (
        (along * image.width, image.height / 2) if scene.layout == "row" else (image.width / 2, along * image.height)
    )
    pixel = image.getpixel((int(center[0]), int(center[1])))
    assert isinstance(pixel, tuple)
    return pixel[0], pixel[1], pixel[2]


@pytest.mark.parametrize("seed", range(20))
def test_a_picture_shows_each_thing_at_its_place_and_background_elsewhere(seed: int) -> None:
    scene = draw_scene(random.Random(seed))
    assert picture(scene).size == (scene.width_px, scene.height_px)
    for thing in scene.things:
        assert seen_colour(scene, thing.place) == COLOURS[thing.colour]
    for place in scene.free_places():
        assert seen_colour(scene, place) == BACKGROUNDS[scene.background]


@pytest.mark.parametrize("seed", range(20))
def test_names_are_unambiguous(seed: int) -> None:
    scenes, _ = draw_chain(random.Random(seed))
    for scene in [*scenes, draw_scene(random.Random(seed))]:
        for part in ("colour", "shape", "place"):
            parts = [getattr(thing, part) for thing in scene.things]
            assert len(set(parts)) == len(parts) >= 2
        assert [thing.place for thing in scene.things] == sorted(thing.place for thing in scene.things)


def test_captions_are_these_sentences() -> None:
    assert captions(ROW) == [
        "a red circle left of a blue square",
        "a blue square right of a red circle",
        "a drawing of a red circle and a blue square on a white background",
        "from left to right: a red circle, a blue square",
    ]
    assert joined(["a", "b", "c"]) == "a, b and c"
    assert with_article("orange star") == "an orange star"


def test_questions_have_these_answers() -> None:
    asked = dict(questions(random.Random(1), ROW))
    assert asked["How many shapes are in the picture?"] == "There are two shapes."
    assert asked["What is on the far left?"] == "A red circle."
    assert asked["What colour is the background?"] == "The background is white."
    every = [dict(questions(random.Random(seed), ROW)) for seed in range(50)]
    judged = {(question, answer) for one in every for question, answer in one.items() if question.startswith("Is")}
    assert judged == {
        ("Is the circle left of the square?", "Yes, it is left of the square."),
        ("Is the circle right of the square?", "No, it is left of the square."),
        ("Is the square right of the circle?", "Yes, it is right of the circle."),
        ("Is the square left of the circle?", "No, it is right of the circle."),
    }


def test_riddles_comparisons_and_motions_have_these_answers() -> None:
    assert {riddle(random.Random(seed), ROW) for seed in range(20)} == {
        ("A red circle is left of a blue square. What is right of the circle?", "The blue square."),
        ("A blue square is right of a red circle. What is left of the square?", "The red circle."),
    }
    star = Scene(
        layout="row",
        background="white",
        things=(RED_CIRCLE, Thing(colour="green", shape="star", place=1, large=True)),
        width_px=480,
        height_px=320,
    )
    assert {comparison(random.Random(seed), [ROW, star]) for seed in range(20)} == {
        ("Which picture has a square in it?", "The first picture has a square."),
        ("Which picture has a star in it?", "The second picture has a star."),
    }
    assert comparison(random.Random(0), [ROW, ROW]) == ("Which shapes are in both pictures?", "Circle and square.")
    assert motion(ROW, True) == ("Which way does the red circle move?", "The red circle moves to the right.")


@pytest.mark.parametrize("seed", range(40))
def test_every_step_of_a_chain_does_what_it_says_and_changes_the_picture(seed: int) -> None:
    scenes, instructions = draw_chain(random.Random(seed))
    assert len(scenes) == len(instructions) + 1
    for (before, after), phrasings in zip(pairwise(scenes), instructions, strict=True):
        assert len(phrasings) >= 2
        assert picture(before).tobytes() != picture(after).tobytes()
        check_step(before, after, phrasings[0])


def check_step(before: Scene, after: Scene, instruction: str) -> None:
    """Read the first phrasing of a step literally."""
    old, new = ({thing.name: thing for thing in scene.things} for scene in (before, after))
    verb, _, rest = instruction.partition(" ")
    gone, come = set(old) - set(new), set(new) - set(old)
    if instruction.startswith("make the background "):
        assert after.background == rest.removeprefix("the background ")
        assert before.things == after.things
    elif verb == "make" and rest.endswith(("smaller", "larger")):
        name, _, size = rest.removeprefix("the ").rpartition(" ")
        assert (old[name].large, new[name].large) == ((True, False) if size == "smaller" else (False, True))
    elif verb == "make":
        name, _, colour = rest.removeprefix("the ").rpartition(" ")
        assert (gone, come) == ({name}, {f"{colour} {old[name].shape}"})
    elif verb == "replace":
        name, _, other = rest.removeprefix("the ").partition(" with a")
        assert (gone, come) == ({name}, {other.removeprefix("n").strip()})
    elif verb == "swap":
        first, _, second = rest.removeprefix("the ").partition(" and the ")
        assert (new[first].place, new[second].place) == (old[second].place, old[first].place)
    elif verb == "add":
        (name,) = come
        place = {"left": 0, "top": 0, "middle": 1, "right": 2, "below": 2}[instruction.rpartition(" ")[2]]
        assert (name in rest, new[name].place, gone) == (True, place, set())
    else:
        assert (verb, gone, come) == ("remove", {rest.removeprefix("the ")}, set())
