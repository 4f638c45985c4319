"""A recipe in AutoModel's spelling over small sources, with budgets so small that hundreds of packs take seconds."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.datamaker.jsonl import write_vlm
from tests.datamaker.parquet import edit_row, t2i_row, write_edit, write_parquet_info, write_t2i
from tests.datamaker.pictures import broken_gallery, gallery
from tests.datamaker.tokenizer import write_tokenizer

__all__ = ["Recipe", "small_recipe", "write_sources"]

VAE_TRANSFORM = {"image_stride": 16, "max_image_size": 96, "min_image_size": 32}
VIT_TRANSFORM = {
    "image_stride": 14,
    "max_image_size": 84,
    "min_image_size": 28,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def faulty_t2i_rows(seed: int) -> list[dict[str, Any]]:
    """Awkward pictures, then rows that the reference drops or treats in its own way."""
    draws = random.Random(seed)
    rows = [t2i_row(draws, image) for image in gallery(seed).values()]
    rows += [t2i_row(draws, image) for image in broken_gallery(seed).values()]
    good = t2i_row(draws)
    rows += [
        {**good, "captions": "{not json"},
        {**good, "captions": None},
        {**good, "captions": "{}"},
        {**good, "captions": '{"only": ""}'},
        {**good, "image": None},
    ]
    return rows


def faulty_edit_rows(seed: int) -> list[dict[str, Any]]:
    """Chains of awkward and broken pictures, and chains whose lists do not fit each other."""
    draws = random.Random(seed)
    awkward, broken = list(gallery(seed).values()), list(broken_gallery(seed).values())
    rows = [edit_row(draws, 3, awkward[start : start + 3]) for start in range(0, len(awkward), 3)]
    for image in broken:
        row = edit_row(draws, 4)
        images = list(row["image_list"])  # type: ignore[call-overload]
        images[draws.randrange(4)] = image
        rows.append({**row, "image_list": images})
    whole = edit_row(draws, 4)
    steps = list(whole["instruction_list"])  # type: ignore[call-overload]
    rows += [
        edit_row(draws, 1),
        {**whole, "instruction_list": steps[:1]},
        {**whole, "instruction_list": [steps[0], [], steps[2]]},
        {**whole, "instruction_list": [steps[0], None, steps[2]]},
        {**whole, "instruction_list": [steps[0], ["", "  "], steps[2]]},
        {**whole, "instruction_list": [*steps, ["one too many"]]},
        {**whole, "instruction_list": None},
        {**whole, "image_list": None},
        {**whole, "image_list": []},
        {**whole, "image_list": [whole["image_list"][0], None, whole["image_list"][2]]},  # type: ignore[index]
    ]
    return rows


@dataclass(frozen=True, slots=True)
class Sources:
    """Folders of the sources that every small recipe shares."""

    root: Path
    tokenizer: Path
    t2i: tuple[Path, ...]
    edit: tuple[Path, ...]
    parquet_info: Path
    lines: tuple[Path, ...]
    media: tuple[Path, ...]


def write_sources(root: Path, seed: int = 0) -> Sources:
    """Two data sets of each kind with everything awkward in them, and the tokenizer."""
    t2i = (
        write_t2i(root / "t2i" / "one", seed=seed + 1, num_files=7, extra_rows=faulty_t2i_rows(seed + 1)),
        write_t2i(root / "t2i" / "two", seed=seed + 2, num_files=5, rows_per_file=4, rows_per_group=2),
    )
    edit = (
        write_edit(root / "edit" / "one", seed=seed + 3, num_files=4, extra_rows=faulty_edit_rows(seed + 3)),
        write_edit(root / "edit" / "two", seed=seed + 4, num_files=2, rows_per_file=7),
    )
    pairs = [
        write_vlm(root / "vlm" / "one", seed=seed + 5, num_lines=48),
        write_vlm(root / "vlm" / "two", seed=seed + 6, num_lines=24, faults=False, videos=False),
    ]
    return Sources(
        root=root,
        tokenizer=write_tokenizer(root / "tokenizer"),
        t2i=t2i,
        edit=edit,
        parquet_info=write_parquet_info(root / "parquet_info.json", edit),
        lines=tuple(lines for lines, _ in pairs),
        media=tuple(media for _, media in pairs),
    )


@dataclass(slots=True)
class Recipe:
    """A recipe as a dict; `write` adds the `bake` section and saves it as YAML."""

    body: dict[str, Any]

    def copy(self) -> Recipe:
        """An independent copy to change."""
        return Recipe(copy.deepcopy(self.body))

    @property
    def dataset(self) -> dict[str, Any]:
        """The `dataset` section."""
        return self.body["dataset"]

    @property
    def groups(self) -> dict[str, Any]:
        """`dataset.grouped_datasets`."""
        return self.dataset["grouped_datasets"]

    @property
    def num_workers(self) -> int:
        """`dataloader.num_workers`."""
        return int(self.body["dataloader"]["num_workers"])

    def changed(
        self,
        *,
        dataset: dict[str, Any] | None = None,
        num_workers: int | None = None,
        groups: dict[str, dict[str, Any]] | None = None,
        only: tuple[str, ...] = (),
    ) -> Recipe:
        """A copy with dataset keys, worker count and group arguments replaced; `only` keeps these groups."""
        recipe = self.copy()
        recipe.dataset.update(dataset or {})
        if num_workers is not None:
            recipe.body["dataloader"]["num_workers"] = num_workers
        for name, arguments in (groups or {}).items():
            recipe.groups[name].update(arguments)
        if only:
            recipe.dataset["grouped_datasets"] = {name: recipe.groups[name] for name in only}
        return recipe

    def write(self, path: Path, **bake: Any) -> Path:
        """Save as YAML with this `bake` section."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump({**self.body, "bake": bake}, sort_keys=False, allow_unicode=True))
        return path


