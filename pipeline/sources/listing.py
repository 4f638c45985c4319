"""What files a group's sources have and how often each is used, in the reference's spelling.

Reference: `get_parquet_data_paths` and `ParquetStandardIterableDataset.get_data_paths`; a folder
is listed in sorted order.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from pipeline.config import GroupConfig, SourceConfig
from pipeline.errors import SourceError
from pipeline.storage import Storage

__all__ = ["FileUse", "SourceFiles", "join_media", "list_group"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileUse:
    """One occurrence of a source file in a group's list of paths.

    Attributes:
        source: `group/dataset`.
        path: Relative to the source's root (a parquet file's name; a JSONL's own name).
        spelled: The path as the reference spells it, `os.path.join(data_dir, name)`: what it sorts by.
        num_row_groups: Row groups that `parquet_info` tells for it; None without `parquet_info` (take the file's own).
    """

    source: str
    path: str
    spelled: str
    num_row_groups: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """The files of one source.

    Attributes:
        source: Its configuration.
        uses: Every occurrence, in listed order: the whole listing repeated, cut at `num_used_data`.
        unused: Paths in the folder that no occurrence uses.
    """

    source: SourceConfig
    uses: tuple[FileUse, ...]
    unused: tuple[str, ...]


def join_media(root: str, reference: str) -> str:
    """`os.path.join` for local paths and URLs alike."""
    return os.path.join(root, reference)  # noqa: PTH118 (a URL is no Path)


def list_group(group: GroupConfig, storage: Storage) -> tuple[SourceFiles, ...]:
    """The files of a group's sources, in the order of the configuration.

    Parquet kinds: the `.parquet` files directly in `data_dir`, repeated to reach `num_used_data`; `unified_edit` with
    `parquet_info` keeps only paths that are its keys. Other kinds: the JSONL, once (its *lines* are cut by the plan).

    Raises:
        SourceError: A folder or file is missing, or holds nothing to use.
    """
    if group.reads_lines:
        return tuple(_list_jsonl(source, storage) for source in group.sources)
    row_groups = _parquet_info(group, storage)
    files = tuple(_list_parquet(source, storage, row_groups) for source in group.sources)
    if row_groups is not None and not any(source.uses for source in files):
        listed = next((join_media(source.source.data_dir, name) for source in files for name in source.unused), "")
        raise SourceError(
            f"{group.name}: no file is a key of parquet_info, so the group has no row group to read. Files are spelled "
            f"like {listed!r}, keys like {next(iter(row_groups), '')!r}. Make data_dir and the keys agree, or leave "
            "parquet_info out."
        )
    return files


def _list_jsonl(source: SourceConfig, storage: Storage) -> SourceFiles:
    path = source.jsonl_path
    if path is None or not storage.exists(path):
        raise SourceError(
            f"{source.name}: the JSONL file {path!r} does not exist, so the source has no rows. Correct jsonl_path of "
            "this entry in dataset_info."
        )
    use = FileUse(source=source.name, path=path.rstrip("/").rpartition("/")[2], spelled=path)
    return SourceFiles(source=source, uses=(use,), unused=())


def _list_parquet(source: SourceConfig, storage: Storage, row_groups: dict[str, int] | None) -> SourceFiles:
    try:
        names = [name for name in storage.list_files(source.data_dir) if name.endswith(".parquet")]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceError(
            f"{source.name}: the folder {source.data_dir!r} does not exist, so the source has no rows. Correct "
            "data_dir of this entry in dataset_info."
        ) from error
    if not names:
        raise SourceError(
            f"{source.name}: the folder {source.data_dir!r} holds no file ending in .parquet, so the source has no "
            "rows. Correct data_dir of this entry in dataset_info."
        )
    repeated = names * (source.num_used_data // len(names) + 1)
    spelled = [(name, join_media(source.data_dir, name)) for name in repeated[: source.num_used_data]]
    uses = tuple(
        FileUse(
            source=source.name,
            path=name,
            spelled=path,
            num_row_groups=None if row_groups is None else row_groups[path],
        )
        for name, path in spelled
        if row_groups is None or path in row_groups
    )
    used = {use.path for use in uses}
    return SourceFiles(source=source, uses=uses, unused=tuple(name for name in names if name not in used))


def _parquet_info(group: GroupConfig, storage: Storage) -> dict[str, int] | None:
    """Path → number of row groups, of all the group's sources together, as the reference merges them."""
    if group.kind != "unified_edit":
        return None
    merged: dict[str, int] | None = dict(group.parquet_info) if group.parquet_info is not None else None
    for source in group.sources:
        if source.parquet_info_path is None:
            continue
        try:
            written = json.loads(storage.read_bytes(source.parquet_info_path))
            merged = {**(merged or {}), **{path: int(entry["num_row_groups"]) for path, entry in written.items()}}
        except FileNotFoundError as error:
            raise SourceError(
                f"{source.name}: parquet_info_path {source.parquet_info_path!r} does not exist, so nobody can say "
                "which row groups the source has. Correct the path, or leave the key out to count them from the files."
            ) from error
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise SourceError(
                f"{source.name}: {source.parquet_info_path!r} is not a parquet_info file ({error!r}), so nobody can "
                'say which row groups the source has. Write {"<path>": {"num_row_groups": <n>}}, or leave the key out.'
            ) from error
    return merged
