"""What passes between the index stage and its units."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from pipeline.records import IndexedUnit
from pipeline.sources.settings import MeasureSettings
from pipeline.storage import FileIdentity, Storage

__all__ = [
    "INDEX_VERSION",
    "METADATA_KEY",
    "NO_FILE",
    "Unit",
    "UnitResult",
    "UnitSpec",
    "UnitSummary",
    "file_identity",
]

INDEX_VERSION = 1
"""Part of every unit's fingerprint: raise it whenever a source row would be measured differently."""

METADATA_KEY = b"parbake"
"""Key of the schema metadata of an index file: JSON with the unit's fingerprint, file identity and summary."""


NO_FILE = FileIdentity(num_bytes=-1, stamp="")
"""Identity of something that is listed but is no file that can be opened."""


def file_identity(url: str, storage: Storage) -> FileIdentity:
    """Identity of a listed file; NO_FILE for one that is no file after all (a broken link)."""
    try:
        return storage.identity(url)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
        return NO_FILE


class Unit(Protocol):
    """What caching and publishing ask of a unit, whatever is measured in it; the attributes are those of `UnitSpec`."""

    @property
    def source(self) -> str:
        """Name of the source."""

    @property
    def unit(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def target(self) -> str: ...

    @property
    def start(self) -> int: ...

    @property
    def identity(self) -> FileIdentity: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def storage(self) -> Storage: ...

    def current_identity(self) -> FileIdentity:
        """What `identity` would be now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSpec:
    """One unit to index: picklable.

    Attributes:
        settings: How rows are measured.
        unit: Name of the unit.
        path: Source file relative to the source's root.
        url: Where it lies.
        target: URL of the index file.
        start: First byte of the range (JSONL), 0 for parquet.
        end: End of the range (JSONL), 0 for parquet.
        limit: Rows to measure at most; the rest of the range is only counted.
        identity: The source file as it was when the run began; NO_FILE where there is none.
        fingerprint: Decides whether the index file that is there can stay.
        storage: Storage.
        tokenizer_path: Where workers find the tokenizer.
        members: `nemotron_vlm`: URLs of the member tables of the subset's tars.
    """

    settings: MeasureSettings
    unit: str
    path: str
    url: str
    target: str
    start: int = 0
    end: int = 0
    limit: int | None = None
    identity: FileIdentity
    fingerprint: str
    storage: Storage
    tokenizer_path: str
    members: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Name of the source."""
        return self.settings.source

    def current_identity(self) -> FileIdentity:
        """The source file as it is now."""
        return file_identity(self.url, self.storage)


@dataclass(slots=True, kw_only=True)
class UnitSummary:
    """Counts over the rows of a unit, or of several units together.

    Attributes:
        rows: Rows measured.
        usable: Rows of which some draw makes a sample.
        lost: Reason → rows that no draw makes a sample of.
        examples: Reason → [path, row, detail] of the first such row.
        unused: Rows that were only counted.
    """

    rows: int = 0
    usable: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[Any]] = field(default_factory=dict)
    unused: int = 0

    def count(self, reason: str, path: str, row: int, detail: str) -> None:
        """One more row; an empty reason is a usable one."""
        self.rows += 1
        if not reason:
            self.usable += 1
            return
        self.lost[reason] = self.lost.get(reason, 0) + 1
        self.examples.setdefault(reason, [path, row, detail])

    def add(self, other: UnitSummary, first_row: int = 0) -> None:
        """The rows of another unit, whose row numbers begin at `first_row`."""
        self.rows += other.rows
        self.usable += other.usable
        self.unused += other.unused
        for reason, rows in other.lost.items():
            self.lost[reason] = self.lost.get(reason, 0) + rows
        for reason, (path, row, detail) in other.examples.items():
            self.examples.setdefault(reason, [path, row + first_row, detail])


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitResult:
    """A finished unit. `indexed.first_row` is still 0: a range does not know how many lines come before it."""

    indexed: IndexedUnit
    start: int
    summary: UnitSummary

    def to_metadata(self, spec: Unit) -> bytes:
        """What the index file's metadata says."""
        return json.dumps(
            {
                "fingerprint": spec.fingerprint,
                "identity": asdict(spec.identity),
                "indexed": asdict(self.indexed),
                "start": self.start,
                "summary": asdict(self.summary),
            }
        ).encode()

    @classmethod
    def from_metadata(cls, written: dict[str, Any]) -> UnitResult:
        """Read it back."""
        indexed = {**written["indexed"], "row_group_sizes": tuple(written["indexed"]["row_group_sizes"])}
        return cls(indexed=IndexedUnit(**indexed), start=written["start"], summary=UnitSummary(**written["summary"]))