def small_recipe(sources: Sources) -> Recipe:
    """All three groups over both data sets of each kind."""
    return Recipe(
        {
            "seed": 4396,
            "tokenizer": {"pretrained_model_name_or_path": str(sources.tokenizer)},
            "dataset": {
                "grouped_datasets": {
                    "t2i_pretrain": {
                        "dataset_names": ["one", "two"],
                        "image_transform_args": dict(VAE_TRANSFORM),
                        "is_mandatory": False,
                        "num_used_data": [7, 5],
                        "weight": 1,
                    },
                    "unified_edit": {
                        "dataset_names": ["one", "two"],
                        "image_transform_args": dict(VAE_TRANSFORM),
                        "vit_image_transform_args": dict(VIT_TRANSFORM),
                        "is_mandatory": False,
                        "num_used_data": [4, 2],
                        "weight": 1.5,
                    },
                    "vlm_sft": {
                        "dataset_names": ["one", "two"],
                        "image_transform_args": {**VIT_TRANSFORM, "max_pixels": 9000},
                        "frame_sampler_args": {"max_num_frames": 6, "min_num_frames": 3},
                        "is_mandatory": False,
                        "shuffle_lines": True,
                        "shuffle_seed": 0,
                        "num_used_data": [1000, 1000],
                        "weight": 2.0,
                    },
                },
                "dataset_info": {
                    "t2i_pretrain": {
                        name: {"data_dir": str(folder)}
                        for name, folder in zip(("one", "two"), sources.t2i, strict=True)
                    },
                    "unified_edit": {
                        name: {"data_dir": str(folder), "parquet_info_path": str(sources.parquet_info)}
                        for name, folder in zip(("one", "two"), sources.edit, strict=True)
                    },
                    "vlm_sft": {
                        name: {"data_dir": str(media), "jsonl_path": str(lines)}
                        for name, lines, media in zip(("one", "two"), sources.lines, sources.media, strict=True)
                    },
                },
                "expected_num_tokens": 512,
                "max_num_tokens": 640,
                "max_num_tokens_per_sample": 320,
                "prefer_buffer_before": 256,
                "max_buffer_size": 4,
                "data_seed": 42,
                "text_cond_dropout_prob": 0.2,
                "vit_cond_dropout_prob": 0.4,
                "vae_cond_dropout_prob": 0.2,
                "vae_image_downsample": 16,
                "max_latent_size": 32,
                "vit_patch_size": 14,
                "max_num_patch_per_side": 70,
            },
            "dataloader": {"num_workers": 1, "pin_memory": False},
        }
    )
