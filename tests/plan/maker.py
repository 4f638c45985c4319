"""Makes a small indexed data set of every kind, without pictures: index files as the index stage would write them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq

from pipeline.bake import BakeFolder
from pipeline.config import (
    BakeConfig,
    Config,
    DatasetConfig,
    FrameSamplerConfig,
    GroupConfig,
    ImageTransformConfig,
    LengthConfig,
    SourceConfig,
)
from pipeline.executor import InlineExecutor, SilentProgress
from pipeline.fingerprint import fingerprint
from pipeline.index_table import INDEX_ROW_GROUP_SIZE, rows_to_table, source_index_to_json
from pipeline.plan.run import run_plan
from pipeline.plan_table import PlanManifest, table_to_packs
from pipeline.records import Element, ImageEntry, IndexedUnit, IndexRow, PlannedPack, SourceIndex
from pipeline.storage import Storage
from pipeline.tokenizer import Tokenizer

TOKENIZER = cast(
    "Tokenizer",
    SimpleNamespace(
        fingerprint="tokenizer",
        special_tokens={"bos_token_id": 1, "eos_token_id": 2, "start_of_image": 3, "end_of_image": 4},
        vocab_size=100,
        encode=lambda text, **_: [5] * max(1, len(text.split())),
    ),
)
VAE_SIZE = ImageTransformConfig(max_image_size=64, min_image_size=32, image_stride=16)
VIT_SIZE = ImageTransformConfig(max_image_size=56, min_image_size=28, image_stride=14)
BUDGETS = {
    "expected_num_tokens": 300,
    "max_num_tokens": 360,
    "max_num_tokens_per_sample": 200,
    "prefer_buffer_before": 150,
    "max_buffer_size": 3,
    "text_cond_dropout_prob": 0.3,
}


def t2i_row(row: int, row_group: int, row_in_group: int, draws: random.Random, fault: str = "") -> IndexRow:
    """An image and one to three captions."""
    captions = tuple(draws.randrange(2, 20) for _ in range(draws.randrange(1, 4)))
    return IndexRow(
        row=row,
        row_group=row_group,
        row_in_group=row_in_group,
        fault=fault,
        images=(ImageEntry(width_px=draws.randrange(20, 200), height_px=draws.randrange(20, 200)),),
        text_num_tokens=captions,
        text_ids=tuple((7,) * count for count in captions),
        text_group_sizes=(len(captions),),
    )


def edit_row(row: int, row_group: int, row_in_group: int, draws: random.Random, fault: str = "") -> IndexRow:
    """Two to four images and the instructions between them."""
    num_images = draws.randrange(2, 5)
    steps = [draws.randrange(1, 3) for _ in range(num_images - 1)]
    texts = tuple(" ".join(["word"] * draws.randrange(1, 6)) for _ in range(sum(steps)))
    return IndexRow(
        row=row,
        row_group=row_group,
        row_in_group=row_in_group,
        fault=fault,
        images=tuple(ImageEntry(width_px=draws.randrange(30, 90), height_px=40) for _ in range(num_images)),
        text_num_tokens=tuple(len(text.split()) for text in texts),
        text_ids=tuple((7,) * len(text.split()) for text in texts),
        texts=texts,
        text_group_sizes=tuple(steps),
    )


def sft_row(row: int, offset: int, num_bytes: int, draws: random.Random, fault: str = "") -> IndexRow:
    """One image, a question, an answer."""
    texts = (draws.randrange(3, 12), draws.randrange(3, 30))
    return IndexRow(
        row=row,
        fault=fault,
        images=(ImageEntry(reference="a.jpg", width_px=draws.randrange(20, 200), height_px=60),),
        text_num_tokens=texts,
        text_ids=tuple((7,) * count for count in texts),
        elements=(int(Element.TURN), int(Element.IMAGE), int(Element.TEXT), int(Element.ANSWER)),
        line_offset=offset,
        line_num_bytes=num_bytes,
    )


@dataclass
class World:
    """Sources on disk and their index in a bake folder.

    Attributes:
        root: Everything lies below it.
        fault_every: Every n-th row has a fault; 0: none.
        lines_per_unit: Lines of an index unit of a JSONL.
        groups: What was added so far.
        rows: What makes a row of each kind, called as `t2i_row`, `edit_row` and `sft_row` are.
        vae, vit: How pictures are resized.
    """

    root: Path
    fault_every: int = 7
    lines_per_unit: int = 50
    groups: list[GroupConfig] = field(default_factory=list)
    rows: dict[str, Callable[..., IndexRow]] = field(
        default_factory=lambda: {"t2i_pretrain": t2i_row, "unified_edit": edit_row, "vlm_sft": sft_row}
    )
    vae: ImageTransformConfig = VAE_SIZE
    vit: ImageTransformConfig = VIT_SIZE

    @property
    def folder(self) -> BakeFolder:
        return BakeFolder(str(self.root / "bake"))

    def _fault(self, row: int) -> str:
        return "broken" if self.fault_every and row % self.fault_every == self.fault_every - 1 else ""

    def add_parquet(self, kind: str, files: Sequence[Sequence[int]], num_used: int | None = None, **group: Any) -> None:
        """A parquet group: per file the sizes of its row groups."""
        name = group.pop("name", kind)
        data_dir = self.root / name
        data_dir.mkdir(parents=True)
        units = []
        make_row = self.rows[kind]
        for number, sizes in enumerate(files):
            file = f"{number:03d}.parquet"
            (data_dir / file).touch()
            draws = random.Random(f"{name}/{number}")
            places = [(row_group, row) for row_group, size in enumerate(sizes) for row in range(size)]
            rows = [make_row(row, *place, draws, self._fault(row)) for row, place in enumerate(places)]
            units.append(self._unit(f"{name}/a", file, file, 0, rows, tuple(sizes)))
        self._source(f"{name}/a", units)
        source = SourceConfig(name=f"{name}/a", data_dir=str(data_dir), num_used_data=num_used or len(files))
        self._group(name, kind, [source], self.vit if kind == "unified_edit" else None, group)

    def add_lines(self, files: Sequence[int], num_used: Sequence[int] | None = None, **group: Any) -> None:
        """A JSONL group: per source its number of lines; units of `lines_per_unit` lines."""
        name = group.pop("name", "vlm_sft")
        sources = []
        for number, count in enumerate(files):
            draws = random.Random(f"{name}/{number}")
            path = self.root / f"{name}-{number}.jsonl"
            lines = [json.dumps({"id": draws.randrange(10**9), "row": row}) + "\n" for row in range(count)]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(lines))
            sizes = [len(line) for line in lines]
            offsets = (np.cumsum([0, *sizes]))[:-1].tolist()
            units = []
            for first in range(0, count, self.lines_per_unit):
                part = range(first, min(first + self.lines_per_unit, count))
                rows = [
                    self.rows["vlm_sft"](row - first, offsets[row], sizes[row], draws, self._fault(row)) for row in part
                ]
                units.append(self._unit(f"{name}/{number}", f"{path.name}@{first}", path.name, first, rows, ()))
            self._source(f"{name}/{number}", units)
            sources.append(
                SourceConfig(
                    name=f"{name}/{number}",
                    data_dir=str(self.root / f"media-{number}"),
                    num_used_data=num_used[number] if num_used else count,
                    jsonl_path=str(path),
                )
            )
        self._group(name, "vlm_sft", sources, None, group)

    def config(self, packs: int | None = 5, **settings: Any) -> Config:
        """A configuration of all groups; `bake` settings and `seed`, `num_workers`, `dataset` by name."""
        length = settings.pop("length", {"packs_per_lane": packs})
        dataset = {**BUDGETS, **settings.pop("dataset", {})}
        recipe = {name: settings.pop(name) for name in ("seed", "num_workers") if name in settings}
        return Config(
            tokenizer_path="",
            dataset=DatasetConfig(groups=tuple(self.groups), **dataset),
            bake=BakeConfig(output=self.folder.url, length=LengthConfig(**length), **settings),
            **recipe,
        )

    def plan(self, config: Config) -> PlanManifest:
        """Run the plan stage in this process."""
        return run_plan(config, self.folder, Storage(), TOKENIZER, InlineExecutor(), SilentProgress())

    def packs(self, lane: int = 0) -> list[PlannedPack]:
        """The planned packs of a lane."""
        return list(table_to_packs(pq.read_table(self.folder.plan_lane(lane))))

    def _unit(
        self, source: str, unit: str, path: str, first_row: int, rows: list[IndexRow], sizes: tuple[int, ...]
    ) -> IndexedUnit:
        target = Path(self.folder.index_unit(source, unit))
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows_to_table(rows), target, row_group_size=INDEX_ROW_GROUP_SIZE)
        return IndexedUnit(
            unit=unit,
            path=path,
            first_row=first_row,
            num_rows=len(rows),
            row_group_sizes=sizes,
            content=fingerprint([repr(row) for row in rows]),
        )

    def _source(self, name: str, units: list[IndexedUnit]) -> None:
        path = Path(self.folder.source_index(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source_index_to_json(SourceIndex(source=name, units=tuple(units))))

    def _group(
        self,
        name: str,
        kind: str,
        sources: list[SourceConfig],
        vit: ImageTransformConfig | None,
        settings: dict[str, Any],
    ) -> None:
        self.groups.append(
            GroupConfig(
                name=name,
                kind=kind,  # type: ignore[arg-type]
                weight=settings.pop("weight", 1.0),
                is_mandatory=settings.pop("is_mandatory", False),
                sources=tuple(sources),
                image_transform=self.vit if kind == "vlm_sft" else self.vae,
                vit_image_transform=vit,
                frame_sampler=FrameSamplerConfig(max_num_frames=4, min_num_frames=2) if kind == "vlm_sft" else None,
                **settings,
            )
        )


def mixed_world(root: Path, **settings: Any) -> World:
    """All three kinds, with faults, several files, row groups and sources."""
    world = World(root, **settings)
    world.add_parquet("t2i_pretrain", [[20, 0, 13], [9], [17, 4], [30]])
    world.add_parquet("unified_edit", [[5, 6], [7], [3, 3, 3]], weight=0.5)
    world.add_lines([120, 70], weight=2.0)
    return world
