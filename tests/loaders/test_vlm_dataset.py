"""What a training run sees of a VLM bake: its epochs' order, in batches, however it is read, stopped and resumed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from loaders import FormatError, PackedShards, StateMismatch
from loaders.shard import StoredPack
from loaders.vlm_order import length_grouped_order
from loaders.vlm_pack import pack_in_memory
from tests.loaders.vlm_synthetic import FIRST_ID, Made, stored_pack, write_vlm_bake

NUM_PACKS = 17


@pytest.fixture(scope="module")
def bake(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return write_vlm_bake(tmp_path_factory.mktemp("bake"), NUM_PACKS, world_size=3)


def numbers(batches: Iterable[dict[str, Any]]) -> list[list[int]]:
    """Pack numbers of each batch."""
    return [(batch["input_ids"][:, 0] - FIRST_ID).tolist() for batch in batches]


def reference(world_size: int, rank: int, epoch: int, batch_size: int = 2, drop_last: bool = False) -> list[list[int]]:
    """The batches that PyTorch's sampler and loader make of a list of pack numbers."""
    sampler = DistributedSampler(range(NUM_PACKS), num_replicas=world_size, rank=rank, shuffle=True)
    sampler.set_epoch(epoch)
    loader = DataLoader(range(NUM_PACKS), sampler=sampler, batch_size=batch_size, drop_last=drop_last)  # type: ignore[arg-type]
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 17, 20])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_rank_reads_the_batches_of_distributed_sampler(bake: Made, world_size: int, drop_last: bool) -> None:
    for rank in range(world_size):
        expected = reference(world_size, rank, 0, drop_last=drop_last)
        if not expected:
            continue
        dataset = PackedShards(bake.url, rank, world_size, drop_last=drop_last)
        assert len(dataset) == len(expected)
        loader = dataset.loader()
        for epoch in range(3):
            assert numbers(loader) == reference(world_size, rank, epoch, drop_last=drop_last)


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_a_dropped_tail_is_that_of_distributed_sampler(bake: Made, world_size: int) -> None:
    for rank in range(world_size):
        sampler = DistributedSampler(range(NUM_PACKS), num_replicas=world_size, rank=rank, drop_last=True)
        found = numbers(PackedShards(bake.url, rank, world_size, tail="drop"))
        assert [number for batch in found for number in batch] == list(sampler)


def test_epoch_0_reads_straight_through_its_lanes(bake: Made) -> None:
    for rank in range(3):
        dataset = PackedShards(bake.url, rank, 3)
        assert [dataset.pack_at(0, position) for position in range(rank, NUM_PACKS, 3)] == [
            (rank, pack) for pack in range(len(range(rank, NUM_PACKS, 3)))
        ]


def test_set_epoch_and_running_on_give_the_same_epochs(bake: Made) -> None:
    loader = PackedShards(bake.url, 1, 2).loader()
    loader.set_epoch(4)
    assert numbers(loader) == reference(2, 1, 4)
    assert numbers(loader) == reference(2, 1, 5)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_resume_at_every_step_goes_on_as_if_nothing_had_happened(bake: Made, num_workers: int) -> None:
    dataset = PackedShards(bake.url, 0, 2)
    for epoch in (0, 2):
        loader = dataset.loader(num_workers)
        loader.set_epoch(epoch)
        states, read = [loader.state_dict()], []
        for batch in loader:
            states.append(loader.state_dict())
            read += numbers([batch])
        assert read == reference(2, 0, epoch)
        assert [state["position"] for state in states] == [0, 4, 8, 12, 16, 17]
        for step, state in enumerate(states):
            resumed = PackedShards(bake.url, 0, 2).loader(num_workers if step % 3 == 0 else 0)
            resumed.load_state_dict(state)
            assert resumed.state_dict() == state
            assert numbers(resumed) == read[step:]
            assert resumed.state_dict() == loader.state_dict()


