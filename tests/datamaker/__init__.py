"""Makers of small sources: every kind, every fault, from a seed, in well under a second each.

pictures.py    a picture of any size and mode, its encodings, the gallery of awkward ones
parquet.py     t2i_pretrain and unified_edit files
jsonl.py       vlm_sft lines with their media folders
tokenizer.py   a byte-level BPE tokenizer with the Qwen2 chat tokens
recipe.py      a configuration in AutoModel's spelling with budgets so small that hundreds of packs take seconds
"""

from tests.datamaker.jsonl import write_conversations, write_frame_folder, write_vlm
from tests.datamaker.parquet import write_edit, write_t2i
from tests.datamaker.pictures import encode, gallery, picture
from tests.datamaker.recipe import Recipe, small_recipe, write_sources
from tests.datamaker.tokenizer import write_tokenizer

__all__ = [
    "Recipe",
    "encode",
    "gallery",
    "picture",
    "small_recipe",
    "write_conversations",
    "write_edit",
    "write_frame_folder",
    "write_sources",
    "write_t2i",
    "write_tokenizer",
    "write_vlm",
]
