"""The stream id: equal ids, equal packs in the same order, wherever the data lies and however long the lanes are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.config import Config, GroupConfig
from pipeline.fingerprint import fingerprint
from pipeline.plan.assignment import Assignment
from pipeline.tokenizer import Tokenizer

__all__ = ["PLAN_VERSION", "config_fingerprint", "stream_id"]

PLAN_VERSION = 1
"""Raise it when the same inputs would be planned differently."""

_GROUP_PLACES = {"sources", "parquet_info"}
"""What a group says of places; the assignments' contents stand for it."""


def config_fingerprint(config: Config) -> str:
    """Fingerprint of everything in the configuration that decides packs and batches, length and places left out."""
    return fingerprint(_settings(config))


def stream_id(config: Config, tokenizer: Tokenizer, assignments: Sequence[Assignment]) -> str:
    """Fingerprint of configuration, tokenizer and the ordered rows of every lane (which hold the sources' contents)."""
    return fingerprint(
        {
            "settings": _settings(config),
            "tokenizer": tokenizer.fingerprint,
            "groups": [assignment.content for assignment in assignments],
        }
    )


def _settings(config: Config) -> dict[str, Any]:
    dataset = config.dataset.model_dump(mode="json", exclude={"groups"})
    bake = config.bake
    settings: dict[str, Any] = {
        "version": PLAN_VERSION,
        "recipe": config.recipe,
        "seed": config.base_seed,
        "num_workers": config.num_workers,
        "dataset": dataset,
        "groups": [_group_settings(group) for group in config.dataset.groups],
        "world_size": bake.world_size,
        "stream": bake.stream,
        "packer": bake.packer,
        "corrections": sorted(bake.corrections),
        "drop_tail": bake.drop_tail,
        "balance": bake.balance,
    }
    if bake.packer == "best_fit":
        settings["pool"] = [bake.pool_size, bake.max_vit_tokens, bake.max_vae_tokens, bake.max_images]
    if bake.balance != "off":
        settings["balance_window"] = bake.balance_window
    return settings


def _group_settings(group: GroupConfig) -> dict[str, Any]:
    settings = group.model_dump(mode="json", exclude=_GROUP_PLACES)
    settings["sources"] = [[source.name, source.num_used_data] for source in group.sources]
    return settings
