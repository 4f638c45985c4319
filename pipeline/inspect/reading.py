"""A pack of a bake by its position, read as training reads it; its texts through the tokenizer of `config.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from loaders.errors import BakeUnfinished, LoaderError
from loaders.format import DatasetManifest
from loaders.reader import BakeReader
from pipeline.bake import BakeFolder
from pipeline.errors import ConfigError, LawBroken, ParbakeError
from pipeline.inspect.dropped import planned_samples, with_dropped
from pipeline.inspect.view import Decode, PackView, view_pack
from pipeline.storage import Storage
from pipeline.tokenizer import load_tokenizer

__all__ = ["describe"]


def describe(bake: str, position: int, storage_options: Mapping[str, Any] | None = None) -> PackView:
    """The pack at a position of the canonical order.

    Args:
        bake: Folder of a finished bake: a local path or any fsspec URL.
        position: Position; step s of rank r of W reads `s * W + r`.
        storage_options: fsspec options of `bake`.

    Raises:
        ConfigError: There is no finished bake, or it has no such position.
        LawBroken: The pack's bytes are not what the bake says.
    """
    try:
        reader = BakeReader(bake, verify=True, storage_options=storage_options)
        if not 0 <= position < len(reader.order):
            raise ConfigError(
                f"The bake {bake} has no position {position}: it holds {len(reader.order):,} packs, counted from 0;"
                " ask for a smaller one"
            )
        lane, pack = reader.order.pack_at(position)
        stored = reader.read(lane, pack)
        drops = reader.shard(lane, reader.locate(lane, pack)[0]).sidecar.drops
    except BakeUnfinished as error:
        raise ConfigError(str(error)) from error
    except LoaderError as error:
        raise LawBroken(str(error)) from error
    storage = Storage(storage_options or {})
    decode, note = _decoder(bake, reader.manifest, storage)
    arrays = {name: array.numpy() for name, array in stored.arrays.items()}
    samples = view_pack(stored.header, arrays, reader.manifest, decode)
    return PackView(
        bake=bake,
        position=position,
        num_positions=len(reader.order),
        lane=lane,
        pack=pack,
        sequence_length=stored.header.sequence_length,
        max_num_tokens=reader.manifest.max_num_tokens,
        samples=with_dropped(samples, planned_samples(storage, BakeFolder(bake), lane, pack)),
        removed=tuple(f"{d.source}, {d.path}, row {d.row}: {d.reason}" for d in drops if d.pack == pack),
        note=note,
    )


def _decoder(bake: str, manifest: DatasetManifest, storage: Storage) -> tuple[Decode | None, str]:
    """What turns ids into text, or None and the reason why there is nothing."""
    try:
        path = _tokenizer_path(bake, storage)
        tokenizer = load_tokenizer(path)
    except (ParbakeError, OSError) as error:
        return None, f"Token ids are shown instead of texts: {error}"
    if tokenizer.fingerprint != manifest.fingerprints.get("tokenizer"):
        return tokenizer.decode, f"The tokenizer {path} is not the one the bake was made with: texts may be wrong"
    return tokenizer.decode, ""


def _tokenizer_path(bake: str, storage: Storage) -> str:
    url = BakeFolder(bake).config
    try:
        content = yaml.safe_load(storage.read_bytes(url))
        return str(content["tokenizer"]["pretrained_model_name_or_path"])
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise ConfigError(f"{url} names no tokenizer: ids cannot be turned into text; bake it again") from error
