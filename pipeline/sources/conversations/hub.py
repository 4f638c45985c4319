"""CORD-v2, RDR and UniMM-Chat through `datasets.load_dataset`: a hub id or a local folder.

A picture is the cell of its row and is read from the data set again when it is rendered. Of a CORD-v2 row with several
ground truths the reference draws one from the process's global generator, so which one depends on rank and history;
here the draw is keyed by the row: `Random("cord_v2 <row>")`. With one ground truth, as in CORD-v2 itself, both agree.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from pipeline.errors import SourceError
from pipeline.fingerprint import fingerprint
from pipeline.sources.conversations.forms import Conversation, RowFault, cord_answers, describe_image, from_unimm
from pipeline.sources.conversations.records import Draft
from pipeline.sources.media_files import MediaFault, locate, media_stamp
from pipeline.storage import FileIdentity, Storage
from pipeline.vlm_config import ConversationSourceConfig
from pipeline.vlm_records import Medium

__all__ = ["ROWS_PER_UNIT", "HubCells", "drafts", "hub_identity", "num_rows"]

ROWS_PER_UNIT = 2048

_COLUMNS = {
    "cord_v2": ("image", "ground_truth"),
    "rdr": ("image", "text"),
    "unimm_chat": ("image", "conversation"),
}


def num_rows(source: ConversationSourceConfig) -> int:
    """Rows of the split.

    Raises:
        SourceError: The data set or the split cannot be loaded, or lacks a column.
    """
    return len(_loaded(source))


def hub_identity(source: ConversationSourceConfig) -> FileIdentity:
    """What changes when the data set does: its files, or the revision that the hub gave."""
    if os.path.isdir(source.path):  # noqa: PTH112
        files = [
            (os.path.relpath(os.path.join(folder, name), source.path), os.stat(os.path.join(folder, name)))  # noqa: PTH116, PTH118
            for folder, _, names in sorted(os.walk(source.path))
            for name in sorted(names)
        ]
        told = [[name, status.st_size, status.st_mtime_ns] for name, status in files]
        return FileIdentity(num_bytes=sum(status.st_size for _, status in files), stamp=fingerprint(told))
    information = _loaded(source).info
    checksums = {str(url): str(entry) for url, entry in (information.download_checksums or {}).items()}
    return FileIdentity(num_bytes=int(information.dataset_size or 0), stamp=fingerprint(checksums))


def drafts(source: ConversationSourceConfig, start: int, end: int) -> Iterator[Draft]:
    """Rows `start` to `end` of the split; row numbers count from `start`."""
    dataset = _loaded(source)
    text_column = _COLUMNS[source.kind][1]
    texts = dataset.select_columns([text_column])  # the pictures are not even read
    for number in range(start, end):
        try:
            conversation = _conversation(source.kind, texts[number][text_column], number)
        except RowFault as fault:
            yield Draft(row=number - start, fault=fault.reason, detail=fault.detail)
            continue
        media = tuple(Medium(kind="image", origin="cell", offset=number) for _ in conversation.media)
        yield Draft(row=number - start, messages=conversation.messages, media=media)


def _conversation(kind: str, text: Any, row: int) -> Conversation:
    if kind == "cord_v2":
        answers = cord_answers(text)
        return describe_image(None, random.Random(f"cord_v2 {row}").choice(answers))
    return describe_image(None, text) if kind == "rdr" else from_unimm(text, None)


class HubCells:
    """Encoded pictures of a hub data set's rows; nothing is loaded before the first is asked for."""

    def __init__(self, source: ConversationSourceConfig, storage: Storage) -> None:
        self._source = source
        self._storage = storage
        self._stamp = 0

    @property
    def stamp(self) -> int:
        """Of the data set as it is."""
        if not self._stamp:
            self._stamp = media_stamp(hub_identity(self._source))
        return self._stamp

    def content(self, row: int) -> bytes:
        """Encoded bytes of a row's picture, b"" where there is none.

        Raises:
            MediaFault: The cell names a file outside the data set, or holds no picture.
        """
        cell = _loaded(self._source)[row][_COLUMNS[self._source.kind][0]]
        if isinstance(cell, Mapping):
            cell = cell["bytes"] if cell.get("bytes") is not None else cell.get("path")
        if isinstance(cell, str):
            return self._storage.read_bytes(self._inside(cell))
        if cell is not None and not isinstance(cell, bytes):
            raise MediaFault("image_not_bytes")
        return cell or b""

    def _inside(self, path: str) -> str:
        import datasets

        root = self._source.path if os.path.isdir(self._source.path) else str(datasets.config.HF_CACHE_HOME)  # noqa: PTH112
        return locate(root, path, self._storage, allow_outside=False)


def _loaded(source: ConversationSourceConfig) -> Any:
    split = source.split if source.limit is None else f"{source.split}[:{source.limit}]"
    return _load(source.path, split, _COLUMNS[source.kind], source.name)


@lru_cache(maxsize=4)
def _load(path: str, split: str, columns: tuple[str, ...], name: str) -> Any:
    import datasets

    datasets.disable_progress_bars()
    try:
        dataset = datasets.load_dataset(path, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SourceError(
            f"{name}: the data set {path!r}, split {split!r}, cannot be loaded ({reason}), so the source has no rows. "
            "Name a hub id that this machine can reach, or a folder of parquet, JSON or image files."
        ) from error
    missing = [column for column in columns if column not in dataset.column_names]
    if missing:
        raise SourceError(
            f"{name}: the data set {path!r} has no column {missing[0]!r} but {sorted(dataset.column_names)}, so its "
            "rows are of another kind. Name the data set that this target is for."
        )
    if isinstance(dataset.features[columns[0]], datasets.Image):
        dataset = dataset.cast_column(columns[0], datasets.Image(decode=False))
    return dataset
