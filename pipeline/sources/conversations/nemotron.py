"""Nemotron-VLM-Dataset-v2: `<subset>/<subset>.jsonl` joined with the pictures in `<subset>/media/*.tar`.

    sampling all         every row; every picture of every message is looked up by its exact name, a leading `./` on
                         either side ignored; where several members have the name, the first in the order of the shards
                         and of the tar
    sampling reference   the rows of `nemotron_choice`; only the first picture of a row is shown

A row whose picture is in no tar is faulty (`missing_member`); members that no row names are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import SourceError
from pipeline.sources.conversations.forms import Conversation, RowFault, from_openai
from pipeline.sources.conversations.meta import iter_rows
from pipeline.sources.conversations.nemotron_choice import ChosenRow, JsonlRow, first_image
from pipeline.sources.conversations.records import Draft
from pipeline.sources.json_text import JsonFault, parse_json
from pipeline.sources.tar_members import TarMember
from pipeline.storage import Storage
from pipeline.vlm_config import ConversationSourceConfig
from pipeline.vlm_records import Medium

__all__ = [
    "MEMBERS_SCHEMA",
    "MISSING_MEMBER",
    "MemberLookup",
    "choice_rows",
    "chosen_drafts",
    "drafts",
    "jsonl_path",
    "list_shards",
    "member_key",
    "members_of",
    "members_table",
    "read_line",
]

MISSING_MEMBER = "missing_member"

MEMBERS_SCHEMA = pa.schema(
    [("shard", pa.string()), ("name", pa.string()), ("offset", pa.int64()), ("num_bytes", pa.int64())]
)
"""Members of a tar in its order; schema metadata carries fingerprint, skipped entries and fault under `parbake`."""

_ROWS_PER_LOOKUP = 4096


def jsonl_path(subset: str) -> str:
    """The subset's rows, relative to the root."""
    return f"{subset}/{subset}.jsonl"


def list_shards(name: str, root: str, subset: str, storage: Storage, most: int | None = None) -> list[str]:
    """The subset's tars by name, relative to the root, the first `most` of them.

    Raises:
        SourceError: The subset has no media folder, or no tar in it.
    """
    try:
        names = storage.list_files(f"{root}/{subset}/media", recursive=True)
    except (FileNotFoundError, NotADirectoryError):
        names = []
    shards = sorted(f"{subset}/media/{file}" for file in names if file.lower().endswith(".tar"))
    if not shards:
        raise SourceError(
            f"{name}: there is no tar in {root}/{subset}/media, so the subset has no pictures. Correct the folder or "
            "the subset's name in the configuration; subsets without media in the repository cannot be used."
        )
    return shards if most is None else shards[: max(0, most)]


def member_key(name: str) -> str:
    """A member's or reference's name as the full join compares it."""
    while name.startswith("./"):
        name = name[2:]
    return name


def members_table(shard: str, members: Sequence[TarMember]) -> pa.Table:
    """Members as a table of MEMBERS_SCHEMA."""
    columns = {
        "shard": [shard] * len(members),
        "name": [member.name for member in members],
        "offset": [member.offset for member in members],
        "num_bytes": [member.num_bytes for member in members],
    }
    return pa.table(columns, schema=MEMBERS_SCHEMA)


def members_of(table: pa.Table) -> list[TarMember]:
    """The members back from a table."""
    names, offsets, lengths = (table.column(name).to_pylist() for name in ("name", "offset", "num_bytes"))
    return [
        TarMember(name=name, offset=offset, num_bytes=num_bytes)
        for name, offset, num_bytes in zip(names, offsets, lengths, strict=True)
    ]


def choice_rows(source: ConversationSourceConfig, subset: str, storage: Storage) -> Iterator[JsonlRow]:
    """Rows of a subset that can be parsed, for `choose`."""
    url = f"{source.path}/{jsonl_path(subset)}"
    num_bytes = storage.identity(url).num_bytes
    for number, (offset, length, line) in enumerate(iter_rows(storage, url, 0, num_bytes)):
        try:
            row = parse_json(line) if line is not None else None
        except JsonFault:
            continue
        if isinstance(row, Mapping):
            yield JsonlRow(row=number, offset=offset, num_bytes=length, image=first_image(row.get("messages")))


