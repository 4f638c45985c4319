"""`sampling: reference`: which rows of the Nemotron set ModelOpt takes, and in what order. Pure; no pixels.

    per subset   shards by name, cut to max_shards, shuffled
                 names of pictures from the tars' headers, the first 50 x target of them, shuffled
                 the first 10 x target of those are looked for in the JSONL, by a row's first picture: the order of the
                 JSONL decides which `target` rows are taken
                 taken rows come in the order of the shuffled shards' members

Reference: nvidia-modelopt 0.47.0 `NemotronTarPlusJsonlIterable`. One generator serves all subsets in turn. Where
several members have a taken row's name, the first that decodes is its picture: the choice lists all of them.
"""

from __future__ import annotations

import posixpath
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.sources.conversations.forms import IMAGE_KEYS
from pipeline.sources.tar_members import TarMember
from pipeline.vlm_config import NemotronConfig

__all__ = ["ChosenRow", "JsonlRow", "choose", "first_image", "sample_targets"]

PICTURE_NAMES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp"})
HEADERS_PER_SAMPLE = 50
LOOKUPS_PER_SAMPLE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonlRow:
    """A row of a subset's JSONL, as far as the choice looks: its number, its bytes, its first picture's name."""

    row: int
    offset: int
    num_bytes: int
    image: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRow:
    """A taken row and one of the members that may be its picture.

    Attributes:
        row: Number of the row in the JSONL.
        offset: First byte of its line.
        num_bytes: Length of its line.
        shard: Tar, relative to the root.
        member: The picture.
    """

    row: int
    offset: int
    num_bytes: int
    shard: str
    member: TarMember


def sample_targets(num_samples: int, subsets: Sequence[str]) -> dict[str, int]:
    """Rows to take of each subset: equal parts, the remainder one each to the first subsets.

    >>> sample_targets(8, ["a", "b", "c"])
    {'a': 3, 'b': 3, 'c': 2}
    """
    if not subsets:
        return {}
    base, extra = divmod(num_samples, len(subsets))
    return {subset: base + (number < extra) for number, subset in enumerate(subsets)}


def first_image(messages: object) -> Any:
    """The reference of the first picture in OpenAI-style messages, None without one."""
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else []:
            if isinstance(part, dict) and part.get("type") == "image":
                for key in IMAGE_KEYS:
                    if key in part:
                        return part[key]
    return None


def choose(
    config: NemotronConfig,
    shards: dict[str, Sequence[str]],
    members: Callable[[str], Sequence[TarMember]],
    rows: Callable[[str], Iterable[JsonlRow]],
) -> dict[str, tuple[ChosenRow, ...]]:
    """The choice of each subset that has one.

    Args:
        config: Subsets in their order, `num_samples`, `seed`, `max_shards`.
        shards: Each subset's tars, in any order.
        members: The regular files of a tar, in its order.
        rows: The rows of a subset's JSONL that can be read, in its order; read only as far as needed.
    """
    generator = random.Random(config.seed)
    targets = sample_targets(config.num_samples, config.subsets)
    chosen: dict[str, tuple[ChosenRow, ...]] = {}
    for subset in config.subsets:
        names = sorted(shards.get(subset, ()))
        if config.max_shards is not None:
            names = names[: max(0, config.max_shards)]
        if not names or config.num_samples == 0:
            continue
        generator.shuffle(names)
        candidates = _candidates(names, members, targets[subset] * HEADERS_PER_SAMPLE)
        generator.shuffle(candidates)
        taken = _taken(rows(subset), set(candidates[: targets[subset] * LOOKUPS_PER_SAMPLE]), targets[subset])
        chosen[subset] = tuple(
            ChosenRow(
                row=taken[member.name].row,
                offset=taken[member.name].offset,
                num_bytes=taken[member.name].num_bytes,
                shard=shard,
                member=member,
            )
            for shard in (names if taken else ())
            for member in members(shard)
            if member.name in taken
        )
    return chosen


def _candidates(shards: Sequence[str], members: Callable[[str], Sequence[TarMember]], most: int) -> list[str]:
    """Names of pictures in the order of the tars; one where `most` is 0, as the reference counts after it appends."""
    names: list[str] = []
    for shard in shards:
        for member in members(shard):
            if posixpath.splitext(member.name)[1].lower() in PICTURE_NAMES:
                names.append(member.name)
                if len(names) >= most:
                    return names
    return names


def _taken(rows: Iterable[JsonlRow], wanted: set[str], target: int) -> dict[str, JsonlRow]:
    """Rows by their picture's name; of several rows for one picture the last one read."""
    taken: dict[str, JsonlRow] = {}
    if not wanted:
        return taken
    for row in rows:
        if isinstance(row.image, str) and row.image in wanted:
            taken[row.image] = row
            if len(taken) >= target:
                break
    return taken
