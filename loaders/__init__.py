"""parbake's training side: a finished bake as PyTorch batches. Needs torch, NumPy and fsspec, nothing else.

    dataset.json ──► BakeReader ──► Shard ──► StoredPack ──► Recipe.batch ──► a step
    (reader)         (lane, pack)   (bytes)   (uint8)        bagel: one PackedBatch, to_dict() has the reference's keys
                                                             vlm: a dict of local_batch_size packs, likewise

Read in this order: format (what lies in a bake), order (which pack is read when), storage, shard and reader (bytes),
pixels, masks and batch (tensors of BAGEL), recipe (what a recipe decides) with bagel_recipe, state, dataset and loader
(a training run). The VLM recipe is vlm_format, vlm_order, vlm_pixels, vlm_pack, vlm_batch and vlm_recipe. `recipes` is
the one place where recipes are told apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.errors import BakeUnfinished, FormatError, LoaderError, ManifestDamaged, ShardDamaged, StateMismatch

if TYPE_CHECKING:
    from loaders.batch import PackedBatch
    from loaders.dataset import PackedShards
    from loaders.loader import PackLoader

__all__ = [
    "BakeUnfinished",
    "FormatError",
    "LoaderError",
    "ManifestDamaged",
    "PackLoader",
    "PackedBatch",
    "PackedShards",
    "ShardDamaged",
    "StateMismatch",
]

_HOMES = {"PackLoader": "loaders.loader", "PackedBatch": "loaders.batch", "PackedShards": "loaders.dataset"}


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first used: the offline side imports `loaders.format` without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'loaders' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
