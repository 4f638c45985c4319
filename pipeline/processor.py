"""A Hugging Face processor, as the VLM recipe uses it: conversation in, token ids, labels and media tensors out.

    conversation ──chat template──► text ──processor──► ids with media tokens expanded, pixel_values, grids
                                      └──predict───────► the same ids from image *sizes* alone, no pixel touched

What nemo-automodel's `PreTokenizedDatasetWrapper` does row by row inside the DataLoader (0.7.0, `vlm.datasets`), this
does offline. Labels follow the template's markers: every token from behind an assistant marker up to and including the
end-of-turn token keeps its id, all others are -100 (`vlm.collate_fns.build_labels_from_template`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import ConfigError
from pipeline.fingerprint import fingerprint

__all__ = ["IGNORE_INDEX", "EncodedSample", "VlmProcessor", "label_tokens", "load_processor", "predicted_frames"]

IGNORE_INDEX = -100

# Processors whose template is ChatML; every other's markers are found by asking its template (`_derived_markers`).
CHATML_PROCESSORS = frozenset(
    {
        "Qwen2VLProcessor",
        "Qwen2_5_VLProcessor",
        "Qwen2_5OmniProcessor",
        "Qwen3VLProcessor",
        "Qwen3VLMoeProcessor",
        "Qwen3OmniMoeProcessor",
    }
)

# Processors whose media tokens are each a run of one token, of a length that follows from the sizes alone. For others
# the index runs the processor on the pixels.
PREDICTABLE_PROCESSORS = frozenset({"Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor"})

MEDIA_KEYS = ("pixel_values", "pixel_values_videos", "image_grid_thw", "video_grid_thw", "second_per_grid_ts")

Message = dict[str, Any]
TokenIds = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSample:
    """One conversation after the processor, before truncation and shift.

    Attributes:
        input_ids: int64 [n].
        labels: int64 [n], -100 where there is no loss.
        mm_token_type_ids: int64 [n], or None if the processor gives none.
        media: The processor's media tensors (torch, float32 and int64); empty for a prediction.
    """

    input_ids: TokenIds
    labels: TokenIds
    mm_token_type_ids: TokenIds | None
    media: dict[str, Any]


class VlmProcessor:
    """A loaded processor. Pickles as its path and arguments: a worker loads it once and keeps it."""

    def __init__(self, path: str, arguments: str, processor: Any, chat_template: str | None = None) -> None:
        self.path = path
        self.processor = processor
        self._arguments = arguments
        self._chat_template = chat_template

    def __reduce__(self) -> tuple[Any, ...]:
        return _load, (self.path, self._arguments, self._chat_template)

    @property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer inside."""
        return getattr(self.processor, "tokenizer", self.processor)

    @property
    def name(self) -> str:
        """The processor's class name."""
        return type(self.processor).__name__

    @cached_property
    def pad_token_id(self) -> int:
        """Fills up ids; 0 where the tokenizer has none, as in the reference."""
        return int(getattr(self.tokenizer, "pad_token_id", 0) or 0)

    @cached_property
    def fingerprint(self) -> str:
        """Of all that decides its output: tokenizer, template, image and video settings."""
        parts: dict[str, object] = {"class": self.name, "arguments": self._arguments}
        parts["tokenizer"] = json.loads(self.tokenizer.backend_tokenizer.to_str())
        parts["template"] = getattr(self.processor, "chat_template", None) or self.tokenizer.chat_template
        for name in ("image_processor", "video_processor"):
            part = getattr(self.processor, name, None)
            if part is not None:
                parts[name] = json.loads(part.to_json_string())
        return fingerprint(parts)

    @cached_property
    def is_predictable(self) -> bool:
        """Whether lengths follow from image sizes, so that the index need not decode."""
        return self.name in PREDICTABLE_PROCESSORS and hasattr(self.processor, "_get_num_multimodal_tokens")

    @cached_property
    def predicts_videos(self) -> bool:
        """Whether that holds for videos too: Qwen3-VL writes a timestamp before every pair of frames."""
        return self.is_predictable and self.name != "Qwen3VLProcessor"

    @cached_property
    def media_token_ids(self) -> tuple[int, ...]:
        """Ids that media are expanded into, as far as the processor names them."""
        found = (getattr(self.processor, name, None) for name in ("image_token_id", "video_token_id"))
        return tuple(token for token in found if isinstance(token, int))

    @cached_property
    def markers(self) -> tuple[list[int], int]:
        """Token ids that open an assistant turn, and the id that ends a turn."""
        tokenizer = self.tokenizer
        if self.name in CHATML_PROCESSORS:
            start, end = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_start|>", "<|im_end|>"))
            unknown = getattr(tokenizer, "unk_token_id", None)
            if None not in (start, end) and unknown not in (start, end):
                return [start, *tokenizer.encode("assistant\n", add_special_tokens=False)], end
        return _derived_markers(tokenizer)

    def text(self, conversation: Sequence[Message]) -> str:
        """The conversation through the chat template."""
        rendered = self.processor.apply_chat_template([list(conversation)], tokenize=False)
        return str(rendered[0] if isinstance(rendered, list) else rendered)

    def encode(
        self,
        conversation: Sequence[Message],
        images: Sequence[Any],
        videos: Sequence[Sequence[Any]],
        video_metadata: Sequence[Mapping[str, Any]] = (),
    ) -> EncodedSample:
        """Run the processor.

        Args:
            conversation: Messages whose content lists have parts of type text, image and video.
            images: RGB PIL images in order of appearance.
            videos: Frames (RGB PIL images) of each video, already sampled.
            video_metadata: Per video: total_num_frames, fps, frames_indices.
        """
        from transformers.video_utils import VideoMetadata

        arguments: dict[str, Any] = {
            "text": [self.text(conversation)],
            "images": list(images) or None,
            "videos": [list(frames) for frames in videos] or None,
            "return_tensors": "pt",
            "do_sample_frames": False,
        }
        if video_metadata:
            arguments["video_metadata"] = [[VideoMetadata(**metadata) for metadata in video_metadata]]
        result = self.processor(**arguments)
        input_ids = result["input_ids"][0].numpy().astype(np.int64)
        types = result.get("mm_token_type_ids")
        return EncodedSample(
            input_ids=input_ids,
            labels=label_tokens(input_ids, *self.markers),
            mm_token_type_ids=None if types is None else np.asarray(types[0], dtype=np.int64),
            media={key: result[key] for key in MEDIA_KEYS if result.get(key) is not None},
        )

    def predict(
        self,
        conversation: Sequence[Message],
        image_sizes: Sequence[tuple[int, int]],
        video_sizes: Sequence[tuple[int, int, int]] = (),
    ) -> EncodedSample:
        """The token ids and labels that `encode` will give, from sizes alone (`is_predictable` processors).

        Args:
            conversation: As for `encode`.
            image_sizes: (height, width) in pixels of each image.
            video_sizes: (frames, height, width) of each video, frames already sampled.
        """
        ids = np.asarray(self.tokenizer(self.text(conversation))["input_ids"], dtype=np.int64)
        repeats = np.ones(len(ids), dtype=np.int64)
        processor = self.processor
        if image_sizes:
            counts = processor._get_num_multimodal_tokens(image_sizes=[list(size) for size in image_sizes])
            _set_repeats(repeats, ids == processor.image_token_id, counts.num_image_tokens, "image")
        if video_sizes:
            counts = [self.num_video_tokens(*size) for size in video_sizes]
            _set_repeats(repeats, ids == processor.video_token_id, counts, "video")
        input_ids = np.repeat(ids, repeats)
        types = np.zeros(len(input_ids), dtype=np.int64)
        types[input_ids == processor.image_token_id] = 1
        types[input_ids == processor.video_token_id] = 2
        return EncodedSample(
            input_ids=input_ids, labels=label_tokens(input_ids, *self.markers), mm_token_type_ids=types, media={}
        )

    def num_image_tokens(self, height_px: int, width_px: int) -> int:
        """Tokens of one image in the expanded text (predictable processors)."""
        counts = self.processor._get_num_multimodal_tokens(image_sizes=[[height_px, width_px]])
        return int(counts.num_image_tokens[0])

    def num_video_tokens(self, num_frames: int, height_px: int, width_px: int) -> int:
        """Tokens of one video of so many chosen frames (predictable processors)."""
        video_processor = self.processor.video_processor
        patches = video_processor.get_num_of_video_patches(num_frames, height_px, width_px, {})
        return int(patches) // int(video_processor.merge_size) ** 2


