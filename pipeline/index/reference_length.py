"""The length that nemo-automodel plans with: an estimate of text and media, for reports and comparisons.

    text    the row's `_text_tokens`, else a third of its characters
    media   from the row's `mm_inputs_meta`, resized as the processor does it; without it 500 tokens each

Reference: nemo-automodel 0.7.0 `vlm.neat_packing_vlm._estimate_sample_length`.
"""

from __future__ import annotations

import math
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
    video_processor = getattr(processor.processor, "video_processor", None)
    num_tokens = sum(processor.num_image_tokens(height, width) for height, width in sizes)
    if video_processor is not None:
        num_tokens += sum(_video_tokens(entry, video_processor) for entry in videos)
    return num_tokens


def _video_tokens(entry: Sequence[Any], processor: Any) -> int:
    """Tokens of `[total_frames, height, width, fps, duration]`: a rule of its own, not the video processor's.

    Frames, height and width share the pixel limits, as in Qwen3-VL, whatever the processor is (`_smart_resize_video`).
    """
    total, height, width, fps, duration = (
        int(entry[0]),
        int(entry[1]),
        int(entry[2]),
        float(entry[3]),
        float(entry[4]),
    )
    multiple, patch, merge = processor.temporal_patch_size, processor.patch_size, processor.merge_size
    frames = _num_frames(total, fps, duration, processor)
    factor = patch * merge
    height_px, width_px = round(height / factor) * factor, round(width / factor) * factor
    least, most = _pixel_limits(processor)
    if frames * height_px * width_px > most:
        shrink = math.sqrt(frames * height * width / most)
        height_px = max(factor, math.floor(height / shrink / factor) * factor)
        width_px = max(factor, math.floor(width / shrink / factor) * factor)
    elif frames * height_px * width_px < least:
        grow = math.sqrt(least / (frames * height * width))
        height_px = math.ceil(height * grow / factor) * factor
        width_px = math.ceil(width * grow / factor) * factor
    patches = frames // multiple * (height_px // patch) * (width_px // patch)
    return int(patches // merge**2)


def _num_frames(total: int, fps: float, duration: float, processor: Any) -> int:
    if total == 0 and fps > 0:
        total = int(duration * fps)
    wanted = max(1, int(total / fps * processor.fps) if fps > 0 else int(duration * processor.fps))
    frames = int(max(processor.min_frames, min(total, processor.max_frames, wanted)))
    multiple = int(processor.temporal_patch_size)
    return -(-frames // multiple) * multiple


def _pixel_limits(processor: Any) -> tuple[int, int]:
    size = dict(processor.size or {})
    least = getattr(processor, "min_pixels", None) or size.get("min_pixels") or size.get("shortest_edge") or 128 * 128
    most = getattr(processor, "max_pixels", None) or size.get("max_pixels") or size.get("longest_edge") or 16**2 * 49152
    return int(least), int(most)
