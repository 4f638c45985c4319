"""One index unit: a parquet file or a byte range of a JSONL, measured row by row into one index file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice

import pyarrow.parquet as pq

from pipeline.config import LINE_KINDS
from pipeline.index.records import UnitResult, UnitSpec
from pipeline.index.unit_file import UnitEnd, publish_unit, read_finished
from pipeline.index_table import rows_to_table
from pipeline.records import IndexRow
from pipeline.schemas import INDEX_SCHEMA
from pipeline.sources import nemotron_vlm, t2i_pretrain, unified_edit, vlm_sft
from pipeline.sources.draft import Draft, finish_drafts
from pipeline.sources.jsonl_lines import iter_lines
from pipeline.sources.media_files import MediaFault, locate
from pipeline.sources.parquet_rows import (
    INVALID_UTF8,
    ParquetFault,
    RowLabels,
    check_columns,
    iter_slices,
    opened_parquet,
    python_cells,
)
from pipeline.tokenizer import load_tokenizer

__all__ = ["count_lines", "index_unit"]

_ROWS_AHEAD = 64
_CONNECTIONS = 16


def index_unit(spec: UnitSpec) -> UnitResult:
    """Measure a unit and publish its index file, unless the one that is there is still right.

    Raises:
        SourceError: The file lacks a column.
        RunFailed: The file changed while it was read, or the storage failed.
    """
    finished = read_finished(spec)
    if finished is not None:
        return finished
    measured = _Measured(spec)
    drafts = measured.line_drafts() if spec.settings.kind in LINE_KINDS else measured.parquet_drafts()
    rows = finish_drafts(drafts, load_tokenizer(spec.tokenizer_path), keep_control_text=spec.settings.keep_control_text)
    judged = ((row, _lost_reason(row, spec), detail) for row, detail in rows)
    return publish_unit(spec, INDEX_SCHEMA, judged, rows_to_table, measured.end)


def _lost_reason(row: IndexRow, spec: UnitSpec) -> str:
    """Why no draw makes a sample of the row, "" if some draw does."""
    return unified_edit.lost_reason(row) if spec.settings.kind == "unified_edit" else row.fault


def count_lines(spec: UnitSpec) -> tuple[str, int, int]:
    """Path, start and number of lines of a range: for what `num_used_data` leaves out, before anything is measured."""
    return spec.path, spec.start, sum(1 for _ in iter_lines(spec.storage, spec.url, spec.start, spec.end))


class _Measured:
    """The drafts of a unit, and what only its reader can know."""

    def __init__(self, spec: UnitSpec) -> None:
        self.spec = spec
        self.row_group_sizes: tuple[int, ...] = ()
        self.fault = ""
        self.unused = 0
        self.raw = hashlib.sha256()

    def end(self) -> UnitEnd:
        """What is known behind the last row."""
        raw = self.raw.hexdigest() if self.spec.settings.kind in LINE_KINDS else ""
        return UnitEnd(row_group_sizes=self.row_group_sizes, fault=self.fault, unused=self.unused, raw=raw)

    def parquet_drafts(self) -> Iterator[Draft]:
        """Every row of a parquet file; a row group that breaks off is faulty as a whole, as it is to the reference."""
        try:
            with opened_parquet(self.spec.url, self.spec.storage) as parquet:
                yield from self._file_drafts(parquet)
        except ParquetFault as fault:
            self.fault = str(fault)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
            self.fault = "missing_file"

    def _file_drafts(self, parquet: pq.ParquetFile) -> Iterator[Draft]:
        kind = t2i_pretrain if self.spec.settings.kind == "t2i_pretrain" else unified_edit
        check_columns(parquet, kind.COLUMNS, self.spec.settings.source, self.spec.path)
        labels = RowLabels.of_file(parquet)
        groups = [parquet.metadata.row_group(number).num_rows for number in range(parquet.num_row_groups)]
        self.row_group_sizes = tuple(groups)
        first_row = 0
        for row_group, num_rows in enumerate(groups):
            try:
                # Held until the row group is read to its end: drafts hold texts, no pictures.
                drafts = list(self._row_group_drafts(parquet, row_group, first_row, labels))
            except ParquetFault as fault:
                places = (
                    IndexRow(row=first_row + row, row_group=row_group, row_in_group=row, fault=str(fault))
                    for row in range(num_rows)
                )
                drafts = [Draft(row=row) for row in places]
            yield from drafts
            first_row += num_rows

    def _row_group_drafts(
        self, parquet: pq.ParquetFile, row_group: int, first_row: int, labels: RowLabels
    ) -> Iterator[Draft]:
        spec = self.spec
        measure = t2i_pretrain.measure if spec.settings.kind == "t2i_pretrain" else unified_edit.measure
        columns = t2i_pretrain.COLUMNS if spec.settings.kind == "t2i_pretrain" else unified_edit.COLUMNS
        num_rows = parquet.metadata.row_group(row_group).num_rows
        start = 0
        for batch in iter_slices(parquet, row_group, list(dict.fromkeys((*columns, *labels.columns)))):
            cells = [python_cells(batch.column(name)) for name in columns]
            row_labels = labels.of_slice(batch, start, num_rows)
            for offset, (label, *values) in enumerate(zip(row_labels, *cells, strict=True)):
                row_in_group = start + offset
                row = IndexRow(
                    row=first_row + row_in_group, row_group=row_group, row_in_group=row_in_group, label=label
                )
                if any(value is INVALID_UTF8 for value in values):
                    yield Draft(row=replace(row, fault="invalid_utf8"))
                else:
                    yield measure(dict(zip(columns, values, strict=True)), row, spec.settings, spec.storage)
            start += batch.num_rows

    def line_drafts(self) -> Iterator[Draft]:
        """Every line of a JSONL range, up to the unit's limit; the lines after it are counted."""
        spec = self.spec
        lines = iter_lines(spec.storage, spec.url, spec.start, spec.end)
        numbered = enumerate(self._digested(lines if spec.limit is None else islice(lines, spec.limit)))
        if spec.settings.kind == "nemotron_vlm":
            yield from nemotron_vlm.drafts(numbered, spec.settings, spec.storage, spec.members)
        elif spec.storage.local_path(spec.settings.root) is not None:
            for number, (offset, num_bytes, line) in numbered:
                yield self._line_draft(number, offset, num_bytes, line, {})
        else:
            yield from self._line_drafts_fetched_ahead(numbered)
        self.unused = sum(1 for _ in lines)

    def _digested(self, lines: Iterable[tuple[int, int, bytes | None]]) -> Iterator[tuple[int, int, bytes | None]]:
        for line in lines:
            self.raw.update(line[2] or b"")
            yield line

    def _line_drafts_fetched_ahead(
        self, numbered: Iterable[tuple[int, tuple[int, int, bytes | None]]]
    ) -> Iterator[Draft]:
        """Pictures on an object store are fetched many at a time; they are measured one by one, in order."""
        spec = self.spec
        iterator = iter(numbered)
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            while portion := list(islice(iterator, _ROWS_AHEAD)):
                urls: dict[str, None] = {}
                for _, (offset, _, line) in portion:
                    for reference in vlm_sft.named_media(line or b"", offset, spec.settings):
                        try:
                            url = locate(
                                spec.settings.root, reference, spec.storage, allow_outside=spec.settings.allow_outside
                            )
                        except MediaFault:
                            continue
                        urls[url] = None
                contents = dict(zip(urls, pool.map(self._fetch, urls), strict=True))
                fetched = {url: content for url, content in contents.items() if content is not None}
                for number, (offset, num_bytes, line) in portion:
                    yield self._line_draft(number, offset, num_bytes, line, fetched)

    def _fetch(self, url: str) -> bytes | None:
        try:
            return self.spec.storage.read_bytes(url)
        except OSError:
            return None  # measuring will meet the same error and name it

    def _line_draft(
        self, number: int, offset: int, num_bytes: int, line: bytes | None, fetched: dict[str, bytes]
    ) -> Draft:
        row = IndexRow(row=number, line_offset=offset, line_num_bytes=num_bytes)
        if line is None:
            return Draft(row=replace(row, fault="line_too_long"), detail=f"{num_bytes} bytes")
        return vlm_sft.measure(line, row, self.spec.settings, self.spec.storage, fetched)
