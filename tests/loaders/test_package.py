"""The training side is small: what it needs, what it exports, what it never drags in."""

from __future__ import annotations

import subprocess
import sys

import loaders

NEVER = ("pipeline", "ray", "pyarrow", "transformers", "torchvision", "PIL", "pandas", "pydantic")


def modules_after(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(' '.join({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_everything_exported_is_importable() -> None:
    for name in loaders.__all__:
        assert getattr(loaders, name).__name__ == name


def test_training_imports_nothing_of_the_offline_side() -> None:
    assert not modules_after("from loaders import PackedShards, PackLoader, PackedBatch").intersection(NEVER)


def test_the_format_is_imported_without_torch() -> None:
    assert not modules_after("import loaders.format, loaders.errors").intersection({*NEVER, "torch", "numpy", "fsspec"})
