from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.demo import build_tokenizer
from pipeline.demo.tokenizer import CONTROL_TOKENS
from pipeline.tokenizer import load_tokenizer


def test_training_it_again_writes_the_same_files(tokenizer_folder: Path, tmp_path: Path) -> None:
    build_tokenizer(str(tmp_path))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (tokenizer_folder / name).read_bytes()


def test_transformers_loads_it_with_its_chat_template(tokenizer_folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_folder))
    assert tokenizer.is_fast
    assert tokenizer.eos_token == "<|im_end|>"
    messages = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is red?"}]},
        {"role": "assistant", "content": "The circle."},
    ]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What is red?<|im_end|>\n"
        "<|im_start|>assistant\nThe circle.<|im_end|>\n"
    )


def test_parbake_finds_the_marker_tokens_in_it_and_adds_none(tokenizer_folder: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_folder))
    assert tokenizer.vocab_size == max(tokenizer.special_tokens.values()) + 4  # three pads follow <|vision_end|>
    for name in CONTROL_TOKENS:
        assert len(tokenizer.encode(name)) == 1


@pytest.mark.parametrize("text", ["a red circle left of a blue square", "ünïcödé 日本 🥐", " \n\t", "x" * 300])
def test_any_text_survives_encoding(tokenizer_folder: Path, text: str) -> None:
    tokenizer = load_tokenizer(str(tokenizer_folder))
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_demos_words_are_few_tokens(tokenizer_folder: Path) -> None:
    assert len(load_tokenizer(str(tokenizer_folder)).encode("a red circle left of a blue square")) <= 10
