"""Packs out of one shard: from the sidecar's offsets to tensors, reading only the members that were asked for."""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from loaders.errors import FormatError, LoaderError, ShardDamaged
from loaders.format import (
    VAE_FIELDS,
    VIT_FIELDS,
    MemberEntry,
    PackEntry,
    PackHeader,
    Sidecar,
    parse_pack_header,
)
from loaders.pixels import patchify
from loaders.storage import ByteSource

__all__ = ["FIELDS", "Shard", "StoredPack"]

FIELDS = frozenset({"vit", "vae"})
"""What a reader may leave out."""

_GAP_BYTES = 64 << 10  # neighbours closer than this are read in one go
_TORCH_DTYPES = {"<i4": torch.int32, "<f4": torch.float32, "|u1": torch.uint8}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPack:
    """A pack as it is stored: its header and its arrays by name, in stored dtypes, on the CPU.

    Arrays of a mapped shard are views of the file (written to, they change in memory only).
    """

    header: PackHeader
    arrays: Mapping[str, torch.Tensor]


class Shard:
    """Random access into one shard.

    Args:
        name: The shard's path, for messages.
        sidecar: Its sidecar.
        source: Its bytes.
        vit_patch_size: Side of a patch in pixels, which WebP pictures are cut into.
        verify: Check each member's CRC-32 the first time it is read.
    """

    def __init__(self, name: str, sidecar: Sidecar, source: ByteSource, *, vit_patch_size: int, verify: bool) -> None:
        self.name = name
        self.sidecar = sidecar
        self._source = source
        self._vit_patch_size = vit_patch_size
        self._verify = verify
        self._verified: set[tuple[int, str]] = set()

    def read(self, index: int, fields: frozenset[str] = FIELDS) -> StoredPack:
        """Pack `index` of the shard, without the modalities that `fields` lacks.

        Raises:
            ShardDamaged: bytes are missing or wrong; names shard, pack and member.
        """
        pack = self.sidecar.packs[index]
        members = {name: member for name, member in pack.members.items() if _is_wanted(name, fields)}
        if "json" not in members:
            raise self._damaged(pack, "json", "the sidecar lists no such member")
        payloads = self._payloads(pack, members)
        if self._verify:
            self._check_sums(index, pack, payloads)
        try:
            where = f"shard {self.name}, pack {pack.key}, member json"
            header = parse_pack_header(bytes(payloads["json"]), where)
        except FormatError as error:
            raise ShardDamaged(str(error)) from error
        arrays = {name: _array(members[name], payloads[name]) for name in members if members[name].dtype}
        for tower in ("vit", "vae"):
            pictures = [name for name in members if name.startswith(f"{tower}_") and not members[name].dtype]
            if pictures:
                arrays[f"{tower}_pixels"] = self._decode(pack, tower, header, payloads, pictures)
        return StoredPack(header=header, arrays=arrays)

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

    def _decode(
        self,
        pack: PackEntry,
        tower: str,
        header: PackHeader,
        payloads: Mapping[str, memoryview],
        names: Sequence[str],
    ) -> torch.Tensor:
        """WebP pictures as the array that raw storage holds: `vit_pixels` or `vae_pixels`."""
        sizes = header.vit_image_sizes if tower == "vit" else header.vae_image_sizes
        if len(names) != len(sizes):
            raise self._damaged(pack, names[0], f"{len(names)} pictures are stored, the header counts {len(sizes)}")
        parts = []
        for name, (height, width) in zip(names, sizes, strict=True):
            try:
                pixels = _decode_webp(payloads[name])
            except (OSError, ValueError) as error:
                raise self._damaged(pack, name, f"it is no readable WebP ({error})") from error
            if pixels.shape != (height, width, 3):
                raise self._damaged(pack, name, f"it decodes to {pixels.shape}, the header says {(height, width, 3)}")
            parts.append(patchify(pixels, self._vit_patch_size) if tower == "vit" else pixels.reshape(-1))
        return torch.from_numpy(np.concatenate(parts))

    def _damaged(self, pack: PackEntry, member: str, complaint: str) -> ShardDamaged:
        return ShardDamaged(
            f"shard {self.name}, pack {pack.key}, member {member}: {complaint}; "
            f"training on it would be training on something else; "
            f"copy the shard again, or remove its sidecar and rerun the bake."
        )


def _is_wanted(name: str, fields: frozenset[str]) -> bool:
    if name in VIT_FIELDS or name.startswith("vit_"):
        return "vit" in fields
    if name in VAE_FIELDS or name.startswith("vae_"):
        return "vae" in fields
    return True


def _array(member: MemberEntry, payload: memoryview) -> torch.Tensor:
    """A stored array as a tensor over its own memory."""
    start = member.data_offset - member.offset
    if start == len(payload):
        return torch.empty(member.shape, dtype=_TORCH_DTYPES[member.dtype])
    flat = torch.frombuffer(payload, dtype=_TORCH_DTYPES[member.dtype], offset=start)
    return flat if len(member.shape) == 1 else flat.view(member.shape)


def _decode_webp(encoded: memoryview) -> npt.NDArray[np.uint8]:
    """Pixels [height, width, 3] of a lossless WebP."""
    try:
        from PIL import Image
    except ImportError as error:
        raise LoaderError(
            "this bake stores pictures as WebP (pixels: webp) and Pillow is not installed; they cannot be decoded; "
            "pip install 'parbake[webp]', or bake with pixels: raw."
        ) from error
    with Image.open(io.BytesIO(encoded), formats=("WEBP",)) as image:
        return np.asarray(image.convert("RGB"))
