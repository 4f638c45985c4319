"""A small data set with meaning, made offline from a seed: whoever looks at a pack can tell whether it is right.

    seed ──► scenes ("a red circle left of a blue square") ──► true texts: captions, edit instructions, answers
                  └──► pictures                                     └──► a tokenizer trained on them

    write_demo(folder) writes t2i/*.parquet, edits/*.parquet, answers/answers.jsonl + media, tokenizer/, config.yaml;
                       chats/ and nemotron/ (the answers again, as VLM sources), model/, vlm.yaml, nemotron.yaml

Scenes and texts are pure functions of a random stream, `drawing` makes pictures of scenes, `writing` files of both. The
seed and the versions of Pillow, pyarrow and tokenizers decide every byte.
"""

from __future__ import annotations

from pipeline.demo.tokenizer import build_tokenizer
from pipeline.demo.writing import write_demo

__all__ = ["build_tokenizer", "write_demo"]
