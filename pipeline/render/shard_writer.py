"""Writes one shard: a WebDataset tar whose bytes depend on nothing but the packs.

    512-byte ustar header │ payload, padded to 512 │ ustar header │ payload │ … │ two zero blocks, padded to 10,240

ustar, mtime 0, uid/gid 0, no user names, mode 0644; members in the order of `loaders.arrays`. The NPY header is padded
to 64 bytes, so that array data (payloads start at multiples of 512) can be mapped in place. Nothing is kept but
offsets: the shard streams through.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from loaders.arrays import STORED_ARRAYS
from loaders.format import MemberEntry, PackEntry, PackHeader, member_name, to_json
from loaders.vlm_format import VlmPackHeader
from pipeline.errors import Bug
from pipeline.npy import npy_header

__all__ = ["ShardContent", "ShardWriter", "encode_webp"]

_BLOCK_BYTES = 512
_RECORD_BYTES = 10_240
_WEBP_MAX_SIDE_PX = 16_383


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardContent:
    """What was written: bytes of the tar, its SHA-256 (hex), and where each member lies."""

    num_bytes: int
    sha256: str
    packs: tuple[PackEntry, ...]


def encode_webp(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Pixels uint8 [height, width, 3] as lossless WebP; the same bytes for the same Pillow and libwebp.

    Raises:
        Bug: a side exceeds the 16,383 px that WebP can hold (the configuration should have been refused).
    """
    from PIL import Image

    height_px, width_px, _ = pixels.shape
    if max(height_px, width_px) > _WEBP_MAX_SIDE_PX:
        raise Bug(
            f"a picture of {width_px}x{height_px} px cannot be WebP, whose sides end at {_WEBP_MAX_SIDE_PX}; "
            f"the shard would lack it; bake with pixels: raw."
        )
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "WEBP", lossless=True, quality=40, method=2, exact=True)
    return encoded.getvalue()


class ShardWriter:
    """Appends packs to an open binary file. The caller opens, publishes and closes the file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self._num_bytes = 0
        self._packs: list[PackEntry] = []

    def add_pack(
        self,
        key: str,
        header: PackHeader | VlmPackHeader,
        arrays: Mapping[str, npt.NDArray[np.generic]],
        pictures: Mapping[str, bytes],
    ) -> None:
        """Append one pack.

        Args:
            key: `loaders.format.pack_key(lane, pack)`.
            header: Its `.json` member.
            arrays: By field name, any order; arrays without elements get no member.
            pictures: Lossless WebP by short name ("vit_000", "vae_000"), written in the order given.

        Raises:
            Bug: an array is unknown to the format or has another dtype than the format says.
        """
        for name, array in arrays.items():
            if name not in STORED_ARRAYS or array.dtype != np.dtype(STORED_ARRAYS[name]):
                raise Bug(
                    f"array {name!r} of pack {key} has dtype {array.dtype.str}, the format wants "
                    f"{STORED_ARRAYS.get(name, 'no such array')}; a loader would misread it; report this."
                )
        members = {"json": self._add_member(f"{key}.json", b"", to_json(header))}
        for name in STORED_ARRAYS:
            if name in arrays and arrays[name].size > 0:
                members[name] = self._add_array(member_name(key, name), arrays[name])
        for name, encoded in pictures.items():
            members[name] = self._add_member(f"{key}.{name}.webp", b"", encoded)
        self._packs.append(PackEntry(key=key, members=members))

    def finish(self) -> ShardContent:
        """Write the end-of-archive mark; nothing may be added after."""
        end_bytes = 2 * _BLOCK_BYTES
        self._write(bytes(end_bytes + -(self._num_bytes + end_bytes) % _RECORD_BYTES))
        return ShardContent(num_bytes=self._num_bytes, sha256=self._sha256.hexdigest(), packs=tuple(self._packs))

    def _add_array(self, name: str, array: npt.NDArray[np.generic]) -> MemberEntry:
        dtype = np.dtype(array.dtype).newbyteorder("<").str
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return self._add_member(name, npy_header(dtype, array.shape), flat.data, dtype=dtype, shape=array.shape)

    def _add_member(
        self, name: str, prefix: bytes, payload: bytes | memoryview, *, dtype: str = "", shape: tuple[int, ...] = ()
    ) -> MemberEntry:
        tar_header = tarfile.TarInfo(name)
        tar_header.size = len(prefix) + len(payload)
        tar_header.mode = 0o644
        self._write(tar_header.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict"))
        offset = self._num_bytes
        self._write(prefix)
        self._write(payload)
        self._write(bytes(-tar_header.size % _BLOCK_BYTES))
        return MemberEntry(
            offset=offset,
            num_bytes=tar_header.size,
            crc32=zlib.crc32(payload, zlib.crc32(prefix)),
            dtype=dtype,
            shape=shape,
            data_offset=offset + len(prefix),
        )

    def _write(self, content: bytes | memoryview) -> None:
        self._file.write(content)
        self._sha256.update(content)
        self._num_bytes += len(content)
