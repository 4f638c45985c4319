"""A whole bake read back equals what nemo-automodel's own dataloader yields: bins, packs and every batch tensor."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from nemo_automodel.components.datasets.vlm.collate_fns import (
    neat_packed_vlm_collater,
    packed_sequence_thd_vlm_collater,
    pad_collate_fn,
)
from nemo_automodel.components.datasets.vlm.datasets import PreTokenizedDatasetWrapper
from nemo_automodel.components.datasets.vlm.neat_packing_vlm import PackedDatasetWrapper, neat_pack_dataset_vlm
from torch.utils.data import DataLoader, DistributedSampler

from loaders.format import DatasetManifest, parse_dataset_manifest
from pipeline.conversation_table import table_to_conversation_packs
from pipeline.render.mrope import rope_index
from tests.parity.decord_from_pyav import VideoReader
from tests.parity.vlm.test_collation import assert_equal_batches
from tests.parity.vlm.world import PACK_SIZE, World, make_video_world, make_world, read_batches


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def videos(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> World:
    decord = SimpleNamespace(VideoReader=VideoReader, bridge=SimpleNamespace(set_bridge=lambda name: None))
    monkeypatch.setitem(sys.modules, "decord", decord)
    return make_video_world(tmp_path_factory.mktemp("videos"))


def wrapped(world: World, **settings: Any) -> PreTokenizedDatasetWrapper:
    return PreTokenizedDatasetWrapper(copy.deepcopy(world.reference_rows()), world.processor.processor, **settings)


def reference_packs(world: World, *, mrope: bool = False, **settings: Any) -> PackedDatasetWrapper:
    wrapper = {name: settings.pop(name) for name in ("max_length", "truncate") if name in settings}
    return neat_pack_dataset_vlm(
        dataset=wrapped(world, **wrapper),
        pack_size=settings.pop("pack_size", PACK_SIZE),
        padding_idx=world.processor.pad_token_id,
        ds_raw=world.reference_rows(),
        processor=world.processor.processor,
        get_rope_index=rope_index(str(world.root / "model")) if mrope else None,
        **settings,
    )


def reference_batches(
    dataset: Any, collate: Any, rank: int, world_size: int, *, epoch: int = 0, shuffle: bool = True
) -> Iterator[dict[str, Any]]:
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=shuffle)
    sampler.set_epoch(epoch)
    yield from DataLoader(dataset, batch_size=2, sampler=sampler, collate_fn=collate)


def assert_equal_streams(actual: Iterator[dict[str, Any]], expected: Iterator[dict[str, Any]]) -> None:
    ours, theirs = list(actual), list(expected)
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert_equal_batches(one, other)


def manifest_of(bake: Path) -> DatasetManifest:
    return parse_dataset_manifest((bake / "dataset.json").read_bytes())


def planned_bins(bake: Path) -> list[list[int]]:
    """Data-set rows of every pack, by the planner's number."""
    bins = {}
    for path in sorted((bake / "plan").glob("lane-*.parquet")):
        for pack in table_to_conversation_packs(pq.read_table(path)):
            bins[pack.number] = [sample.dataset_row for sample in pack.samples]
    return [bins[number] for number in range(len(bins))]


@pytest.mark.parametrize("balance", [True, False])
def test_bins_are_the_references(world: World, tmp_path: Path, balance: bool) -> None:
    bake = world.bake(tmp_path, packed_sequence={"balance_media_tokens": balance})
    assert planned_bins(bake) == reference_packs(world, balance_media_tokens=balance).bins


def test_rows_longer_than_a_pack_are_counted_where_the_reference_makes_packs_of_padding(
    world: World, tmp_path: Path
) -> None:
    bake = world.bake(tmp_path, packed_sequence={"pack_size": 100})
    too_long = {row for row, length in enumerate(world.lengths) if length - 1 > 100}
    expected = [rows for rows in reference_packs(world, pack_size=100).bins if not too_long & set(rows)]
    assert planned_bins(bake) == expected
    account = manifest_of(bake).rows["shapes"]["passes"][0]
    assert account == {
        "drawn": len(world.rows),
        "packed": len(world.rows) - len(too_long),
        "dropped": {"longer_than_pack": len(too_long)},
        "discarded": 0,
        "waiting": 0,
    }


def test_max_packs_and_packing_ratio_cut_as_in_the_reference(world: World, tmp_path: Path) -> None:
    bake = world.bake(tmp_path, packed_sequence={"max_packs": 3, "packing_ratio": 0.9})
    assert planned_bins(bake) == reference_packs(world, max_packs=3, packing_ratio=0.9).bins


@pytest.mark.parametrize("mrope", [False, True])
def test_neat_batches_of_two_epochs_are_the_references(world: World, tmp_path: Path, mrope: bool) -> None:
    bake = world.bake(tmp_path, mrope=mrope)
    packs = reference_packs(world, mrope=mrope)
    collate = partial(neat_packed_vlm_collater, padding_idx=world.processor.pad_token_id)
    for epoch in (0, 1):
        assert_equal_streams(read_batches(bake, 0, 1, epoch), reference_batches(packs, collate, 0, 1, epoch=epoch))


