"""The greedy packer makes the reference's decisions: a story in literal lists, then the oracle itself, live."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from nemo_automodel.components.datasets.multimodal.packing import PackedDataset

from pipeline.config import DatasetConfig, GroupConfig, ImageTransformConfig, SourceConfig
from pipeline.errors import ConfigError, SourceError
from pipeline.plan.greedy import GreedyPacker
from pipeline.plan.packer import Drawn, GroupChoice, Placed
from pipeline.plan.random import LaneRandom
from pipeline.plan_table import RowCounts
from pipeline.records import Item, ItemKind, RowId, Sample

TRANSFORM = ImageTransformConfig(max_image_size=64, min_image_size=16, image_stride=16)


def group(name: str, weight: float = 1.0, is_mandatory: bool = False) -> GroupConfig:
    return GroupConfig(
        name=name,
        kind="t2i_pretrain",
        weight=weight,
        is_mandatory=is_mandatory,
        sources=(SourceConfig(name=f"{name}/a", data_dir="/a", num_used_data=1),),
        image_transform=TRANSFORM,
    )


def text(num_tokens: int, *, enable_cfg: bool = False, loss: bool = False) -> Item:
    return Item(kind=ItemKind.TEXT, num_tokens=num_tokens, text=0, enable_cfg=enable_cfg, loss=loss)


def image(kind: ItemKind, rows: int, columns: int, *, enable_cfg: bool = False, loss: bool = False) -> Item:
    cell = 14 if kind is ItemKind.VIT else 16
    return Item(
        kind=kind,
        num_tokens=rows * columns,
        image=0,
        width_px=columns * cell,
        height_px=rows * cell,
        enable_cfg=enable_cfg,
        loss=loss,
    )


class Groups:
    """Every group's samples, repeated for ever."""

    def __init__(self, *groups: list[tuple[Item, ...]]) -> None:
        self.groups = groups
        self.taken = [0] * len(groups)
        self.accounts: dict[tuple[int, int], RowCounts] = {}

    def draw(self, number: int) -> Drawn:
        samples = self.groups[number]
        pass_number, row = divmod(self.taken[number], len(samples))
        self.taken[number] += 1
        counts = self.accounts.setdefault((number, pass_number), RowCounts())
        counts.drawn += 1
        sample = Sample(
            row=RowId(source=f"{number}", path="", row=row, unit="", index_row=row),
            items=samples[row],
            num_tokens=sum(item.num_tokens for item in samples[row]),
        )
        return Drawn(sample, number, pass_number, f"[{row}]", counts)


def rows_of(pack: list[Placed]) -> list[int]:
    return [placed.drawn.sample.row.row for placed in pack]


def story(lengths: list[int], **limits: int) -> tuple[GreedyPacker, Groups]:
    """One group of text samples that cost exactly `lengths` tokens each."""
    rules = DatasetConfig(groups=(group("g"),), **limits)  # type: ignore[arg-type]
    groups = Groups([(text(length - 2),) for length in lengths])
    return GreedyPacker(rules, groups.draw, LaneRandom(1)), groups


LIMITS = {"expected_num_tokens": 90, "max_num_tokens": 100, "max_num_tokens_per_sample": 80, "prefer_buffer_before": 40}


def test_a_sample_that_does_not_fit_waits_and_opens_the_next_pack() -> None:
    packer, _ = story([60, 70, 30, 20, 50], **LIMITS)
    # 60; 70 waits; 60+30 = 90: emitted. Then 70 from the buffer, 20: 90.
    assert rows_of(packer.next_pack()) == [0, 2]
    assert rows_of(packer.next_pack()) == [1, 3]


def test_with_the_buffer_full_the_pack_is_emitted_and_the_sample_is_lost() -> None:
    packer, groups = story([60, 70, 75, 20, 10], max_buffer_size=1, **LIMITS)
    # 60; 70 waits; 75 does not fit and finds the buffer full: [60] is emitted, 75 is lost; 70 + 20 = 90
    assert rows_of(packer.next_pack()) == [0]
    assert rows_of(packer.next_pack()) == [1, 3]
    assert groups.accounts[0, 0].discarded == 1
    assert [drawn.sample.row.row for drawn in packer.waiting()] == []


