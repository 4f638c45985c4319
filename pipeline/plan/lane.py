"""The lane unit: draws, packs, cuts into shards and writes `plan/lane-00000.parquet`.

    partition ─► GroupStream per group ─► packer ─► window order ─► length ─► shard cutter ─► parquet, some packs a time

Memory is a record batch per group, the packer's buffer, a balance window and FLUSH_SAMPLES samples, whatever the number
of rows.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import sources
from pipeline.bake import BakeFolder
from pipeline.config import Config
from pipeline.errors import ConfigError, RunFailed
from pipeline.plan.accounts import Accounts
from pipeline.plan.assignment import Assignment, read_assignment
from pipeline.plan.balance import balanced_order
from pipeline.plan.cost import sample_cost
from pipeline.plan.fitted import FittedPacker
from pipeline.plan.greedy import GreedyPacker
from pipeline.plan.length import LaneEnd
from pipeline.plan.packer import Drawn, Packer, Placed
from pipeline.plan.partition import Partition
from pipeline.plan.random import LaneRandom
from pipeline.plan.shards import ShardCutter, pixel_bytes
from pipeline.plan.statistics import LaneStatistics
from pipeline.plan.step_costs import LaneCosts
from pipeline.plan.stream import GroupStream
from pipeline.plan_table import LanePlan, ShardPlan, in_portions, packs_to_table
from pipeline.records import PlannedPack, PlannedSample
from pipeline.schemas import PLAN_SCHEMA
from pipeline.storage import Storage
from pipeline.tokenizer import Tokenizer

__all__ = ["LanePlanned", "LaneUnit", "plan_lane", "read_lane"]

FLUSH_SAMPLES = 4096
GARBAGE_THRESHOLD = 200_000
METADATA_KEY = b"parbake"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneUnit:
    """One lane to plan: picklable. `fingerprint` covers everything its packs depend on."""

    config: Config
    folder: BakeFolder
    storage: Storage
    tokenizer: Tokenizer
    lane: int
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePlanned:
    """A planned lane: what `plan.json` takes from it."""

    lane: int
    plan: LanePlan
    statistics: dict[str, Any]
    costs: LaneCosts


@dataclass(frozen=True, slots=True)
class _Pack:
    """A pack, its number in packing order, its tokens and its cost."""

    placed: list[Placed]
    number: int
    num_tokens: int
    cost: float


def read_lane(unit: LaneUnit) -> LanePlanned | None:
    """The lane, if its file is there with the unit's fingerprint."""
    try:
        with unit.storage.open(unit.folder.plan_lane(unit.lane)) as file:
            metadata = pq.read_metadata(file).metadata or {}
        summary = json.loads(metadata.get(METADATA_KEY, b"{}"))
    except (FileNotFoundError, pa.ArrowInvalid, ValueError):
        return None
    if summary.get("fingerprint") != unit.fingerprint:
        return None
    return _planned(unit.lane, summary)


