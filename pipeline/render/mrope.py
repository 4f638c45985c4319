"""mRoPE positions of a sample, from the model class's own `get_rope_index`.

The model is built from its configuration on the meta device: no weights, a few milliseconds per layer, and exactly the
rule that training will apply. Source: nemo-automodel 0.7.0 `neat_packing_vlm._compute_mrope_position_ids`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import ConfigError
from pipeline.model_config import load_model_config

__all__ = ["RopeIndex", "positions", "rope_index"]

RopeIndex = Callable[..., Any]


@lru_cache(maxsize=2)
def rope_index(model_path: str) -> RopeIndex | None:
    """The model's `get_rope_index`, or None if it has plain positions.

    Args:
        model_path: Folder or hub name with a `config.json`.

    Raises:
        ConfigError: There is no such configuration, or no model class for it.
    """
    import torch
    from transformers import AutoModelForImageTextToText

    configuration = load_model_config(model_path)
    try:
        build: Any = AutoModelForImageTextToText.from_config
        _shrink(configuration)
        with torch.device("meta"):
            model = build(configuration)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(
            f"No model class can be built for {model_path!r} ({str(error).strip().splitlines()[0]}), so it gives no "
            "position rule for images. Name a model that this transformers version knows, or set bake.positions to "
            "one_dimensional."
        ) from error
    modules = [model, *model.modules()]
    return next((module.get_rope_index for module in modules if hasattr(module, "get_rope_index")), None)


def positions(
    get_rope_index: RopeIndex,
    input_ids: npt.NDArray[np.int64],
    mm_token_type_ids: npt.NDArray[np.int64] | None,
    media: Mapping[str, Any],
    attended: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.int32]:
    """int32 [3, n]: temporal, height and width position of every token of one unpadded sample.

    Args:
        get_rope_index: The model's.
        input_ids: int64 [n].
        mm_token_type_ids: int64 [n], None if the processor gives none.
        media: The processor's grids.
        attended: bool [n], False at the tokens of a fake picture; None: all are attended to.
    """
    import torch

    ids = torch.from_numpy(input_ids)[None]
    mask = np.ones(len(input_ids), bool) if attended is None else attended
    types = np.zeros_like(input_ids) if mm_token_type_ids is None else mm_token_type_ids
    available: dict[str, Any] = {
        "input_ids": ids,
        "image_grid_thw": media.get("image_grid_thw"),
        "video_grid_thw": media.get("video_grid_thw"),
        "second_per_grid_ts": media.get("second_per_grid_ts"),
        "attention_mask": torch.from_numpy(mask.astype(np.int64))[None],
        "mm_token_type_ids": torch.from_numpy(types)[None],
    }
    known = inspect.signature(get_rope_index).parameters
    with torch.no_grad():
        found, _ = get_rope_index(**{name: value for name, value in available.items() if name in known})
    values: npt.NDArray[np.int32] = (found[:, 0] if found.ndim == 3 else found).numpy().astype(np.int32)
    return values


def _shrink(configuration: Any) -> None:
    """Positions do not depend on depth: one layer of each tower is enough to have the class."""
    for part in (configuration, *(getattr(configuration, name, None) for name in ("text_config", "vision_config"))):
        for depth in ("num_hidden_layers", "depth"):
            if part is not None and isinstance(getattr(part, depth, None), int):
                setattr(part, depth, 1)
            if part is not None and isinstance(getattr(part, "layer_types", None), list):
                part.layer_types = part.layer_types[:1]
