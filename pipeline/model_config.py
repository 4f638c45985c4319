"""The model's configuration, where a VLM recipe names a model: its class decides positions."""

from __future__ import annotations

import json
from typing import Any

from pipeline.errors import ConfigError
from pipeline.fingerprint import fingerprint

__all__ = ["load_model_config", "model_fingerprint"]

_PLACES = {"_name_or_path", "transformers_version"}


def load_model_config(model_path: str) -> Any:
    """`AutoConfig` of a folder or hub name.

    Raises:
        ConfigError: There is none.
    """
    from transformers import AutoConfig

    try:
        load: Any = AutoConfig.from_pretrained
        return load(model_path)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"The model {model_path!r} gives no position rule ({str(error).strip().splitlines()[0]}). Positions of "
            "images follow from the model class, which is built from its config.json without weights. Name a folder or "
            "a hub name that has one, or set bake.positions to one_dimensional."
        ) from error


def model_fingerprint(model_path: str) -> str:
    """Of everything in the configuration but where it lies."""
    content = json.loads(load_model_config(model_path).to_json_string(use_diff=False))
    return fingerprint({key: value for key, value in content.items() if key not in _PLACES})
