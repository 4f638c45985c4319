"""Small video files."""

from __future__ import annotations

from pathlib import Path

import av

from tests.datamaker.pictures import picture

__all__ = ["write_video"]


def write_video(path: Path, num_frames: int, seed: int = 0, width_px: int = 64, height_px: int = 48) -> Path:
    """An MPEG-4 file of `num_frames` different frames."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = width_px, height_px, "yuv420p"
        for number in range(num_frames):
            frame = av.VideoFrame.from_image(picture(seed * 1000 + number, width_px, height_px))
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path
