"""Reads a VLM recipe in AutoModel's spelling, and parbake's `bake` section beside it.

    dataset           the target and its fields, max_length, truncate, pretokenize, inject_fake_images, chat_template
    processor, model  where the processor comes from; the model's path names the class that makes mRoPE positions
    packed_sequence   pack_size > 0 packs; dataset.packing {enabled: true, …} is its older place
    dataloader        shuffle, drop_last; collate_fn.max_length of unpacked batches
    step_scheduler    local_batch_size         distributed   cp_size

Reference: nemo-automodel 0.7.0 `RecipeConfig.resolve_vlm_dataloader`. Trainer sections may hold anything else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from pipeline.config import Frozen
from pipeline.configuration.check import checked, mapping_at
from pipeline.configuration.document import Document, with_environment
from pipeline.configuration.errors import Origin, config_error, nearest, unknown_key
from pipeline.configuration.overrides import Overrides
from pipeline.configuration.paths import Paths
from pipeline.configuration.vlm_bake import read_vlm_bake, storage_options_of
from pipeline.configuration.vlm_sources import COMMON_KEYS, read_sources
from pipeline.errors import ConfigError
from pipeline.storage import Storage
from pipeline.vlm_config import VlmBakeConfig, VlmConfig

__all__ = ["VLM_SECTIONS", "is_vlm_recipe", "read_vlm_config"]

VLM_SECTIONS = (
    "recipe",
    "seed",
    "processor",
    "model",
    "dataset",
    "dataloader",
    "packed_sequence",
    "step_scheduler",
    "distributed",
    "bake",
)

RECIPE_NAME = "FinetuneRecipeForVLM"
DEFAULT_SEED = 42
DEFAULT_PACK_SIZE = 2048


class DatasetSpelling(Frozen):
    """Keys of `dataset` that every target takes."""

    tokenizer: object = None
    chat_template: str | None = None
    packing: dict[str, object] | None = None
    pretokenize: bool | None = None
    max_length: int | None = Field(default=None, gt=0)
    truncate: bool | None = None
    inject_fake_images: bool = True


class PackingSpelling(Frozen):
    """`packed_sequence`: AutoModel's `NeatPackConfig` fields and defaults, and what decides whether it packs."""

    pack_size: int | None = None
    max_length: int | None = Field(default=None, gt=0)
    packing_ratio: float = Field(default=1.0, gt=0.0)
    drop_long_samples: bool = False
    max_packs: int | None = Field(default=None, ge=0)
    balance_media_tokens: bool = True
    packing_format: str = "neat"
    collate_max_length: int | None = Field(default=None, gt=0)
    pretokenize: bool | None = None
    enabled: bool | None = None
    attn_implementation: str | None = None  # ignored there too
    packed_sequence_size: int | None = None  # of language-model recipes
    split_across_pack: bool | None = None
    packing_strategy: str | None = None


class DataloaderSpelling(Frozen):
    """`dataloader`; most of it is a matter of the online loader."""

    shuffle: bool = True
    drop_last: bool = False
    num_workers: int = 0
    pin_memory: bool = False
    persistent_workers: bool = False
    prefetch_factor: int | None = None
    collate_fn: dict[str, object] | None = None


def is_vlm_recipe(document: Document, overrides: Overrides) -> bool:
    """Whether the file (or `--set bake.recipe=vlm`) asks for this recipe.

    Raises:
        ConfigError: `bake.recipe` is something else.
    """
    content = document.content if isinstance(document.content, dict) else {}
    bake = content.get("bake")
    asked = bake.get("recipe") if isinstance(bake, dict) else None
    for change in overrides.changes:
        if change.key == "bake.recipe":
            asked = change.value
    if asked not in (None, "vlm", "bagel"):
        origin = Origin(name=document.name, lines=document.lines, flags=overrides.labels())
        raise config_error(
            "bake.recipe",
            asked,
            origin,
            wrong="which is no recipe",
            why="it decides how rows become packs",
            remedy="write 'bagel' or 'vlm'",
        )
    if asked is not None:
        return bool(asked == "vlm")
    recipe = content.get("recipe")
    recipe = recipe.get("_target_") if isinstance(recipe, dict) else recipe
    return isinstance(recipe, str) and recipe.strip().replace(":", ".").rpartition(".")[2] == RECIPE_NAME