def plan_lane(unit: LaneUnit) -> LanePlanned:
    """Plan a lane and publish its file.

    Raises:
        SourceError: the lane has no usable row in a group it needs.
        ConfigError: a pack of a `use_flex` recipe would be longer than max_num_tokens.
    """
    lane = _Lane(unit)
    with (
        _rare_collections(),
        unit.storage.publishing(unit.folder.plan_lane(unit.lane)) as file,
        pq.ParquetWriter(file, PLAN_SCHEMA) as writer,
    ):
        for packs in in_portions(lane.planned_packs(), FLUSH_SAMPLES):  # one row group each
            table = packs_to_table(packs)
            lane.written(table)
            writer.write_table(table)
        summary = lane.summary()
        writer.add_key_value_metadata({METADATA_KEY.decode(): json.dumps(summary)})
    return _planned(unit.lane, summary)


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Rows become many small objects without cycles, which the collector would search again and again in vain."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], GARBAGE_THRESHOLD), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Lane:
    """The running state of one lane."""

    def __init__(self, unit: LaneUnit) -> None:
        self._unit = unit
        self._config = unit.config
        self._rules = unit.config.dataset
        self._groups = self._rules.groups
        _, self._worker = unit.config.lane_rank_and_worker(unit.lane)
        self._accounts = Accounts()
        self._statistics = LaneStatistics(self._rules)
        self._costs = LaneCosts()
        self._cutter = ShardCutter(unit.lane, unit.config.bake.shard_bytes)
        self._not_handed_out: list[Drawn] = []
        random = LaneRandom.of_lane(unit.config, unit.lane)
        self._partitions = [self._partition(group.name) for group in self._groups]
        self._streams = [self._stream(number, random) for number in range(len(self._groups))]
        self._packer = self._make_packer(random)

    def planned_packs(self) -> Iterator[PlannedPack]:
        """The lane's packs, to its end."""
        for number, pack in enumerate(self._ordered_packs()):
            for placed in pack.placed:
                placed.drawn.counts.packed += 1
            num_bytes = pixel_bytes(pack.placed)
            self._statistics.add(pack.placed)
            self._costs.add(pack.cost, pack.number)
            yield PlannedPack(
                lane=self._unit.lane,
                pack=number,
                shard=self._cutter.place(num_bytes),
                sequence_length=pack.num_tokens,
                pixel_bytes=num_bytes,
                samples=tuple([self._sample(placed) for placed in pack.placed]),
            )

    def written(self, table: pa.Table) -> None:
        """Packs become rows of the lane's file."""
        self._cutter.digest(table)

    def summary(self) -> dict[str, Any]:
        """What the file's metadata says of the lane; call it after the last pack."""
        rows = self._accounts.close([*self._not_handed_out, *self._packer.waiting()])
        draws = {
            "draws": self._packer.draws,
            "mandatory_draws": self._packer.mandatory_draws,
            "rows_drawn": [stream.num_drawn for stream in self._streams],
            "rows_per_pass": [partition.num_rows for partition in self._partitions],
        }
        return {
            "fingerprint": self._unit.fingerprint,
            "shards": [
                [shard.first_pack, shard.num_packs, shard.pixel_bytes, shard.fingerprint]
                for shard in self._cutter.shards()
            ],
            "rows": rows,
            "not_reached": self._not_reached(rows),
            "statistics": {
                **self._statistics.close(draws),
                **self._packer.comparison(),
                "drop_examples": self._accounts.examples,
            },
            "costs": self._costs.to_json(),
        }

    def _make_packer(self, random: LaneRandom) -> Packer:
        def draw(group: int) -> Any:
            return self._streams[group].next()

        if self._config.bake.packer == "greedy":
            return GreedyPacker(self._rules, draw, random, self._accounts.drop_sample)
        return FittedPacker(self._rules, self._config.bake, draw, random, self._accounts.drop_sample)

    def _partition(self, group: str) -> Partition:
        unit = self._unit
        return Partition(
            folder=unit.folder,
            storage=unit.storage,
            group=group,
            lane=unit.lane,
            assignment=_assignment(unit, group),
        )

    def _stream(self, number: int, random: LaneRandom) -> GroupStream:
        group = self._groups[number]
        draw_row = partial(
            sources.draw,
            group=group,
            dataset=self._rules,
            draws=random,
            tokenizer=self._unit.tokenizer,
            bake=self._config.bake,
        )
        return GroupStream(number, group, self._partitions[number], draw_row, self._accounts)

    def _ordered_packs(self) -> Iterator[_Pack]:
        """Packs in the order in which the lane hands them out, to its end (see `balance` for the windows)."""
        bake = self._config.bake
        end = LaneEnd(bake.length, self._config.num_lanes)
        size = 1 if bake.balance == "off" else bake.balance_window
        cut_after_ordering = bake.length.epochs is None
        packs = self._packs()
        last = False
        for number in itertools.count():
            window: list[_Pack] = []
            while len(window) < size and (cut_after_ordering or not last):
                window.append(next(packs))
                last = not cut_after_ordering and self._ends(end, window[-1])
            order = [0] if size == 1 else balanced_order([p.cost for p in window], self._config.base_seed, number)
            for place, index in enumerate(order):
                yield window[index]
                if cut_after_ordering and self._ends(end, window[index]):
                    left = [window[index] for index in order[place + 1 :]]
                    self._not_handed_out = [placed.drawn for pack in left for placed in pack.placed]
                    return
            if last:
                return

    def _ends(self, end: LaneEnd, pack: _Pack) -> bool:
        needed = [stream for stream, group in zip(self._streams, self._groups, strict=True) if group.weight > 0]
        return end.reached(pack.num_tokens, [stream.num_passes for stream in needed])

    def _packs(self) -> Iterator[_Pack]:
        """Packs in packing order, without end."""
        for number in itertools.count():
            placed = self._packer.next_pack()
            num_tokens = sum([sample.num_tokens for sample in placed])
            self._refuse_overfull(num_tokens)
            yield _Pack(placed, number, num_tokens, sum([sample_cost(sample.items) for sample in placed]))

    def _refuse_overfull(self, num_tokens: int) -> None:
        rules = self._rules
        if rules.use_flex and num_tokens > rules.max_num_tokens:
            raise ConfigError(
                f"a pack of lane {self._unit.lane} has {num_tokens} tokens, more than max_num_tokens "
                f"({rules.max_num_tokens}), and use_flex pads every pack up to it: the padding would be negative and "
                "training would stop there. Mandatory groups are packed whatever the budget: make fewer groups "
                "mandatory, lower max_num_tokens_per_sample or raise max_num_tokens."
            )

    def _sample(self, placed: Placed) -> PlannedSample:
        return PlannedSample(
            row=placed.drawn.sample.row,
            items=placed.items,
            data_indexes=placed.drawn.data_indexes,
            worker_id=self._worker,
            dataset_name=self._groups[placed.drawn.group].name,
        )

    def _not_reached(self, rows: dict[str, list[dict[str, Any]]]) -> dict[str, int]:
        left: dict[str, int] = {}
        for partition in self._partitions:
            for source, assigned in partition.assignment.lanes[self._unit.lane].rows.items():
                left[source] = assigned - (rows[source][0]["drawn"] if rows.get(source) else 0)
        return left


def _assignment(unit: LaneUnit, group: str) -> Assignment:
    assignment = read_assignment(unit.folder, group, unit.storage)
    if assignment is None:
        raise RunFailed(
            f"{unit.folder.assign(group, 'assign.json')} was written a moment ago and cannot be read now, so lane "
            f"{unit.lane} does not know its rows; see to the storage and run the same command again."
        )
    return assignment


def _planned(lane: int, summary: dict[str, Any]) -> LanePlanned:
    shards = tuple(
        ShardPlan(first_pack=first_pack, num_packs=num_packs, pixel_bytes=num_bytes, fingerprint=fingerprint)
        for first_pack, num_packs, num_bytes, fingerprint in summary["shards"]
    )
    plan = LanePlan(shards=shards, rows=summary["rows"], not_reached=summary["not_reached"])
    costs = LaneCosts.from_json(summary["costs"])
    return LanePlanned(lane=lane, plan=plan, statistics=summary["statistics"], costs=costs)
