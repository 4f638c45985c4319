"""What a VLM recipe needs of a model, offline: the files of a small Qwen2.5-VL without weights.

Written as such a model's repository has them, so that `AutoProcessor.from_pretrained` and `AutoConfig.from_pretrained`
load the folder: the demo's tokenizer, image and video processor, chat template, and the configuration whose model class
makes the positions.
"""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.demo.tokenizer import CHAT_TEMPLATE, build_tokenizer, pretty

__all__ = ["build_model"]

_FACTOR = 28  # px a media token stands for: patches of 14 px, merged 2 x 2
_MIN_TOKENS, _MAX_TOKENS = 4, 40  # of one picture or of one pair of frames


def build_model(folder: str) -> str:
    """Write the files and return `folder`; every call writes the same bytes."""
    path = Path(build_tokenizer(folder))
    added = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    ids = {token["content"]: token["id"] for token in added}
    for name, content in (
        ("preprocessor_config.json", {**_PIXELS, "image_processor_type": "Qwen2VLImageProcessor"}),
        ("video_preprocessor_config.json", {**_PIXELS, "video_processor_type": "Qwen2VLVideoProcessor"}),
        ("config.json", _configuration(ids, vocabulary_size=1 + max(ids.values()))),
    ):
        (path / name).write_text(pretty(content), encoding="utf-8")
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return folder


_PIXELS = {
    "processor_class": "Qwen2_5_VLProcessor",
    "size": {"shortest_edge": _MIN_TOKENS * _FACTOR**2, "longest_edge": _MAX_TOKENS * _FACTOR**2},
    "min_pixels": _MIN_TOKENS * _FACTOR**2,
    "max_pixels": _MAX_TOKENS * _FACTOR**2,
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "cap_pixels_per_frame": True,  # of videos: a pair of frames never has more tokens than a picture
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def _configuration(ids: dict[str, int], vocabulary_size: int) -> dict[str, object]:
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "text_config": {
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "model_type": "qwen2_5_vl_text",
            "vocab_size": vocabulary_size,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_scaling": {"type": "default", "rope_type": "default", "mrope_section": [2, 3, 3]},
        },
        "vision_config": {"model_type": "qwen2_5_vl", "depth": 1, "hidden_size": 64, "num_heads": 4},
    }
