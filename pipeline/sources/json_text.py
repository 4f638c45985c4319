"""JSON from strangers: every way it can be bad is a reason, never an exception that depends on where it is read."""

from __future__ import annotations

import json
import re

__all__ = ["MAX_JSON_DEPTH", "JsonFault", "parse_json"]

MAX_JSON_DEPTH = 500
"""Deeper nesting is a fault: Python's own limit depends on how deep the caller stands on its stack."""

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class JsonFault(Exception):
    """The text is no JSON; the message is the reason."""


def parse_json(text: str | bytes) -> object:
    """The value of a JSON text (bytes: UTF-8, -16 or -32, as `json.loads` tells them apart).

    Raises:
        JsonFault: `invalid_json`, `nested_too_deep`, or `invalid_utf8`.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        if text.count("[") + text.count("{") > MAX_JSON_DEPTH and _depth(text) > MAX_JSON_DEPTH:
            raise JsonFault("nested_too_deep")
        value: object = json.loads(text)
    except UnicodeDecodeError as error:
        raise JsonFault("invalid_utf8") from error
    except (ValueError, RecursionError) as error:
        raise JsonFault("invalid_json") from error
    return value


def _depth(text: str) -> int:
    """How deep brackets nest outside of strings."""
    depth = deepest = 0
    for character in _STRING.sub("", text):
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest
