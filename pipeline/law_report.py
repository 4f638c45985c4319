"""What `parbake validate` found: one result per law, and the figures a person wants to see beside them.

`validate` fills these records in, `report` writes them down, the command line prints `table`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.errors import LawBroken

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["LAWS", "MAX_EXAMPLES", "VLM_LAWS", "BakeFigures", "LawResult", "ValidationReport", "Violation", "judge"]

MAX_EXAMPLES = 10
"""Violations named per law; all are counted."""

LAWS = {
    1: "token indexes partition the sequence",
    2: "splits and samples add up",
    3: "losses point at their tokens",
    4: "budgets and vocabulary are kept",
    5: "every source row is accounted for",
    6: "bytes are what their digests say",
    7: "one canonical order of whole lanes",
    8: "a saved state names the next step",
}
"""The laws of design.md that a bake can show, by number. Law 9 needs the reference: tests/parity."""

VLM_LAWS = {
    **LAWS,
    1: "media tokens match their pictures",
    2: "documents add up",
    3: "labels are the tokens that follow",
}
"""The same where they have a meaning for VLM packs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A law that something breaks: the law's number, what breaks it (a pack's key, a shard, a source), and how."""

    law: int
    subject: str
    complaint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LawResult:
    """How one law fared.

    Attributes:
        law: Its number.
        title: It, in a few words.
        num_checked: Packs, shards, accounts or steps it was checked on; 0: it was not checked.
        num_broken: How many of them break it.
        examples: The first of those, "subject: complaint".
        notes: What the check could not see, and what it counted without judging.
    """

    law: int
    title: str
    num_checked: int
    num_broken: int
    examples: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """ "broken", "holds" or "not checked"."""
        if self.num_broken:
            return "broken"
        return "holds" if self.num_checked else "not checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class BakeFigures:
    """What is in a bake.

    Attributes:
        packs: Packs.
        shards: Shards.
        lanes: Lanes.
        num_bytes: Bytes of all shards.
        max_num_tokens: Budget of a pack; without one the longest pack.
        tokens: "total", and "text", "vit", "vae" or "text", "image", "video" → tokens, without alignment.
        fill: Mean, lowest and highest fraction of the budget that packs use; tenths of it → packs ("histogram").
        images: "vit", "vae" (batch images) and "vae_stored" (pictures stored), or "image" and "video" → count.
        groups: Group as the reference names it (VLM: source) → "samples", "tokens", "empty" (all items dropped).
        sources: Source → its accounts as `dataset.json` has them.
        render_drops: Source → reason → the first rows, as "path:row (pack)".
        plan: The plan's own statistics, if the plan is there.
        counted: What a reference stream may do and an improved one would not → packs or samples.
        recipe: Kind of recipe.
        has_budget: Whether packs have a budget.
        loss_tokens: Tokens that carry loss, where the recipe counts them.
        num_bytes_of: "pixels_stored", and "pixels_float32" that the processor's own output would take → bytes (VLM).
    """

    packs: int
    shards: int
    lanes: int
    num_bytes: int
    max_num_tokens: int
    tokens: dict[str, int]
    fill: dict[str, Any]
    images: dict[str, int]
    groups: dict[str, dict[str, int]]
    sources: dict[str, Any]
    render_drops: dict[str, dict[str, list[str]]]
    plan: dict[str, Any] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    recipe: str = "bagel"
    has_budget: bool = True
    loss_tokens: int = 0
    num_bytes_of: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """All results. `broken` is what to raise, or None."""

    bake: str
    stream: str
    laws: tuple[LawResult, ...]
    figures: BakeFigures | None = None
    versions: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def broken(self) -> LawBroken | None:
        """The error of a bake that breaks a law: how many, and the first by name."""
        failed = [result for result in self.laws if result.num_broken]
        if not failed:
            return None
        first = failed[0]
        return LawBroken(
            f"{self.bake} breaks {', '.join(f'law {result.law}' for result in failed)}; first: law {first.law}, "
            f"{first.title}: {first.examples[0]}; training on it would not be training on what was planned; see the "
            f"report, remove the shards it names with their sidecars, and run the bake again."
        )

    @property
    def table(self) -> Table:
        """The results as a table for the terminal."""
        from rich.table import Table

        table = Table(title=f"Laws of {self.bake}", title_justify="left")
        for column in ("law", "", "verdict", "checked", "broken", "first of them, or a note"):
            table.add_column(column, justify="right" if column in ("checked", "broken") else "left")
        for result in self.laws:
            told = next(iter((*result.examples, *result.notes)), "")
            counts = (f"{result.num_checked:,}", f"{result.num_broken:,}")
            table.add_row(str(result.law), result.title, result.verdict, *counts, told)
        return table


def judge(
    law: int,
    num_checked: int,
    violations: Iterable[Violation],
    notes: Iterable[str] = (),
    num_broken: int | None = None,
    titles: Mapping[int, str] = LAWS,
) -> LawResult:
    """The result of a law from what broke it; `num_broken` where `violations` are only the first of more."""
    own = [violation for violation in violations if violation.law == law]
    return LawResult(
        law=law,
        title=titles[law],
        num_checked=num_checked,
        num_broken=len(own) if num_broken is None else num_broken,
        examples=tuple(f"{violation.subject}: {violation.complaint}" for violation in own[:MAX_EXAMPLES]),
        notes=tuple(notes),
    )