def test_a_buffered_sample_that_still_does_not_fit_is_lost_too() -> None:
    packer, groups = story([30, 75, 30, 80, 10, 10], **{**LIMITS, "prefer_buffer_before": 80})
    # 30; 75 waits and is the next taken, as 30 < 80; it does not fit: [30] is emitted, 75 is lost
    assert rows_of(packer.next_pack()) == [0]
    assert groups.accounts[0, 0].discarded == 1


def test_an_over_long_sample_is_dropped_with_its_reason_and_exactly_the_limit_is_kept() -> None:
    packer, groups = story([81, 80, 10], **LIMITS)
    assert rows_of(packer.next_pack()) == [1, 2]
    assert groups.accounts[0, 0].dropped == {"too_long": 1}


def test_a_mandatory_sample_must_be_below_the_limit_not_at_it() -> None:
    rules = DatasetConfig(groups=(group("m", 0.0, True), group("g")), **LIMITS)  # type: ignore[arg-type]
    groups = Groups([(text(78),), (text(58),)], [(text(38),)])
    packer = GreedyPacker(rules, groups.draw, LaneRandom(1))
    assert [placed.drawn.group for placed in packer.next_pack()] == [0, 1]
    assert packer.mandatory_draws == [2, 0]
    assert packer.draws == [0, 1]


def test_a_pack_that_dropout_left_at_length_zero_asks_the_mandatory_groups_again() -> None:
    rules = DatasetConfig(
        groups=(group("m", 0.0, True), group("g")),
        text_cond_dropout_prob=1.0,
        **LIMITS,  # type: ignore[arg-type]
    )
    groups = Groups([(text(10, enable_cfg=True),)], [(text(8, enable_cfg=True),), (text(78),), (text(10),)])
    packer = GreedyPacker(rules, groups.draw, LaneRandom(1))
    pack = packer.next_pack()
    assert [(placed.drawn.group, placed.num_tokens) for placed in pack] == [(0, 0), (1, 0), (0, 0), (1, 80), (1, 12)]


def test_a_number_beyond_every_bound_falls_to_group_zero() -> None:
    class One(LaneRandom):
        def uniform(self) -> float:
            return 1.0

    assert GroupChoice([1.0, 2.0]).pick(One(0)) == 0


def test_weights_of_zero_are_refused() -> None:
    with pytest.raises(ConfigError, match="no group can ever be chosen"):
        GroupChoice([0.0, 0.0])


@pytest.mark.parametrize("is_mandatory", [True, False])
def test_a_lane_of_over_long_samples_only_is_an_error_instead_of_a_loop(is_mandatory: bool) -> None:
    rules = DatasetConfig(groups=(group("big", 1.0, is_mandatory),), **LIMITS)  # type: ignore[arg-type]
    packer = GreedyPacker(rules, Groups([(text(500),)] * 3).draw, LaneRandom(1))
    with pytest.raises(SourceError, match="every sample of big"):
        packer.next_pack()


def test_over_long_samples_of_one_group_do_not_stop_another() -> None:
    rules = DatasetConfig(groups=(group("big", 0.999), group("rare", 0.001)), **LIMITS)  # type: ignore[arg-type]
    packer = GreedyPacker(rules, Groups([(text(500),)], [(text(60),), (text(30),)]).draw, LaneRandom(1))
    assert len(packer.next_pack()) == 2


# ------------------------------------------------------------------------------------------------- the oracle, live


def random_samples(seed: int, count: int) -> list[tuple[Item, ...]]:
    draws = random.Random(seed)
    samples = []
    for _ in range(count):
        items = []
        for _ in range(draws.randrange(1, 6)):
            cfg = draws.random() < 0.5
            kind = draws.choice(list(ItemKind))
            if kind is ItemKind.TEXT:
                items.append(text(draws.randrange(1, 60), enable_cfg=cfg, loss=not cfg))
            else:
                loss = kind is ItemKind.VAE and draws.random() < 0.5
                size = (draws.randrange(1, 7), draws.randrange(1, 7))
                items.append(image(kind, *size, enable_cfg=cfg and not loss, loss=loss))
        samples.append(tuple(items))
    return samples


