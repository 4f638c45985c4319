"""Laws 1 to 4 and 6, and that any WebDataset reader can read a bake."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.laws.conftest import BAKES
from tests.laws.laws import assert_pack_laws, assert_shard_laws
from tests.laws.reading import raw_packs, shard_files

NAMES = pytest.mark.parametrize("name", BAKES)


@NAMES
def test_laws_1_to_4_hold_for_every_pack(name: str, finished: Callable[[str], Path]) -> None:
    assert assert_pack_laws(finished(name), max_num_tokens_per_sample=320) >= 24


@NAMES
def test_law_6_every_byte_is_accounted_for(name: str, finished: Callable[[str], Path]) -> None:
    assert_shard_laws(finished(name))


@NAMES
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # webdataset leaves closing its files to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reads_every_shard_without_pickle(name: str, finished: Callable[[str], Path]) -> None:
    import webdataset

    folder = finished(name)
    decoded = {}
    for _, _, path in shard_files(folder):
        for sample in webdataset.WebDataset(str(path), shardshuffle=False).decode():
            decoded[sample["__key__"]] = sample
    packs = list(raw_packs(folder))
    assert decoded.keys() == {pack.key for pack in packs}
    for pack in packs:
        sample = decoded[pack.key]
        assert sample["json"] == pack.header
        for array, values in pack.arrays.items():
            assert np.array_equal(sample[f"{array}.npy"], values), (pack.key, array)
    gc.collect()


def test_small_shard_bytes_really_make_several_shards(finished: Callable[[str], Path]) -> None:
    assert max(shard for _, shard, _ in shard_files(finished("four lanes, flex, small shards"))) >= 2
