"""The bake folder: where everything lies inside an output URL.

<bake>/config.yaml                       the resolved configuration, without secrets
<bake>/index/<source>/<unit>.parquet     one row per source row
<bake>/plan/assign/<group>/…             each lane's ordered row list
<bake>/plan/lane-00000.parquet           one row per pack
<bake>/plan/plan.json                    what was planned: stream, lanes, packs, shard boundaries; last of the plan
<bake>/shards/lane-00000/000000.tar      packs, and 000000.json, the sidecar and commit mark
<bake>/dataset.json                      written last
<bake>/report/report.json, report.html
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from loaders.format import shard_path, sidecar_path

__all__ = ["BakeFolder"]


@dataclass(frozen=True, slots=True)
class BakeFolder:
    """Paths below one output URL (any fsspec URL, no trailing slash). Pure string work; touches nothing."""

    url: str

    def join(self, relative: str) -> str:
        """The URL of a path inside the bake."""
        return f"{self.url.rstrip('/')}/{relative}"

    @property
    def config(self) -> str:
        """The resolved configuration."""
        return self.join("config.yaml")

    @property
    def dataset(self) -> str:
        """The loader's entry point."""
        return self.join("dataset.json")

    @property
    def plan(self) -> str:
        """The plan's summary and commit mark."""
        return self.join("plan/plan.json")

    def index_unit(self, source: str, unit: str) -> str:
        """Index rows of one unit of a source (`group/dataset`)."""
        return self.join(f"index/{quote(source, safe='')}/{unit}.parquet")

    def source_index(self, source: str) -> str:
        """The list of a source's index units; written when all are there."""
        return self.join(f"index/{quote(source, safe='')}/source.json")

    def index_members(self, source: str, tar: str) -> str:
        """Names and places of a tar's members."""
        return self.join(f"index/{quote(source, safe='')}/members/{tar}.parquet")

    def assign(self, group: str, name: str) -> str:
        """A file of a group's assignment."""
        return self.join(f"plan/assign/{quote(group, safe='')}/{name}")

    def plan_lane(self, lane: int) -> str:
        """The packs of one lane."""
        return self.join(f"plan/lane-{lane:05d}.parquet")

    def shard(self, lane: int, shard: int) -> str:
        """One tar."""
        return self.join(shard_path(lane, shard))

    def sidecar(self, lane: int, shard: int) -> str:
        """Its sidecar."""
        return self.join(sidecar_path(lane, shard))

    def report(self, name: str) -> str:
        """A file of the report."""
        return self.join(f"report/{name}")
