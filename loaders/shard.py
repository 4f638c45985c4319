"""Packs out of one shard: from the sidecar's offsets to tensors, reading only the members that were asked for."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from loaders.errors import FormatError, ShardDamaged
from loaders.format import MemberEntry, PackEntry, Sidecar
from loaders.forms import PackForm, PictureDamaged
from loaders.storage import ByteSource

__all__ = ["Shard", "StoredPack"]

HeaderT = TypeVar("HeaderT")

_GAP_BYTES = 64 << 10  # neighbours closer than this are read in one go
_TORCH_DTYPES = {"<i4": torch.int32, "<f4": torch.float32, "|u1": torch.uint8}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPack(Generic[HeaderT]):
    """A pack as it is stored: where it lies, its header and its arrays by name, in stored dtypes, on the CPU.

    Arrays of a mapped shard are views of the file (written to, they change in memory only).
    """

    lane: int
    pack: int
    header: HeaderT
    arrays: Mapping[str, torch.Tensor]


class Shard(Generic[HeaderT]):
    """Random access into one shard.

    Args:
        name: The shard's path, for messages.
        sidecar: Its sidecar.
        source: Its bytes.
        form: How the recipe's packs are stored.
        verify: Check each member's CRC-32 the first time it is read.
    """

    def __init__(
        self, name: str, sidecar: Sidecar, source: ByteSource, *, form: PackForm[HeaderT], verify: bool
    ) -> None:
        self.name = name
        self.sidecar = sidecar
        self._source = source
        self._form = form
        self._verify = verify
        self._verified: set[tuple[int, str]] = set()

    def read(self, index: int, fields: frozenset[str] | None = None) -> StoredPack[HeaderT]:
        """Pack `index` of the shard, without what belongs to a field that `fields` lacks (None: everything).

        Raises:
            ShardDamaged: bytes are missing or wrong; names shard, pack and member.
        """
        pack = self.sidecar.packs[index]
        wanted = {"", *(self._form.fields if fields is None else fields)}
        members = {name: member for name, member in pack.members.items() if self._form.field_of(name) in wanted}
        if "json" not in members:
            raise self._damaged(pack, "json", "the sidecar lists no such member")
        payloads = self._payloads(pack, members)
        if self._verify:
            self._check_sums(index, pack, payloads)
        try:
            where = f"shard {self.name}, pack {pack.key}, member json"
            header = self._form.parse_header(bytes(payloads["json"]), where)
        except FormatError as error:
            raise ShardDamaged(str(error)) from error
        arrays = {name: _array(members[name], payloads[name]) for name in members if members[name].dtype}
        pictures = {name: payloads[name] for name in members if name != "json" and not members[name].dtype}
        try:
            arrays.update(self._form.decode_pictures(header, pictures))
        except PictureDamaged as damage:
            raise self._damaged(pack, damage.member, damage.complaint) from damage
        return StoredPack(lane=self.sidecar.lane, pack=self.sidecar.first_pack + index, header=header, arrays=arrays)

    def _payloads(self, pack: PackEntry, members: Mapping[str, MemberEntry]) -> dict[str, memoryview]:
        """The bytes of each member, read in as few spans as their places allow."""
        ordered = sorted(members.items(), key=lambda entry: entry[1].offset)
        spans: list[tuple[int, int]] = []
        span_of: dict[str, int] = {}
        for name, member in ordered:
            end = member.offset + member.num_bytes
            if spans and member.offset <= spans[-1][1] + _GAP_BYTES:
                spans[-1] = (spans[-1][0], max(spans[-1][1], end))
            else:
                spans.append((member.offset, end))
            span_of[name] = len(spans) - 1
        try:
            buffers = self._source.spans(spans)
        except FileNotFoundError as error:
            raise self._damaged(pack, ordered[0][0], "the shard is missing") from error
        except EOFError as error:
            raise self._damaged(pack, ordered[-1][0], f"the shard is cut short, {error}") from error
        payloads = {}
        for name, member in ordered:
            start = member.offset - spans[span_of[name]][0]
            payloads[name] = buffers[span_of[name]][start : start + member.num_bytes]
        return payloads

    def _check_sums(self, index: int, pack: PackEntry, payloads: Mapping[str, memoryview]) -> None:
        for name, payload in payloads.items():
            if (index, name) in self._verified:
                continue
            found, promised = zlib.crc32(payload), pack.members[name].crc32
            if found != promised:
                raise self._damaged(pack, name, f"its CRC-32 is {found:08x} and the sidecar says {promised:08x}")
            self._verified.add((index, name))

    def _damaged(self, pack: PackEntry, member: str, complaint: str) -> ShardDamaged:
        return ShardDamaged(
            f"shard {self.name}, pack {pack.key}, member {member}: {complaint}; "
            f"training on it would be training on something else; "
            f"copy the shard again, or remove its sidecar and rerun the bake."
        )


def _array(member: MemberEntry, payload: memoryview) -> torch.Tensor:
    """A stored array as a tensor over its own memory."""
    start = member.data_offset - member.offset
    if start == len(payload):
        return torch.empty(member.shape, dtype=_TORCH_DTYPES[member.dtype])
    flat = torch.frombuffer(payload, dtype=_TORCH_DTYPES[member.dtype], offset=start)
    return flat if len(member.shape) == 1 else flat.view(member.shape)
