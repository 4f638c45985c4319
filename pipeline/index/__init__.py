"""Index: measure every source row once, in parallel, and keep the result until its file changes."""

from __future__ import annotations

from pipeline.index.run import run_index

__all__ = ["run_index"]
