"""Shards are read in place, only as far as asked, and damage is named."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from loaders.bagel_form import BagelForm
from loaders.errors import BakeUnfinished, FormatError, LoaderError, ShardDamaged
from loaders.format import parse_sidecar, shard_path, sidecar_path
from loaders.reader import BakeReader
from loaders.shard import Shard
from loaders.storage import LocalBytes
from tests.loaders.synthetic import PATCH, draw_pack, members, seed_of, write_bake


@pytest.fixture(scope="module")
def bake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bake")
    write_bake(folder, [7, 5])
    return folder


@pytest.fixture
def own_bake(bake: Path, tmp_path: Path) -> Path:
    """A bake that a test may damage."""
    return Path(shutil.copytree(bake, tmp_path / "bake"))


def assert_reads_everything(reader: BakeReader) -> None:
    for lane, entry in enumerate(reader.manifest.lanes):
        for pack in range(entry.num_packs):
            drawn = draw_pack(seed_of(lane, pack))
            stored = reader.read(lane, pack)
            expected, _ = members(drawn, "raw")
            assert stored.header == drawn.header
            assert stored.arrays.keys() == {name for name, array in expected.items() if array.size}
            for name, array in stored.arrays.items():
                assert np.array_equal(array.numpy(), expected[name]), name


def test_a_local_bake_reads_back_as_it_was_written(bake: Path) -> None:
    assert_reads_everything(BakeReader(str(bake), verify=True))


def test_webp_pictures_give_the_arrays_of_raw_storage(tmp_path: Path) -> None:
    write_bake(tmp_path, [4, 3], pixels="webp")
    assert_reads_everything(BakeReader(f"file://{tmp_path}", verify=True))


def test_a_remote_bake_is_read_by_ranges(bake: Path, s3: str) -> None:
    import fsspec

    fsspec.filesystem("s3").put(str(bake), f"{s3}/bake", recursive=True)
    assert_reads_everything(BakeReader(f"{s3}/bake", verify=True))


def test_a_remote_bake_is_read_through_a_bounded_cache(bake: Path, s3: str, tmp_path: Path) -> None:
    import fsspec

    fsspec.filesystem("s3").put(str(bake), f"{s3}/bake", recursive=True)
    largest = max(shard.num_bytes for lane in BakeReader(str(bake)).manifest.lanes for shard in lane.shards)
    assert_reads_everything(BakeReader(f"{s3}/bake", cache_dir=str(tmp_path / "cache"), cache_bytes=2 * largest))
    cached = list((tmp_path / "cache").glob("*.tar"))
    assert 0 < sum(path.stat().st_size for path in cached) <= 2 * largest
    assert not list((tmp_path / "cache").glob("*.part"))


class CountingBytes:
    """A source that remembers which spans were asked for."""

    def __init__(self, path: str) -> None:
        self._source = LocalBytes(path)
        self.asked: list[tuple[int, int]] = []

    def spans(self, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        self.asked += spans
        return self._source.spans(spans)


def test_a_pack_is_one_span_and_left_out_fields_are_not_read(bake: Path) -> None:
    sidecar = parse_sidecar((bake / sidecar_path(0, 0)).read_bytes())
    source = CountingBytes(str(bake / shard_path(0, 0)))
    shard = Shard("s", sidecar, source, form=BagelForm(vit_patch_size=PATCH), verify=False)
    assert {"vit_pixels", "vae_pixels"} <= shard.read(0).arrays.keys()
    [(start, end)] = source.asked
    text_only = shard.read(0, frozenset())
    assert not any("vit" in name or "vae" in name or "latent" in name for name in text_only.arrays)
    assert "packed_timesteps" not in text_only.arrays
    assert sum(stop - first for first, stop in source.asked[1:]) < end - start


def test_mapped_arrays_share_the_files_memory_and_writing_to_them_changes_no_file(own_bake: Path) -> None:
    path = own_bake / shard_path(0, 0)
    before = path.read_bytes()
    arrays = BakeReader(str(own_bake)).read(0, 0).arrays
    assert all(array.data_ptr() % 64 == 0 for array in arrays.values())
    arrays["vae_pixels"].fill_(0)
    assert path.read_bytes() == before


def test_mapped_arrays_outlive_the_reader_and_the_file(own_bake: Path) -> None:
    arrays = BakeReader(str(own_bake)).read(0, 0).arrays
    shutil.rmtree(own_bake)
    expected, _ = members(draw_pack(seed_of(0, 0)), "raw")
    assert torch.equal(arrays["vae_pixels"], torch.from_numpy(expected["vae_pixels"]))


@pytest.mark.parametrize("member", ["json", "packed_text_ids", "vae_pixels"])
def test_a_flipped_bit_is_named_by_shard_pack_and_member(own_bake: Path, member: str) -> None:
    entry = parse_sidecar((own_bake / sidecar_path(1, 1)).read_bytes()).packs[1].members[member]
    with open(own_bake / shard_path(1, 1), "r+b") as file:
        file.seek(entry.offset + entry.num_bytes - 1)
        last = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([last ^ 1]))
    reader = BakeReader(str(own_bake), verify=True)
    reader.read(1, 3)
    with pytest.raises(ShardDamaged, match=rf"lane-00001/000001.tar, pack 00001-00000004, member {member}: its CRC-32"):
        reader.read(1, 4)


def test_a_shard_that_is_cut_short_is_named(own_bake: Path) -> None:
    path = own_bake / shard_path(0, 0)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ShardDamaged, match=r"000000.tar, pack 00000-00000002, member .*cut short.*byte 5000"):
        BakeReader(str(own_bake)).read(0, 2)


@pytest.mark.parametrize("path", [shard_path(0, 1), sidecar_path(0, 1)])
def test_a_missing_file_is_named(own_bake: Path, path: str) -> None:
    (own_bake / path).unlink()
    reader = BakeReader(str(own_bake))
    reader.read(0, 0)
    with pytest.raises(ShardDamaged, match=re.escape(f"{path} is missing")):
        reader.read(0, 3)


def test_a_sidecar_of_another_rendering_is_refused(own_bake: Path) -> None:
    path = own_bake / sidecar_path(0, 0)
    path.write_bytes(path.read_bytes().replace(b'"fingerprint":"0-0"', b'"fingerprint":"0-x"'))
    with pytest.raises(ShardDamaged, match=r"not the one that dataset.json was written for"):
        BakeReader(str(own_bake)).read(0, 0)


def test_an_unfinished_bake_says_so(tmp_path: Path) -> None:
    with pytest.raises(BakeUnfinished, match=r"holds no dataset\.json.*let `parbake run` finish"):
        BakeReader(str(tmp_path))


def test_a_bake_of_another_format_says_so(own_bake: Path) -> None:
    path = own_bake / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 9}))
    with pytest.raises(FormatError, match="has format 9, this parbake reads format 1"):
        BakeReader(str(own_bake))


def test_webp_without_pillow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bake(tmp_path, [1], pixels="webp")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(LoaderError, match=r"parbake\[webp\]"):
        BakeReader(str(tmp_path)).read(0, 0)


@pytest.mark.parametrize("place", [(2, 0), (0, 7), (0, -1), (-1, 0)])
def test_a_pack_that_is_not_there_is_an_index_error(bake: Path, place: tuple[int, int]) -> None:
    with pytest.raises(IndexError):
        BakeReader(str(bake)).read(*place)
