"""`grouped_datasets` and `dataset_info`: from AutoModel's two tables to one typed tuple of groups.

Reference: `PackedDataset.build_datasets`. A group's entries are looked up as `dataset_info[group][dataset name]`, or
under the group's kind where `dataset_info` has no such group. `num_used_data` goes with `dataset_names`
entry by entry; the reference cuts the longer of the two lists in silence, here that is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from pydantic import Field

from pipeline.config import (
    LINE_KINDS,
    FrameSamplerConfig,
    Frozen,
    GroupConfig,
    GroupKind,
    ImageTransformConfig,
    SourceConfig,
)
from pipeline.configuration.check import checked, mapping_at
from pipeline.configuration.errors import Origin, config_error, suggestion
from pipeline.configuration.paths import Paths
from pipeline.errors import ConfigError

__all__ = ["read_groups"]

KINDS: tuple[str, ...] = get_args(GroupKind)

REQUIRED: Mapping[str, tuple[str, ...]] = {
    "t2i_pretrain": ("image_transform_args",),
    "unified_edit": ("image_transform_args", "vit_image_transform_args"),
    "vlm_sft": ("image_transform_args", "frame_sampler_args"),
    "nemotron_vlm": ("image_transform_args",),
}
"""Keys without which the reference's constructor of a kind raises."""

KIND_ONLY: Mapping[str, tuple[str, ...]] = {
    "vit_image_transform_args": ("unified_edit",),
    "parquet_info": ("unified_edit",),
    "frame_sampler_args": ("vlm_sft",),
    "shuffle_lines": LINE_KINDS,
    "shuffle_seed": LINE_KINDS,
}
"""Keys that only some kinds of group take."""


class ParquetInfoSpelling(Frozen):
    """A file's entry of an inline `parquet_info`; BAGEL's tables carry the row count too."""

    num_row_groups: int = Field(ge=0)
    num_rows: int | None = None


class GroupSpelling(Frozen):
    """A group as `grouped_datasets` spells it; what has a default here has it nowhere else."""

    kind: str | None = None
    dataset_names: tuple[str, ...]
    num_used_data: tuple[int, ...]
    image_transform_args: ImageTransformConfig | None = None
    vit_image_transform_args: ImageTransformConfig | None = None
    frame_sampler_args: FrameSamplerConfig | None = None
    weight: float = Field(default=0.0, ge=0.0)
    is_mandatory: bool = False
    shuffle_lines: bool | None = None
    shuffle_seed: int | None = None
    resume_data_status: bool = True  # a matter of the online loader
    parquet_info: dict[str, ParquetInfoSpelling] | None = None


class SourceSpelling(Frozen):
    """An entry of `dataset_info`; the last three are BAGEL's and decide nothing."""

    data_dir: str
    jsonl_path: str | None = None
    parquet_info_path: str | None = None
    json_dir: str | None = None
    num_files: int | None = None
    num_total_samples: int | None = None


def read_groups(
    grouped: Mapping[str, object], infos: Mapping[str, object], paths: Paths, origins: Mapping[str, Origin]
) -> tuple[GroupConfig, ...]:
    """Every group in the order of the file: the packer's draw counts through them.

    Args:
        grouped: The table `grouped_datasets`.
        infos: The table `dataset_info`.
        paths: Resolves relative paths.
        origins: Where each of the two tables was written, by its name.

    Raises:
        ConfigError: A group or an entry cannot be used.
    """
    return tuple(_group(name, value, infos, paths, origins) for name, value in grouped.items())


def _group(
    name: str, value: object, infos: Mapping[str, object], paths: Paths, origins: Mapping[str, Origin]
) -> GroupConfig:
    origin = origins["grouped_datasets"]
    key = f"dataset.grouped_datasets.{name}"
    spelling = checked(GroupSpelling, mapping_at(value, key, origin), key, origin)
    kind = _kind(name, spelling, key, origin)
    _check_keys_of_kind(spelling, kind, key, origin)
    if len(spelling.dataset_names) != len(spelling.num_used_data) or not spelling.dataset_names:
        raise config_error(
            f"{key}.num_used_data",
            list(spelling.num_used_data),
            origin,
            wrong=f"but must have one entry for each of the {len(spelling.dataset_names)} 'dataset_names'",
            why="the two lists go together, and the longer one's rest would be left out in silence",
            remedy="give every data set its number of files (parquet) or lines (JSONL)",
        )
    assert spelling.image_transform_args is not None
    sources = tuple(
        _source(name, kind, dataset, used, infos, paths, origins["dataset_info"])
        for dataset, used in zip(spelling.dataset_names, spelling.num_used_data, strict=True)
    )
    given = spelling.model_dump(include={"shuffle_lines", "shuffle_seed"}, exclude_none=True)
    return GroupConfig(
        name=name,
        kind=kind,
        weight=spelling.weight,
        is_mandatory=spelling.is_mandatory,
        sources=sources,
        image_transform=spelling.image_transform_args,
        vit_image_transform=spelling.vit_image_transform_args,
        frame_sampler=spelling.frame_sampler_args,
        parquet_info=_parquet_info(spelling, paths),
        **given,
    )


