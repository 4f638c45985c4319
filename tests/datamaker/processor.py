"""A real Qwen2.5-VL processor from a small tokenizer, saved so that `AutoProcessor.from_pretrained` loads it."""

from __future__ import annotations

from pathlib import Path

from tests.datamaker.tokenizer import write_tokenizer

__all__ = ["write_processor"]

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VISION_TOKENS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]


def write_processor(folder: Path, *, max_pixels: int = 28 * 28 * 16) -> Path:
    """Save tokenizer, image and video processor and chat template to `folder`."""
    from transformers import AutoTokenizer, Qwen2_5_VLProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor

    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(folder / "tokenizer"))
    tokenizer.add_special_tokens({"additional_special_tokens": VISION_TOKENS})
    size = {"shortest_edge": 28 * 28 * 2, "longest_edge": max_pixels}
    Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=size),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(size=size),
        chat_template=TEMPLATE,
    ).save_pretrained(folder)
    return folder
