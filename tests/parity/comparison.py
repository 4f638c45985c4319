"""Two batch dicts are the same when every field is: key, type, dtype, shape and every bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["assert_same_batch", "differences"]


def differences(ours: Mapping[str, Any], reference: Mapping[str, Any]) -> list[str]:
    """One sentence per field that differs; empty if the batches are the same."""
    found = []
    if missing := reference.keys() - ours.keys():
        found.append(f"keys that only the reference has: {sorted(missing)}")
    if extra := ours.keys() - reference.keys():
        found.append(f"keys that only parbake has: {sorted(extra)}")
    faults = {key: _difference(ours[key], reference[key]) for key in reference if key in ours}
    return found + [f"{key}: {fault}" for key, fault in faults.items() if fault]


def assert_same_batch(ours: Mapping[str, Any], reference: Mapping[str, Any], where: str) -> None:
    """Fail with every field that differs."""
    found = differences(ours, reference)
    assert not found, f"{where}:\n  " + "\n  ".join(found)


def _difference(ours: Any, reference: Any) -> str:
    """What differs, "" if nothing does."""
    if type(ours) is not type(reference):
        return f"{type(ours).__name__} {_short(ours)} instead of {type(reference).__name__} {_short(reference)}"
    if isinstance(reference, torch.Tensor):
        return _tensor_difference(ours, reference)
    if isinstance(reference, Mapping):
        return "; ".join(differences(ours, reference))
    if isinstance(reference, Sequence) and not isinstance(reference, str):
        if len(ours) != len(reference):
            return f"{len(ours)} entries instead of {len(reference)}: {_short(ours)} instead of {_short(reference)}"
        for number, (our_entry, reference_entry) in enumerate(zip(ours, reference, strict=True)):
            if fault := _difference(our_entry, reference_entry):
                return f"entry {number}: {fault}"
        return ""
    return "" if ours == reference else f"{ours!r} instead of {reference!r}"


def _tensor_difference(ours: torch.Tensor, reference: torch.Tensor) -> str:
    if ours.dtype != reference.dtype:
        return f"dtype {ours.dtype} instead of {reference.dtype}"
    if ours.shape != reference.shape:
        return f"shape {tuple(ours.shape)} instead of {tuple(reference.shape)}"
    if torch.equal(ours, reference):
        return ""
    places = (ours != reference).nonzero()
    first = tuple(places[0].tolist())
    return (
        f"{len(places)} of {reference.numel()} values differ, "
        f"the first at {first}: {ours[first].item()} instead of {reference[first].item()}"
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 120 else text[:117] + "..."
