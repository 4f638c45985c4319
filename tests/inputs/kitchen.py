"""Bakes many small inputs at once and serves them again row by row: what became of each, and what it looks like.

Budgets are such that a pack closes after one sample (reference) or soon (improved), so that two epochs hand out every
row, and pictures of 56 by 42 keep their size, so that their pixels in a shard are those that were decoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import stages
from pipeline.media.patches import unpatchify
from pipeline.tokenizer import load_tokenizer
from tests.datamaker.recipe import Recipe
from tests.laws.reading import RawPack, raw_manifest, raw_packs
from tests.parity.baking import bake_recipe

__all__ = ["STREAMS", "Baked", "Served", "Sources", "bake", "conversation"]

STREAMS = ("reference", "improved")
PATCH_PX = 14
TRANSFORM = {"image_stride": 14, "max_image_size": 280, "min_image_size": 28, "max_pixels": 10**9}
BUDGETS = {
    "expected_num_tokens": 1,
    "max_num_tokens": 6000,
    "max_num_tokens_per_sample": 3000,
    "prefer_buffer_before": 0,
    "max_buffer_size": 1,
    "text_cond_dropout_prob": 0.0,
    "vit_cond_dropout_prob": 0.0,
    "vae_cond_dropout_prob": 0.0,
    "vae_image_downsample": 14,
    "max_latent_size": 20,
    "vit_patch_size": PATCH_PX,
    "max_num_patch_per_side": 20,
}
IMPROVED = {"pool_size": 2, "balance": "off", "check_images": "header"}


def conversation(question: str, answer: str = "yes") -> list[dict[str, str]]:
    """One question, one answer."""
    return [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]


@dataclass(slots=True)
class Sources:
    """Sources under one root, by kind and name: JSONL files with a common media folder, folders of parquet files."""

    root: Path
    tokenizer: Path
    lines: dict[str, bytes] = field(default_factory=dict)
    parquet: dict[str, list[str]] = field(default_factory=lambda: {"t2i_pretrain": [], "unified_edit": []})

    @property
    def media(self) -> Path:
        """Root of the pictures."""
        return self.root / "media"

    def add_lines(self, name: str, content: bytes | Sequence[object]) -> None:
        """A JSONL source: its bytes, or its rows."""
        if not isinstance(content, bytes):
            content = b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in content)
        self.lines[name] = content
        self.media.mkdir(parents=True, exist_ok=True)
        (self.root / f"{name}.jsonl").write_bytes(content)

    def add_picture(self, name: str, encoded: bytes) -> str:
        """A file in the media folder."""
        self.media.mkdir(parents=True, exist_ok=True)
        (self.media / name).write_bytes(encoded)
        return name

    def add_parquet(self, kind: str, name: str, files: Mapping[str, pa.Table | bytes], rows_per_group: int = 2) -> None:
        """A parquet source: tables, or the bytes of a file."""
        folder = self.root / kind / name
        folder.mkdir(parents=True)
        for file, table in files.items():
            if isinstance(table, bytes):
                (folder / file).write_bytes(table)
            else:
                pq.write_table(table, folder / file, row_group_size=rows_per_group, store_schema=True)
        self.parquet[kind].append(name)

    def recipe(self) -> Recipe:
        """All of them in one recipe."""
        groups: dict[str, Any] = {}
        info: dict[str, Any] = {}
        for kind, names in self.parquet.items():
            if names:
                places = {name: self.root / kind / name for name in names}
                counts = [len(list(place.glob("*.parquet"))) for place in places.values()]
                groups[kind] = {"dataset_names": names, "num_used_data": counts, "weight": 1}
                info[kind] = {name: {"data_dir": str(place)} for name, place in places.items()}
        if self.lines:
            names = list(self.lines)
            groups["vlm_sft"] = {"dataset_names": names, "num_used_data": [10**6] * len(names), "weight": 4}
            groups["vlm_sft"] |= {
                "shuffle_lines": False,
                "shuffle_seed": 0,
                "frame_sampler_args": {"max_num_frames": 8},
            }
            info["vlm_sft"] = {
                name: {"data_dir": str(self.media), "jsonl_path": str(self.root / f"{name}.jsonl")} for name in names
            }
        for kind, group in groups.items():
            group["image_transform_args"] = dict(TRANSFORM)
            if kind == "unified_edit":
                group["vit_image_transform_args"] = dict(TRANSFORM)
        return Recipe(
            {
                "tokenizer": {"pretrained_model_name_or_path": str(self.tokenizer)},
                "dataset": {"grouped_datasets": groups, "dataset_info": info, **BUDGETS},
                "dataloader": {"num_workers": 1},
            }
        )


@dataclass(frozen=True, slots=True)
class Served:
    """One sample of a pack."""

    texts: tuple[str, ...]
    num_text_tokens: int
    pictures: tuple[np.ndarray[Any, Any], ...]  # uint8 [h, w, 3], ViT then VAE
    labels: tuple[str, ...]  # texts with loss


@dataclass(slots=True)
class Baked:
    """A finished bake, read without the loader."""

    folder: Path
    tokenizer: Path
    report: dict[str, Any]
    _served: dict[tuple[str, str, int], Served] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pack in raw_packs(self.folder):
            self._served.update(self._samples(pack))

    def served(self, source: str, row: int, path: str = "") -> Served | None:
        """The sample of a row, None where it is in no pack; `path` where the source has several files."""
        found = [s for (name, file, number), s in self._served.items() if (name, number) == (source, row)
                 and path in ("", file)]  # fmt: skip
        assert len(found) <= 1, "the row is in several files: name one"
        return found[0] if found else None

    def dropped(self, source: str) -> dict[str, int]:
        """Reason → rows of one pass, as `dataset.json` has them."""
        reasons: dict[str, int] = raw_manifest(self.folder)["rows"][source]["passes"][0]["dropped"]
        return reasons

    def reason(self, source: str, row: int) -> str:
        """Why the row was dropped: `report.json` names it as an example, and counts it; "" if it was not."""
        plan = self.report["figures"]["plan"]
        named = [
            reason
            for reason, rows in plan["drop_examples"].get(source, {}).items()
            if row in [number for _, number in rows]
        ]
        assert len(named) <= 1
        if named:
            assert self.report["figures"]["sources"][source]["passes"][0]["dropped"][named[0]] >= 1
        return named[0] if named else ""

    def conditions(self, source: str, row: int) -> set[str]:
        """Conditions that `report.json` counts and names the row for."""
        plan = self.report["figures"]["plan"]
        named = plan["condition_examples"].get(source, {})
        found = {name for name, rows in named.items() if row in [number for _, number in rows]}
        assert all(plan["conditions"][source][name] >= 1 for name in found)
        return found

    def _samples(self, pack: RawPack) -> Iterator[tuple[tuple[str, str, int], Served]]:
        tokenizer = load_tokenizer(str(self.tokenizer))
        header = pack.header
        ids = dict(zip(pack.array("packed_text_indexes").tolist(), pack.array("packed_text_ids").tolist(), strict=True))
        with_loss = set(pack.array("ce_loss_indexes").tolist())
        pictures = [*_vit_pictures(pack), *_vae_pictures(pack)]
        splits = list(zip(_ends(header["split_lens"]), header["attn_modes"], strict=True))
        for (start, end), provenance in zip(_ends(header["sample_lens"]), header["provenance"], strict=True):
            texts, labels, num_text_tokens = [], [], 0
            for (first, last), mode in splits:
                if start <= first and last <= end and mode == "causal":
                    text = tokenizer.decode([ids[position] for position in range(first + 1, last - 1)])
                    texts.append(text)
                    num_text_tokens += last - first
                    labels += [text] if first in with_loss else []
            own = tuple(picture for place, picture in pictures if start <= place < end)
            key = (provenance["source"], provenance["path"], provenance["row"])
            yield key, Served(tuple(texts), num_text_tokens, own, tuple(labels))


def _ends(lengths: Sequence[int]) -> list[tuple[int, int]]:
    ends = np.cumsum([0, *lengths]).tolist()
    return list(pairwise(ends))


def _vit_pictures(pack: RawPack) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """Place of the first patch, and the picture."""
    places, pixels = pack.array("packed_vit_token_indexes"), pack.array("vit_pixels")
    lengths = pack.array("vit_token_seqlens").tolist()
    for (start, end), (height, width) in zip(_ends(lengths), pack.header["vit_image_sizes"], strict=True):
        yield int(places[start]), unpatchify(pixels[start:end], height, width, PATCH_PX)


def _vae_pictures(pack: RawPack) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    header, pixels = pack.header, pack.array("vae_pixels")
    sizes = header["vae_image_sizes"]
    bytes_of = _ends([3 * height * width for height, width in sizes])
    stored = [pixels[s:e].reshape(*size, 3) for (s, e), size in zip(bytes_of, sizes, strict=True)]
    places = pack.array("packed_vae_token_indexes")
    cells = _ends([height * width for height, width in header["patchified_vae_latent_shapes"]])
    for (start, _), index in zip(cells, header["vae_image_index"], strict=True):
        yield int(places[start]), stored[index]


def bake(
    sources: Sources,
    stream: str,
    folder: Path,
    *,
    report: bool = True,
    dataset: dict[str, Any] | None = None,
    **settings: Any,
) -> Baked:
    """Bake every row at least once, check the laws, and read the bake and its report."""
    section = {"length": {"epochs": 2}, "stream": stream, **(IMPROVED if stream == "improved" else {}), **settings}
    made = bake_recipe(sources.recipe().changed(dataset=dataset), folder, 1, **section)
    written: dict[str, Any] = {}
    if report:
        validation = stages.validate_bake(str(made))
        assert validation.broken is None, validation.broken
        written = json.loads((made / "report" / "report.json").read_text())
        assert (made / "report" / "report.html").read_text()
    return Baked(made, sources.tokenizer, written)
