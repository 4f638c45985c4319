"""Reads one YAML: the part of an AutoModel BAGEL recipe that concerns the data, and parbake's own `bake` section.

    recipe.yaml ──parse──► sections ──flags──► sections ──`_path` files──► typed models ──rules──► Config

`seed`, `tokenizer`, `model` (for its tokenizer path), `dataset` and `dataloader` are read as AutoModel reads them;
every other trainer section is ignored and listed. Unknown keys inside them are errors. Nothing is imported or executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.config import Config, DatasetConfig, Frozen
from pipeline.configuration.bake import read_bake
from pipeline.configuration.check import checked, mapping_at, plain_value
from pipeline.configuration.document import Document, read_document, with_environment
from pipeline.configuration.errors import Origin, config_error, nearest, unknown_key
from pipeline.configuration.groups import read_groups
from pipeline.configuration.overrides import Flags, Overrides
from pipeline.configuration.paths import Paths
from pipeline.configuration.rules import check_rules
from pipeline.configuration.vlm_reader import is_vlm_recipe, read_vlm_config
from pipeline.configuration.writer import resolved_yaml
from pipeline.errors import ConfigError
from pipeline.storage import Storage
from pipeline.vlm_config import VlmConfig

__all__ = ["Flags", "load_bagel_config", "load_config", "resolved_yaml"]

SECTIONS = ("seed", "tokenizer", "model", "dataset", "dataloader", "bake")

DEFAULT_SEED = 4396  # AutoModel's `FinetuneRecipeForMultimodal`


class DataloaderSection(Frozen):
    """`dataloader`: AutoModel's `BagelDataloaderConfig`; only the worker count decides anything offline."""

    num_workers: int = 1
    pin_memory: bool = True
    prefetch_factor: int | None = 2


def load_config(path: str, overrides: Sequence[str] = (), flags: Flags | None = None) -> Config | VlmConfig:
    """Read, resolve and check a configuration of either recipe. Writes nothing.

    Args:
        path: The YAML: a local path or any fsspec URL.
        overrides: `dotted.key=value` strings of `--set`, later ones winning.
        flags: Values of the explicit flags, which win over `overrides`.

    Raises:
        ConfigError: The file or a value in it cannot be used; the message names file, key, value and remedy.
    """
    document = read_document(path, Storage(), role="configuration", yaml_only=True)
    changes = Overrides.parse(overrides, flags or Flags())
    if is_vlm_recipe(document, changes):
        return read_vlm_config(document, path, changes)
    return _bagel_config(document, path, changes)


def load_bagel_config(path: str, overrides: Sequence[str] = (), flags: Flags | None = None) -> Config:
    """As `load_config`, of a recipe that must be BAGEL's.

    Raises:
        ConfigError: Also where it is the VLM recipe.
    """
    config = load_config(path, overrides, flags)
    if isinstance(config, VlmConfig):
        raise ConfigError(f"{path} is a VLM recipe: its packs are not BAGEL's; name a BAGEL recipe")
    return config


def _bagel_config(document: Document, path: str, changes: Overrides) -> Config:
    origin = Origin(name=document.name, lines=document.lines, flags=changes.labels())
    sections, ignored = _own_sections(document, origin)
    changes.apply(sections, SECTIONS, origin, late=False)
    for name in sections:
        sections[name] = with_environment(sections[name], name, origin)

    bake = read_bake(sections.get("bake"), origin)
    paths = Paths(config=path, storage=Storage(bake.storage_options))
    dataset = mapping_at(sections.get("dataset"), "dataset", origin) if "dataset" in sections else _no_dataset(origin)
    origins = _resolve_tables(dataset, paths, origin)
    changes.apply(sections, SECTIONS, origin, late=True)

    config = Config(
        seed=_seed(sections, origin),
        tokenizer_path=_tokenizer_path(sections, paths, origin),
        num_workers=_num_workers(sections, origin),
        dataset=_dataset(dataset, origins, paths, origin),
        bake=bake,
        ignored_sections=ignored,
    )
    check_rules(config, origin)
    return config


def _own_sections(document: Document, origin: Origin) -> tuple[dict[str, object], tuple[str, ...]]:
    """parbake's sections of the file, and the names of the others; a near miss of one of ours is an error."""
    if not isinstance(document.content, dict):
        raise ConfigError(
            f"{document.name} holds no sections: a configuration is a mapping with 'dataset' and 'bake' in it;"
            " start from configs/bagel.yaml"
        )
    content = mapping_at(document.content, "the file", origin)
    for name, value in content.items():
        if name not in SECTIONS and (near := nearest(name, SECTIONS, cutoff=0.8)) and near not in content:
            raise unknown_key(name, value, (near,), origin)
    ours = {name: value for name, value in content.items() if name in SECTIONS}
    return ours, tuple(name for name in content if name not in SECTIONS)


