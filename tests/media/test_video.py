"""Frames: chosen as the reference chooses them, draw for draw, and read back by number."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
import pytest
from nemo_automodel.components.datasets.multimodal import video as reference
from PIL import Image

from pipeline.media.faults import ImageFault
from pipeline.media.video import (
    choose_folder_frames,
    choose_video_frames,
    count_frames,
    read_frames,
    sort_frame_names,
)


class SeededDraws:
    """The two streams of a lane."""

    def __init__(self, seed: int) -> None:
        self.python = random.Random(seed)
        self.numpy = np.random.RandomState(seed)

    def choice(self, count: int) -> int:
        return self.python.choice(range(count))

    def uniform(self) -> float:
        return self.python.random()

    def randint(self, low: int, high: int) -> int:
        return int(self.numpy.randint(low, high))

    def permutation(self, count: int) -> Sequence[int]:
        return [int(number) for number in self.numpy.permutation(count)]

    def next_draws(self) -> tuple[float, float]:
        """What either stream would give next: equal exactly if as much was drawn."""
        return self.python.random(), float(self.numpy.random_sample())


@pytest.fixture
def _global_streams() -> object:
    states = random.getstate(), np.random.get_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])


def write_video(path: Path | None, num_frames: int, width: int = 64, height: int = 48) -> bytes:
    """An MP4 whose frame i is grey of value 10 + 9 i."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(num_frames):
            pixels = np.full((height, width, 3), 10 + 9 * number, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    if path is not None:
        path.write_bytes(file.getvalue())
    return file.getvalue()


@pytest.mark.usefixtures("_global_streams")
@pytest.mark.parametrize(("min_num_frames", "max_num_frames"), [(1, 1), (1, 4), (4, 8), (8, 8), (8, 30), (16, 64)])
def test_video_frames_are_chosen_as_the_reference_chooses_them(min_num_frames: int, max_num_frames: int) -> None:
    for num_frames in [*range(1, 40), 64, 100, 999]:
        for seed in range(4):
            random.seed(seed)
            np.random.seed(seed)
            wanted = np.random.randint(min_num_frames, max_num_frames + 1)  # as read_frames_decord draws it
            expected = [int(frame) for frame in reference.get_frame_indices(wanted, num_frames, sample="rand")]
            draws = SeededDraws(seed)
            assert choose_video_frames(draws, min_num_frames, max_num_frames, num_frames) == expected
            assert draws.next_draws() == (random.random(), np.random.random_sample())


@pytest.mark.usefixtures("_global_streams")
@pytest.mark.parametrize("num_frames", [1, 5, 6, 9, 12, 30])
def test_folder_frames_are_chosen_as_the_reference_chooses_them(num_frames: int, tmp_path: Path) -> None:
    for number in range(num_frames):
        Image.new("RGB", (4, 4), (number, number, number)).save(tmp_path / f"clip_{number}.jpg", quality=100)
    for seed in range(8):
        random.seed(seed)
        np.random.seed(seed)
        frames = reference.read_frames_folder(f"{tmp_path}/", num_frames=9, min_num_frames=4)
        expected = [frame.getpixel((0, 0))[0] for frame in frames]
        draws = SeededDraws(seed)
        assert choose_folder_frames(draws, 4, 9, num_frames) == expected
        assert draws.next_draws() == (random.random(), np.random.random_sample())


def test_a_short_video_repeats_its_last_frame() -> None:
    chosen = choose_video_frames(SeededDraws(0), 8, 8, 3)
    assert chosen == [0, 1, 2, 2, 2, 2, 2, 2]


def test_a_video_without_frames_spends_one_draw_and_gives_none() -> None:
    draws, other = SeededDraws(0), SeededDraws(0)
    assert choose_video_frames(draws, 4, 8, 0) == []
    other.randint(4, 9)
    assert draws.next_draws() == other.next_draws()


def test_limits_that_exclude_each_other_draw_nothing() -> None:
    draws = SeededDraws(0)
    with pytest.raises(ValueError, match="low >= high"):
        choose_video_frames(draws, 8, -1, 100)
    assert draws.next_draws() == SeededDraws(0).next_draws()


def test_frame_names_are_sorted_by_number_as_the_reference_sorts_them() -> None:
    names = ["a_10.jpg", "a_9.jpg", "b_9.jpg", "a_1.png", "x.jpg", "a_010.jpg", "a_2ajpg", "a_07xjpg", "a_3.jpg\n"]
    assert sort_frame_names(names) == reference.sort_frames(sorted(names))
    assert sort_frame_names(["c_2.jpg", "c_10.jpg", "c_1.jpg"]) == ["c_1.jpg", "c_2.jpg", "c_10.jpg"]


@pytest.mark.parametrize("num_frames", [1, 2, 13])
def test_frames_are_counted_and_read_back_by_number(num_frames: int, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    content = write_video(path, num_frames)
    assert count_frames(os.fspath(path)) == count_frames(io.BytesIO(content)) == num_frames
    wanted = [0, num_frames - 1, num_frames // 2, num_frames - 1]
    for file in (os.fspath(path), io.BytesIO(content)):
        frames = read_frames(file, wanted)
        assert [frame.size for frame in frames] == [(64, 48)] * 4
        assert {frame.mode for frame in frames} == {"RGB"}
        for number, frame in zip(wanted, frames, strict=True):
            assert abs(int(np.asarray(frame)[24, 32, 0]) - (10 + 9 * number)) <= 3


def test_a_file_that_is_no_video_is_a_fault() -> None:
    with pytest.raises(ImageFault) as caught:
        count_frames(io.BytesIO(b"<html>404</html>" * 50))
    assert caught.value.reason == "not_an_image"
    with pytest.raises(ImageFault):
        read_frames(io.BytesIO(b""), [0])


def test_a_frame_behind_the_end_is_a_fault() -> None:
    with pytest.raises(ImageFault) as caught:
        read_frames(io.BytesIO(write_video(None, 3)), [0, 7])
    assert caught.value.reason == "decode_error"
