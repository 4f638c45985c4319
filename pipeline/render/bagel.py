"""The BAGEL recipe as the render stage sees it: planned samples and source pictures become packs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.bake import BakeFolder
from pipeline.config import Config
from pipeline.index_table import iter_rows
from pipeline.plan_table import ShardPlan, in_portions, table_to_packs
from pipeline.render.pack import PackRules, RenderedPack, render_pack
from pipeline.render.plan_rows import SAMPLES_PER_PORTION, read_index_rows, read_packs
from pipeline.sources.reader import SourceReader
from pipeline.storage import Storage

__all__ = ["INDEX_COLUMNS", "BagelMaker", "BagelRecipe"]

SOURCE_CACHE_BYTES = 256 << 20
"""Parquet slices that a worker keeps; with one pack's pictures and one decoded image it stays well below 1 GiB."""

INDEX_COLUMNS = (
    "row",
    "row_group",
    "row_in_group",
    "image_references",
    "image_widths_px",
    "image_heights_px",
    "image_stamps",
    "num_frames",
    "video_is_folder",
    "text_ids",
)
"""The index columns render needs: token ids, and what finds a picture and tells whether it is still the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BagelRecipe:
    """See `unit.RenderRecipe`.

    Attributes:
        config: The recipe.
        rules: What a pack's bytes depend on.
    """

    config: Config
    rules: PackRules

    @property
    def token_kinds(self) -> tuple[str, ...]:
        """Modalities."""
        return ("total", "text", "vit", "vae")

    def open(self, folder: BakeFolder, storage: Storage) -> BagelMaker:
        """A maker with a reader of its own."""
        reader = SourceReader(self.config, storage, folder=folder, cache_bytes=SOURCE_CACHE_BYTES)
        return BagelMaker(folder, storage, self.rules, reader)


class BagelMaker:
    """See `unit.PackMaker`."""

    def __init__(self, folder: BakeFolder, storage: Storage, rules: PackRules, reader: SourceReader) -> None:
        self._folder = folder
        self._storage = storage
        self._rules = rules
        self._reader = reader

    def packs(self, lane: int, shard: int, plan: ShardPlan) -> Iterator[tuple[int, RenderedPack]]:
        """The packs of a shard; one pack's pixels are in memory at a time.

        Raises:
            RunFailed: a source file changed, or the plan and the index disagree.
            SourceError: a pack has nothing to learn left.
        """
        planned = read_packs(self._storage, self._folder, lane, shard, plan, table_to_packs)
        for portion in in_portions(planned, SAMPLES_PER_PORTION):
            rows = read_index_rows(self._storage, self._folder, portion, INDEX_COLUMNS, iter_rows)
            for pack in portion:
                yield pack.pack, render_pack(pack, rows, self._reader, self._rules)

    def close(self) -> None:
        """Close the sources."""
        self._reader.close()
