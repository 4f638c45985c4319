"""The versions that pixel values and token ids depend on.

A plan records them, `dataset.json` publishes them, and a worker whose own differ refuses to render: Pillow 13, for one,
resizes vertically first where that is cheaper, which moves pixels by up to 9/255.

Read from package metadata and from Pillow's own build record; nothing heavy (torch, transformers) is imported.
"""

from __future__ import annotations

import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

from PIL import features

__all__ = ["PARBAKE_VERSION", "pixel_versions"]

PARBAKE_VERSION = "0.1.0"
"""Written here too, because a Ray job runs from a source folder in which parbake is not installed."""

ABSENT = "absent"


def pixel_versions() -> dict[str, str]:
    """Name → version of everything that decides the bytes of a shard, in a fixed order.

    A version's local part is left out ("2.1+cpu", "2.1+cu126"): how a wheel was built for a GPU decides no pixel.
    """
    return dict(_versions())


@lru_cache(maxsize=1)
def _versions() -> tuple[tuple[str, str], ...]:
    return (
        ("parbake", PARBAKE_VERSION),
        ("python", platform.python_version()),
        ("numpy", _package("numpy")),
        ("pillow", _package("pillow")),
        ("libjpeg_turbo", _codec("libjpeg_turbo")),
        ("libwebp", _codec("webp")),
        ("zlib", _codec("zlib")),
        ("pyav", _package("av")),
        ("torchvision", _package("torchvision")),
        ("transformers", _package("transformers")),
        ("tokenizers", _package("tokenizers")),
        ("machine", platform.machine()),
    )


def _package(name: str) -> str:
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return ABSENT


def _codec(name: str) -> str:
    """Version of a library as Pillow was built with it."""
    return features.version(name) or ABSENT
