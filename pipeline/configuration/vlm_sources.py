"""The `dataset` section of a VLM recipe: a target by name, its fields, and the sources that follow from them.

Targets are matched by the last component of `_target_` and never imported. A meta file is read here: its data sets, in
the order of their names, are the sources.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from pipeline.config import Frozen
from pipeline.configuration.check import checked, mapping_at
from pipeline.configuration.document import parse_json
from pipeline.configuration.errors import Origin, config_error, nearest, suggestion, unknown_key
from pipeline.configuration.paths import Paths
from pipeline.errors import ConfigError
from pipeline.vlm_config import ConversationSourceConfig, MockConfig, NemotronConfig, ShareGptConfig, SourceKind

__all__ = ["COMMON_KEYS", "SourcesRead", "read_sources"]

TARGETS: Mapping[str, SourceKind] = {
    "make_meta_dataset": "meta",
    "MetaDatasetConfig": "meta",
    "make_cord_v2_dataset": "cord_v2",
    "CordV2DatasetConfig": "cord_v2",
    "make_rdr_dataset": "rdr",
    "RdrDatasetConfig": "rdr",
    "make_unimm_chat_dataset": "unimm_chat",
    "UnimmChatDatasetConfig": "unimm_chat",
    "build_mock_vlm_dataset": "mock",
    "MockVlmDatasetConfig": "mock",
    "nemotron_vlm": "nemotron",
}

COMMON_KEYS = (
    "_target_",
    "tokenizer",
    "chat_template",
    "packing",
    "pretokenize",
    "max_length",
    "truncate",
    "inject_fake_images",
)
"""Keys of the section that every target takes (reference: `RecipeConfig.resolve_vlm_dataloader`)."""

DEFAULT_HUB_IDS: Mapping[str, str] = {
    "cord_v2": "naver-clova-ix/cord-v2",
    "rdr": "quintend/rdr-items",
    "unimm_chat": "Yirany/UniMM-Chat",
}


class MetaEntrySpelling(Frozen):
    """A data set of a meta file; what has a default here has it nowhere else."""

    file_name: str
    columns: dict[str, str] = Field(default_factory=dict)
    tags: dict[str, str] = Field(default_factory=dict)
    media_dir: str | None = None
    sample_ratio: float = Field(default=1.0, ge=0.0)


class MetaSpelling(Frozen):
    """`make_meta_dataset`; `datasets` (ours) is the meta file's content written in place."""

    path_or_dataset: str | None = None
    datasets: dict[str, dict[str, object]] | None = None
    dataset_names: tuple[str, ...] | None = None
    split: str = "train"
    shard_data: bool = False


class HubSpelling(Frozen):
    """`make_cord_v2_dataset`, `make_rdr_dataset`, `make_unimm_chat_dataset`."""

    path_or_dataset: str | None = None
    split: str = "train"


class CordSpelling(HubSpelling):
    """`make_cord_v2_dataset`."""

    limit_dataset_samples: int | None = Field(default=None, ge=0)


class MockSpelling(MockConfig):
    """`build_mock_vlm_dataset`."""


class NemotronSpelling(NemotronConfig):
    """Ours: the folder (or `hf://`, `s3://`, or hub id) that holds the subsets."""

    path_or_dataset: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcesRead:
    """What the section says of its rows."""

    sources: tuple[ConversationSourceConfig, ...]
    shard_data: bool = False


def read_sources(section: Mapping[str, object], paths: Paths, origin: Origin) -> SourcesRead:
    """The sources of the `dataset` section.

    Raises:
        ConfigError: There is no such target, a key or value cannot be used, or a meta file cannot be read.
    """
    kind = _kind(section, origin)
    own = {name: value for name, value in section.items() if name not in COMMON_KEYS}
    if kind == "meta":
        return _meta(own, paths, origin)
    if kind == "mock":
        own.setdefault("max_length", section.get("max_length"))
        mock = checked(MockSpelling, own, "dataset", origin)
        if mock.responses == ():
            raise config_error(
                "dataset.responses",
                [],
                origin,
                wrong="but must not be empty",
                why="an answer is taken from it for every sample",
                remedy="write an answer, or remove the key to have random words",
            )
        config = MockConfig(**mock.model_dump())
        return SourcesRead(sources=(ConversationSourceConfig(name="mock", kind="mock", mock=config),))
    if kind == "nemotron":
        return SourcesRead(sources=(_nemotron(own, paths, origin),))
    hub = checked(CordSpelling if kind == "cord_v2" else HubSpelling, own, "dataset", origin)
    source = ConversationSourceConfig(
        name=kind,
        kind=kind,
        path=paths.resolve_folder(hub.path_or_dataset or DEFAULT_HUB_IDS[kind]),
        split=hub.split,
        limit=hub.limit_dataset_samples if isinstance(hub, CordSpelling) else None,
    )
    return SourcesRead(sources=(source,))


def _kind(section: Mapping[str, object], origin: Origin) -> SourceKind:
    target = section.get("_target_")
    if not isinstance(target, str):
        raise ConfigError(
            f"'dataset._target_' is missing ({origin.where('dataset')}): it says how rows become conversations;"
            f" write one of {', '.join(TARGETS)}"
        )
    name = target.replace(":", ".").rpartition(".")[2]
    if name not in TARGETS:
        raise config_error(
            "dataset._target_",
            target,
            origin,
            wrong="which is no data set that parbake knows",
            why="a target is matched by its name and never imported",
            remedy=suggestion(name, tuple(TARGETS)),
        )
    return TARGETS[name]


