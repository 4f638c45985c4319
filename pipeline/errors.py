"""What can go wrong, classed by what happens next.

    ParbakeError
    ├── ConfigError      exit 2   the configuration is wrong; nothing was written
    ├── SourceError      exit 2   a source is missing, empty or unusable as a whole; no shard was written
    ├── BakeConflict     exit 2   the output holds another bake; nothing of it was touched
    ├── TooManyDrops     exit 1   more rows were dropped than `max_dropped_fraction` allows
    ├── LawBroken        exit 1   `validate` found a bake that breaks one of the laws
    ├── RunFailed        exit 3   storage or a worker failed half-way; run the same command again
    └── Bug              exit 3   an invariant of parbake's own does not hold

A fault of a single source row is not an exception: it is a `reason` string, counted and reported (see `records.Fault`).

Messages speak in three clauses: what is wrong with which value; why it matters; what to do.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BakeConflict",
    "Bug",
    "ConfigError",
    "LawBroken",
    "ParbakeError",
    "RunFailed",
    "SourceError",
    "TooManyDrops",
]


class ParbakeError(Exception):
    """Root of every error parbake raises on purpose."""

    exit_code: ClassVar[int] = 3


class ConfigError(ParbakeError):
    """A value of the configuration cannot be used; nothing was written."""

    exit_code = 2


class SourceError(ParbakeError):
    """A source as a whole cannot be used: missing, empty, or not one row of it usable."""

    exit_code = 2


class BakeConflict(ParbakeError):
    """The output folder holds another bake, which was left as it is."""

    exit_code = 2


class TooManyDrops(ParbakeError):
    """A source lost a larger part of its rows than `bake.max_dropped_fraction` allows."""

    exit_code = 1


class LawBroken(ParbakeError):
    """A finished bake breaks one of the laws that `parbake validate` checks."""

    exit_code = 1


class RunFailed(ParbakeError):
    """Storage or a worker failed half-way; whatever was published stays valid and the command can be rerun."""

    exit_code = 3


class Bug(ParbakeError):
    """An invariant of parbake's own does not hold; please report it."""

    exit_code = 3
