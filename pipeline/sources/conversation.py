"""A conversation as elements: where texts and images stand. Pure; no files, no tokens.

    human  "Look: <image> and\n<image>"   →  TURN  TEXT "Look:"  IMAGE  TEXT "and"  IMAGE
    human  "And now? "                    →  TURN  TEXT "And now? "            (no placeholder: kept as it is)
    gpt    "A cat."                       →  ANSWER "A cat."

Reference: `SftJSONLIterableDataset.change_format`, and the `<video>` loop of its `__iter__`. A `<video>` counts only in
the first turn, where it stands for one `<image>` per frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.records import Condition, Element

__all__ = ["Conversation", "ConversationFault", "Piece", "first_turn_pieces", "read_conversation", "turn_pieces"]

IMAGE = "<image>"
VIDEO = "<video>"

Piece = tuple[Element, str]
"""An element and, for TEXT and ANSWER, its text ("" otherwise)."""


class ConversationFault(Exception):
    """The conversation cannot be used; the message is the reason. `turn` is the one at fault, if it is one's fault."""

    def __init__(self, reason: str, turn: object = None) -> None:
        super().__init__(reason)
        self.turn = turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a row says.

    Attributes:
        pieces: Its elements in order.
        first_turn: Text of the first turn where its pieces depend on the number of frames drawn, else None; it then
            stands for the first element of `pieces`, a TURN or an ANSWER without text.
        conditions: Bit set of `Condition`.
    """

    pieces: tuple[Piece, ...]
    first_turn: str | None = None
    conditions: int = 0


def turn_pieces(speaker_answers: bool, value: str, placeholder: str = IMAGE) -> list[Piece]:
    """The pieces of one turn. With `placeholder` VIDEO, `<image>` still splits the text as well."""
    if speaker_answers:
        return [(Element.ANSWER, value)]
    pieces: list[Piece] = [(Element.TURN, "")]
    if IMAGE not in value and placeholder not in value:
        return [*pieces, (Element.TEXT, value)]
    for outer, part in enumerate(value.split(placeholder) if placeholder != IMAGE else [value]):
        if outer:
            pieces.append((Element.VIDEO, ""))
        for inner, text in enumerate(part.split(IMAGE)):
            if inner:
                pieces.append((Element.IMAGE, ""))
            if text.strip():
                pieces.append((Element.TEXT, text.strip()))
    return pieces


def first_turn_pieces(speaker_answers: bool, value: str, num_frames: int) -> list[Piece]:
    """The pieces of a first turn once the number of frames is known."""
    return turn_pieces(speaker_answers, value.replace(VIDEO, IMAGE * num_frames))


def read_conversation(
    turns: object, *, num_frames: int = -1, may_draw_none: bool = False, keep_system_turns: bool = False
) -> Conversation:
    """Read a row's `conversations`.

    Args:
        turns: What the JSON holds under that key.
        num_frames: Frames of the row's video, -1 without one.
        may_draw_none: The frame sampler may choose no frame of a video that has some.
        keep_system_turns: Correction `system_turns`.

    Raises:
        ConversationFault: With one of the reasons `no_conversations`, `turn_without_from`, `turn_without_text`,
            `no_video_placeholder`.
    """
    if not isinstance(turns, Sequence) or isinstance(turns, str):
        raise ConversationFault("no_conversations")
    pieces: list[Piece] = []
    first_turn: str | None = None
    conditions = Condition.NONE
    for number, turn in enumerate(turns):
        if not isinstance(turn, Mapping) or "from" not in turn:
            raise ConversationFault("turn_without_from", turn)
        speaker, value = turn["from"], turn.get("value")
        is_video_turn = number == 0 and num_frames >= 0
        if is_video_turn and not (isinstance(value, str) and VIDEO in value):
            raise ConversationFault("no_video_placeholder")
        if speaker not in ("human", "gpt"):
            conditions |= Condition.SYSTEM_TURNS
            if not keep_system_turns:
                continue
        if not isinstance(value, str):
            raise ConversationFault("turn_without_text", turn)
        answers = speaker == "gpt"
        if is_video_turn and num_frames == 0:
            pieces += first_turn_pieces(answers, value, 0)
        elif is_video_turn and (answers or may_draw_none):
            first_turn = value
            pieces.append((Element.ANSWER if answers else Element.TURN, ""))
        else:
            pieces += turn_pieces(answers, value, VIDEO if is_video_turn else IMAGE)
    return Conversation(pieces=tuple(pieces), first_turn=first_turn, conditions=int(conditions))
