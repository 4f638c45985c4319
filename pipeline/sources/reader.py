"""The bytes behind (row, image): what render asks for.

Consecutive packs of a lane ask for consecutive rows of a few parquet files, so parquet cells come from `ParquetCells`,
which streams forward. Media files are read one by one, from an object store several at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NoReturn

from PIL import Image

from pipeline.bake import BakeFolder
from pipeline.config import Config, SourceConfig
from pipeline.errors import RunFailed
from pipeline.media.faults import ImageFault
from pipeline.media.video import read_frames
from pipeline.records import IndexRow, RowId
from pipeline.sources.cells import cell_content
from pipeline.sources.listing import join_media
from pipeline.sources.media_files import MediaFault, locate, media_stamp
from pipeline.sources.nemotron_vlm import place_of
from pipeline.sources.parquet_cells import ParquetCells
from pipeline.sources.tar_members import TarReader
from pipeline.storage import Storage

__all__ = ["Picture", "PictureRequest", "SourceReader"]

_CONNECTIONS = 16
_COLUMNS = {"t2i_pretrain": "image", "unified_edit": "image_list"}


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

    @property
    def is_video_frame(self) -> bool:
        """The image is a frame of a video file (a folder of frames is a list of images)."""
        return self.row.num_frames >= 0 and not self.row.video_is_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What a request yields: either encoded bytes or a decoded video frame.

    Attributes:
        encoded: The image file's bytes; b"" for a video frame, and for a cell that holds nothing.
        frame: The RGB frame of a video file, else None.
        plain: As for `media.decode.decode_rgb`: True for a frame of a folder.
        fault: Why the frame of a video file cannot be had (then there is neither frame nor `encoded`), "" otherwise.
    """

    encoded: bytes = b""
    frame: Image.Image | None = None
    plain: bool = False
    fault: str = ""


class SourceReader:
    """Reads pictures of any source of a configuration. One per render task; not shared between threads."""

    def __init__(
        self, config: Config, storage: Storage, *, folder: BakeFolder | None = None, cache_bytes: int = 512 << 20
    ) -> None:
        """`cache_bytes` bounds the parquet slices kept; `folder` (default: `bake.output`) holds the index units."""
        self._storage = storage
        self._allow_outside = config.bake.allow_outside
        self._sources: dict[str, SourceConfig] = {}
        self._columns: dict[str, str] = {}
        self._in_tars: set[str] = set()
        self._tars = TarReader(storage)
        self._tar_stamps: dict[str, int] = {}
        for group in config.dataset.groups:
            for source in group.sources:
                self._sources[source.name] = source
                self._columns[source.name] = _COLUMNS.get(group.kind, "")
                if group.kind == "nemotron_vlm":
                    self._in_tars.add(source.name)
        self._cells = ParquetCells(storage, folder or BakeFolder(config.bake.output), cache_bytes)

    def pictures(self, requests: Sequence[PictureRequest]) -> list[Picture]:
        """The requested pictures, in the order of the requests; ask for one pack (or a part of it) at a time.

        Raises:
            RunFailed: A source file is gone, changed since it was indexed, or cannot be read.
        """
        found: dict[int, Picture] = {}
        files: list[int] = []
        videos: defaultdict[RowId, list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            if request.is_video_frame:
                videos[request.row_id].append(number)
            elif request.row.images[request.image].reference:
                files.append(number)
            else:
                found[number] = Picture(encoded=self._cell(request))
        for numbers in videos.values():
            found.update(zip(numbers, self._frames([requests[number] for number in numbers]), strict=True))
        contents = self._files([requests[number] for number in files])
        for number, content in zip(files, contents, strict=True):
            found[number] = Picture(encoded=content, plain=requests[number].row.num_frames >= 0)
        return [found[number] for number in range(len(requests))]

    def close(self) -> None:
        """Close the files that are open."""
        self._cells.close()
        self._tars.close()

    def _cell(self, request: PictureRequest) -> bytes:
        source = self._sources[request.row_id.source]
        column = self._columns[source.name]
        cell = self._cells.cell(join_media(source.data_dir, request.row_id.path), column, request.row_id, request.row)
        if isinstance(cell, list) and (column == "image_list" or (len(cell) == 1 and not isinstance(cell[0], int))):
            cell = cell[request.image]
        content = cell_content(cell)
        return content if isinstance(content, bytes) else b""

    def _files(self, requests: Sequence[PictureRequest]) -> list[bytes]:
        """Contents of media files; those on an object store are fetched side by side."""
        remote = any(self._storage.local_path(self._root(request)) is None for request in requests)
        if not remote or len(requests) < 2:
            return [self._file(request) for request in requests]
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            return list(pool.map(self._file, requests))

    def _file(self, request: PictureRequest) -> bytes:
        if request.row_id.source in self._in_tars:
            return self._member(request)
        url = self._locate(request, request.image)
        try:
            return self._storage.read_bytes(url)
        except OSError as error:
            self._gone(request, url, error)

    def _member(self, request: PictureRequest) -> bytes:
        """A picture in a tar, by its range; the tar itself is asked once whether it is still the one."""
        entry = request.row.images[request.image]
        shard, offset, num_bytes = place_of(entry.reference)
        try:
            url = locate(self._root(request), shard, self._storage, allow_outside=self._allow_outside)
            if url not in self._tar_stamps:
                self._tar_stamps[url] = media_stamp(self._storage.identity(url))
            if self._tar_stamps[url] != entry.stamp:
                raise _changed(request, url)
            return self._tars.read(url, offset, num_bytes)
        except (MediaFault, OSError) as error:
            self._gone(request, shard, error)

    def _frames(self, requests: Sequence[PictureRequest]) -> list[Picture]:
        """Frames of one video file, which is decoded once."""
        url = self._locate(requests[0], 0)
        try:
            with self._storage.open(url) as file:
                return [Picture(frame=frame) for frame in read_frames(file, [request.image for request in requests])]
        except ImageFault as fault:
            return [Picture(fault=fault.reason) for _ in requests]
        except OSError as error:
            self._gone(requests[0], url, error)

    def _root(self, request: PictureRequest) -> str:
        return self._sources[request.row_id.source].data_dir

    def _locate(self, request: PictureRequest, image: int) -> str:
        """URL of a media file that is still the one that was indexed."""
        entry = request.row.images[image]
        try:
            url = locate(self._root(request), entry.reference, self._storage, allow_outside=self._allow_outside)
            stamp = media_stamp(self._storage.identity(url))
        except (MediaFault, OSError) as error:
            self._gone(request, entry.reference, error)
        if stamp != entry.stamp:
            raise _changed(request, url)
        return url

    def _gone(self, request: PictureRequest, url: str, error: Exception) -> NoReturn:
        raise RunFailed(
            f"{request.row_id.source}: {url} (row {request.row_id.row} of {request.row_id.path}) was there when it was "
            f"indexed and cannot be read now ({error}). Its pack cannot be rendered. Put the file back and run the "
            "same command again."
        ) from error


def _changed(request: PictureRequest, url: str) -> RunFailed:
    return RunFailed(
        f"{request.row_id.source}: {url} (row {request.row_id.row} of {request.row_id.path}) changed since it "
        "was indexed, so what was planned for it no longer holds. Put the old file back, or remove the "
        "source's folder under index/ and run the same command again."
    )
