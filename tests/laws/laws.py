"""The laws of a finished bake that can be read off its files: 1 to 4 and 6. One helper for every bake of the tests."""

from __future__ import annotations

import hashlib
import json
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tests.laws.reading import RawPack, raw_manifest, raw_packs, shard_files

__all__ = ["assert_pack_laws", "assert_shard_laws"]


def assert_pack_laws(folder: Path, max_num_tokens_per_sample: int, overfull_allowed: int = 0) -> int:
    """Laws 1 to 4 for every pack; the number of packs. `overfull_allowed` packs may exceed the budget (law 4)."""
    manifest = raw_manifest(folder)
    overfull = count = 0
    for pack in raw_packs(folder):
        count += 1
        _token_indexes_partition_the_sequence(pack)
        _splits_and_samples_add_up(pack)
        _losses_point_at_their_tokens(pack)
        _ids_are_in_the_vocabulary(pack, manifest)
        overfull += pack.header["sequence_length"] > manifest["max_num_tokens"]
        assert max(pack.header["sample_lens"]) <= max_num_tokens_per_sample, pack.key
    assert overfull <= overfull_allowed
    assert count == sum(shard["num_packs"] for lane in manifest["lanes"] for shard in lane["shards"])
    return count


def _token_indexes_partition_the_sequence(pack: RawPack) -> None:
    """Law 1."""
    indexes = [
        pack.array(name) for name in ("packed_text_indexes", "packed_vit_token_indexes", "packed_vae_token_indexes")
    ]
    together = np.sort(np.concatenate([index.astype(np.int64) for index in indexes]))
    assert np.array_equal(together, np.arange(pack.header["sequence_length"])), pack.key
    assert pack.array("packed_position_ids").shape == (pack.header["sequence_length"],), pack.key
    assert pack.array("packed_text_ids").shape == indexes[0].shape, pack.key


def _splits_and_samples_add_up(pack: RawPack) -> None:
    """Law 2."""
    header = pack.header
    assert sum(header["split_lens"]) == sum(header["sample_lens"]) == header["sequence_length"], pack.key
    assert len(header["split_lens"]) == len(header["attn_modes"]), pack.key
    assert set(header["attn_modes"]) <= {"causal", "full", "noise"}, pack.key
    assert len(header["sample_lens"]) == len(header["batch_data_indexes"]) == len(header["provenance"]), pack.key
    assert sum(header["split_lens"]) > 0, pack.key


def _losses_point_at_their_tokens(pack: RawPack) -> None:
    """Law 3."""
    labels, indexes, weights = (pack.array(name) for name in ("packed_label_ids", "ce_loss_indexes", "ce_loss_weights"))
    assert labels.shape == indexes.shape == weights.shape, pack.key
    assert set(indexes.tolist()) <= set(pack.array("packed_text_indexes").tolist()), pack.key
    cells, timesteps, noised = (
        pack.array(name) for name in ("packed_vae_token_indexes", "packed_timesteps", "mse_loss_indexes")
    )
    assert cells.shape == timesteps.shape, pack.key
    noised_here = np.isin(cells, noised)
    assert noised_here.sum() == len(noised), pack.key
    assert np.isfinite(timesteps[noised_here]).all(), pack.key
    assert np.isneginf(timesteps[~noised_here]).all(), pack.key
    assert len(labels) or len(noised), f"{pack.key} teaches nothing"


def _ids_are_in_the_vocabulary(pack: RawPack, manifest: dict[str, Any]) -> None:
    """Law 4, its last part."""
    for name in ("packed_text_ids", "packed_label_ids"):
        ids = pack.array(name)
        assert ((ids >= 0) & (ids < manifest["vocab_size"])).all(), pack.key


def assert_shard_laws(folder: Path) -> None:
    """Law 6, and that sidecars describe every byte they name, and that nothing else lies among the shards."""
    manifest = raw_manifest(folder)
    listed = {
        (lane, shard): entry
        for lane, lane_entry in enumerate(manifest["lanes"])
        for shard, entry in enumerate(lane_entry["shards"])
    }
    found = shard_files(folder)
    assert {(lane, shard) for lane, shard, _ in found} == listed.keys()
    files = {path for path in (folder / "shards").rglob("*") if path.is_file()}
    assert files == {path.with_suffix(suffix) for _, _, path in found for suffix in (".tar", ".json")}
    next_pack: dict[int, int] = {}
    for lane, shard, path in found:
        content, sidecar_bytes = path.read_bytes(), path.with_suffix(".json").read_bytes()
        sidecar, entry = json.loads(sidecar_bytes), listed[lane, shard]
        digest = hashlib.sha256(content).hexdigest()
        assert digest == sidecar["sha256"] == entry["sha256"], path
        assert len(content) == sidecar["num_bytes"] == entry["num_bytes"], path
        assert hashlib.sha256(sidecar_bytes).hexdigest() == entry["sidecar_sha256"], path
        assert sidecar["num_packs"] == entry["num_packs"] == len(sidecar["packs"]), path
        assert sidecar["first_pack"] == next_pack.get(lane, 0), path
        next_pack[lane] = sidecar["first_pack"] + sidecar["num_packs"]
        _members_lie_where_the_sidecar_says(content, sidecar)


def _members_lie_where_the_sidecar_says(content: bytes, sidecar: dict[str, Any]) -> None:
    places = []
    for pack in sidecar["packs"]:
        for name, member in pack["members"].items():
            start, stop = member["offset"], member["offset"] + member["num_bytes"]
            places.append((start, stop))
            assert zlib.crc32(content[start:stop]) == member["crc32"], (pack["key"], name)
            if member["dtype"]:
                count = int(np.prod(member["shape"], dtype=np.int64))
                array = np.frombuffer(content, member["dtype"], count, member["data_offset"])
                assert member["data_offset"] + array.nbytes == stop, (pack["key"], name)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(sorted(places)))