def read_vlm_config(document: Document, path: str, overrides: Overrides) -> VlmConfig:
    """Resolve and check a VLM recipe.

    Raises:
        ConfigError: A value cannot be used.
    """
    origin = Origin(name=document.name, lines=document.lines, flags=overrides.labels())
    content = mapping_at(document.content, "the file", origin)
    for name, value in content.items():
        if name not in VLM_SECTIONS and (near := nearest(name, VLM_SECTIONS, cutoff=0.8)) and near not in content:
            raise unknown_key(name, value, (near,), origin)
    sections = {name: value for name, value in content.items() if name in VLM_SECTIONS}
    for late in (False, True):
        overrides.apply(sections, VLM_SECTIONS, origin, late=late)
    sections = {name: with_environment(value, name, origin) for name, value in sections.items()}
    ignored = tuple(name for name in content if name not in VLM_SECTIONS)
    return _config(sections, ignored, path, origin)


def _config(sections: Mapping[str, object], ignored: tuple[str, ...], path: str, origin: Origin) -> VlmConfig:
    section = _section(sections, "dataset", origin)
    if not section:
        raise ConfigError(
            f"'dataset' is missing ({origin.name}): it names the rows to bake, as in an AutoModel VLM recipe; add the"
            " section, or start from configs/vlm.yaml"
        )
    bake_section = dict(_section(sections, "bake", origin))
    paths = Paths(config=path, storage=Storage(storage_options_of(bake_section)))
    common = {name: value for name, value in section.items() if name in COMMON_KEYS and name != "_target_"}
    dataset = checked(DatasetSpelling, common, "dataset", origin)
    read = read_sources(section, paths, origin)
    bake, switches = read_vlm_bake(bake_section, read, origin)
    loader = checked(DataloaderSpelling, _without_target(sections, "dataloader", origin), "dataloader", origin)
    packing = _packing(sections, dataset, loader, bake, switches, origin)
    processor_path, arguments, model_path = _processor(sections, paths, origin)
    cp_size = _whole(_section(sections, "distributed", origin), "cp_size", "distributed", origin)
    fields: dict[str, object] = {
        "seed": _seed(sections, origin),
        "processor_path": processor_path,
        "processor_arguments": arguments,
        "chat_template": _chat_template(dataset.chat_template, paths),
        "model_path": model_path,
        "shard_data": read.shard_data,
        "inject_fake_images": dataset.inject_fake_images,
        "shuffle": loader.shuffle,
        "drop_last": loader.drop_last,
        "local_batch_size": _whole(
            _section(sections, "step_scheduler", origin), "local_batch_size", "step_scheduler", origin
        ),
        "cp_size": cp_size,
        "mask": "document" if cp_size > 1 else "dense",
        "ignored_sections": ignored,
        **packing,
        **switches,
    }
    outer = checked(VlmConfig, {**fields, "sources": [], "bake": {"output": "-"}}, "", origin)
    config = outer.model_copy(update={"sources": read.sources, "bake": bake})
    _check_rules(config, origin)
    return config


def _section(sections: Mapping[str, object], name: str, origin: Origin) -> dict[str, object]:
    value = sections.get(name)
    return {} if value is None else mapping_at(value, name, origin)


def _without_target(sections: Mapping[str, object], name: str, origin: Origin) -> dict[str, object]:
    return {key: value for key, value in _section(sections, name, origin).items() if key != "_target_"}


def _packing(
    sections: Mapping[str, object],
    dataset: DatasetSpelling,
    loader: DataloaderSpelling,
    bake: VlmBakeConfig,
    switches: dict[str, object],
    origin: Origin,
) -> dict[str, object]:
    """Fields of VlmConfig about packing and length, the stream's defaults where the user said nothing."""
    top = sections.get("packed_sequence")
    key = "packed_sequence" if top is not None or dataset.packing is None else "dataset.packing"
    values = _section(sections, "packed_sequence", origin) if key == "packed_sequence" else dict(dataset.packing or {})
    spelled = checked(PackingSpelling, values, key, origin)
    if key == "packed_sequence":
        packs = (spelled.pack_size or 0) > 0
        pretokenize = (packs or dataset.max_length is not None) if top is None else packs
        max_length = spelled.max_length or dataset.max_length
    else:
        packs = bool(spelled.enabled)
        pretokenize = dataset.max_length is not None
        max_length = dataset.max_length
    if key == "packed_sequence" and top is not None and spelled.pretokenize is not None:
        pretokenize = spelled.pretokenize
    elif top is None and dataset.pretokenize is not None:
        pretokenize = dataset.pretokenize
    if packs and not pretokenize:
        raise ConfigError(
            f"'{key}' packs, but rows are not tokenised beforehand ({origin.where(key)}): AutoModel refuses that, as"
            " only tokenised rows have a length; remove 'pretokenize: false'"
        )
    packing = switches.get("packing", ("best_fit" if bake.stream == "improved" else "neat") if packs else "none")
    if packing != "none" and not packs:
        raise config_error(
            "bake.packing",
            packing,
            origin,
            wrong="but no pack size is given",
            why="packs are filled up to it",
            remedy="write 'packed_sequence: {pack_size: 4096}'",
        )
    truncate = dataset.truncate if dataset.truncate is not None else dataset.max_length is not None
    max_length = max_length if pretokenize else None
    collate = (loader.collate_fn or {}).get("max_length") if packing == "none" else spelled.collate_max_length
    return {
        "max_length": max_length,
        "truncation": "tokens" if truncate and max_length is not None else "off",
        "packing": packing,
        "pack_size": None if packing == "none" else spelled.pack_size or max_length or DEFAULT_PACK_SIZE,
        "packing_ratio": spelled.packing_ratio,
        "drop_long_samples": spelled.drop_long_samples,
        "max_packs": spelled.max_packs,
        "balance_media_tokens": spelled.balance_media_tokens,
        "packing_format": spelled.packing_format,
        "collate_max_length": collate,
    }


