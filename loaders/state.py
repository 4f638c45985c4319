"""Where a training run stands: {"version": 1, "stream": "<id>", "epoch": 0, "position": 82414}.

`position` counts packs handed out over *all* ranks since the epoch began. It says nothing of ranks or workers, so a run
may go on with other numbers of both: rank r of the new W reads position + r, position + r + W, …
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loaders.errors import StateMismatch

__all__ = ["STATE_VERSION", "Place", "place_from_state", "state_of"]

STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Epoch, and packs handed out in it over all ranks."""

    epoch: int = 0
    position: int = 0


def state_of(place: Place, stream: str) -> dict[str, Any]:
    """A place as a state dict: plain strings and integers, safe in any checkpoint."""
    return {"version": STATE_VERSION, "stream": stream, "epoch": place.epoch, "position": place.position}


def place_from_state(state: Mapping[str, Any], stream: str, num_packs: int) -> Place:
    """The place a state dict names in the bake of `stream` with `num_packs` packs.

    Raises:
        StateMismatch: it was saved in another form, for another stream, or for more packs than there are.
    """
    if not isinstance(state, Mapping):
        raise StateMismatch(
            f"the loader state is {state!r} where a dict belongs; it cannot tell where that run stood; give what "
            f"state_dict() returned, or start without a state."
        )
    if state.get("version") != STATE_VERSION:
        raise StateMismatch(
            f"the loader state has version {state.get('version')!r}, this loader reads version {STATE_VERSION}; "
            f"it cannot tell where that run stood; resume with the loaders that saved it."
        )
    if state.get("stream") != stream:
        raise StateMismatch(
            f"the loader state was saved for stream {state.get('stream')!r}, this bake is stream {stream!r}: another "
            f"configuration, tokenizer or data; the position would name other packs; "
            f"resume with the bake it was saved for, or start without the state."
        )
    epoch, position = state.get("epoch"), state.get("position")
    if type(epoch) is not int or type(position) is not int or epoch < 0 or position < 0:
        raise StateMismatch(
            f"the loader state has epoch {epoch!r} and position {position!r} where two integers from 0 up belong; "
            f"it cannot tell where that run stood; take the state of another checkpoint."
        )
    if position > num_packs:
        raise StateMismatch(
            f"the loader state stands at position {position}, this bake ends at {num_packs}; it was saved for a longer "
            f"one; extend this bake to that length, or resume with the longer one."
        )
    return Place(epoch, position)