@pytest.mark.parametrize("old_size", [1, 2, 3])
@pytest.mark.parametrize("new_size", [1, 2, 4])
@pytest.mark.parametrize("epoch", [0, 1])
def test_resume_at_another_world_size_reads_the_packs_that_are_left(
    bake: Made, old_size: int, new_size: int, epoch: int
) -> None:
    before = PackedShards(bake.url, 0, old_size).loader()
    before.set_epoch(epoch)
    list(islice(before, 2))
    position = before.state_dict()["position"]
    assert position == 2 * 2 * old_size
    sampler = DistributedSampler(range(NUM_PACKS), num_replicas=1, rank=0)
    sampler.set_epoch(epoch)
    left = list(sampler)[position:]
    read: list[list[int]] = []
    for rank in range(new_size):
        after = PackedShards(bake.url, rank, new_size).loader()
        after.load_state_dict(before.state_dict())
        read.append([number for batch in numbers(after) for number in batch])
    assert len({len(of_rank) for of_rank in read}) == 1
    in_order = [number for turn in zip(*read, strict=True) for number in turn]
    assert in_order[: len(left)] == left


def test_a_state_of_something_else_is_refused(bake: Made) -> None:
    state = {"version": 1, "stream": "stream-a", "epoch": 0, "position": 4}
    with pytest.raises(StateMismatch, match="saved for stream 'stream-a', this bake is stream 'stream-v'"):
        PackedShards(bake.url).loader().load_state_dict(state)
    loader = PackedShards(bake.url, 0, 2).loader()
    next(iter(loader))
    assert loader.state_dict() == {"version": 1, "stream": "stream-v", "epoch": 0, "position": 4}


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_other_orders(tmp_path: Path, order: str) -> None:
    made = write_vlm_bake(tmp_path, 7, world_size=2, order=order, order_seed=5)
    loader = PackedShards(made.url, 0, 1).loader()
    epochs = [[number for batch in numbers(loader) for number in batch] for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(7))] * 3
    if order == "sequential":
        assert epochs == [list(range(7))] * 3
    else:
        expected = [
            torch.randperm(7, generator=torch.Generator().manual_seed(5 + epoch)).tolist() for epoch in range(3)
        ]
        assert epochs == expected


def test_an_unshuffled_recipe_reads_by_number_in_every_epoch(tmp_path: Path) -> None:
    made = write_vlm_bake(tmp_path, 5, shuffle=False)
    loader = PackedShards(made.url).loader()
    assert numbers(loader) == numbers(loader) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("world_size", [1, 2])
def test_length_grouped_batches_hold_neighbours_in_length(tmp_path: Path, world_size: int) -> None:
    made = write_vlm_bake(tmp_path, 12, world_size=world_size, order="length_grouped", order_seed=42, packing="none")
    lengths = [sum(len(sample["input_ids"]) for sample in pack) for pack in made.samples]
    for epoch in range(3):
        expected = length_grouped_order(lengths, 2 * world_size, epoch=epoch, seed=42).tolist()
        for reading_size in (1, 2):  # the order is the bake's, whoever reads it
            found = []
            for rank in range(reading_size):
                loader = PackedShards(made.url, rank, reading_size).loader()
                loader.set_epoch(epoch)
                found.append([number for batch in numbers(loader) for number in batch])
            assert [number for turn in zip(*found, strict=True) for number in turn] == expected


def test_with_shard_data_every_rank_shuffles_its_own_lane(tmp_path: Path) -> None:
    made = write_vlm_bake(tmp_path, 13, lane_lengths=[7, 6])
    for epoch in range(3):
        for rank, (first, count) in enumerate([(0, 7), (7, 6)]):
            sampler = DistributedSampler(range(count), num_replicas=1, rank=0)
            sampler.set_epoch(epoch)
            loader = PackedShards(made.url, rank, 2, tail="drop").loader()
            loader.set_epoch(epoch)
            found = [number - first for batch in numbers(loader) for number in batch]
            assert found == list(sampler)[:6]