def _processor(
    sections: Mapping[str, object], paths: Paths, origin: Origin
) -> tuple[str, dict[str, object], str | None]:
    """Path and arguments of the processor, and the model's path."""
    model = _section(sections, "model", origin)
    inner = model.get("config")
    candidates = [model.get("pretrained_model_name_or_path"), inner]
    if isinstance(inner, dict):
        candidates[1] = inner.get("pretrained_model_name_or_path")
    named = next((value for value in candidates if isinstance(value, str) and value.strip()), None)
    model_path = None if named is None else paths.resolve_folder(named)
    arguments = dict(_section(sections, "processor", origin))
    target = arguments.pop("_target_", "from_pretrained")
    if not (isinstance(target, str) and target.endswith("from_pretrained")):
        raise config_error(
            "processor._target_",
            target,
            origin,
            wrong="which is no from_pretrained",
            why="parbake loads processors by AutoProcessor.from_pretrained and imports nothing else",
            remedy="write 'transformers.AutoProcessor.from_pretrained', or remove it",
        )
    if isinstance(arguments.get("video_processor"), dict):
        raise config_error(
            "processor.video_processor",
            arguments["video_processor"],
            origin,
            wrong="which parbake does not build",
            why="a processor is loaded from one folder",
            remedy="save the processor with its video processor and name that folder",
        )
    path = arguments.pop("pretrained_model_name_or_path", None)
    if isinstance(path, str) and path.strip():
        return paths.resolve_folder(path), arguments, model_path
    if model_path is None:
        raise ConfigError(
            f"No processor is named ({origin.name}): it turns conversations into tokens and pixels; set"
            " 'processor.pretrained_model_name_or_path' or 'model.pretrained_model_name_or_path'"
        )
    return model_path, arguments, model_path


def _chat_template(template: str | None, paths: Paths) -> str | None:
    """A template as text: itself, or the content of the file it names (reference: `_resolve_chat_template`)."""
    if template is None or "{%" in template or "{{" in template:
        return template
    path = paths.resolve(template)
    if not paths.storage.exists(path):
        return template
    text = paths.storage.read_bytes(path).decode("utf-8")
    try:
        held = json.loads(text)
    except ValueError:
        return text
    return str(held["chat_template"]) if isinstance(held, dict) and "chat_template" in held else text


def _seed(sections: Mapping[str, object], origin: Origin) -> int | None:
    class SeedSection(Frozen):
        seed: int | None = DEFAULT_SEED

    return checked(SeedSection, {key: value for key, value in sections.items() if key == "seed"}, "", origin).seed


def _whole(section: Mapping[str, object], name: str, key: str, origin: Origin) -> int:
    """A whole number of at least 1 from a trainer's section, 1 where it is not there."""
    value: Any = section.get(name)
    if value is None or value in ("none", "None"):
        return 1
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise config_error(
            f"{key}.{name}",
            value,
            origin,
            wrong="but must be a whole number of at least 1",
            why="batches are made of it",
            remedy="write a number, or remove the key to have 1",
        )
    return value


def _check_rules(config: VlmConfig, origin: Origin) -> None:
    """What must hold as a whole; each rule names what would go wrong."""
    if config.order == "length_grouped" and config.packing != "none":
        raise config_error(
            "bake.order",
            config.order,
            origin,
            wrong=f"but packing is '{config.packing}'",
            why="packs are equally long already",
            remedy="write 'packing: none', or remove the key",
        )
    alignment = config.sequence_alignment
    if alignment > 1 and config.collate_max_length is not None and config.collate_max_length % alignment:
        raise config_error(
            "packed_sequence.collate_max_length",
            config.collate_max_length,
            origin,
            wrong=f"but must be a multiple of 2 * cp_size ({alignment})",
            why="every rank of a context-parallel group takes equal parts of a document",
            remedy="round it up",
        )
    if config.shard_data and any(source.kind != "meta" for source in config.sources):
        raise ConfigError("'dataset.shard_data' is for meta data sets: no other source is cut by rank; remove it")