def _meta(own: dict[str, object], paths: Paths, origin: Origin) -> SourcesRead:
    spelling = checked(MetaSpelling, own, "dataset", origin)
    if (spelling.path_or_dataset is None) == (spelling.datasets is None):
        raise ConfigError(
            f"'dataset' must name a meta file in 'path_or_dataset' or hold its content under 'datasets', one of the two"
            f" ({origin.where('dataset')}): the data sets to bake are listed there; write path_or_dataset: meta.json"
        )
    if spelling.path_or_dataset is None:
        folder, place, entries = paths.config.rpartition("/")[0], origin, dict(spelling.datasets or {})
    else:
        path = paths.resolve(spelling.path_or_dataset)
        folder, place = path.rpartition("/")[0], Origin(name=path, flags=origin.flags)
        entries = mapping_at(_meta_file(path, paths), "the meta file", place)  # type: ignore[assignment]
    chosen = tuple(entries) if spelling.dataset_names is None else spelling.dataset_names
    for name in chosen:
        if name not in entries:
            raise config_error(
                "dataset.dataset_names",
                name,
                origin,
                wrong="which the meta file does not hold",
                why="its rows would be missing",
                remedy=suggestion(name, tuple(entries)),
            )
    sources = tuple(_meta_source(name, entries[name], folder, paths, place) for name in sorted(set(chosen)))
    if not sources:
        raise ConfigError(f"No data set is named ({place.name}): there is nothing to bake; add one to the meta file")
    return SourcesRead(sources=sources, shard_data=spelling.shard_data)


def _meta_file(path: str, paths: Paths) -> object:
    try:
        text = paths.storage.read_bytes(path).decode("utf-8-sig")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The meta file {path!r} cannot be read ({type(error).__name__}): it lists the data sets to bake; correct"
            " 'dataset.path_or_dataset'"
        ) from error
    return parse_json(text, path).content


def _meta_source(name: str, value: object, folder: str, paths: Paths, origin: Origin) -> ConversationSourceConfig:
    """A data set of a meta file. Keys it does not know belong to other tools, unless they look like one it knows."""
    key = f"dataset.datasets.{name}" if origin.lines else name
    entry = mapping_at(value, key, origin)
    for other, content in entry.items():
        near = nearest(other, MetaEntrySpelling.model_fields, cutoff=0.8)
        if other not in MetaEntrySpelling.model_fields and near and near not in entry:
            raise unknown_key(f"{key}.{other}", content, (near,), origin)
    known = {field: content for field, content in entry.items() if field in MetaEntrySpelling.model_fields}
    spelling = checked(MetaEntrySpelling, known, key, origin)
    form = checked(ShareGptConfig, {**spelling.columns, **spelling.tags}, f"{key}.columns", origin)
    return ConversationSourceConfig(
        name=name,
        kind="meta",
        path=_beside(spelling.file_name, folder),
        media_dir=_media_dir(spelling.media_dir, folder, paths),
        form=form,
        sample_ratio=spelling.sample_ratio,
    )


def _beside(path: str, folder: str) -> str:
    """A data file's path: relative ones lie beside the meta file, as in the reference."""
    if "://" in path or path.startswith("/"):
        return path
    joined = f"{folder}/{path}" if folder else path
    return joined if "://" in joined else os.path.abspath(joined)  # noqa: PTH100


def _media_dir(path: str | None, folder: str, paths: Paths) -> str:
    """The media root: relative to the working directory, as in the reference, or else beside the meta file."""
    if path is not None and ("://" in path or path.startswith("/")):
        return path
    if path is not None and folder and not paths.storage.exists(path) and paths.storage.exists(f"{folder}/{path}"):
        path = f"{folder}/{path}"
    return path if path is not None and "://" in path else os.path.abspath(path or ".")  # noqa: PTH100


def _nemotron(own: dict[str, object], paths: Paths, origin: Origin) -> ConversationSourceConfig:
    if not own.get("subsets"):
        raise ConfigError(
            f"'dataset.subsets' is missing ({origin.where('dataset')}): the rows of each subset lie in a folder of its"
            " name; write for instance subsets: [sparsetables, plotqa_cot, wiki_en]"
        )
    spelling = checked(NemotronSpelling, own, "dataset", origin)
    if spelling.sampling == "reference" and spelling.num_samples == 0:
        raise config_error(
            "dataset.num_samples",
            0,
            origin,
            wrong="but 'sampling' is 'reference'",
            why="ModelOpt chooses that many rows",
            remedy="write how many rows to choose, or 'sampling: all'",
        )
    path = paths.resolve_folder(spelling.path_or_dataset).rstrip("/")
    if "://" not in path and not os.path.isdir(path) and path.count("/") == 1 and not path.startswith((".", "/")):  # noqa: PTH112
        path = f"hf://datasets/{path}"
    fields = {name: value for name, value in spelling.model_dump().items() if name in NemotronConfig.model_fields}
    return ConversationSourceConfig(name="nemotron", kind="nemotron", path=path, nemotron=NemotronConfig(**fields))
