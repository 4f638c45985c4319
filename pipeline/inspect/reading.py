"""Packs of a bake by position or step, read as training reads them; texts through the tokenizer of `config.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from loaders.errors import BakeUnfinished, LoaderError
from loaders.format import DatasetManifest
from loaders.order import positions_of_step
from loaders.reader import BakeReader
from loaders.recipe import ReadOptions
from loaders.recipes import recipe_of
from loaders.shard import StoredPack
from loaders.vlm_format import VlmSettings
from pipeline.bake import BakeFolder
from pipeline.errors import ConfigError, LawBroken, ParbakeError
from pipeline.inspect.dropped import planned_samples, with_dropped
from pipeline.inspect.view import Decode, PackView, SampleView, view_pack
from pipeline.inspect.vlm_view import view_vlm_pack
from pipeline.processor import load_processor
from pipeline.storage import Storage
from pipeline.tokenizer import load_tokenizer

__all__ = ["describe", "describe_step"]


def describe(bake: str, position: int, storage_options: Mapping[str, Any] | None = None) -> PackView:
    """The pack at a position of the canonical order: the one that a first epoch reads there.

    Args:
        bake: Folder of a finished bake: a local path or any fsspec URL.
        position: Position; step s of rank r of W reads `s * W + r` where a step is one pack.
        storage_options: fsspec options of `bake`.

    Raises:
        ConfigError: There is no finished bake, or it has no such position.
        LawBroken: The pack's bytes are not what the bake says.
    """
    reader = _reader(bake, storage_options)
    if not 0 <= position < len(reader.order):
        raise ConfigError(
            f"The bake {bake} has no position {position}: it holds {len(reader.order):,} packs, counted from 0;"
            " ask for a smaller one"
        )
    return _Inspection.of(bake, reader, storage_options).pack_at(position)


def describe_step(
    bake: str, step: int, rank: int, world_size: int, storage_options: Mapping[str, Any] | None = None
) -> list[PackView]:
    """The packs that rank `rank` of `world_size` reads in a step of the first epoch; as many as a batch has.

    Raises:
        ConfigError: There is no finished bake, or it has no such step.
        LawBroken: A pack's bytes are not what the bake says.
    """
    reader = _reader(bake, storage_options)
    recipe = recipe_of(reader.manifest, reader.order, ReadOptions(), reader.storage.read_bytes)
    positions = positions_of_step(
        step,
        rank,
        world_size,
        start=0,
        num_packs=len(reader.order),
        tail=recipe.tail,
        packs_per_batch=recipe.packs_per_batch,
    )
    if not positions:
        raise ConfigError(
            f"The bake {bake} has no step {step} for {world_size} ranks: it holds {len(reader.order):,} packs,"
            f" {recipe.packs_per_batch} of them a batch; ask for a smaller one"
        )
    inspection = _Inspection.of(bake, reader, storage_options)
    return [inspection.pack_at(position) for position in positions]


def _reader(bake: str, storage_options: Mapping[str, Any] | None) -> BakeReader:
    try:
        return BakeReader(bake, verify=True, storage_options=storage_options)
    except BakeUnfinished as error:
        raise ConfigError(str(error)) from error
    except LoaderError as error:
        raise LawBroken(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inspection:
    """An open bake and what turns its ids into text."""

    bake: str
    reader: BakeReader
    storage: Storage
    decode: Decode | None
    note: str

    @classmethod
    def of(cls, bake: str, reader: BakeReader, storage_options: Mapping[str, Any] | None) -> _Inspection:
        storage = Storage(storage_options or {})
        decode, note = _decoder(bake, reader.manifest, storage)
        return cls(bake=bake, reader=reader, storage=storage, decode=decode, note=note)

    def pack_at(self, position: int) -> PackView:
        """The pack of a position that the bake has."""
        reader = self.reader
        lane, pack = reader.order.pack_at(position)
        try:
            stored = reader.read(lane, pack)
            drops = reader.shard(lane, reader.locate(lane, pack)[0]).sidecar.drops
            samples, num_tokens, budget = self._samples(stored)
        except LoaderError as error:
            raise LawBroken(str(error)) from error
        return PackView(
            bake=self.bake,
            position=position,
            num_positions=len(reader.order),
            lane=lane,
            pack=pack,
            sequence_length=num_tokens,
            max_num_tokens=budget,
            samples=samples,
            removed=tuple(f"{d.source}, {d.path}, row {d.row}: {d.reason}" for d in drops if d.pack == pack),
            note=self.note,
        )

    def _samples(self, stored: StoredPack[Any]) -> tuple[tuple[SampleView, ...], int, int]:
        """Samples, tokens and budget of a pack."""
        manifest, header = self.reader.manifest, stored.header
        arrays = {name: array.numpy() for name, array in stored.arrays.items()}
        if manifest.recipe == "vlm":
            samples = view_vlm_pack(header, arrays, VlmSettings.of(manifest.settings), self.decode)
            return samples, header.num_tokens, manifest.max_num_tokens or header.num_tokens
        samples = view_pack(header, arrays, manifest, self.decode)
        planned = planned_samples(self.storage, BakeFolder(self.bake), stored.lane, stored.pack)
        return with_dropped(samples, planned), header.sequence_length, manifest.max_num_tokens


def _decoder(bake: str, manifest: DatasetManifest, storage: Storage) -> tuple[Decode | None, str]:
    """What turns ids into text, or None and the reason why there is nothing."""
    try:
        path, decode, fingerprint = _loaded(_content(bake, storage), manifest.recipe)
    except (ParbakeError, OSError) as error:
        return None, f"Token ids are shown instead of texts: {error}"
    if fingerprint != manifest.fingerprints.get("tokenizer"):
        return decode, f"The tokenizer {path} is not the one the bake was made with: texts may be wrong"
    return decode, ""


def _loaded(content: Mapping[str, Any], recipe: str) -> tuple[str, Decode, str]:
    """Path, decoder and fingerprint of the tokenizer (or processor) that the configuration names."""
    section = dict(content["processor" if recipe == "vlm" else "tokenizer"])
    path = str(section.pop("pretrained_model_name_or_path"))
    if recipe != "vlm":
        tokenizer = load_tokenizer(path)
        return path, tokenizer.decode, tokenizer.fingerprint
    processor = load_processor(path, section, content["dataset"].get("chat_template"))
    return path, lambda ids: str(processor.tokenizer.decode(list(ids))), processor.fingerprint


def _content(bake: str, storage: Storage) -> Mapping[str, Any]:
    url = BakeFolder(bake).config
    try:
        content = yaml.safe_load(storage.read_bytes(url))
        section = content["processor" if "processor" in content else "tokenizer"]
        str(section["pretrained_model_name_or_path"])
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise ConfigError(f"{url} names no tokenizer: ids cannot be turned into text; bake it again") from error
    return dict(content)
