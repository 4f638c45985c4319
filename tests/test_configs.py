"""Every file of configs/ is a recipe, and as it stands it finds the demo's data."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import Config
from pipeline.configuration.reader import load_config

CONFIGS = Path(__file__).parents[1] / "configs"


@pytest.mark.parametrize("name", ["bagel.yaml", "vlm.yaml", "nemotron.yaml"])
def test_a_configuration_finds_the_demos_data_beside_it(
    name: str, demo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo-data").symlink_to(demo_folder)
    monkeypatch.chdir(tmp_path)
    config = load_config(str(CONFIGS / name))
    if isinstance(config, Config):
        paths = [
            config.tokenizer_path,
            *(source.data_dir for group in config.dataset.groups for source in group.sources),
        ]
    else:
        paths = [config.processor_path, *(source.path for source in config.sources)]
    assert all(Path(path).exists() for path in paths)
    assert config.ignored_sections == (("recipe",) if isinstance(config, Config) else ())


def test_no_other_file_is_there() -> None:
    assert {path.name for path in CONFIGS.iterdir()} == {"bagel.yaml", "vlm.yaml", "nemotron.yaml"}
