"""The length that nemo-automodel plans with: an estimate of text and media, for reports and comparisons.

    text    the row's `_text_tokens`, else a third of its characters
    media   from the row's `mm_inputs_meta`, resized as the processor does it; without it 500 tokens each

Reference: nemo-automodel 0.7.0 `vlm.neat_packing_vlm._estimate_sample_length`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.processor import VlmProcessor

__all__ = ["reference_length"]

TOKENS_PER_MEDIUM = 500


def reference_length(
    messages: Sequence[Mapping[str, Any]],
    text_tokens: int,
    media_meta: Mapping[str, Any] | None,
    processor: VlmProcessor,
) -> int:
    """The estimate, before the shift, of a conversation without the injected picture."""
    parts = [part for message in messages for part in message["content"]]
    if text_tokens < 0:
        text_tokens = sum(len(part["text"]) for part in parts if part["type"] == "text") // 3
    if media_meta is not None and processor.is_predictable:
        try:
            return text_tokens + _media_tokens(media_meta, processor)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError):
            pass  # of another form than the reference's: it dies of it
    return text_tokens + TOKENS_PER_MEDIUM * sum(part["type"] in ("image", "video") for part in parts)


def _media_tokens(meta: Mapping[str, Any], processor: VlmProcessor) -> int:
    sizes = [(int(entry[0]), int(entry[1])) for entry in meta.get("images_meta") or () if entry is not None]
    videos = [entry for entry in meta.get("videos_meta") or () if entry is not None]
    return sum(processor.num_image_tokens(height, width) for height, width in sizes) + sum(
        processor.num_video_tokens(_num_frames(entry, processor), int(entry[1]), int(entry[2])) for entry in videos
    )


def _num_frames(entry: Sequence[Any], processor: VlmProcessor) -> int:
    """Frames of `[total_frames, height, width, fps, duration]` by the estimate's own rule."""
    video = processor.processor.video_processor
    wanted_fps, most = getattr(video, "fps", 2.0) or 2.0, getattr(video, "max_frames", 768) or 768
    least, multiple = getattr(video, "min_frames", 4) or 4, getattr(video, "temporal_patch_size", 2)
    total, fps, duration = int(entry[0]), float(entry[3]), float(entry[4])
    if total == 0 and fps > 0:
        total = int(duration * fps)
    frames = max(1, int(total / fps * wanted_fps) if fps > 0 else int(duration * wanted_fps))
    frames = max(least, min(total, most, frames))
    return -(-frames // multiple) * multiple