def _kind(name: str, spelling: GroupSpelling, key: str, origin: Origin) -> GroupKind:
    for kind in get_args(GroupKind):
        if kind == (spelling.kind or name):
            return kind  # type: ignore[no-any-return]
    if spelling.kind is None:
        raise ConfigError(
            f"'{key}' ({origin.where(key)}) is not called after a kind of group and has no 'kind': parbake cannot tell"
            f" how its rows are read; add 'kind: {KINDS[0]}', 'kind: {KINDS[1]}' or 'kind: {KINDS[2]}'"
        )
    raise config_error(
        f"{key}.kind",
        spelling.kind,
        origin,
        wrong="which is no kind of group",
        why="it decides how rows are read",
        remedy=suggestion(spelling.kind, KINDS),
    )


def _check_keys_of_kind(spelling: GroupSpelling, kind: str, key: str, origin: Origin) -> None:
    for name in REQUIRED[kind]:
        if getattr(spelling, name) is None:
            raise ConfigError(
                f"'{key}.{name}' is missing ({origin.where(key)}): a group of kind {kind} cannot be read without it,"
                " here or in AutoModel; add it"
            )
    for name, owners in KIND_ONLY.items():
        value = getattr(spelling, name)
        if value is not None and kind not in owners:
            raise config_error(
                f"{key}.{name}",
                value,
                origin,
                wrong=f"but the group is of kind {kind}",
                why=f"only {' and '.join(owners)} takes it, and AutoModel would refuse the recipe",
                remedy="remove it",
            )


def _source(
    group: str,
    kind: str,
    dataset: str,
    num_used_data: int,
    infos: Mapping[str, object],
    paths: Paths,
    origin: Origin,
) -> SourceConfig:
    table = group if group in infos else kind
    if table not in infos:
        raise ConfigError(
            f"'dataset.dataset_info.{group}' is missing ({origin.where('dataset.dataset_info')}): nothing says where"
            f" the rows of the group lie; add it, {suggestion(group, tuple(infos))} there now"
        )
    entries = mapping_at(infos[table], f"dataset.dataset_info.{table}", origin)
    key = f"dataset.dataset_info.{table}.{dataset}"
    if dataset not in entries:
        raise ConfigError(
            f"'{key}' is missing ({origin.where(key)}), but group '{group}' names '{dataset}' in its 'dataset_names':"
            f" nothing says where its rows lie; add it, or {suggestion(dataset, tuple(entries))} in the group"
        )
    spelling = checked(SourceSpelling, mapping_at(entries[dataset], key, origin), key, origin)
    if kind == "vlm_sft" and spelling.jsonl_path is None:
        raise ConfigError(
            f"'{key}.jsonl_path' is missing ({origin.where(key)}): a vlm_sft group reads its conversations from it;"
            " write the path of the JSONL"
        )
    if num_used_data < 0:
        raise config_error(
            f"dataset.grouped_datasets.{group}.num_used_data",
            num_used_data,
            origin,
            wrong="but must be at least 0",
            why="it counts files or lines to take",
            remedy="write how many to take",
        )
    data_dir = paths.resolve(spelling.data_dir)
    jsonl_path = _resolved(spelling.jsonl_path, paths)
    if kind == "nemotron_vlm" and jsonl_path is None:
        jsonl_path = f"{data_dir.rstrip('/')}/{dataset}/{dataset}.jsonl"  # the set's own layout
    return SourceConfig(
        name=f"{group}/{dataset}",
        data_dir=data_dir,
        num_used_data=num_used_data,
        jsonl_path=jsonl_path,
        parquet_info_path=_resolved(spelling.parquet_info_path, paths),
    )


def _resolved(path: str | None, paths: Paths) -> str | None:
    return None if path is None else paths.resolve(path)


def _parquet_info(spelling: GroupSpelling, paths: Paths) -> dict[str, int] | None:
    if spelling.parquet_info is None:
        return None
    return {paths.resolve(path): entry.num_row_groups for path, entry in spelling.parquet_info.items()}