def load_processor(
    path: str, arguments: Mapping[str, object] | None = None, chat_template: str | None = None
) -> VlmProcessor:
    """Load a processor by `AutoProcessor.from_pretrained(path, **arguments)`: a folder, or a hub name.

    Args:
        path: Folder or hub name.
        arguments: Keyword arguments of `from_pretrained`.
        chat_template: Jinja text that replaces the template of processor and tokenizer.

    Raises:
        ConfigError: There is no such processor.
    """
    return _load(path, json.dumps(dict(arguments or {}), sort_keys=True), chat_template)


@lru_cache(maxsize=4)
def _load(path: str, arguments: str, chat_template: str | None = None) -> VlmProcessor:
    from transformers import AutoProcessor

    try:
        load: Any = AutoProcessor.from_pretrained
        processor = load(path, **json.loads(arguments))
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ConfigError(
            f"The processor {path!r} cannot be loaded ({str(error).strip().splitlines()[0]}). Without it no "
            "conversation has a length or pixels. Name a folder with preprocessor_config.json, or a hub name that this "
            "machine can reach."
        ) from error
    if chat_template is not None:
        processor.chat_template = chat_template
        getattr(processor, "tokenizer", processor).chat_template = chat_template
    return VlmProcessor(path, arguments, processor, chat_template)


