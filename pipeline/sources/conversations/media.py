"""Media of conversations: measured by the index, read again by render, both through `MediaReader`.

    origin   container          reference        where the bytes are
    file     ""                 path             below the source's media root
    tar      path of the tar    member           `num_bytes` at `offset`, one ranged read
    cell     ""                 ""               cell of row `offset` of the Hugging Face data set
    frames   ""                 ""               a video as image files, listed in `frames`
    mock     ""                 "sample/image"   drawn again from the seed
    fake     ""                 ""               the white picture that keeps the vision tower of a text-only row awake

Pictures are what `Image.open(…).convert("RGB")` makes of them under Pillow's own settings: no compositing, and a cut
picture is an error (nemo-automodel 0.7.0 `vlm.utils._preload_media`), unless a correction says otherwise.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Final

from PIL import Image

from pipeline.media.decode import decode_rgb
from pipeline.media.faults import DECODE_ERROR, TOO_MANY_PIXELS, ImageFault
from pipeline.media.header import inspect_image
from pipeline.media.video import count_frames, frame_rate, read_frames
from pipeline.processor import predicted_frames
from pipeline.sources.conversations.hub import HubCells
from pipeline.sources.conversations.mock import MockPictures
from pipeline.sources.conversations.records import ConversationSettings
from pipeline.sources.media_files import MEDIA_ERRORS, MediaFault, fault_of, locate, media_stamp
from pipeline.sources.tar_members import TarReader
from pipeline.storage import FileIdentity, Storage
from pipeline.vlm_records import Medium

__all__ = ["FAKE_SIDE_PX", "ChangedMedium", "MediaReader", "Video", "fake_picture"]

FAKE_SIDE_PX: Final = 56
MAX_PIXELS: Final = 2 * (1024**3 // 4 // 3)
"""Pillow's own limit, beyond which it raises (twice `Image.MAX_IMAGE_PIXELS`)."""


