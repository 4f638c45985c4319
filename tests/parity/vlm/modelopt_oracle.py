"""ModelOpt's Nemotron module, loaded by itself: its package's own imports need what `--no-deps` leaves out."""

from __future__ import annotations

import importlib.util
from importlib.metadata import distribution
from types import ModuleType

__all__ = ["nemotron"]


def _load(path: str) -> ModuleType:
    located = distribution("nvidia-modelopt").locate_file(path)
    specification = importlib.util.spec_from_file_location("modelopt_nemotron", str(located))
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


nemotron = _load("modelopt/torch/utils/nemotron_vlm_dataset_utils.py")
