"""What a training run sees: the same packs in the same order, however it is read, stopped and resumed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from loaders import BakeUnfinished, PackedBatch, PackedShards, StateMismatch
from loaders.order import CanonicalOrder
from tests.loaders.synthetic import draw_pack, members, seed_of, write_bake

LANES = [7, 5, 6]
ORDER = CanonicalOrder(LANES)
Place = tuple[int, int]


@pytest.fixture(scope="module")
def bake(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bake")
    write_bake(folder, LANES)
    return str(folder)


def places(batches: Iterable[PackedBatch]) -> list[Place]:
    return [(batch.lane, batch.pack) for batch in batches]


def canonical(positions: Iterable[int]) -> list[Place]:
    return [ORDER.pack_at(position) for position in positions]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 18])
def test_rank_r_of_w_reads_positions_r_then_r_plus_w(bake: str, world_size: int) -> None:
    steps = 18 // world_size
    for rank in range(world_size):
        dataset = PackedShards(bake, rank, world_size)
        assert len(dataset) == steps
        assert places(dataset) == canonical(range(rank, steps * world_size, world_size))


@pytest.mark.parametrize("world_size", [4, 5, 25])
def test_a_repeated_tail_gives_every_rank_the_same_number_of_steps(bake: str, world_size: int) -> None:
    steps = -(-18 // world_size)
    read = [places(PackedShards(bake, rank, world_size, tail="repeat")) for rank in range(world_size)]
    assert {len(of_rank) for of_rank in read} == {steps}
    in_order = [place for step in zip(*read, strict=True) for place in step]
    assert in_order == canonical(position % 18 for position in range(steps * world_size))


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_worker_count_never_changes_the_order(bake: str, num_workers: int) -> None:
    dataset = PackedShards(bake, 1, 2)
    expected = canonical(range(1, 18, 2))
    assert places(dataset.loader(num_workers)) == expected
    assert places(DataLoader(dataset, batch_size=None, num_workers=num_workers)) == expected


def test_batches_hold_what_the_pack_holds(bake: str) -> None:
    for batch in PackedShards(bake, verify=True).loader(1):
        expected, _ = members(draw_pack(seed_of(batch.lane, batch.pack)), "raw")
        assert torch.equal(batch.packed_text_ids, torch.from_numpy(expected["packed_text_ids"]).long())
        assert torch.equal(batch.vae_pixels, torch.from_numpy(expected["vae_pixels"]))


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_resume_at_every_step_goes_on_as_if_nothing_had_happened(bake: str, num_workers: int) -> None:
    dataset = PackedShards(bake, 0, 2)
    uninterrupted = places(dataset.loader())
    loader = dataset.loader(num_workers)
    states = [loader.state_dict(), *(loader.state_dict() for _ in loader)]
    assert [state["position"] for state in states] == list(range(0, 19, 2))
    for step, state in enumerate(states):
        resumed = PackedShards(bake, 0, 2).loader(num_workers if step % 4 == 0 else 0)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert places(resumed) == uninterrupted[step:]
        assert resumed.state_dict() == loader.state_dict()


@pytest.mark.parametrize("old_size", [1, 2, 3, 5])
@pytest.mark.parametrize("new_size", [1, 2, 4])
def test_resume_at_another_world_size_goes_on_at_the_same_position(bake: str, old_size: int, new_size: int) -> None:
    loader = PackedShards(bake, 0, old_size).loader()
    list(islice(loader, 2))
    position = loader.state_dict()["position"]
    assert position == 2 * old_size
    read: list[list[Place]] = []
    for rank in range(new_size):
        resumed = PackedShards(bake, rank, new_size).loader()
        resumed.load_state_dict(loader.state_dict())
        read.append(places(resumed))
    steps = (18 - position) // new_size
    in_order = [place for step in zip(*read, strict=True) for place in step]
    assert in_order == canonical(range(position, position + steps * new_size))


def test_a_state_is_four_plain_values(bake: str) -> None:
    loader = PackedShards(bake, 0, 3).loader()
    next(iter(loader))
    assert loader.state_dict() == {"version": 1, "stream": "stream-a", "epoch": 0, "position": 3}


def test_a_state_survives_the_extension_of_a_bake(bake: str, tmp_path: Path) -> None:
    write_bake(tmp_path, [9, 9, 9])
    loader = PackedShards(bake).loader()
    list(islice(loader, 4))
    longer = PackedShards(str(tmp_path)).loader()
    longer.load_state_dict(loader.state_dict())
    assert places(longer) == [CanonicalOrder([9, 9, 9]).pack_at(position) for position in range(4, 27)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "has version 2, this loader reads version 1"),
        ({"stream": "other"}, "saved for stream 'other', this bake is stream 'stream-a'"),
        ({"position": 19}, "stands at position 19, this bake ends at 18"),
        ({"position": -1}, "position -1 where two integers"),
        ({"epoch": "0"}, "epoch '0'"),
    ],
)
def test_a_state_of_something_else_is_refused_by_what_differs(
    bake: str, change: dict[str, object], message: str
) -> None:
    state = {"version": 1, "stream": "stream-a", "epoch": 0, "position": 4, **change}
    dataset = PackedShards(bake)
    with pytest.raises(StateMismatch, match=message):
        dataset.loader().load_state_dict(state)
    with pytest.raises(StateMismatch, match=message):
        dataset.load_state_dict(state)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 on torch 2.14
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("num_read", [0, 1, 2, 5, 8])
def test_torchdatas_loader_resumes_it_too(bake: str, num_workers: int, num_read: int) -> None:
    expected = canonical(range(0, 18, 2))
    loader = StatefulDataLoader(PackedShards(bake, 0, 2), batch_size=None, num_workers=num_workers)
    batches = iter(loader)
    assert places(islice(batches, num_read)) == expected[:num_read]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    resumed = StatefulDataLoader(PackedShards(bake, 0, 2), batch_size=None, num_workers=num_workers)
    resumed.load_state_dict(state)
    assert places(resumed) == expected[num_read:]


def test_an_epoch_follows_the_other_and_shuffling_keeps_rounds_together(bake: str) -> None:
    loader = PackedShards(bake, shuffle=True, shuffle_window=2).loader()
    first, second, third = places(loader), places(loader), places(loader)
    assert loader.epoch == 3
    assert first == canonical(range(18))
    assert sorted(first) == sorted(second) == sorted(third)
    assert len({tuple(epoch) for epoch in (first, second, third)}) == 3
    for step in range(5):  # all three lanes have five packs
        assert [lane for lane, _ in second[3 * step : 3 * step + 3]] == [0, 1, 2]
        assert len({pack for _, pack in second[3 * step : 3 * step + 3]}) == 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_shuffled_epoch_resumes_exactly(bake: str, num_workers: int) -> None:
    settings: dict[str, Any] = {"shuffle": True, "shuffle_window": 2, "redraw_timesteps": True}
    loader = PackedShards(bake, **settings).loader()
    loader.set_epoch(2)
    expected = list(loader)
    resumed = PackedShards(bake, **settings).loader(num_workers)
    resumed.load_state_dict({"version": 1, "stream": "stream-a", "epoch": 2, "position": 7})
    resumed.set_epoch(2)  # as a training loop does at the head of every epoch
    found = list(resumed)
    assert places(found) == places(expected)[7:]
    for ours, theirs in zip(found, expected[7:], strict=True):
        if hasattr(theirs, "packed_timesteps"):
            assert torch.equal(ours.packed_timesteps, theirs.packed_timesteps)


def test_an_epoch_without_shuffling_repeats_the_first(bake: str) -> None:
    loader = PackedShards(bake).loader()
    assert places(loader) == places(loader)


def test_an_iteration_that_is_left_early_begins_again(bake: str) -> None:
    loader = PackedShards(bake).loader()
    assert places(islice(loader, 3)) == places(islice(loader, 3))


def test_redrawn_timesteps_differ_by_epoch_and_conditions_stay(bake: str) -> None:
    dataset = PackedShards(bake, redraw_timesteps=True)
    planned, again, later = (dataset.batch_at(epoch, 1).packed_timesteps for epoch in (0, 1, 2))
    assert torch.equal(planned, PackedShards(bake).batch_at(5, 1).packed_timesteps)
    assert torch.equal(torch.isinf(planned), torch.isinf(again))
    noised = torch.isfinite(planned)
    assert not torch.equal(planned[noised], again[noised])
    assert not torch.equal(again[noised], later[noised])


@pytest.mark.parametrize("fields", [(), ("vit",), ("vae",)])
def test_fields_that_are_left_out_are_absent_and_the_rest_is_whole(bake: str, fields: tuple[str, ...]) -> None:
    whole, part = PackedShards(bake).batch_at(0, 0), PackedShards(bake, fields=fields).batch_at(0, 0)
    assert hasattr(part, "packed_vit_tokens") == ("vit" in fields)
    assert hasattr(part, "padded_images") == ("vae" in fields)
    assert hasattr(part, "packed_timesteps") == ("vae" in fields)
    found, expected = part.to_dict(), whole.to_dict()
    assert found.keys() <= expected.keys()
    assert torch.equal(found["packed_position_ids"], expected["packed_position_ids"])


def test_reading_ahead_in_threads_changes_nothing(bake: str) -> None:
    assert places(PackedShards(bake, read_ahead=3)) == canonical(range(18))


def test_a_remote_bake_gives_the_same_packs_with_any_worker_count(bake: str, s3: str) -> None:
    import fsspec

    fsspec.filesystem("s3").put(bake, f"{s3}/bake", recursive=True)
    for num_workers in (0, 2):
        assert places(PackedShards(f"{s3}/bake").loader(num_workers)) == canonical(range(18))


def test_a_dataset_travels_to_a_spawned_worker(bake: str) -> None:
    dataset = PackedShards(bake, 0, 2)
    list(islice(dataset, 2))
    copied = pickle.loads(pickle.dumps(dataset))
    assert places(copied) == canonical(range(0, 18, 2))
    assert places(dataset.loader(1, multiprocessing_context="spawn")) == canonical(range(0, 18, 2))


def test_rank_and_size_come_from_the_environment(bake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "RANK", "1")
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "3")
    dataset = PackedShards(bake)
    assert (dataset.rank, dataset.world_size) == (1, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, "one without the other"),
        ({"world_size": 2}, "one without the other"),
        ({"rank": 2, "world_size": 2}, "rank 2 is not one of 0 … 1"),
        ({"fields": ("audio",)}, "audio"),
        ({"tail": "keep"}, "'keep'"),
        ({"shuffle_window": 0}, "shuffle_window"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(bake: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PackedShards(bake, **arguments)


def test_more_ranks_than_packs_is_an_error_unless_the_tail_repeats(bake: str) -> None:
    with pytest.raises(BakeUnfinished, match="18 packs, fewer than one for each of 19 ranks"):
        PackedShards(bake, 0, 19)
    assert len(PackedShards(bake, 0, 19, tail="repeat")) == 1


def test_a_path_object_and_one_field_by_name_are_understood(bake: str) -> None:
    dataset = PackedShards(Path(bake), 0, 1, fields="vit")

    assert dataset.fields == {"vit"}
    assert places(dataset) == canonical(range(18))


@pytest.mark.parametrize("state", [None, "state", 5])
def test_a_state_that_is_no_dict_is_refused(bake: str, state: Any) -> None:
    with pytest.raises(StateMismatch, match="where a dict belongs"):
        PackedShards(bake, 0, 1).loader().load_state_dict(state)


def test_a_url_below_a_file_is_no_bake(bake: str) -> None:
    with pytest.raises(BakeUnfinished, match=r"holds no dataset\.json"):
        PackedShards(f"{bake}/dataset.json", 0, 1)


def test_an_empty_bake_is_an_error(tmp_path: Path) -> None:
    write_bake(tmp_path, [0, 0])
    with pytest.raises(BakeUnfinished, match="0 packs"):
        PackedShards(str(tmp_path), tail="repeat")
