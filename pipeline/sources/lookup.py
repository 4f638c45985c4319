"""What a person needs to know of a row that cannot be read: which keys it has, and which were looked for."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.sources.conversation import ConversationFault

__all__ = ["explained", "no_answer"]

_LOOKED_FOR = {  # reason → key of the reference, and of the other spelling that an improved stream reads
    "no_conversations": ("conversations", "messages"),
    "turn_without_from": ("from", "role"),
    "turn_without_text": ("value", "content"),
}
_MOST_KEYS = 12
_MOST_CHARACTERS = 120


def explained(fault: ConversationFault, record: Mapping[str, object], line: bytes, *, improved: bool) -> str:
    """The beginning of the row, the keys where the fault lies, and those that were looked for there."""
    keys = _LOOKED_FOR.get(str(fault))
    if keys is None:
        return _beginning(line)
    own, other = keys
    place = "the turn's keys" if isinstance(fault.turn, Mapping) else "its keys"
    found = fault.turn if isinstance(fault.turn, Mapping) else record
    looked_for = f"{own!r} or {other!r}" if improved else f"{own!r} (stream: improved would read {other!r} too)"
    return f"{_beginning(line)}; {place}: {_listed(found)}; looked for {looked_for}"


def no_answer(record: Mapping[str, object], line: bytes, *, improved: bool) -> str:
    """Who speaks in a conversation without an answer, and whose turn would have been one."""
    turns = record.get("conversations")
    speakers = (
        {str(turn.get("from")): None for turn in turns if isinstance(turn, Mapping)} if isinstance(turns, list) else {}
    )
    looked_for = "'gpt' (or 'assistant')" if improved else "'gpt'"
    return f"{_beginning(line)}; turns of: {_listed(speakers)}; looked for a turn of {looked_for} with a text"


def _listed(keys: Mapping[str, object]) -> str:
    more = f" and {len(keys) - _MOST_KEYS} more" if len(keys) > _MOST_KEYS else ""
    return ", ".join(str(key) for key in list(keys)[:_MOST_KEYS]) + more or "none"


def _beginning(line: bytes) -> str:
    text = line[: 4 * _MOST_CHARACTERS].decode("utf-8", "replace").strip()
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"
