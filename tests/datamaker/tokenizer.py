"""A byte-level BPE tokenizer of a few hundred tokens that `AutoTokenizer.from_pretrained` loads."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["write_tokenizer"]

SENTENCES = (
    "a red circle left of a blue square",
    "make the circle green and move it to the right",
    "what is in the picture? there are two triangles",
    "the quick brown fox jumps over the lazy dog 0123456789",
)


def write_tokenizer(folder: Path) -> Path:
    """Train and save it; `<|im_start|>` and `<|im_end|>` are there, the vision tokens are yet to be added."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 20, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 32768,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
