"""The resolved configuration as YAML, for people and for `parbake` itself: it can be run as it stands.

Secrets stay out: the values of `bake.storage_options`, user names and passwords in URLs, and URL queries (signatures).
"""

from __future__ import annotations

import yaml

from pipeline.config import Config, GroupConfig
from pipeline.configuration.vlm_writer import vlm_content, without_secrets
from pipeline.vlm_config import VlmConfig

__all__ = ["resolved_yaml", "without_secrets"]

_SOURCE_KEYS = ("data_dir", "jsonl_path", "parquet_info_path")


def resolved_yaml(config: Config | VlmConfig) -> str:
    """`config` in AutoModel's spelling, every default written out, paths resolved, secrets removed."""
    content = vlm_content(config) if isinstance(config, VlmConfig) else _bagel_content(config)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)


def _bagel_content(config: Config) -> dict[str, object]:
    dataset = config.dataset.model_dump(mode="json", exclude={"groups"})
    dataset["grouped_datasets"] = {group.name: _group(group) for group in config.dataset.groups}
    dataset["dataset_info"] = {group.name: _sources(group) for group in config.dataset.groups}
    bake = config.bake.model_dump(mode="json", exclude={"storage_options", "length"})
    bake["output"] = without_secrets(config.bake.output)
    bake["length"] = config.bake.length.model_dump(exclude_none=True)
    if config.bake.storage_options:
        bake["storage_options"] = dict.fromkeys(config.bake.storage_options)
    bake = {name: value for name, value in bake.items() if value is not None}
    if config.bake.packer == "greedy":
        bake = {name: value for name, value in bake.items() if name not in ("pool_size", "balance_window")}
    return {
        "seed": config.seed,
        "tokenizer": {"pretrained_model_name_or_path": without_secrets(config.tokenizer_path)},
        "dataset": dataset,
        "dataloader": {"num_workers": config.num_workers},
        "bake": bake,
    }


def _group(group: GroupConfig) -> dict[str, object]:
    spelled: dict[str, object] = {
        "kind": group.kind,
        "dataset_names": [source.name.removeprefix(f"{group.name}/") for source in group.sources],
        "num_used_data": [source.num_used_data for source in group.sources],
        "weight": group.weight,
        "is_mandatory": group.is_mandatory,
        "image_transform_args": group.image_transform.model_dump(mode="json"),
    }
    if group.vit_image_transform is not None:
        spelled["vit_image_transform_args"] = group.vit_image_transform.model_dump(mode="json")
    if group.frame_sampler is not None:
        spelled["frame_sampler_args"] = group.frame_sampler.model_dump(mode="json")
    if group.parquet_info is not None:
        spelled["parquet_info"] = {
            without_secrets(path): {"num_row_groups": count} for path, count in group.parquet_info.items()
        }
    if group.reads_lines:
        spelled.update(shuffle_lines=group.shuffle_lines, shuffle_seed=group.shuffle_seed)
    return spelled


def _sources(group: GroupConfig) -> dict[str, object]:
    return {
        source.name.removeprefix(f"{group.name}/"): {
            key: without_secrets(value) for key in _SOURCE_KEYS if (value := getattr(source, key)) is not None
        }
        for source in group.sources
    }
