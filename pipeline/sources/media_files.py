"""Media files that rows name by path: where they are, whether they may be read, how large their pictures are.

A row may only reach files below the media root: a path that leaves it by `..`, by being absolute or through a symlink
is refused unless `allow_outside` is set.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

from pipeline.errors import RunFailed
from pipeline.media.faults import ImageFault
from pipeline.media.header import inspect_image
from pipeline.media.video import count_frames, read_frames, sort_frame_names
from pipeline.records import ImageEntry
from pipeline.sources.settings import MeasureSettings
from pipeline.storage import FileIdentity, Storage
from pipeline.tokenizer import is_encodable

__all__ = [
    "MEDIA_ERRORS",
    "MISSING_FILE",
    "OUTSIDE_ROOT",
    "MediaFault",
    "fault_of",
    "locate",
    "measure_file",
    "measure_folder",
    "measure_video",
    "media_stamp",
]

MISSING_FILE = "missing_file"
OUTSIDE_ROOT = "outside_root"
UNREADABLE_FILE = "unreadable_file"
BAD_REFERENCE = "bad_reference"


class MediaFault(Exception):
    """A media file cannot be used; the message is the reason."""


MEDIA_ERRORS = (MediaFault, ImageFault, OSError)
"""What may be raised of one medium; `fault_of` judges it."""


def locate(root: str, reference: str, storage: Storage, *, allow_outside: bool) -> str:
    """URL of the file a row names.

    Raises:
        MediaFault: `outside_root`, or `bad_reference` for what can be no path at all.
    """
    if "\0" in reference or not is_encodable(reference):
        raise MediaFault(BAD_REFERENCE)
    local_root = storage.local_path(root)
    joined = os.path.join(root if local_root is None else local_root, reference)  # noqa: PTH118 (the reference's rule)
    if local_root is not None:
        while "://" in joined:  # a row that names a URL names a file below the root; storage must not take it for one
            joined = joined.replace("://", ":/")  # the same path to a file system
    if allow_outside:
        return joined
    if local_root is None:
        return _inside_url(root, reference)
    real_root = _real_path(local_root)
    if (os.path.realpath(joined) + "/").startswith(real_root.rstrip("/") + "/"):
        return joined
    raise MediaFault(OUTSIDE_ROOT)


def _inside_url(root: str, reference: str) -> str:
    """A URL below another URL; object stores have no symlinks, so this is arithmetic on names."""
    prefix = root.rstrip("/") + "/"
    inside = posixpath.normpath(reference.removeprefix(prefix))
    if "://" in reference.removeprefix(prefix) or inside.startswith("/") or inside.split("/")[0] == "..":
        raise MediaFault(OUTSIDE_ROOT)
    return prefix + inside


@lru_cache(maxsize=64)
def _real_path(path: str) -> str:
    return os.path.realpath(path)


def media_stamp(identity: FileIdentity) -> int:
    """63-bit hash of a media file's identity; never 0, which means that there is none."""
    digest = hashlib.sha256(f"{identity.num_bytes} {identity.stamp}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1 or 1


def measure_file(
    reference: str,
    settings: MeasureSettings,
    storage: Storage,
    *,
    plain: bool = False,
    fetched: Mapping[str, bytes] | None = None,
) -> ImageEntry:
    """Size and fault of one image file. `fetched` holds contents that were read ahead, by URL."""

    def measure(url: str) -> ImageEntry:
        corrections = frozenset(settings.corrections)
        identity = storage.identity(url)
        if fetched is not None and url in fetched:
            entry = inspect_image(fetched[url], corrections=corrections, decode=settings.decode, plain=plain)
        elif storage.local_path(url) is None:
            content = storage.read_bytes(url)
            entry = inspect_image(content, corrections=corrections, decode=settings.decode, plain=plain)
        else:
            with storage.open(url) as file:
                entry = inspect_image(file, corrections=corrections, decode=settings.decode, plain=plain)
        return replace(entry, reference=reference, stamp=media_stamp(identity))

    return _guarded(reference, settings, storage, measure)


def measure_video(reference: str, settings: MeasureSettings, storage: Storage) -> tuple[ImageEntry, int, bool]:
    """Frame size and fault of a video file, its number of frames, and whether the fault lies behind its first
    frame.

    With `check_images: decode` every frame is decoded; a container that opens but breaks later is found out only after
    the frames were drawn.
    """
    num_frames = 0
    opened = False

    def measure(url: str) -> ImageEntry:
        nonlocal num_frames, opened
        identity = storage.identity(url)
        with storage.open(url) as file:
            num_frames = count_frames(file)
            if num_frames == 0:
                raise MediaFault("no_frames")
            file.seek(0)
            width_px, height_px = read_frames(file, [0])[0].size
            opened = True
            if settings.decode:
                file.seek(0)
                read_frames(file, [num_frames - 1])
        return ImageEntry(reference=reference, width_px=width_px, height_px=height_px, stamp=media_stamp(identity))

    entry = _guarded(reference, settings, storage, measure)
    return entry, num_frames, opened and bool(entry.fault)


def measure_folder(reference: str, settings: MeasureSettings, storage: Storage) -> tuple[ImageEntry, ...]:
    """The frames in a folder of frames, in frame order; one entry with a fault where the folder cannot be listed."""
    names: list[str] = []

    def listing(url: str) -> ImageEntry:
        names.extend(storage.list_files(url))
        return ImageEntry(reference=reference)

    folder = _guarded(reference, settings, storage, listing)
    if folder.fault:
        return (folder,)
    return tuple(measure_file(reference + name, settings, storage, plain=True) for name in sort_frame_names(names))


def _guarded(
    reference: str, settings: MeasureSettings, storage: Storage, measure: Callable[[str], ImageEntry]
) -> ImageEntry:
    """What `measure` finds at the file's URL, or an entry with the reason why it finds nothing."""
    try:
        return measure(locate(settings.root, reference, storage, allow_outside=settings.allow_outside))
    except MEDIA_ERRORS as error:
        reason = fault_of(error, settings.source, reference, settings.root)
    return ImageEntry(reference=reference if is_encodable(reference) else "", fault=reason)


def fault_of(error: MediaFault | ImageFault | OSError, source: str, name: str, root: str) -> str:
    """Why a medium cannot be used, from what was raised when it was looked at.

    Raises:
        RunFailed: that says nothing about the medium: a failing disk. (`Storage` raises it for expired credentials.)
    """
    if isinstance(error, ImageFault):
        return error.reason
    if isinstance(error, MediaFault):
        return str(error)
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return MISSING_FILE
    if isinstance(error, PermissionError):
        return UNREADABLE_FILE
    raise RunFailed(
        f"{source}: {name!r} below {root!r} cannot be read ({error}). Whether its row can be used must not depend on a "
        "failing disk. See to the storage and run the same command again."
    ) from error
