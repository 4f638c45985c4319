"""A resolved VLM recipe in AutoModel's spelling: it can be run as it stands, and holds no secrets."""

from __future__ import annotations

import re

from pipeline.vlm_config import ConversationSourceConfig, ShareGptConfig, VlmConfig

__all__ = ["vlm_content", "without_secrets"]

_USER = re.compile(r"(?<=://)[^/@\s]*@")
_QUERY = re.compile(r"(?<=\?).*$")
_COLUMNS = ("messages", "images", "videos")
_PACKING = (
    "pack_size",
    "max_length",
    "packing_ratio",
    "drop_long_samples",
    "max_packs",
    "balance_media_tokens",
    "packing_format",
    "collate_max_length",
)
_TARGETS = {
    "meta": "make_meta_dataset",
    "cord_v2": "make_cord_v2_dataset",
    "rdr": "make_rdr_dataset",
    "unimm_chat": "make_unimm_chat_dataset",
    "mock": "build_mock_vlm_dataset",
    "nemotron": "nemotron_vlm",
}


def without_secrets(url: str) -> str:
    """A URL without user name, password and query; other strings unchanged."""
    if "://" not in url:
        return url
    return _QUERY.sub("removed", _USER.sub("", url))


def vlm_content(config: VlmConfig) -> dict[str, object]:
    """The sections of the file."""
    processor = {**config.processor_arguments, "pretrained_model_name_or_path": without_secrets(config.processor_path)}
    content: dict[str, object] = {
        "recipe": "FinetuneRecipeForVLM",
        "seed": config.seed,
        "processor": processor,
        "dataset": _dataset(config),
        "dataloader": {"shuffle": config.shuffle, "drop_last": config.drop_last},
        "step_scheduler": {"local_batch_size": config.local_batch_size},
        "distributed": {"cp_size": config.cp_size},
        "bake": _bake(config),
    }
    if config.model_path is not None:
        content["model"] = {"pretrained_model_name_or_path": without_secrets(config.model_path)}
    if config.packing != "none":
        content["packed_sequence"] = {name: getattr(config, name) for name in _PACKING}
    elif config.collate_max_length is not None:
        content["dataloader"] = {
            "shuffle": config.shuffle,
            "drop_last": config.drop_last,
            "collate_fn": {"max_length": config.collate_max_length},
        }
    return content


def _dataset(config: VlmConfig) -> dict[str, object]:
    first = config.sources[0]
    section: dict[str, object] = {"_target_": _TARGETS[first.kind]}
    if first.kind == "meta":
        section["datasets"] = {source.name: _meta_entry(source) for source in config.sources}
        section["shard_data"] = config.shard_data
    elif first.kind == "mock":
        assert first.mock is not None
        section.update(first.mock.model_dump(mode="json", exclude={"max_length"}))
    elif first.kind == "nemotron":
        assert first.nemotron is not None
        section.update(path_or_dataset=without_secrets(first.path), **first.nemotron.model_dump(mode="json"))
    else:
        section.update(path_or_dataset=without_secrets(first.path), split=first.split)
        if first.kind == "cord_v2":
            section["limit_dataset_samples"] = first.limit
    section["max_length"] = first.mock.max_length if first.mock is not None else config.max_length
    section["pretokenize"] = config.packing != "none" or config.max_length is not None
    section["truncate"] = config.truncation != "off"
    section["inject_fake_images"] = config.inject_fake_images
    section["chat_template"] = config.chat_template
    return section


def _meta_entry(source: ConversationSourceConfig) -> dict[str, object]:
    form = source.form.model_dump(exclude_defaults=True)
    entry: dict[str, object] = {
        "file_name": without_secrets(source.path),
        "media_dir": without_secrets(source.media_dir),
        "sample_ratio": source.sample_ratio,
    }
    columns = {name: value for name, value in form.items() if name in _COLUMNS}
    tags = {name: value for name, value in form.items() if name not in _COLUMNS}
    assert set(form) <= set(ShareGptConfig.model_fields)
    return {**entry, **({"columns": columns} if columns else {}), **({"tags": tags} if tags else {})}


def _bake(config: VlmConfig) -> dict[str, object]:
    bake = config.bake.model_dump(mode="json", exclude={"storage_options", "length"})
    bake["output"] = without_secrets(config.bake.output)
    if config.bake.length is not None:
        bake["length"] = config.bake.length.model_dump(exclude_none=True)
    if config.bake.storage_options:
        bake["storage_options"] = dict.fromkeys(config.bake.storage_options)
    switches = ("packing", "order", "truncation", "positions", "mask", "max_retries")
    return {**bake, **{name: getattr(config, name) for name in switches}}