def test_lengths_that_are_missing_or_of_another_bake_are_an_error(tmp_path: Path) -> None:
    made = write_vlm_bake(tmp_path, 5, order="length_grouped", packing="none")
    content = (tmp_path / "plan/lengths.npy").read_bytes()
    (tmp_path / "plan/lengths.npy").write_bytes(content[:-4])
    with pytest.raises(FormatError, match=r"lengths\.npy"):
        PackedShards(made.url)
    (tmp_path / "plan/lengths.npy").unlink()
    with pytest.raises(FormatError, match=r"plan/lengths\.npy cannot be read"):
        PackedShards(made.url)


@pytest.mark.parametrize("fields", [(), ("images",), ("videos",)])
def test_media_that_are_left_out_are_absent_and_the_rest_is_whole(bake: Made, fields: tuple[str, ...]) -> None:
    whole = list(PackedShards(bake.url))
    part = list(PackedShards(bake.url, fields=fields))
    assert any("pixel_values" in batch for batch in whole)
    assert any("pixel_values_videos" in batch for batch in whole)
    for batch, full in zip(part, whole, strict=True):
        assert batch.keys() <= full.keys()
        assert ("pixel_values" in batch) == ("images" in fields and "pixel_values" in full)
        assert ("video_grid_thw" in batch) == ("videos" in fields and "video_grid_thw" in full)
        assert torch.equal(batch["input_ids"], full["input_ids"])


@pytest.mark.parametrize("options", [{"shuffle": True}, {"redraw_timesteps": True}, {"fields": ("vit",)}])
def test_options_of_the_other_recipe_are_refused(bake: Made, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"BAGEL recipe|\['images', 'videos'\]"):
        PackedShards(bake.url, **options)


def test_pixels_are_bfloat16_unless_asked_for_otherwise(bake: Made) -> None:
    half, whole = PackedShards(bake.url), PackedShards(bake.url, pixel_dtype=torch.float32, verify=True, read_ahead=3)
    for batch, exact in zip(half, whole, strict=True):
        for key in ("pixel_values", "pixel_values_videos"):
            if key in exact:
                assert exact[key].dtype == torch.float32
                assert torch.equal(batch[key], exact[key].bfloat16())


def test_a_remote_bake_gives_the_same_batches_with_any_worker_count(bake: Made, s3: str, tmp_path: Path) -> None:
    import fsspec

    fsspec.filesystem("s3").put(bake.url, f"{s3}/vlm", recursive=True)
    expected = reference(2, 1, 0)
    for num_workers in (0, 2):
        assert numbers(PackedShards(f"{s3}/vlm", 1, 2).loader(num_workers)) == expected
    assert numbers(PackedShards(f"{s3}/vlm", 1, 2, cache_dir=str(tmp_path))) == expected


def test_tokens_of_injected_pictures_are_masked_packed_or_not(bake: Made) -> None:
    header, arrays = stored_pack(0, bake.samples[0][:1] * 2, bake.settings)
    header = replace(header, document_numbers_masked=((1, 2),))
    length = header.seq_lens[0]
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    packed = pack_in_memory(StoredPack(lane=0, pack=0, header=header, arrays=tensors), bake.settings, torch.bfloat16)
    assert packed.document_ids.tolist() == [1, 0, 0, *[1] * (length - 3), *[2] * length]
    alone = replace(bake.settings, packing="none")
    assert pack_in_memory(StoredPack(lane=0, pack=0, header=header, arrays=tensors), alone, torch.float32)
    tensors["attention_mask"] = torch.zeros(header.num_tokens, dtype=torch.uint8)
    masked = pack_in_memory(StoredPack(lane=0, pack=0, header=header, arrays=tensors), alone, torch.float32)
    assert not masked.document_ids.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.zeros(3, dtype=torch.int32)}, "labels has 3 entries"),
        ({"position_ids": torch.zeros((3, 2), dtype=torch.int32)}, "position_ids has 2 entries"),
    ],
)
def test_a_pack_that_contradicts_its_header_is_an_error(bake: Made, change: dict[str, Any], message: str) -> None:
    header, arrays = stored_pack(0, bake.samples[0], bake.settings)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()} | change
    with pytest.raises(FormatError, match=message):
        pack_in_memory(StoredPack(lane=0, pack=0, header=header, arrays=tensors), bake.settings, torch.bfloat16)
