"""What can go wrong on the training side, classed by what happens next.

    LoaderError
    ├── FormatError      a record is not what format version 1 says: another format, or a damaged file
    │   └── ManifestDamaged   `dataset.json` was changed after it was written
    ├── BakeUnfinished   there is no finished bake at that URL (yet), or nothing in it for this world size
    ├── ShardDamaged     a shard's bytes are missing or wrong; names shard, pack and member
    └── StateMismatch    a saved loader state belongs to another stream or format

Messages speak in three clauses: what is wrong with which value; why it matters; what to do.
"""

from __future__ import annotations

__all__ = ["BakeUnfinished", "FormatError", "LoaderError", "ManifestDamaged", "ShardDamaged", "StateMismatch"]


class LoaderError(Exception):
    """Root of every error the loaders raise on purpose."""


class FormatError(LoaderError):
    """A JSON record is not one of format version 1."""


class ManifestDamaged(FormatError):
    """A `dataset.json` that is not the one that was written."""


class BakeUnfinished(LoaderError):
    """No finished bake lies at the URL, or it holds too few packs for this world size."""


class ShardDamaged(LoaderError):
    """Bytes of a shard are missing or differ from what its sidecar promises."""


class StateMismatch(LoaderError):
    """A loader state was saved for another stream or another state version."""
