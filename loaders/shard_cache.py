"""A size-bounded folder of whole shards on local disk, shared by all workers and ranks of a machine.

A shard is downloaded beside its final name and renamed, under a lock on that name, so that workers who want the same
one download it once. The shards that were used longest ago (by mtime, touched at each opening) are removed until the
rest fits; a removed file stays readable for whoever has mapped it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loaders.storage import BakeStorage

__all__ = ["ShardCache"]


class ShardCache:
    """Shards of one stream under `folder`, at most `max_bytes` together (one shard is always kept)."""

    def __init__(self, folder: str, max_bytes: int) -> None:
        self._folder = Path(folder)
        self._max_bytes = max_bytes

    def fetch(self, storage: BakeStorage, relative: str, digest: str, num_bytes: int) -> str:
        """Local path of a shard, downloaded if need be.

        Args:
            storage: The bake.
            relative: The shard's path inside it.
            digest: SHA-256 of the shard: its name in the cache.
            num_bytes: Its size; a file of another size is downloaded again.

        Raises:
            EOFError: the download is shorter or longer than `num_bytes`.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{digest}.tar"
        with _locked(self._folder / f"{digest}.lock"):
            if not path.exists() or path.stat().st_size != num_bytes:
                self._make_room(num_bytes, keep=path)
                partial = self._folder / f"{digest}.part"
                storage.download(relative, str(partial))
                found_bytes = partial.stat().st_size
                if found_bytes != num_bytes:
                    partial.unlink()
                    raise EOFError(f"the object has {found_bytes} bytes")
                partial.replace(path)
            now_ns = time.time_ns()  # finer than the kernel's own stamp; orders eviction, decides nothing else
            os.utime(path, ns=(now_ns, now_ns))
        return str(path)

    def _make_room(self, num_bytes: int, keep: Path) -> None:
        with _locked(self._folder / "eviction.lock"):
            cached = sorted(
                (facts.st_mtime_ns, facts.st_size, path)
                for path in self._folder.glob("*.tar")
                if path != keep and (facts := _stat(path)) is not None
            )
            total = num_bytes + sum(size for _, size, _ in cached)
            for _, size, path in cached:
                if total <= self._max_bytes:
                    return
                path.unlink(missing_ok=True)
                total -= size


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:  # another process made room
        return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; the kernel frees it with its holder."""
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
