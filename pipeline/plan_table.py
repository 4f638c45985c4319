"""What the plan leaves behind: `plan/plan.json` (PlanManifest) and the codec of `plan/lane-00000.parquet`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["LanePlan", "PlanManifest", "RowCounts", "ShardPlan"]


@dataclass(slots=True, kw_only=True)
class RowCounts:
    """Fates of the rows drawn from one source (law 5). `drawn == packed + sum(dropped) + discarded + waiting`.

    Attributes:
        drawn: Rows the lane's packer asked for, faulty ones included.
        packed: Rows that are in a pack of the plan.
        dropped: Reason → rows, from the index and from the draw.
        discarded: Rows lost by the greedy packer when it emitted a pack (`discarded_at_emit`).
        waiting: Rows in the buffer, the pool or an unfinished pack when the lane ended.
    """

    drawn: int = 0
    packed: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    discarded: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """One planned shard: packs [first_pack, first_pack + num_packs) of the lane; `fingerprint` covers its plan rows."""

    first_pack: int
    num_packs: int
    pixel_bytes: int
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePlan:
    """One planned lane: its shards in order, and the accounts of its rows.

    `rows` maps source → list of accounts, one per pass over the lane's rows of that source's group (pass 0 first); path
    occurrences of one pass are summed. `not_reached` maps source → rows assigned to the lane that pass 0 never reached.
    """

    shards: tuple[ShardPlan, ...]
    rows: dict[str, list[dict[str, Any]]]
    not_reached: dict[str, int]

    @property
    def num_packs(self) -> int:
        """Packs of the lane."""
        return sum(shard.num_packs for shard in self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanManifest:
    """`plan/plan.json`: the commit mark of a plan and all that render needs beside the lanes.

    Attributes:
        stream: Fingerprint of configuration (without length and output), tokenizer and ordered inputs.
        fingerprints: "config", "tokenizer", "plan".
        world_size: Ranks the lanes are laid out for.
        num_workers: Workers a rank.
        lanes: Every lane.
        special_tokens: bos_token_id, eos_token_id, start_of_image, end_of_image.
        vocab_size: Token ids are below it.
        not_assigned: Source → rows that belong to no lane (cut tails, unused files).
        statistics: What the plan report prints: tokens by modality and group, mix of draws, fill, conditions, repeats.
        versions: Versions that pixel values depend on, where the plan was made.
    """

    stream: str
    fingerprints: dict[str, str]
    world_size: int
    num_workers: int
    lanes: tuple[LanePlan, ...]
    special_tokens: dict[str, int]
    vocab_size: int
    not_assigned: dict[str, int]
    statistics: dict[str, Any]
    versions: dict[str, str]
