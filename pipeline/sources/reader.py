"""The bytes behind (row, image): what render asks for.

Consecutive packs of a lane ask for consecutive rows of a few parquet files, so the reader streams row groups forward,
in slices of bounded size, and keeps recently read slices in a bounded cache. Media files are read one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from pipeline.config import Config
from pipeline.records import IndexRow, RowId
from pipeline.storage import Storage

__all__ = ["Picture", "PictureRequest", "SourceReader"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureRequest:
    """One picture that render wants.

    Attributes:
        row_id: The row's stable id.
        row: The row as the index has it, *with* `image_stamps` (all columns but `text_ids` will do).
        image: Number of the image in the row (`Item.image`): of the frame for a video.
    """

    row_id: RowId
    row: IndexRow
    image: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What a request yields: either encoded bytes or a decoded video frame.

    Attributes:
        encoded: The image file's bytes; b"" for a video frame, and for a cell that holds nothing.
        frame: The RGB frame of a video file, else None.
        plain: As for `media.decode.decode_rgb`: True for a frame of a folder.
    """

    encoded: bytes = b""
    frame: Image.Image | None = None
    plain: bool = False


class SourceReader:
    """Reads pictures of any source of a configuration. One per render task; not shared between threads."""

    def __init__(self, config: Config, storage: Storage, *, cache_bytes: int = 512 << 20) -> None:
        """`cache_bytes` bounds the parquet slices kept; the index units are read from `config.bake.output`."""
        self._config = config
        self._storage = storage
        self._cache_bytes = cache_bytes

    def pictures(self, requests: Sequence[PictureRequest]) -> list[Picture]:
        """The requested pictures, in the order of the requests; ask for one pack at a time.

        Raises:
            RunFailed: A source file is gone, changed since it was indexed, or cannot be read.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close the files that are open."""
