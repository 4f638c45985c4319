"""mRoPE positions come from the model class, as nemo-automodel computes them with a real model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nemo_automodel.components.datasets.vlm.neat_packing_vlm import _compute_mrope_position_ids
from transformers import AutoConfig, Qwen2_5_VLConfig, Qwen2VLConfig, Qwen3VLConfig

from pipeline.errors import ConfigError
from pipeline.render.mrope import positions, rope_index

IMAGE, VIDEO, TEXT = 365, 366, 40
CONFIGS = {"qwen2_vl": Qwen2VLConfig, "qwen2_5_vl": Qwen2_5_VLConfig, "qwen3_vl": Qwen3VLConfig}


@pytest.fixture(scope="module", params=CONFIGS)
def model_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp(request.param)
    CONFIGS[request.param](image_token_id=IMAGE, video_token_id=VIDEO).save_pretrained(folder)
    return str(folder)


def sample() -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Two texts around a 4 x 6 grid (merged 2 x 3) and a 2 x 2 one."""
    tokens = [TEXT] * 3 + [IMAGE] * 6 + [TEXT] * 2 + [IMAGE] + [TEXT] * 4
    ids = np.array(tokens, dtype=np.int64)
    grids = torch.tensor([[1, 4, 6], [1, 2, 2]])
    return ids, (ids == IMAGE).astype(np.int64), {"image_grid_thw": grids}


def test_positions_equal_the_references(model_path: str) -> None:
    get_rope_index = rope_index(model_path)
    assert get_rope_index is not None
    ids, types, media = sample()
    reference_sample = {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.ones(len(ids), dtype=torch.int64),
        "mm_token_type_ids": torch.from_numpy(types)[None],
        **media,
    }
    expected = _compute_mrope_position_ids(reference_sample, get_rope_index)
    assert expected is not None
    assert torch.equal(torch.from_numpy(positions(get_rope_index, ids, types, media)).long(), expected)


def test_the_grid_is_visible_in_the_positions(model_path: str) -> None:
    get_rope_index = rope_index(model_path)
    assert get_rope_index is not None
    found = positions(get_rope_index, *sample())
    # After three tokens of text: one temporal position, two rows, three columns.
    assert found[:, 3:9].tolist() == [[3] * 6, [3, 3, 3, 4, 4, 4], [3, 4, 5, 3, 4, 5]]


def test_a_short_model_has_the_rule_of_the_deep_one(model_path: str) -> None:
    assert AutoConfig.from_pretrained(model_path).text_config.num_hidden_layers > 1
    assert rope_index(model_path) is not None


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        rope_index(str(tmp_path / "nowhere"))
