"""A shard is a plain WebDataset tar with the same bytes every time."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from PIL import Image

from loaders.format import PackHeader, pack_key
from pipeline.errors import Bug
from pipeline.npy import npy_header
from pipeline.render.shard_writer import ShardContent, ShardWriter, encode_webp

HEADER = PackHeader(sequence_length=5, sample_lens=(5,), split_lens=(5,), attn_modes=("causal",))
ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "vit_pixels": np.arange(24, dtype=np.uint8).reshape(2, 12),
    "packed_text_ids": np.array([1, 2, 3], dtype=np.int32),
    "ce_loss_weights": np.array([0.5], dtype=np.float32),
    "mse_loss_indexes": np.array([], dtype=np.int32),
}


def write(num_packs: int = 2) -> tuple[bytes, ShardContent]:
    file = io.BytesIO()
    writer = ShardWriter(file)
    for pack in range(num_packs):
        writer.add_pack(pack_key(3, pack), HEADER, ARRAYS, {"vae_000": b"webp bytes"})
    content = writer.finish()
    return file.getvalue(), content


def test_two_writings_give_the_same_bytes_and_the_digest_is_theirs() -> None:
    first, content = write()
    second, _ = write()
    assert first == second
    assert content.sha256 == hashlib.sha256(first).hexdigest()
    assert content.num_bytes == len(first)


def test_the_bytes_of_a_shard_are_pinned() -> None:
    content = write()[1]
    assert (content.num_bytes, content.sha256) == (
        20480,
        "0a8b8fab3d7a35961a17ef5b71ae974fd009f16c89242878fa591894b452d167",
    )


def test_members_stand_in_the_order_of_the_format_and_empty_arrays_are_left_out() -> None:
    with tarfile.open(fileobj=io.BytesIO(write(1)[0])) as tar:
        names = tar.getnames()
    assert names == [
        "00003-00000000.json",
        "00003-00000000.packed_text_ids.npy",
        "00003-00000000.ce_loss_weights.npy",
        "00003-00000000.vit_pixels.npy",
        "00003-00000000.vae_000.webp",
    ]


def test_headers_name_no_user_time_or_host() -> None:
    with tarfile.open(fileobj=io.BytesIO(write(1)[0])) as tar:
        members = tar.getmembers()
    for member in members:
        facts = (member.mtime, member.uid, member.gid, member.uname, member.gname, member.mode)
        assert facts == (0, 0, 0, "", "", 0o644)


def test_offsets_and_checksums_describe_the_file_and_array_data_is_aligned() -> None:
    shard, content = write()
    for pack in content.packs:
        for name, member in pack.members.items():
            payload = shard[member.offset : member.offset + member.num_bytes]
            assert zlib.crc32(payload) == member.crc32
            if member.dtype:
                assert member.data_offset % 64 == 0
                array = np.frombuffer(shard[member.data_offset : member.offset + member.num_bytes], member.dtype)
                assert np.array_equal(array.reshape(member.shape), ARRAYS[name])


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 588), (123456789, 3)])
def test_numpy_reads_our_header_at_a_multiple_of_64(shape: tuple[int, ...]) -> None:
    header = npy_header("<i4", shape)
    file = io.BytesIO(header)
    assert np.lib.format.read_magic(file) == (1, 0)
    assert np.lib.format.read_array_header_1_0(file) == (shape, False, np.dtype("<i4"))
    assert file.tell() == len(header)
    assert len(header) % 64 == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset leaves its file open
def test_webdataset_decodes_a_shard_into_named_arrays(tmp_path: Path) -> None:
    file = io.BytesIO()
    writer = ShardWriter(file)
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    writer.add_pack(pack_key(0, 0), HEADER, ARRAYS, {"vae_000": encode_webp(pixels)})
    writer.finish()
    (tmp_path / "000000.tar").write_bytes(file.getvalue())
    [sample] = list(webdataset.WebDataset(str(tmp_path / "000000.tar"), shardshuffle=False).decode("rgb8"))
    assert sample["__key__"] == "00000-00000000"
    assert sample["json"]["sequence_length"] == 5
    assert np.array_equal(sample["packed_text_ids.npy"], ARRAYS["packed_text_ids"])
    assert np.array_equal(sample["vit_pixels.npy"], ARRAYS["vit_pixels"])
    assert np.array_equal(sample["vae_000.webp"], pixels)


def test_webp_is_lossless_and_repeatable() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (33, 47, 3), dtype=np.uint8)
    encoded = encode_webp(pixels)
    assert encode_webp(pixels) == encoded
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(encoded))), pixels)


def test_an_array_of_another_dtype_is_refused() -> None:
    writer = ShardWriter(io.BytesIO())
    with pytest.raises(Bug, match=r"packed_text_ids.*<i8.*<i4"):
        writer.add_pack(pack_key(0, 0), HEADER, {"packed_text_ids": np.zeros(3, np.int64)}, {})


def test_a_picture_too_large_for_webp_is_refused() -> None:
    with pytest.raises(Bug, match="16384x1 px"):
        encode_webp(np.zeros((1, 16384, 3), np.uint8))
