"""The stream id of a VLM bake: equal ids, equal packs and batches in the same order, wherever the data lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.fingerprint import fingerprint
from pipeline.model_config import model_fingerprint
from pipeline.records import SourceIndex
from pipeline.vlm_config import VlmConfig

__all__ = ["VLM_PLAN_VERSION", "vlm_config_fingerprint", "vlm_stream_id"]

VLM_PLAN_VERSION = 1
"""Raise it when the same inputs would be planned differently."""

_PLACES = {
    "processor_path",
    "processor_arguments",
    "chat_template",
    "model_path",
    "ignored_sections",
    "bake",
    "sources",
}
"""Fields that say where things lie (their content is fingerprinted instead), and those that are taken apart below."""

_BAKE_KEYS = {"world_size", "stream", "on_bad_row", "corrections"}
_SOURCE_PLACES = {"path", "media_dir"}


def vlm_config_fingerprint(config: VlmConfig) -> str:
    """Fingerprint of everything in the configuration that decides packs and batches, places left out."""
    return fingerprint(_settings(config))


def vlm_stream_id(config: VlmConfig, processor_fingerprint: str, indexes: Sequence[SourceIndex]) -> str:
    """Fingerprint of configuration, processor, the model's position rule, and the sources' contents in order."""
    return fingerprint(
        {
            "settings": _settings(config),
            "processor": processor_fingerprint,
            "model": model_fingerprint(config.position_model) if config.position_model else "",
            "sources": [[[unit.unit, unit.num_rows, unit.content] for unit in index.units] for index in indexes],
        }
    )


def _settings(config: VlmConfig) -> dict[str, Any]:
    return {
        "version": VLM_PLAN_VERSION,
        **config.model_dump(mode="json", exclude=_PLACES | {"bake", "sources"}),
        "sources": [source.model_dump(mode="json", exclude=_SOURCE_PLACES) for source in config.sources],
        "bake": config.bake.model_dump(mode="json", include=_BAKE_KEYS),
    }
