"""Video frames: how many there are, which ones a row uses, and their pixels.

Frames are chosen by random draws in the plan; the pixels are decoded in render.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import BinaryIO, Final

import av
import numpy as np
from PIL import Image

from pipeline.records import Draws

from .faults import DECODE_ERROR, NOT_AN_IMAGE, ImageFault

__all__ = [
    "choose_folder_frames",
    "choose_video_frames",
    "count_frames",
    "frame_rate",
    "read_frames",
    "sort_frame_names",
]

_FRAME_NUMBER: Final = re.compile(r"_(\d+).jpg$")


def choose_video_frames(draws: Draws, min_num_frames: int, max_num_frames: int, num_frames: int) -> list[int]:
    """Which frames of a video file a row uses; possibly fewer distinct ones than asked, then the last is repeated.

    Draws, in this order: the number wanted (NumPy stream), then one frame per interval (Python stream) up to the first
    empty interval; if there is one, a permutation of all frames (NumPy stream) replaces them. An interval leaves its
    own last frame out, so n frames for n wanted always take the permutation.

    Args:
        draws: The lane's two random streams.
        min_num_frames: Least number wanted.
        max_num_frames: Largest number wanted.
        num_frames: Frames of the video.

    Returns:
        Frame numbers in order, as many as were wanted; empty if `num_frames` is 0.

    Raises:
        ValueError: `max_num_frames < min_num_frames` (nothing is drawn); the reference drops every such row.

    Source: `read_frames_decord` and `get_frame_indices(sample="rand")`.
    """
    wanted = draws.randint(min_num_frames, max_num_frames + 1)
    return _spread(draws, wanted, num_frames)


def choose_folder_frames(draws: Draws, min_num_frames: int, max_num_frames: int, num_frames: int) -> list[int]:
    """Which frames of a folder of frames a row uses: all of them unless there are more than wanted.

    The number wanted is drawn (NumPy stream) even where all are used. Arguments and errors as `choose_video_frames`.

    Source: `read_frames_folder`.
    """
    wanted = draws.randint(min_num_frames, max_num_frames + 1)
    if num_frames <= wanted:
        return list(range(num_frames))
    return _spread(draws, wanted, num_frames)


def _spread(draws: Draws, wanted: int, num_frames: int) -> list[int]:
    """One frame from each of `wanted` equal intervals."""
    distinct = min(wanted, num_frames)
    if distinct < 1:
        return []
    bounds = [int(bound) for bound in np.linspace(0, num_frames, distinct + 1).astype(int)]
    chosen: list[int] = []
    for low, high in pairwise(bounds):
        if high - 1 - low < 1:
            chosen = sorted(int(frame) for frame in draws.permutation(num_frames)[:distinct])
            break
        chosen.append(low + draws.choice(high - 1 - low))
    return chosen + [chosen[-1]] * (wanted - len(chosen))


def sort_frame_names(names: Iterable[str]) -> list[str]:
    """File names of a folder of frames in the order of the number before `.jpg`; names without one come first.

    Names of equal number stay in the order of their text (the reference: in the order the folder lists them).

    Source: `sort_frames`, `extract_frame_number`.
    """

    def frame_number(name: str) -> int:
        found = _FRAME_NUMBER.search(name.rsplit("/", 1)[-1])
        return int(found.group(1)) if found else -1

    return sorted(sorted(names), key=frame_number)


def count_frames(file: str | BinaryIO) -> int:
    """Frames of the first video stream: its packets, as the container tells them. Nothing is decoded.

    Raises:
        ImageFault: `not_an_image` if no video is found in it, `decode_error` if the container is broken.

    Source: `len(decord.VideoReader(…))`, which counts packets too.
    """
    try:
        with av.open(file, mode="r") as container:
            return sum(bool(packet.size) for packet in container.demux(_video_stream(container)))
    except av.error.InvalidDataError as error:
        raise ImageFault(NOT_AN_IMAGE, str(error)) from error
    except av.error.FFmpegError as error:
        raise ImageFault(DECODE_ERROR, str(error)) from error


def frame_rate(file: str | BinaryIO) -> float:
    """Average frames per second of the first video stream as the container tells it, 0.0 if it does not.

    Raises:
        ImageFault: As `count_frames`.
    """
    try:
        with av.open(file, mode="r") as container:
            return float(_video_stream(container).average_rate or 0)
    except av.error.InvalidDataError as error:
        raise ImageFault(NOT_AN_IMAGE, str(error)) from error
    except av.error.FFmpegError as error:
        raise ImageFault(DECODE_ERROR, str(error)) from error


def read_frames(file: str | BinaryIO, indexes: Sequence[int]) -> list[Image.Image]:
    """The frames with the given numbers (in presentation order, from 0) as RGB images, one per entry of `indexes`.

    Raises:
        ImageFault: The file is no video, is broken, or ends before the last frame asked for.
    """
    wanted = set(indexes)
    found: dict[int, Image.Image] = {}
    try:
        with av.open(file, mode="r") as container:
            for number, frame in enumerate(container.decode(_video_stream(container))):
                if number in wanted:
                    found[number] = Image.fromarray(frame.to_ndarray(format="rgb24"))
                    if len(found) == len(wanted):
                        break
    except av.error.InvalidDataError as error:
        raise ImageFault(DECODE_ERROR, str(error)) from error
    except av.error.FFmpegError as error:
        raise ImageFault(DECODE_ERROR, str(error)) from error
    if len(found) < len(wanted):
        raise ImageFault(DECODE_ERROR, f"frame {min(wanted - found.keys())} is not in the video")
    return [found[index] for index in indexes]


def _video_stream(container: av.container.InputContainer) -> av.VideoStream:
    if not container.streams.video:
        raise ImageFault(NOT_AN_IMAGE, "the file has no video stream")
    return container.streams.video[0]
