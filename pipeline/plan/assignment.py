"""What an assign unit leaves behind: `plan/assign/<group>/assign.json`, and one parquet file per lane beside it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from pipeline.bake import BakeFolder
from pipeline.storage import Storage

__all__ = ["LANE_FILES_SCHEMA", "AssignedUnit", "Assignment", "LaneShare", "lane_name", "read_assignment"]

LANE_FILES_SCHEMA = pa.schema([("unit", pa.int32())])
"""A lane's files in reading order, as numbers of the assignment's units: where whole files are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedUnit:
    """An index unit that the lanes read from: its source, its name, its file and its first row's number there."""

    source: str
    unit: str
    path: str
    first_row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneShare:
    """What one pass over a lane's part of a group reads: rows per source (path occurrences summed)."""

    rows: dict[str, int]

    @property
    def num_rows(self) -> int:
        """Rows of one pass."""
        return sum(self.rows.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A group's lanes.

    Attributes:
        fingerprint: Of everything the assignment was made from; decides whether it can be kept.
        content: Fingerprint of the ordered lists themselves: a part of the stream id.
        form: "files": a lane file lists units, read whole (LANE_FILES_SCHEMA). "rows": it holds the rows in lane order
            (scatter.LANE_ROWS_SCHEMA), because they lie scattered over the index.
        units: The units that lane files name by number.
        lanes: Per lane what it reads.
        not_assigned: Source → rows that no lane reads.
    """

    fingerprint: str
    content: str
    form: Literal["files", "rows"]
    units: tuple[AssignedUnit, ...]
    lanes: tuple[LaneShare, ...]
    not_assigned: dict[str, int]

    def to_json(self) -> bytes:
        """The bytes of `assign.json`."""
        return json.dumps(dataclasses.asdict(self), indent=1).encode("ascii")

    @classmethod
    def from_json(cls, content: bytes) -> Assignment:
        """The assignment in the bytes of `assign.json`; ValueError if they are none."""
        try:
            fields = json.loads(content)
            units = tuple(AssignedUnit(**unit) for unit in fields.pop("units"))
            lanes = tuple(LaneShare(**lane) for lane in fields.pop("lanes"))
            return cls(units=units, lanes=lanes, **fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not an assignment: {error!r}") from error


def lane_name(lane: int) -> str:
    """File name of a lane's list inside the assignment's folder."""
    return f"lane-{lane:05d}.parquet"


def read_assignment(folder: BakeFolder, group: str, storage: Storage) -> Assignment | None:
    """The group's assignment, None if there is none that can be read (then it has to be made)."""
    try:
        return Assignment.from_json(storage.read_bytes(folder.assign(group, "assign.json")))
    except (FileNotFoundError, ValueError):
        return None
