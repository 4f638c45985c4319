"""As much of decord's interface as the reference uses, over PyAV: the draws are then the only thing in question."""

from __future__ import annotations

from typing import Any

import av
import numpy as np

__all__ = ["VideoReader"]


class _Frames:
    def __init__(self, frames: Any) -> None:
        self._frames = frames

    def asnumpy(self) -> Any:
        """uint8 [frames, height, width, 3]."""
        return self._frames


class VideoReader:
    """All frames of a video file, decoded once."""

    def __init__(self, path: str, num_threads: int = 1) -> None:
        with av.open(path) as container:
            stream = container.streams.video[0]
            self._rate = float(stream.average_rate or 1)
            self._frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]

    def __len__(self) -> int:
        return len(self._frames)

    def get_avg_fps(self) -> float:
        """Frames per second."""
        return self._rate

    def get_batch(self, indexes: list[int]) -> _Frames:
        """The frames of these numbers."""
        return _Frames(np.stack([self._frames[index] for index in indexes]))