def drafts(storage: Storage, url: str, start: int, end: int, tables: Sequence[str]) -> Iterator[Draft]:
    """`sampling: all`: rows of a byte range, their pictures looked up in the subset's member tables."""
    numbered = enumerate(iter_rows(storage, url, start, end))
    members = MemberLookup(storage, tables)
    while portion := list(islice(numbered, _ROWS_PER_LOOKUP)):
        parsed = [(number, *read_line(line)) for number, (_, _, line) in portion]
        wanted = {member_key(medium.value) for _, made, _ in parsed if made is not None for medium in made.media}
        places = members.places(wanted)
        for number, made, fault in parsed:
            if made is None:
                yield Draft(row=number, fault=fault.reason, detail=fault.detail)
            else:
                media = tuple(_medium(medium.value, places) for medium in made.media)
                yield Draft(row=number, messages=made.messages, media=media)


def chosen_drafts(storage: Storage, url: str, chosen: Sequence[ChosenRow]) -> Iterator[Draft]:
    """`sampling: reference`: the chosen rows, each with one of the members that may be its picture."""
    for choice in chosen:
        line = storage.read_range(url, choice.offset, choice.offset + choice.num_bytes)
        made, fault = read_line(line)
        if made is None:
            yield Draft(row=choice.row, fault=fault.reason, detail=fault.detail)
            continue
        member = choice.member
        medium = Medium(
            kind="image",
            origin="tar",
            container=choice.shard,
            reference=member.name,
            offset=member.offset,
            num_bytes=member.num_bytes,
        )
        messages = _with_one_image(made, member.name)
        yield Draft(row=choice.row, messages=messages, media=(medium,), once=member.name)


def read_line(line: bytes | None) -> tuple[Conversation | None, RowFault]:
    """The line's conversation, or why there is none."""
    if line is None:
        return None, RowFault("line_too_long")
    try:
        row = parse_json(line)
        if not isinstance(row, Mapping):
            return None, RowFault("not_an_object", type(row).__name__)
        return from_openai(row.get("messages")), RowFault("")
    except JsonFault as fault:
        return None, RowFault(str(fault), line[:80].decode("utf-8", "replace").strip())
    except RowFault as fault:
        return None, fault


def _with_one_image(conversation: Conversation, name: str) -> tuple[dict[str, Any], ...]:
    """The messages with the first picture called `name` and no other."""
    shown = next(number for number, medium in enumerate(conversation.media) if medium.value == name)
    return tuple(
        {
            **message,
            "content": [
                {**part, "media": 0} if part.get("media") == shown else part
                for part in message["content"]
                if part.get("media", shown) == shown
            ],
        }
        for message in conversation.messages
    )


def _medium(reference: str, places: Mapping[str, Medium]) -> Medium:
    found = places.get(member_key(reference))
    return found or Medium(kind="image", origin="tar", reference=reference, fault=MISSING_MEMBER)


class MemberLookup:
    """Members of a subset's tars by name."""

    def __init__(self, storage: Storage, tables: Sequence[str]) -> None:
        """`tables` are URLs of member tables, in the order in which names are looked for."""
        self._table = _member_table(storage, tables)

    def places(self, wanted: set[str]) -> dict[str, Medium]:
        """A medium for each wanted name that is there."""
        keys = pa.array(sorted(wanted), pa.string())
        found = self._table.filter(pc.is_in(self._table.column("key"), value_set=keys))
        places: dict[str, Medium] = {}
        for entry in found.to_pylist():
            medium = Medium(
                kind="image",
                origin="tar",
                container=entry["shard"],
                reference=entry["name"],
                offset=entry["offset"],
                num_bytes=entry["num_bytes"],
            )
            places.setdefault(entry["key"], medium)
        return places


def _member_table(storage: Storage, urls: Sequence[str]) -> pa.Table:
    """All members of the tables, in order, with the key by which they are compared."""
    tables = []
    for url in urls:
        with storage.open(url) as file:
            tables.append(pq.read_table(file))
    table = pa.concat_tables(tables) if tables else MEMBERS_SCHEMA.empty_table()
    names = pc.replace_substring_regex(table.column("name"), pattern=r"^(\./)+", replacement="")
    return table.append_column("key", names)
