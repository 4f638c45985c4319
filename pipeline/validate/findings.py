"""What reading one shard found: counts of everything, and the first violations of each law."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from loaders.format import Drop
from pipeline.law_report import MAX_EXAMPLES, Violation

__all__ = ["ShardFindings"]


@dataclass(slots=True, kw_only=True)
class ShardFindings:
    """What one shard holds and what is wrong with it.

    Attributes:
        lane: Its lane.
        num_packs: Packs that `dataset.json` gives it.
        num_bytes: Bytes that `dataset.json` gives it.
        broken: Law → packs (laws 1 to 4) that break it, or 1 for the shard (law 6).
        violations: The first few of each law.
        tokens: "total" and the recipe's kinds → tokens.
        images: The recipe's kinds of pictures → count.
        num_bytes_of: What bytes are spent on, by the recipe's names → bytes.
        counted: What is told without being judged → packs or samples.
        group_samples: Group → samples.
        group_tokens: Group → tokens.
        group_empty: Group → samples without a token.
        source_rows: Source → rows that are there in their own right.
        lengths: Tokens of each pack that could be read, in order.
        numbers: Planner's number of each pack that could be read, in order; empty where the recipe has none.
        drops: What render left out.
    """

    lane: int = 0
    num_packs: int = 0
    num_bytes: int = 0
    broken: Counter[int] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    tokens: Counter[str] = field(default_factory=Counter)
    images: Counter[str] = field(default_factory=Counter)
    num_bytes_of: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    group_samples: Counter[str] = field(default_factory=Counter)
    group_tokens: Counter[str] = field(default_factory=Counter)
    group_empty: Counter[str] = field(default_factory=Counter)
    source_rows: Counter[str] = field(default_factory=Counter)
    lengths: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    drops: tuple[Drop, ...] = ()

    def report(self, violations: list[Violation]) -> None:
        """Count the laws that one pack, or the shard, breaks."""
        for law in {violation.law for violation in violations}:
            if self.broken[law] < MAX_EXAMPLES:
                self.violations += [violation for violation in violations if violation.law == law][:2]
            self.broken[law] += 1

    def count_sample(self, group: str, num_tokens: int) -> None:
        """One more sample of a group."""
        self.group_samples[group] += 1
        self.group_tokens[group] += num_tokens
        self.group_empty[group] += num_tokens == 0
