"""Source images to the pictures of a pack: read, decode once, check, resize for each tower that wants it.

One decoded source image is held at a time, and the encoded ones of a few samples; what stays are resized pictures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pipeline.media.decode import decode_rgb
from pipeline.media.faults import ImageFault
from pipeline.media.resample import resample
from pipeline.records import ImageEntry, IndexRow, ItemKind, PlannedSample, RowId
from pipeline.sources.reader import Picture, PictureRequest

__all__ = ["SIZE_CHANGED", "PictureKey", "PictureReader", "Pixels", "pictures_of_samples"]

Pixels = NDArray[np.uint8]
"""A resized picture, uint8 [height, width, 3]."""

PictureKey = tuple[ItemKind, int]
"""Tower and image number in the row: an edit target that also conditions the next step has one picture."""

SIZE_CHANGED: Final = "size_changed"
"""The decoded image has another size than the index found, so the planned size no longer follows from it."""

IMAGES_PER_READ = 16


class PictureReader(Protocol):
    """The part of `SourceReader` that render uses."""

    def pictures(self, requests: Sequence[PictureRequest]) -> list[Picture]:
        """See `SourceReader.pictures`."""


def pictures_of_samples(
    samples: Sequence[PlannedSample],
    rows: Mapping[RowId, IndexRow],
    reader: PictureReader,
    corrections: frozenset[str],
) -> Iterator[dict[PictureKey, Pixels] | ImageFault]:
    """For each sample, every picture its kept items show, resized as planned; or why it cannot be shown.

    A fault is that an image does not decode, or not to the size that the index found.

    Raises:
        RunFailed: a source file is gone, changed since the index, or cannot be read.
    """
    for portion in _portions(samples):
        requests = [
            PictureRequest(row_id=sample.row, row=rows[sample.row], image=image)
            for sample in portion
            for image in _wanted_sizes(sample)
        ]
        found = iter(reader.pictures(requests) if requests else ())
        for sample in portion:
            wanted = _wanted_sizes(sample)
            read = {image: next(found) for image in wanted}
            try:
                yield _resized(rows[sample.row], wanted, read, corrections)
            except ImageFault as fault:
                yield fault


def _portions(samples: Sequence[PlannedSample]) -> Iterator[list[PlannedSample]]:
    """Samples in runs of at most IMAGES_PER_READ images, or one sample."""
    portion: list[PlannedSample] = []
    num_images = 0
    for sample in samples:
        its_images = len(_wanted_sizes(sample))
        if portion and num_images + its_images > IMAGES_PER_READ:
            yield portion
            portion, num_images = [], 0
        portion.append(sample)
        num_images += its_images
    if portion:
        yield portion


def _wanted_sizes(sample: PlannedSample) -> dict[int, dict[ItemKind, tuple[int, int]]]:
    """Image number → tower → planned (width, height), in order of the image numbers."""
    wanted: defaultdict[int, dict[ItemKind, tuple[int, int]]] = defaultdict(dict)
    for planned in sample.items:
        item = planned.item
        if planned.kept and item.kind is not ItemKind.TEXT:
            wanted[item.image][item.kind] = (item.width_px, item.height_px)
    return {image: wanted[image] for image in sorted(wanted)}


def _resized(
    row: IndexRow,
    wanted: Mapping[int, Mapping[ItemKind, tuple[int, int]]],
    read: Mapping[int, Picture],
    corrections: frozenset[str],
) -> dict[PictureKey, Pixels]:
    pixels: dict[PictureKey, Pixels] = {}
    for number, sizes in wanted.items():
        image = _decoded(read[number], corrections)
        entry = _entry(row, number)
        if image.size != (entry.width_px, entry.height_px):
            raise ImageFault(
                SIZE_CHANGED, f"{image.width}x{image.height} px instead of {entry.width_px}x{entry.height_px}"
            )
        for kind, (width_px, height_px) in sizes.items():
            pixels[kind, number] = resample(image, width_px, height_px)
    return pixels


def _decoded(picture: Picture, corrections: frozenset[str]) -> Image.Image:
    if picture.fault:
        raise ImageFault(picture.fault)
    if picture.frame is not None:
        return picture.frame
    return decode_rgb(picture.encoded, corrections=corrections, plain=picture.plain)


def _entry(row: IndexRow, number: int) -> ImageEntry:
    """What the index says of an image; a video file has one entry for all its frames."""
    is_video_file = row.num_frames >= 0 and not row.video_is_folder
    return row.images[0 if is_video_file else number]
