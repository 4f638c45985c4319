"""Canonical hashing: the same content gives the same fingerprint on every machine, for ever.

Objects are written as canonical JSON (sorted keys, no spaces, ASCII) and hashed with SHA-256. Fingerprints are 32 hex
digits: long enough never to collide by accident, short enough to read in a path or a message.
"""

from __future__ import annotations

import hashlib
import json

__all__ = ["canonical_json", "fingerprint", "fingerprint_bytes"]


def canonical_json(value: object) -> str:
    """`value` (dicts, lists, strings, numbers, None; pydantic models as dicts) as canonical JSON text.

    Raises:
        TypeError: `value` holds something that has no canonical form.
        ValueError: `value` holds NaN or an infinity.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def fingerprint(value: object) -> str:
    """Fingerprint of a JSON-like value: 32 hex digits."""
    return fingerprint_bytes(canonical_json(value).encode("ascii"))


def fingerprint_bytes(content: bytes) -> str:
    """Fingerprint of bytes: 32 hex digits."""
    return hashlib.sha256(content).hexdigest()[:32]
