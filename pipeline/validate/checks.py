"""What the laws mean for a recipe: the part of validate that differs between BAGEL and VLM bakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from loaders.format import DatasetManifest
from loaders.reader import BakeReader
from loaders.shard import StoredPack
from pipeline.law_report import Violation
from pipeline.validate.bagel_checks import BagelChecks
from pipeline.validate.findings import ShardFindings
from pipeline.validate.vlm_checks import VlmChecks

__all__ = ["RecipeChecks", "checks_of"]


class RecipeChecks(Protocol):
    """Checks of one recipe on one bake. Picklable: shards are checked wherever the executor runs."""

    @property
    def titles(self) -> Mapping[int, str]:
        """The laws by number, in the recipe's words."""
        ...

    @property
    def token_kinds(self) -> tuple[str, ...]:
        """Kinds of tokens that make up a pack, beside "total"."""
        ...

    @property
    def image_kinds(self) -> tuple[str, ...]:
        """Kinds of pictures that are counted."""
        ...

    def violations(self, key: str, stored: StoredPack[Any]) -> list[Violation]:
        """Laws 1 to 4 of a pack, and law 6 where it cannot be turned into a batch."""
        ...

    def count(self, findings: ShardFindings, stored: StoredPack[Any]) -> None:
        """Add what a pack holds."""
        ...

    def notes(self, counted: Mapping[str, int]) -> list[str]:
        """What is told of law 4 without being judged."""
        ...

    def order_violations(self, findings: Sequence[ShardFindings], reader: BakeReader) -> list[Violation]:
        """Law 7, where packs know their own number."""
        ...


def checks_of(manifest: DatasetManifest) -> RecipeChecks:
    """The checks of a bake.

    Raises:
        FormatError: its settings are not those of its recipe.
    """
    return VlmChecks.of(manifest) if manifest.recipe == "vlm" else BagelChecks.of(manifest)
