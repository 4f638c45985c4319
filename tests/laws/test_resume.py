"""Law 8: resume is an integer. Any step, any worker count, another world size, a longer bake: the same packs go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loaders import PackedShards
from tests.datamaker.recipe import Recipe
from tests.laws.reading import raw_manifest, raw_packs
from tests.laws.replay_process import batch_digest, replay_in_fresh_process
from tests.parity.baking import bake_recipe

LANES = "four lanes, flex, small shards"


def canonical_order(folder: Path) -> list[tuple[int, int]]:
    """(lane, pack) by position: round robin over the lanes that still have packs (design.md, "Canonical order")."""
    left = [sum(shard["num_packs"] for shard in lane["shards"]) for lane in raw_manifest(folder)["lanes"]]
    rounds = range(max(left))
    return [(lane, number) for number in rounds for lane in range(len(left)) if number < left[lane]]


@pytest.fixture(scope="module")
def uninterrupted(finished: Callable[[str], Path]) -> list[str]:
    """Digest of every pack in canonical order: what one rank reads without a break."""
    loader = PackedShards(str(finished(LANES)), rank=0, world_size=1).loader(num_workers=0)
    return [batch_digest(batch) for batch in loader]


def test_one_rank_reads_the_canonical_order(finished: Callable[[str], Path]) -> None:
    folder = finished(LANES)
    packs = {(pack.lane, pack.number): pack for pack in raw_packs(folder)}
    order = canonical_order(folder)
    loader = PackedShards(str(folder), rank=0, world_size=1).loader(num_workers=0)
    seen = 0
    for place, batch in zip(order, loader, strict=True):
        assert batch.batch_data_indexes == packs[place].header["batch_data_indexes"]
        assert batch.packed_text_ids.tolist() == packs[place].arrays["packed_text_ids"].tolist()
        seen += 1
    assert seen == len(packs)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 7])
def test_any_world_size_reads_the_same_packs_in_canonical_order(
    world_size: int, finished: Callable[[str], Path], uninterrupted: list[str]
) -> None:
    steps = len(uninterrupted) // world_size
    for rank in range(world_size):
        loader = PackedShards(str(finished(LANES)), rank=rank, world_size=world_size).loader(num_workers=0)
        assert [batch_digest(batch) for batch in loader] == uninterrupted[rank::world_size][:steps]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_fresh_process_resumes_at_every_step(
    num_workers: int, finished: Callable[[str], Path], uninterrupted: list[str]
) -> None:
    folder, world_size, rank, ahead = finished(LANES), 2, 1, 3
    expected = uninterrupted[rank::world_size]
    ask: dict[str, Any] = {"rank": rank, "world_size": world_size, "num_workers": num_workers}
    [whole] = replay_in_fresh_process(folder, states=[None], steps=10**6, **ask)
    assert whole["packs"] == expected
    resumed = replay_in_fresh_process(folder, states=whole["states"][:-1], steps=ahead, **ask)
    assert len(resumed) == len(expected)
    for step, answer in enumerate(resumed):
        assert answer["packs"] == expected[step : step + ahead], f"resumed at step {step}"
        assert answer["states"] == whole["states"][step : step + len(answer["states"])], f"resumed at step {step}"


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_another_world_size_goes_on_at_the_same_position(
    world_size: int, finished: Callable[[str], Path], uninterrupted: list[str]
) -> None:
    folder = finished(LANES)
    loader = PackedShards(str(folder), rank=0, world_size=2).loader(num_workers=0)
    states = [loader.state_dict()]
    states += [loader.state_dict() for _ in loader]
    for step in (0, 1, 4, 9):
        left = uninterrupted[2 * step :]
        for rank in range(world_size):
            resumed = PackedShards(str(folder), rank=rank, world_size=world_size).loader(num_workers=0)
            resumed.load_state_dict(states[step])
            steps = len(left) // world_size
            assert [batch_digest(batch) for batch in resumed] == left[rank::world_size][:steps]


def test_a_state_is_a_few_small_numbers(finished: Callable[[str], Path]) -> None:
    loader = PackedShards(str(finished(LANES)), rank=0, world_size=2).loader(num_workers=0)
    next(iter(loader))
    state = loader.state_dict()
    assert state.keys() == {"version", "stream", "epoch", "position"}
    assert state["position"] == 2
    assert state["stream"] == raw_manifest(finished(LANES))["stream"]


def test_a_state_of_a_shorter_bake_goes_on_in_the_longer_one(recipe: Recipe, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"world_size": 2, "shard_bytes": 400_000}
    folder = bake_recipe(recipe, tmp_path, 4, **settings)
    loader = PackedShards(str(folder), rank=1, world_size=2).loader(num_workers=0)
    first, states = [], [loader.state_dict()]
    for batch in loader:
        first.append(batch_digest(batch))
        states.append(loader.state_dict())
    bake_recipe(recipe, tmp_path, 7, **settings)
    longer = PackedShards(str(folder), rank=1, world_size=2).loader(num_workers=0)
    whole = [batch_digest(batch) for batch in longer]
    assert whole[:4] == first
    for step, state in enumerate(states):
        resumed = PackedShards(str(folder), rank=1, world_size=2).loader(num_workers=0)
        resumed.load_state_dict(state)
        assert [batch_digest(batch) for batch in resumed] == whole[step:]


def test_a_state_of_another_stream_is_refused(finished: Callable[[str], Path]) -> None:
    loader = PackedShards(str(finished(LANES)), rank=0, world_size=2).loader(num_workers=0)
    other = PackedShards(str(finished("one lane, dense masks")), rank=0, world_size=1).loader(num_workers=0)
    with pytest.raises(Exception, match="stream"):
        loader.load_state_dict(other.state_dict())