def oracle_samples(number: int, samples: list[tuple[Item, ...]]) -> Iterator[dict[str, Any]]:
    names = {ItemKind.TEXT: "text", ItemKind.VIT: "vit_image", ItemKind.VAE: "vae_image"}
    while True:
        for row, items in enumerate(samples):
            yield {
                "image_tensor_list": [
                    torch.zeros(3, item.height_px, item.width_px) for item in items if item.kind is not ItemKind.TEXT
                ],
                "text_ids_list": [[5] * item.num_tokens for item in items if item.kind is ItemKind.TEXT],
                "sequence_plan": [
                    {
                        "type": names[item.kind],
                        "enable_cfg": int(item.enable_cfg),
                        "loss": int(item.loss),
                        "special_token_loss": 0,
                        "special_token_label": None,
                    }
                    for item in items
                ],
                "num_tokens": sum(item.num_tokens for item in items),
                "data_indexes": (number, row),
            }


class OracleGroup:
    def __init__(self, number: int, samples: list[tuple[Item, ...]]) -> None:
        self.number, self.samples = number, samples

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return oracle_samples(self.number, self.samples)


def oracle_packs(rules: DatasetConfig, groups: list[list[tuple[Item, ...]]], seed: int) -> Iterator[dict[str, Any]]:
    packed = PackedDataset.__new__(PackedDataset)
    for name, value in rules.model_dump().items():
        setattr(packed, name, value)
    packed.__dict__.update(
        data_config=rules,
        bos_token_id=1,
        eos_token_id=2,
        start_of_image=3,
        end_of_image=4,
        use_flex=True,
        world_size=1,
        local_rank=0,
        num_workers=0,
        _global_seed=seed,
        _loaded_state=None,
        _yielded_batches=0,
        _drop_counters={},
        grouped_weights=[group.weight for group in rules.groups],
        is_mandatory=[group.is_mandatory for group in rules.groups],
        grouped_datasets=[OracleGroup(number, samples) for number, samples in enumerate(groups)],
        get_flattened_position_ids=lambda *_, **__: torch.zeros(1),
    )
    return iter(packed)


@pytest.mark.parametrize(
    ("weights", "mandatory", "limits"),
    [
        ((1.0,), (False,), {"max_buffer_size": 3}),
        ((0.3, 0.3, 0.4), (False, False, False), {"prefer_buffer_before": 300}),
        ((0.2, 0.0, 0.7), (True, True, False), {"max_num_tokens_per_sample": 150}),
        ((1.0, 2.0), (False, True), {"max_buffer_size": 0, "vit_cond_dropout_prob": 0.9}),
        ((5.0, 1.0), (True, False), {"prefer_buffer_before": 0, "text_cond_dropout_prob": 0.9}),
    ],
)
def test_a_hundred_packs_equal_the_oracle_s(
    weights: tuple[float, ...], mandatory: tuple[bool, ...], limits: dict[str, Any]
) -> None:
    settings = {
        "expected_num_tokens": 400,
        "max_num_tokens": 450,
        "max_num_tokens_per_sample": 200,
        "prefer_buffer_before": 200,
        **limits,
    }
    rules = DatasetConfig(
        groups=tuple(group(f"g{number}", *rest) for number, rest in enumerate(zip(weights, mandatory, strict=True))),
        use_flex=True,
        **settings,
    )
    samples = [random_samples(number, 40 + number) for number in range(len(weights))]
    packer = GreedyPacker(rules, Groups(*samples).draw, LaneRandom(99))
    oracle = oracle_packs(rules, samples, 99)
    for _ in range(100):
        expected = next(oracle)
        pack = packer.next_pack()
        assert [(placed.drawn.group, placed.drawn.sample.row.row) for placed in pack] == expected["batch_data_indexes"]
        assert [placed.num_tokens for placed in pack] == expected["sample_lens"][:-1]
        timesteps = [
            timestep
            for placed in pack
            for planned in placed.items
            if planned.kept and planned.item.kind is ItemKind.VAE
            for timestep in [planned.timestep if planned.item.loss else -np.inf] * planned.item.num_tokens
        ]
        assert torch.equal(torch.tensor(timesteps), expected.get("packed_timesteps", torch.tensor([])))
