"""The index stage: units of all sources through the executor, then one `source.json` per source."""

from __future__ import annotations

from pipeline.bake import BakeFolder
from pipeline.config import Config
from pipeline.executor import Executor, Progress
from pipeline.records import SourceIndex
from pipeline.storage import Storage
from pipeline.tokenizer import Tokenizer

__all__ = ["run_index"]


def run_index(
    config: Config,
    folder: BakeFolder,
    storage: Storage,
    tokenizer: Tokenizer,
    executor: Executor,
    progress: Progress,
) -> tuple[SourceIndex, ...]:
    """Index every source of every group, in the order of the configuration.

    Units that are there with the right fingerprint are skipped. `source.json` of a source is written when all its units
    are there.

    Raises:
        SourceError: A source is missing, lacks a column, or not one of its rows can be used.
        TooManyDrops: More than `max_dropped_fraction` of a source's rows cannot be used.
    """
    raise NotImplementedError
