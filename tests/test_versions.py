"""What decides the pixels is named, and cheaply."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from pipeline.versions import PARBAKE_VERSION, pixel_versions


def test_everything_that_decides_pixels_is_named():
    assert list(pixel_versions()) == [
        "parbake",
        "python",
        "numpy",
        "pillow",
        "libjpeg_turbo",
        "libwebp",
        "zlib",
        "pyav",
        "torchvision",
        "transformers",
        "tokenizers",
        "machine",
    ]
    assert all(pixel_versions().values())


def test_the_version_in_the_code_is_the_one_of_the_package():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["version"] == PARBAKE_VERSION


def test_a_caller_cannot_change_the_versions_of_the_next_one():
    pixel_versions()["numpy"] = "0"
    assert pixel_versions()["numpy"] != "0"


def test_asking_imports_nothing_heavy():
    code = (
        "import sys; from pipeline.versions import pixel_versions; pixel_versions();"
        "print([name for name in ('torch', 'torchvision', 'transformers', 'ray', 'pyarrow') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