def label_tokens(input_ids: TokenIds, opening: Sequence[int], end_of_turn: int) -> TokenIds:
    """Labels of an expanded sequence: assistant turns without their opening, with their end-of-turn token.

    >>> label_tokens(np.array([8, 1, 2, 5, 6, 9, 3]), [1, 2], 9).tolist()
    [-100, -100, -100, 5, 6, 9, -100]
    """
    labels = np.full_like(input_ids, IGNORE_INDEX)
    width = len(opening)
    if len(input_ids) < width:
        return labels
    starts = np.flatnonzero(
        (np.lib.stride_tricks.sliding_window_view(input_ids, width) == np.asarray(opening)).all(axis=1)
    )
    ends = np.flatnonzero(input_ids == end_of_turn)
    labelled_up_to = 0
    for start in starts.tolist():
        if start < labelled_up_to:
            continue  # a marker inside an answer is part of the answer
        first = start + width
        following = ends[np.searchsorted(ends, first) :]
        labelled_up_to = int(following[0]) + 1 if len(following) else len(input_ids)
        labels[first:labelled_up_to] = input_ids[first:labelled_up_to]
    return labels


def predicted_frames(
    total_frames: int, video_fps: float, *, fps: float | None, min_frames: int, max_frames: int | None, multiple: int
) -> list[int]:
    """Frames of a video that are shown: evenly spaced, as nemo-automodel's `_read_video_frames` chooses them.

    Args:
        total_frames: Frames of the file, at least 1.
        video_fps: Its rate.
        fps: Wanted rate, None for every frame.
        min_frames: Lower bound (before the file's own count).
        max_frames: Upper bound, None for none.
        multiple: The count is rounded up to a multiple of this (the temporal patch size).
    """
    wanted = total_frames / video_fps * fps if fps is not None and video_fps > 0 else float(total_frames)
    wanted = max(wanted, min_frames)
    if max_frames is not None:
        wanted = min(wanted, max_frames)
    count = int(min(wanted, total_frames))
    count = max(-(-count // multiple) * multiple, multiple)
    # float32, as torch.linspace computes it.
    import torch

    chosen: list[int] = torch.linspace(0, total_frames - 1, count).round().long().tolist()
    return chosen


def _set_repeats(repeats: TokenIds, places: npt.NDArray[np.bool_], counts: Sequence[int], kind: str) -> None:
    found = int(places.sum())
    if found != len(counts):
        raise ValueError(f"{found} {kind} tokens in the text for {len(counts)} {kind}s")
    repeats[places] = counts


def _derived_markers(tokenizer: Any) -> tuple[list[int], int]:
    """Markers of any template: apply it to a known answer and look what stands around it."""
    sentinel = "XSENTINELMARKERX"
    question = [{"role": "user", "content": "u"}]
    asked = _template_ids(tokenizer, question)
    answered = _template_ids(tokenizer, [*question, {"role": "assistant", "content": sentinel}])
    answer = tokenizer.encode(sentinel, add_special_tokens=False)
    for start in range(len(answered) - len(answer)):
        if answered[start : start + len(answer)] == answer:
            opening = answered[len(asked) : start]
            if opening:
                return opening, answered[start + len(answer)]
            break
    raise ConfigError(
        "The processor's chat template does not show where an assistant turn begins and ends (a test answer was not "
        "found between fixed tokens); without that no token could carry loss. Use a template that wraps assistant "
        "turns in tokens of its own."
    )


def _template_ids(tokenizer: Any, conversation: Sequence[Message]) -> list[int]:
    result = tokenizer.apply_chat_template(list(conversation), tokenize=True, add_generation_prompt=False)
    return list(result["input_ids"] if hasattr(result, "keys") else result)
