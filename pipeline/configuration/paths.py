"""Relative paths in a configuration: as AutoModel reads them, or else beside the configuration.

A relative path is looked up in the working directory, where AutoModel would look; only if nothing is there, in the
configuration file's own folder. Found nowhere, it stays as it is written, and the stage that needs it says so. URLs
(with `://`) and absolute paths are never changed, nor is a path that is found as it stands.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pipeline.storage import Storage

__all__ = ["Paths"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Resolves the paths of one configuration file (`config`: its path or URL)."""

    config: str
    storage: Storage

    def resolve(self, path: str) -> str:
        """`path`, or the same below the configuration's folder if it exists only there."""
        if "://" in path or path.startswith(("/", "~")) or self.storage.exists(path):
            return path
        folder, slash, _ = self.config.rpartition("/")
        beside = f"{folder}/{path}"
        return beside if slash and self.storage.exists(beside) else path

    def resolve_folder(self, path: str) -> str:
        """`path` resolved, and from the root if it is a local folder: it is loaded by workers that stand elsewhere."""
        resolved = self.resolve(path)
        local = self.storage.local_path(resolved)
        return os.path.abspath(local) if local is not None and os.path.isdir(local) else resolved  # noqa: PTH100, PTH112