def test_each_of_two_ranks_reads_the_references_batches(world: World, tmp_path: Path) -> None:
    bake = world.bake(tmp_path, bake={"world_size": 2})
    packs = reference_packs(world)
    collate = partial(neat_packed_vlm_collater, padding_idx=world.processor.pad_token_id)
    for rank in (0, 1):
        assert_equal_streams(read_batches(bake, rank, 2), reference_batches(packs, collate, rank, 2))


def test_neat_batches_under_context_parallelism_are_the_references(world: World, tmp_path: Path) -> None:
    bake = world.bake(tmp_path, distributed={"cp_size": 2}, dataloader={"shuffle": False})
    collate = partial(neat_packed_vlm_collater, padding_idx=world.processor.pad_token_id, materialize_4d_mask=False)
    expected = reference_batches(reference_packs(world), collate, 0, 1, shuffle=False)
    assert_equal_streams(read_batches(bake, 0, 1), expected)


@pytest.mark.parametrize(("cp_size", "mrope"), [(1, False), (1, True), (2, False)])
def test_thd_batches_are_the_references(world: World, tmp_path: Path, cp_size: int, mrope: bool) -> None:
    bake = world.bake(
        tmp_path,
        mrope=mrope,
        packed_sequence={"packing_format": "thd", "collate_max_length": PACK_SIZE},
        distributed={"cp_size": cp_size},
    )
    packs = reference_packs(world, mrope=mrope, sequence_alignment=2 * cp_size if cp_size > 1 else 1)
    collate = partial(packed_sequence_thd_vlm_collater, padding_idx=world.processor.pad_token_id, max_length=PACK_SIZE)
    assert_equal_streams(read_batches(bake, 0, 1), reference_batches(packs, collate, 0, 1))


@pytest.mark.parametrize("mrope", [False, True])
def test_packs_with_videos_are_the_references(videos: World, tmp_path: Path, mrope: bool) -> None:
    bake = videos.bake(tmp_path, mrope=mrope, packed_sequence={"balance_media_tokens": False})
    packs = reference_packs(videos, mrope=mrope, balance_media_tokens=False)
    assert planned_bins(bake) == packs.bins
    collate = partial(neat_packed_vlm_collater, padding_idx=videos.processor.pad_token_id)
    assert_equal_streams(read_batches(bake, 0, 1), reference_batches(packs, collate, 0, 1))


def test_unpacked_batches_are_the_references(world: World, tmp_path: Path) -> None:
    bake = world.bake(tmp_path, packed_sequence={"pack_size": 0, "pretokenize": True})
    collate = partial(pad_collate_fn, processor=world.processor.processor)
    assert_equal_streams(read_batches(bake, 0, 1), reference_batches(wrapped(world), collate, 0, 1))


@pytest.mark.parametrize("truncate", [False, True])
def test_over_long_rows_are_replaced_or_cut_as_in_the_reference(world: World, tmp_path: Path, truncate: bool) -> None:
    bake = world.bake(
        tmp_path,
        dataset={"max_length": 100, "truncate": truncate},
        packed_sequence={"pack_size": 0, "pretokenize": True},
    )
    rows = wrapped(world, max_length=100, truncate=truncate)
    collate = partial(pad_collate_fn, processor=world.processor.processor)
    assert_equal_streams(read_batches(bake, 0, 1), reference_batches(rows, collate, 0, 1))


def test_fake_pictures_are_masked_in_the_improved_stream(world: World, tmp_path: Path) -> None:
    settings = {"stream": "improved", "packing": "neat", "truncation": "off", "corrections": []}
    bake = world.bake(tmp_path, bake=settings, dataloader={"shuffle": False}, packed_sequence={"pack_size": PACK_SIZE})
    collate = partial(neat_packed_vlm_collater, padding_idx=world.processor.pad_token_id)
    expected = list(reference_batches(reference_packs(world), collate, 0, 1, shuffle=False))
    text_only = {number for number, row in enumerate(world.rows) if not row["images"]}
    image_token = world.processor.processor.image_token_id
    bins = planned_bins(bake)
    for number, batch in enumerate(read_batches(bake, 0, 1)):
        assert torch.equal(batch["input_ids"], expected[number]["input_ids"])
        for row, ids in enumerate(batch["input_ids"]):
            documents = bins[2 * number + row]
            numbers = batch["_packed_seq_ids"][row]
            theirs = expected[number]["_packed_seq_ids"][row]
            for document, dataset_row in enumerate(documents, 1):
                hidden = (theirs == document) & (numbers == 0)
                shown = (theirs == document) & (ids == image_token)
                # The picture of a text-only row is hidden whole; a real one is not touched.
                assert bool(hidden.any()) == (dataset_row in text_only)
                assert bool(hidden[shown].all()) == (dataset_row in text_only)