class ChangedMedium(Exception):
    """A medium is not the one that was indexed; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Video:
    """A video as the processor takes it: RGB frames, already chosen, and its `VideoMetadata` fields."""

    frames: list[Image.Image]
    metadata: dict[str, Any]


def fake_picture() -> Image.Image:
    """The injected picture: 56 x 56, white (nemo-automodel 0.7.0 `vlm.fake_image`)."""
    return Image.new("RGB", (FAKE_SIDE_PX, FAKE_SIDE_PX), (255, 255, 255))


class MediaReader:
    """Measures and reads the media of one source. One per task; its threads may share it where media are remote."""

    def __init__(self, settings: ConversationSettings, storage: Storage) -> None:
        self._settings = settings
        self._storage = storage
        self._corrections = frozenset(settings.corrections) | {"truncated"}
        self._tars = TarReader(storage)
        self._stamps: dict[str, int] = {}
        self._cells = HubCells(settings.source, storage)
        self._mock = MockPictures(settings.source.mock)

    @property
    def is_remote(self) -> bool:
        """Whether media lie behind requests that several threads should wait for."""
        return (
            self._settings.source.kind in ("meta", "nemotron") and self._storage.local_path(self._settings.root) is None
        )

    def close(self) -> None:
        """Drop temporary files."""
        self._tars.close()

    def measure(self, medium: Medium) -> tuple[Medium, int]:
        """The medium with sizes, frames, stamp and fault, and its `Condition` bits. Never raises for a bad medium."""
        if medium.fault:
            return medium, 0
        try:
            if medium.kind == "video":
                return self._measured_video(medium), 0
            return self._measured_image(medium)
        except MEDIA_ERRORS as error:
            source, name = self._settings.source.name, medium.container or medium.reference
            return replace(medium, fault=fault_of(error, source, name, self._settings.root)), 0

    def image(self, medium: Medium) -> Image.Image:
        """The picture, RGB.

        Raises:
            ImageFault: It cannot be decoded.
            MediaFault, OSError: It cannot be reached.
            ChangedMedium: It is not the one that was indexed.
        """
        if medium.origin == "fake":
            return fake_picture()
        if medium.origin == "mock":
            return self._mock.picture(medium.reference)
        return self._decoded(self._encoded(medium))

    def video(self, medium: Medium) -> Video:
        """The chosen frames; errors as `image`."""
        told = json.loads(medium.frames)
        if medium.origin == "frames":
            urls = [self._locate(name) for name in told["files"]]
            if medium.stamp and medium.stamp != self._joint_stamp(urls):
                raise ChangedMedium(f"a frame of {told['files'][0]!r}, … changed since it was indexed")
            files = [self._decoded(self._storage.read_bytes(url)) for url in urls]
            frames = [files[index] for index in told["indexes"]]
        else:
            with self._opened(medium) as file:
                frames = read_frames(file, told["indexes"])
        metadata = {"total_num_frames": len(frames), "fps": told["fps"], "frames_indices": told["indexes"]}
        return Video(frames=frames, metadata=metadata)

    def _measured_image(self, medium: Medium) -> tuple[Medium, int]:
        if medium.origin in ("mock", "fake"):
            width_px, height_px = self._mock.size if medium.origin == "mock" else (FAKE_SIDE_PX, FAKE_SIDE_PX)
            return replace(medium, width_px=width_px, height_px=height_px), 0
        with self._opened(medium) as file:
            entry = inspect_image(file, corrections=self._corrections, decode=self._settings.decode, plain=True)
        fault = entry.fault or (TOO_MANY_PIXELS if entry.width_px * entry.height_px > MAX_PIXELS else "")
        measured = replace(
            medium, width_px=entry.width_px, height_px=entry.height_px, fault=fault, stamp=self._stamp(medium)
        )
        return measured, entry.conditions

    def _measured_video(self, medium: Medium) -> Medium:
        wishes = json.loads(medium.frames) if medium.frames else {}
        if medium.origin == "frames":
            return self._measured_frames(medium, wishes)

        def read(function: Callable[[BinaryIO], Any]) -> Any:
            with self._opened(medium) as file:
                return function(file)

        num_frames, fps = read(count_frames), read(frame_rate)
        if num_frames == 0:
            raise MediaFault("no_frames")
        indexes = self._frame_indexes(wishes.get("indexes"), num_frames, fps)
        shown = indexes if self._settings.decode else indexes[:1]
        width_px, height_px = read(lambda file: read_frames(file, shown))[0].size
        return replace(
            medium,
            width_px=width_px,
            height_px=height_px,
            num_frames=len(indexes),
            frames=json.dumps({"indexes": indexes, "fps": fps}),
            stamp=self._stamp(medium),
        )

    def _frame_indexes(self, wished: object, num_frames: int, fps: float) -> list[int]:
        """Frames that a row asks for (the last one again up to a full temporal patch), or an even choice."""
        rule = self._settings.frames
        if wished is None:
            return predicted_frames(
                num_frames,
                fps,
                fps=rule.fps,
                min_frames=rule.min_frames,
                max_frames=rule.max_frames,
                multiple=rule.multiple,
            )
        if not isinstance(wished, list) or not all(type(index) is int and index >= 0 for index in wished):
            raise MediaFault("bad_frame_indices")
        if not wished:
            raise MediaFault("no_frames")
        indexes = [min(index, num_frames - 1) for index in wished]
        return indexes + [indexes[-1]] * (-len(indexes) % rule.multiple)

    def _measured_frames(self, medium: Medium, wishes: dict[str, Any]) -> Medium:
        """A video that is a list of image files."""
        files, fps = wishes["files"], wishes.get("fps")
        fps = self._settings.frames.fps if fps is None else fps
        if not isinstance(fps, int | float):
            raise MediaFault("no_fps")
        sizes = set()
        urls = [self._locate(name) for name in files]
        for name, url in zip(files, urls, strict=True):
            with self._storage.open(url) as file:
                entry = inspect_image(file, corrections=self._corrections, decode=self._settings.decode, plain=True)
            if entry.fault:
                raise ImageFault(entry.fault, name)
            sizes.add((entry.width_px, entry.height_px))
        if len(sizes) != 1:
            raise MediaFault("frame_sizes_differ" if sizes else "no_frames")
        indexes = list(range(len(files)))
        indexes += indexes[-1:] * (-len(indexes) % self._settings.frames.multiple)
        width_px, height_px = sizes.pop()
        return replace(
            medium,
            width_px=width_px,
            height_px=height_px,
            num_frames=len(indexes),
            frames=json.dumps({"indexes": indexes, "fps": fps, "files": files}, ensure_ascii=False),
            stamp=self._joint_stamp(urls),
        )

    def _joint_stamp(self, urls: Sequence[str]) -> int:
        stamps = [media_stamp(self._storage.identity(url)) for url in urls]
        return media_stamp(FileIdentity(num_bytes=len(stamps), stamp=str(stamps)))

    def _decoded(self, encoded: bytes) -> Image.Image:
        try:
            picture = decode_rgb(encoded, corrections=self._corrections, plain=True)
        except MemoryError as error:
            raise ImageFault(DECODE_ERROR, "out of memory") from error
        return picture

    def _encoded(self, medium: Medium) -> bytes:
        with self._opened(medium) as file:
            return file.read()

    @contextmanager
    def _opened(self, medium: Medium) -> Iterator[BinaryIO]:
        """The medium's bytes as a seekable file, checked against the stamp if it has one already."""
        if medium.stamp and medium.stamp != self._stamp(medium):
            raise ChangedMedium(f"{medium.container or medium.reference!r} changed since it was indexed")
        if medium.origin == "cell":
            yield io.BytesIO(self._cells.content(medium.offset))
        elif medium.origin == "tar":
            url = self._locate(medium.container)
            yield self._tars.member(url, medium.offset, medium.num_bytes)
        else:
            with self._storage.open(self._locate(medium.reference)) as file:
                yield file

    def _stamp(self, medium: Medium) -> int:
        """Of the file that holds the medium; a container is asked once."""
        if medium.origin == "cell":
            return self._cells.stamp
        name = medium.container or medium.reference
        if medium.container and name in self._stamps:
            return self._stamps[name]
        stamp = media_stamp(self._storage.identity(self._locate(name)))
        if medium.container:
            self._stamps[name] = stamp
        return stamp

    def _locate(self, reference: str) -> str:
        return locate(self._settings.root, reference, self._storage, allow_outside=self._settings.allow_outside)
