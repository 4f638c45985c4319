"""The index file of one unit, whatever is measured in it: found finished, or published with its fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import RunFailed
from pipeline.index.records import METADATA_KEY, Unit, UnitResult, UnitSummary
from pipeline.index_table import INDEX_ROW_GROUP_SIZE, content_digest
from pipeline.records import IndexedUnit

__all__ = ["UnitEnd", "publish_unit", "read_finished"]


class NumberedRow(Protocol):
    """A measured row."""

    @property
    def row(self) -> int:
        """Its number in the unit's own count."""


Row = TypeVar("Row", bound=NumberedRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitEnd:
    """What is known of a unit once its last row was measured.

    Attributes:
        row_group_sizes: Of a parquet file, () otherwise.
        fault: Why the whole file could not be read, "" if it could.
        unused: Rows that were only counted.
        raw: Digest of the source bytes that the rows were read from, where they decide the order of the rows (JSONL
            lines are sorted as they are written), "" otherwise.
    """

    row_group_sizes: tuple[int, ...] = ()
    fault: str = ""
    unused: int = 0
    raw: str = ""


def read_finished(spec: Unit) -> UnitResult | None:
    """The result of the index file that is there, None unless it has this unit's fingerprint."""
    try:
        with spec.storage.open(spec.target) as file:
            metadata = pq.read_metadata(file).metadata or {}
        written = json.loads(metadata[METADATA_KEY])
        return UnitResult.from_metadata(written) if written["fingerprint"] == spec.fingerprint else None
    except (FileNotFoundError, pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        return None  # none there, or not one that this version wrote


def publish_unit(
    spec: Unit,
    schema: pa.Schema,
    rows: Iterator[tuple[Row, str, str]],
    to_table: Callable[[Sequence[Row]], pa.Table],
    end: Callable[[], UnitEnd],
) -> UnitResult:
    """Write the index file in row groups of INDEX_ROW_GROUP_SIZE; what it is comes last, in the footer's metadata.

    Args:
        spec: The unit.
        schema: Of the index file.
        rows: Each measured row, the reason why it is lost ("" for a usable one), and a detail for people.
        to_table: Rows as a table of `schema`.
        end: Called once, behind the last row.

    Raises:
        RunFailed: The source file changed meanwhile, or the storage refused a byte.
    """
    summary = UnitSummary()
    digest = hashlib.sha256()
    with spec.storage.publishing(spec.target) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        while portion := list(islice(rows, INDEX_ROW_GROUP_SIZE)):
            for row, reason, detail in portion:
                summary.count(reason, spec.path, row.row, detail)
            table = to_table([row for row, _, _ in portion])
            content_digest(table, digest)
            writer.write_table(table)
        _refuse_changed(spec)
        known = end()
        summary.unused = known.unused
        if known.fault:
            summary.examples[known.fault] = [spec.path, 0, "the whole file"]
        digest.update(json.dumps([spec.identity.num_bytes, known.row_group_sizes, known.fault, known.raw]).encode())
        result = UnitResult(
            indexed=IndexedUnit(
                unit=spec.unit,
                path=spec.path,
                first_row=0,
                num_rows=summary.rows,
                row_group_sizes=known.row_group_sizes,
                fault=known.fault,
                content=digest.hexdigest()[:32],
            ),
            start=spec.start,
            summary=summary,
        )
        writer.add_key_value_metadata({METADATA_KEY: result.to_metadata(spec)})
    return result


def _refuse_changed(spec: Unit) -> None:
    """A file that changed while it was measured must not be remembered under its old identity."""
    if spec.current_identity() != spec.identity:
        raise RunFailed(
            f"{spec.source}: {spec.path} changed while it was indexed, so its rows belong to no one version "
            "of it. Let the writer finish, then run the same command again."
        )