def _no_dataset(origin: Origin) -> dict[str, object]:
    raise ConfigError(
        f"'dataset' is missing ({origin.name}): it names the groups, their files and the token budgets, as in an"
        " AutoModel BAGEL recipe; add the section, or start from configs/bagel.yaml"
    )


def _resolve_tables(dataset: dict[str, object], paths: Paths, origin: Origin) -> dict[str, Origin]:
    """Read `grouped_datasets_path` and `dataset_info_path` in place; the path wins over the inline table."""
    origins = {}
    for table in ("grouped_datasets", "dataset_info"):
        origins[table] = origin
        key = f"dataset.{table}_path"
        named = dataset.pop(f"{table}_path", None)
        if named is None or named in ("none", "None"):
            continue
        if not isinstance(named, str):
            raise config_error(
                key, named, origin, wrong="but must be a path", why="the table is read from it", remedy="write a string"
            )
        document = read_document(paths.resolve(named), paths.storage, role=f"file of '{key}',")
        lines = {f"dataset.{table}.{name}": line for name, line in document.lines.items()}
        origins[table] = Origin(name=document.name, lines=lines, flags=origin.flags)
        dataset[table] = with_environment(document.content, f"dataset.{table}", origins[table])
    return origins


def _dataset(values: dict[str, object], origins: Mapping[str, Origin], paths: Paths, origin: Origin) -> DatasetConfig:
    if "_target_" in values:
        raise _target_error("dataset", values["_target_"], origin)
    tables = {}
    for table in ("grouped_datasets", "dataset_info"):
        if values.get(table) is None:
            raise ConfigError(
                f"'dataset.{table}' is missing ({origin.where('dataset')}): without it no row can be read;"
                f" write it inline or give 'dataset.{table}_path'"
            )
        tables[table] = mapping_at(values[table], f"dataset.{table}", origins[table])
    known = [name for name in DatasetConfig.model_fields if name != "groups"]
    spelled = (*known, "grouped_datasets", "grouped_datasets_path", "dataset_info", "dataset_info_path")
    for name, value in values.items():
        if name not in spelled:
            raise unknown_key(f"dataset.{name}", value, spelled, origin)
    fields = {name: value for name, value in values.items() if name in known}
    scalars = checked(DatasetConfig, {**fields, "groups": []}, "dataset", origin)
    groups = read_groups(tables["grouped_datasets"], tables["dataset_info"], paths, origins)
    return scalars.model_copy(update={"groups": groups})


def _target_error(section: str, value: object, origin: Origin) -> ConfigError:
    return config_error(
        f"{section}._target_",
        value,
        origin,
        wrong="but this section takes no '_target_'",
        why="parbake never imports what a configuration names, and AutoModel's BAGEL recipes refuse it too",
        remedy="remove it and write the fields themselves",
    )


def _seed(sections: Mapping[str, object], origin: Origin) -> int | None:
    seed = sections.get("seed", DEFAULT_SEED)
    seed = plain_value(seed) if isinstance(seed, str) else seed
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise config_error(
            "seed",
            seed,
            origin,
            wrong="but must be a whole number",
            why="every random draw follows from it",
            remedy=f"write a whole number, or remove the key to have {DEFAULT_SEED}",
        )
    return seed


def _num_workers(sections: Mapping[str, object], origin: Origin) -> int:
    section = sections.get("dataloader")
    values = {} if section is None else mapping_at(section, "dataloader", origin)
    if "_target_" in values:
        raise _target_error("dataloader", values["_target_"], origin)
    return checked(DataloaderSection, values, "dataloader", origin).num_workers


def _tokenizer_path(sections: Mapping[str, object], paths: Paths, origin: Origin) -> str:
    """The tokenizer's folder or hub name (reference: `_resolve_bagel_tokenizer_path`)."""
    tokenizer = sections.get("tokenizer")
    candidates: list[tuple[str, object]] = [("tokenizer", tokenizer)] if isinstance(tokenizer, str) else []
    for section, nested in (("tokenizer", ""), ("model", ""), ("model", "config")):
        holder = sections.get(section)
        key = section
        if nested and isinstance(holder, dict):
            holder, key = holder.get(nested), f"{section}.{nested}"
        if isinstance(holder, dict):
            candidates.append((f"{key}.pretrained_model_name_or_path", holder.get("pretrained_model_name_or_path")))
        elif nested and isinstance(holder, str):
            candidates.append((key, holder))
    for key, value in candidates:
        if isinstance(value, str) and value.strip():
            return paths.resolve_folder(value)
        if value is not None and not isinstance(value, str):
            raise config_error(
                key, value, origin, wrong="but must be a string", why="it names the tokenizer", remedy="write its path"
            )
    raise ConfigError(
        f"No tokenizer is named ({origin.name}): lengths are counted in its tokens; set"
        " 'tokenizer.pretrained_model_name_or_path', 'model.pretrained_model_name_or_path' or"
        " 'model.config.pretrained_model_name_or_path'"
    )
