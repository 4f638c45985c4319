"""A small tokenizer of Qwen2's kind: byte-level BPE with its chat and vision tokens, trained on the demo's texts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.demo.captions import captions
from pipeline.demo.edits import draw_chain
from pipeline.demo.questions import comparison, motion, questions, riddle
from pipeline.demo.scenes import draw_scene

__all__ = ["CHAT_TEMPLATE", "CONTROL_TOKENS", "build_tokenizer", "pretty"]

CONTROL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
_VOCABULARY_SIZE = 768  # 256 bytes, merges, control tokens
_NUM_SCENES = 400
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% else %}<|vision_start|><|{{ part['type'] }}_pad|><|vision_end|>{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer(folder: str) -> str:
    """Train the demo's tokenizer and save it where `AutoTokenizer.from_pretrained(folder)` finds it; returns `folder`.

    The texts come from a fixed seed: every call writes the same files.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY_SIZE - len(CONTROL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.add_special_tokens(list(CONTROL_TOKENS))
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / "tokenizer.json").write_text(pretty(json.loads(tokenizer.to_str())), encoding="utf-8")
    (path / "tokenizer_config.json").write_text(pretty(_settings()), encoding="utf-8")
    return folder


def _texts() -> Iterator[str]:
    draws = random.Random(0)
    for _ in range(_NUM_SCENES):
        scene = draw_scene(draws)
        yield from captions(scene)
        exchanges = questions(draws, scene)
        exchanges += [comparison(draws, [scene, draw_scene(draws)]), riddle(draws, scene), motion(scene, True)]
        for exchange in exchanges:
            yield from exchange
        for phrasings in draw_chain(draws)[1]:
            yield from phrasings


def _settings() -> dict[str, object]:
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "additional_special_tokens": list(CONTROL_TOKENS[1:]),
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
    }


def pretty(value: object) -> str:
    """JSON as people read it, the same bytes every time."""
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
