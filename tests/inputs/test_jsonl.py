"""inputs.md, "JSONL": each line is baked under both streams beside a good one; texts, reasons and counts are right."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from PIL import Image

from pipeline.errors import SourceError
from pipeline.plan_table import manifest_from_json
from tests.inputs.kitchen import STREAMS, Baked, Sources, bake, conversation
from tests.media.gallery import encode

GOOD = json.dumps({"conversations": conversation("good", "row")}).encode() + b"\n"
ASK = conversation("<image>What?")
TWICE = [*ASK, *ASK]


@dataclass(frozen=True, slots=True)
class Shown:
    """What a sample holds."""

    texts: tuple[str, ...]
    pictures: int = 0
    labels: tuple[str, ...] = ("yes",)


@dataclass(frozen=True, slots=True)
class LineCase:
    """A line: what the reference makes of it (a sample, or the reason for which it is dropped), and the improved stream
    (None: the same); what the reference counts."""

    content: object  # a row, or the bytes before the good line
    reference: Shown | str
    improved: Shown | str | None = None
    conditions: frozenset[str] = field(default_factory=frozenset)
    row: int = 0
    whole_file: bool = False  # `content` is all there is

    def bytes(self) -> bytes:
        line = self.content if isinstance(self.content, bytes) else json.dumps(self.content).encode() + b"\n"
        return line if self.whole_file else line + GOOD


SEEN = Shown(("What?", "yes"), 1)


def talk(*turns: tuple[str, str], **keys: object) -> dict[str, object]:
    return {**keys, "conversations": [{"from": speaker, "value": text} for speaker, text in turns]}


OPENAI = {
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "a.png"}},
                {"type": "text", "text": "What?"},
            ],
        },
        {"role": "assistant", "content": "yes"},
    ]
}
LINE = json.dumps(talk(("human", "What?"), ("gpt", "yes"))).encode()
TEXT = Shown(("What?", "yes"))

CASES: dict[str, LineCase] = {
    "a byte order mark at the start": LineCase(b"\xef\xbb\xbf" + LINE + b"\n", "invalid_json", TEXT),
    "a blank line": LineCase(b"\n", "blank_line"),
    "a line of spaces": LineCase(b"  \t\n", "blank_line"),
    "a last line without newline": LineCase(GOOD + LINE, TEXT, row=1, whole_file=True),
    "Windows line ends": LineCase(LINE + b"\r\n", TEXT),
    "a line of 50 MB": LineCase({**talk(("human", "What?"), ("gpt", "yes")), "notes": "x" * 50_000_000}, TEXT),
    "invalid JSON in the middle": LineCase(GOOD + b'{"conversations": [{"from"\n', "invalid_json", row=1),
    "bytes that are no UTF-8": LineCase(b'{"conversations": "\xff"}\n', "invalid_utf8"),
    "JSON nested a hundred thousand deep": LineCase(b"[" * 100_000 + b"]" * 100_000 + b"\n", "nested_too_deep"),
    "a JSON list": LineCase([1, 2], "not_an_object"),
    "image as a string": LineCase({"image": "a.png", "conversations": ASK}, SEEN),
    "image as a list": LineCase({"image": ["a.png"], "conversations": ASK}, SEEN),
    "image as an empty list": LineCase({"image": [], "conversations": ASK}, Shown(("What?", "yes"))),
    "image as null": LineCase({"image": None, "conversations": ASK}, "image_not_a_path"),
    "more placeholders than images in one turn": LineCase(
        talk(("human", "<image><image>What?"), ("gpt", "yes"), image="a.png"), SEEN
    ),
    "more placeholders than images over several turns": LineCase(
        {"image": "a.png", "conversations": TWICE},
        "too_many_placeholders",
        Shown(("What?", "yes", "What?", "yes"), 1, ("yes", "yes")),
        conditions=frozenset({"PLACEHOLDERS"}),
    ),
    "fewer placeholders than images": LineCase({"image": ["a.png", "a.png"], "conversations": ASK}, SEEN),
    "no placeholder at all": LineCase(talk(("human", "What?"), ("gpt", "yes"), image="a.png"), TEXT),
    "a placeholder in an answer": LineCase(
        talk(("human", "What?"), ("gpt", "an <image>"), image="a.png"),
        Shown(("What?", "an <image>"), 0, ("an <image>",)),
    ),
    "messages with role and content": LineCase(
        {"messages": [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "yes"}]},
        "no_conversations",
        TEXT,
    ),
    "messages with content as a list of parts": LineCase(OPENAI, "no_conversations", SEEN),
    "no answer": LineCase(talk(("human", "What?")), "no_loss"),
    "an empty answer": LineCase(talk(("human", "What?"), ("gpt", "")), "no_loss"),
    "no turns": LineCase({"conversations": []}, "no_loss"),
    "no conversation": LineCase({"id": 1}, "no_conversations"),
    "half an emoji": LineCase(talk(("human", "\ud83d half"), ("gpt", "yes")), "lone_surrogate"),
    "control tokens spelled out by a user": LineCase(
        talk(("human", "a<|im_end|>b"), ("gpt", "yes")),
        Shown(("a<|im_end|>b", "yes")),
        conditions=frozenset({"CONTROL_TOKENS"}),
    ),
    "a system turn is kept": LineCase(
        talk(("system", "Be brief."), ("human", "What?"), ("gpt", "yes")),
        TEXT,
        Shown(("Be brief.", "What?", "yes")),
        conditions=frozenset({"SYSTEM_TURNS"}),
    ),
    "a path with two dots": LineCase({"image": "../outside.png", "conversations": ASK}, "outside_root"),
    "an absolute path": LineCase({"image": "{root}/outside.png", "conversations": ASK}, "outside_root"),
    "a symlink out of the media folder": LineCase({"image": "escape.png", "conversations": ASK}, "outside_root"),
    "a symlink that stays inside": LineCase({"image": "inside.png", "conversations": ASK}, SEEN),
    "two dots that stay inside": LineCase({"image": "folder/../a.png", "conversations": ASK}, SEEN),
    "a missing file": LineCase({"image": "absent.png", "conversations": ASK}, "missing_file"),
    "a URL where a file below the media folder is expected": LineCase(
        {"image": "https://example.com/a.png", "conversations": ASK}, "missing_file"
    ),
    "a folder for a file": LineCase({"image": "folder", "conversations": ASK}, "missing_file"),
    "several images in one row": LineCase(
        talk(("human", "<image>or<image>What?"), ("gpt", "yes"), image=["a.png", "b.png"]),
        Shown(("or", "What?", "yes"), 2),
    ),
}
NAMES = list(CASES)


def media(sources: Sources) -> None:
    """Two pictures, one outside the media folder, and links."""
    encoded = encode(Image.new("RGB", (56, 42), (1, 2, 3)), "PNG")
    for name in ("a.png", "b.png", "../outside.png"):
        sources.add_picture(name, encoded)
    (sources.media / "folder").mkdir()
    (sources.media / "escape.png").symlink_to(sources.root / "outside.png")
    (sources.media / "inside.png").symlink_to(sources.media / "a.png")


@pytest.fixture(scope="module")
def baked(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Callable[[str], Baked]:
    """Every case in a file of its own."""
    sources = Sources(tmp_path_factory.mktemp("lines"), tokenizer_folder)
    sources.media.mkdir()
    media(sources)
    for number, case in enumerate(CASES.values()):
        sources.add_lines(str(number), case.bytes().replace(b"{root}", str(sources.root).encode()))
    sources.add_lines("same", [{"image": "a.png", "conversations": conversation(f"<image>{n}?")} for n in range(3)])
    done: dict[str, Baked] = {}

    def baked_under(stream: str) -> Baked:
        if stream not in done:
            done[stream] = bake(sources, stream, tmp_path_factory.mktemp(stream))
        return done[stream]

    return baked_under


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stream", STREAMS)
def test_line(stream: str, name: str, baked: Callable[[str], Baked]) -> None:
    case, bake, source = CASES[name], baked(stream), f"vlm_sft/{NAMES.index(name)}"
    expected = case.improved if stream == "improved" and case.improved is not None else case.reference
    served = bake.served(source, case.row)
    if isinstance(expected, str):
        assert served is None
        assert bake.dropped(source) == {expected: 1}
        assert bake.reason(source, case.row) == expected
        return
    assert bake.dropped(source) == {}
    assert served is not None
    assert (served.texts, len(served.pictures), served.labels) == (expected.texts, expected.pictures, expected.labels)
    assert bake.conditions(source, case.row) == case.conditions


def test_a_control_token_in_a_text_is_one_id_to_the_reference_and_letters_to_the_improved_stream(
    baked: Callable[[str], Baked],
) -> None:
    source = f"vlm_sft/{NAMES.index('control tokens spelled out by a user')}"
    reference, improved = (baked(stream).served(source, 0) for stream in STREAMS)
    assert reference is not None
    assert improved is not None
    assert improved.num_text_tokens > reference.num_text_tokens + 3


@pytest.mark.parametrize("stream", STREAMS)
def test_several_rows_may_show_one_image(stream: str, baked: Callable[[str], Baked]) -> None:
    for row in range(3):
        served = baked(stream).served("vlm_sft/same", row)
        assert served is not None
        assert served.texts[0] == f"{row}?"
        assert (served.pictures[0] == (1, 2, 3)).all()


@pytest.mark.parametrize("stream", STREAMS)
def test_files_outside_are_read_where_that_is_allowed(stream: str, tmp_path: Path, tokenizer_folder: Path) -> None:
    sources = Sources(tmp_path, tokenizer_folder)
    sources.media.mkdir()
    media(sources)
    names = ["../outside.png", str(tmp_path / "outside.png"), "escape.png"]
    sources.add_lines("lines", [{"image": name, "conversations": ASK} for name in names])
    done = bake(sources, stream, tmp_path / stream, allow_outside=True)
    assert all(done.served("vlm_sft/lines", row) is not None for row in range(3))


UNUSABLE: dict[str, tuple[object, str, list[str]]] = {
    "messages where the reference expects conversations": (
        OPENAI,
        "reference",
        ["no_conversations", "its keys: messages", "stream: improved"],
    ),
    "rows of another shape": (
        {"prompt": "What?", "completion": "yes"},
        "improved",
        ["no_conversations", "its keys: prompt, completion", "'conversations' or 'messages'"],
    ),
    "turns of another shape": (
        {"conversations": [{"speaker": "user", "text": "What?"}]},
        "improved",
        ["turn_without_from", "the turn's keys: speaker, text", "'from' or 'role'"],
    ),
    "no answers": (
        {"messages": [{"role": "user", "content": "What?"}]},
        "improved",
        ["no_loss", "turns of: human", "'assistant'"],
    ),
    "all files missing": ({"image": "absent.png", "conversations": ASK}, "improved", ["missing_file", "{media}"]),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_source_without_a_usable_row_stops_and_shows_one(name: str, tmp_path: Path, tokenizer_folder: Path) -> None:
    row, stream, words = UNUSABLE[name]
    sources = Sources(tmp_path, tokenizer_folder)
    sources.add_lines("lines", [row] * 4)
    with pytest.raises(SourceError) as caught:
        bake(sources, stream, tmp_path / "out")
    message = str(caught.value)
    for word in [*words, "4", "lines.jsonl row 0", "vlm_sft/lines"]:
        assert word.replace("{media}", str(sources.media)) in message
    assert not list((tmp_path / "out").rglob("*.tar"))


def test_the_plan_names_the_first_row_that_each_reason_took(baked: Callable[[str], Baked]) -> None:
    for stream in STREAMS:
        folder = baked(stream).folder
        examples = manifest_from_json((folder / "plan" / "plan.json").read_bytes()).statistics["drop_examples"]
        for number, case in enumerate(CASES.values()):
            expected = case.improved if stream == "improved" and case.improved is not None else case.reference
            if isinstance(expected, str):
                assert examples[f"vlm_sft/{number}"] == {expected: [[f"{number}.jsonl", case.row]]}
