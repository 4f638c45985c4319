"""Image cells of a parquet row, however they are stored.

bytes (binary, large_binary, binary_view)   as they are
{bytes, path}                               Hugging Face's struct: the bytes, else the file at `path`
[0x89, 0x50, …]                             a list of small integers: bytes
null                                        zero bytes
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.media.header import inspect_image
from pipeline.records import ImageEntry
from pipeline.sources.media_files import measure_file
from pipeline.sources.settings import MeasureSettings
from pipeline.storage import Storage

__all__ = ["cell_content", "measure_cell"]

NOT_BYTES = "image_not_bytes"


def cell_content(cell: object) -> bytes | str | None:
    """Encoded bytes, or the path of the file that holds them, or None for a cell that can be neither."""
    if cell is None:
        return b""
    if isinstance(cell, bytes):
        return cell
    if isinstance(cell, Mapping):
        if isinstance(cell.get("bytes"), bytes):
            return bytes(cell["bytes"])
        path = cell.get("path")
        return path if isinstance(path, str) else b""
    if isinstance(cell, list):
        try:
            return bytes(cell)
        except (TypeError, ValueError):
            return None
    return None


def measure_cell(cell: object, settings: MeasureSettings, storage: Storage) -> ImageEntry:
    """Size and fault of the image in a cell."""
    content = cell_content(cell)
    if content is None:
        return ImageEntry(fault=NOT_BYTES)
    if isinstance(content, str):
        return measure_file(content, settings, storage)
    return inspect_image(content, corrections=frozenset(settings.corrections), decode=settings.decode)
