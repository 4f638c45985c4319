"""The layout of a pack is the reference's, token by token."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nemo_automodel.components.datasets.multimodal import packing as reference
from nemo_automodel.components.datasets.multimodal import utils as reference_utils

from loaders.format import ARRAY_DTYPES
from pipeline.records import Item, ItemKind, PlannedItem, PlannedSample, RowId
from pipeline.render.layout import LayoutRules, lay_out

BOS, EOS, START, END = 1001, 1002, 1003, 1004
RULES = LayoutRules(
    bos_token_id=BOS,
    eos_token_id=EOS,
    start_of_image=START,
    end_of_image=END,
    vit_patch_px=14,
    vit_max_per_side=70,
    vae_cell_px=16,
    vae_max_per_side=32,
    interpolate_pos=False,
)


def text(num_tokens, *, loss=False, kept=True):
    item = Item(kind=ItemKind.TEXT, loss=loss, enable_cfg=not loss, num_tokens=num_tokens, text=0)
    return PlannedItem(item=item, kept=kept)


def vit(rows, columns, *, kept=True):
    item = Item(
        kind=ItemKind.VIT,
        enable_cfg=True,
        num_tokens=rows * columns,
        image=0,
        width_px=14 * columns,
        height_px=14 * rows,
    )
    return PlannedItem(item=item, kept=kept)


def vae(rows, columns, *, timestep=None, kept=True):
    item = Item(
        kind=ItemKind.VAE,
        loss=timestep is not None,
        enable_cfg=timestep is None,
        num_tokens=rows * columns,
        image=0,
        width_px=16 * columns,
        height_px=16 * rows,
    )
    return PlannedItem(item=item, kept=kept, timestep=float("nan") if timestep is None else timestep)


def sample(*items):
    row = RowId(source="g/d", path="a", row=0, unit="a", index_row=0)
    return PlannedSample(row=row, items=items, data_indexes="0", worker_id=0, dataset_name="g")


def ids_of(samples, seed=0):
    """Token ids of every kept text, drawn from a seed."""
    generator = np.random.default_rng(seed)
    return [
        generator.integers(0, 1000, planned.item.num_tokens, dtype=np.int32)
        for one in samples
        for planned in one.items
        if planned.kept and planned.item.kind is ItemKind.TEXT
    ]


def reference_pack(samples, token_ids, monkeypatch, *, interpolate_pos, use_flex):
    """What the reference's own packer makes of the same samples, its draws replaced by the planned ones."""
    shell = object.__new__(reference.PackedDataset)
    shell.bos_token_id, shell.eos_token_id, shell.start_of_image, shell.end_of_image = BOS, EOS, START, END
    shell.use_flex, shell.max_num_tokens = use_flex, 4096
    shell.get_flattened_position_ids = (
        reference_utils.get_flattened_position_ids_interpolate
        if interpolate_pos
        else reference_utils.get_flattened_position_ids_extrapolate
    )
    shell.data_config = SimpleNamespace(
        text_cond_dropout_prob=0.5,
        vit_cond_dropout_prob=0.5,
        vae_cond_dropout_prob=0.5,
        vit_patch_size=14,
        max_num_patch_per_side=70,
        vae_image_downsample=16,
        max_latent_size=32,
    )
    items = [planned for one in samples for planned in one.items]
    dropouts = iter(1.0 if planned.kept else 0.0 for planned in items if planned.item.enable_cfg)
    timesteps = iter(planned.timestep for planned in items if planned.item.kind is ItemKind.VAE and planned.item.loss)
    monkeypatch.setattr(reference.random, "random", lambda: next(dropouts))
    monkeypatch.setattr(reference.np.random, "randn", lambda: next(timesteps))
    kept_ids = iter(token_ids)
    status = shell.set_sequence_status()
    names = {ItemKind.TEXT: "text", ItemKind.VIT: "vit_image", ItemKind.VAE: "vae_image"}
    for one in samples:
        texts = [planned for planned in one.items if planned.item.kind is ItemKind.TEXT]
        images = [planned.item for planned in one.items if planned.item.kind is not ItemKind.TEXT]
        status = shell.pack_sequence(
            {
                "image_tensor_list": [torch.zeros(3, item.height_px, item.width_px) for item in images],
                "text_ids_list": [next(kept_ids).tolist() if planned.kept else [0] for planned in texts],
                "sequence_plan": [
                    {
                        "type": names[planned.item.kind],
                        "enable_cfg": int(planned.item.enable_cfg),
                        "loss": int(planned.item.loss),
                        "special_token_loss": 0,
                        "special_token_label": None,
                    }
                    for planned in one.items
                ],
            },
            status,
        )
    return shell.to_tensor(status)


def assert_equals_the_reference(samples, monkeypatch, *, interpolate_pos=False, use_flex=True):
    token_ids = ids_of(samples)
    rules = LayoutRules(
        **{**{name: getattr(RULES, name) for name in RULES.__slots__}, "interpolate_pos": interpolate_pos}
    )
    layout = lay_out(samples, token_ids, rules)
    with monkeypatch.context() as patched:
        batch = reference_pack(samples, token_ids, patched, interpolate_pos=interpolate_pos, use_flex=use_flex)
    assert layout.sequence_length == batch.pop("sequence_length")
    if use_flex:
        pad = 4096 - layout.sequence_length
        assert [*layout.sample_lens, pad] == batch.pop("sample_lens")
        assert [*layout.split_lens, pad] == batch.pop("split_lens")
        assert [*layout.attn_modes, "causal"] == batch.pop("attn_modes")
    else:
        assert list(layout.sample_lens) == batch.pop("sample_lens")
        masks = batch.pop("nested_attention_masks")
        assert [len(mask) for mask in masks] == list(layout.sample_lens)
    batch.pop("padded_images", None)
    batch.pop("packed_vit_tokens", None)
    assert list(layout.patchified_vae_latent_shapes) == batch.pop("patchified_vae_latent_shapes", [])
    assert layout.arrays.keys() == batch.keys()
    for name, array in layout.arrays.items():
        assert array.dtype == np.dtype(ARRAY_DTYPES[name]), name
        stored = torch.from_numpy(array)
        expected = batch[name]
        if expected.numel():  # an empty list has no dtype of its own there
            assert expected.dtype == (torch.float32 if stored.dtype == torch.float32 else torch.int64), name
        assert torch.equal(stored.to(expected.dtype), expected), name
    return layout


@pytest.mark.parametrize("use_flex", [True, False])
@pytest.mark.parametrize("interpolate_pos", [True, False])
def test_a_pack_of_every_kind_of_sample_equals_the_reference(monkeypatch, interpolate_pos, use_flex):
    samples = [
        sample(text(5), vae(3, 4, timestep=0.123456789)),
        sample(
            vae(2, 3),
            vit(4, 5),
            text(7),
            vae(2, 3, timestep=-1.5),
            vae(2, 3),
            vit(4, 5),
            text(2),
            vae(1, 1, timestep=2.0),
        ),
        sample(text(3), vit(2, 2), text(6, loss=True), text(4), text(1, loss=True)),
    ]
    assert_equals_the_reference(samples, monkeypatch, interpolate_pos=interpolate_pos, use_flex=use_flex)


def test_dropped_images_move_the_rope_id_and_dropped_texts_do_not(monkeypatch):
    samples = [
        sample(
            vae(2, 3, kept=False), vit(1, 2, kept=False), text(4, kept=False), text(1), vae(1, 1, timestep=0.5), text(1)
        )
    ]
    layout = assert_equals_the_reference(samples, monkeypatch)
    assert layout.arrays["packed_position_ids"].tolist() == [2, 3, 4, 5, 5, 5, 5, 6, 7]


def test_a_sample_whose_items_are_all_dropped_leaves_a_zero(monkeypatch):
    samples = [sample(text(4, kept=False)), sample(text(2), vae(1, 2, timestep=0.0))]
    layout = assert_equals_the_reference(samples, monkeypatch)
    assert layout.sample_lens == (0, 8)


def test_random_packs_equal_the_reference(monkeypatch):
    generator = random.Random(7)

    def item():
        kept = generator.random() < 0.7
        rows, columns = generator.randint(1, 4), generator.randint(1, 4)
        return generator.choice(
            [
                text(generator.randint(0, 9), kept=kept),
                text(generator.randint(0, 9), loss=True),
                vit(rows, columns, kept=kept),
                vae(rows, columns, kept=kept),
                vae(rows, columns, timestep=generator.gauss(0, 1)),
            ]
        )

    for _ in range(60):
        samples = [sample(*(item() for _ in range(generator.randint(1, 6)))) for _ in range(generator.randint(1, 5))]
        if any(planned.kept for one in samples for planned in one.items):
            assert_equals_the_reference(samples, monkeypatch, use_flex=generator.random() < 0.5)


def test_the_worked_example_of_the_docstring():
    layout = lay_out([sample(text(2), vit(2, 2), vae(2, 1, timestep=0.25))], [np.array([7, 8], np.int32)], RULES)
    assert layout.arrays["packed_text_ids"].tolist() == [BOS, 7, 8, EOS, START, END, START, END]
    assert layout.arrays["packed_text_indexes"].tolist() == [0, 1, 2, 3, 4, 9, 10, 13]
    assert layout.arrays["packed_position_ids"].tolist() == [0, 1, 2, 3] + [4] * 6 + [5] * 4
    assert layout.arrays["packed_vit_token_indexes"].tolist() == [5, 6, 7, 8]
    assert layout.arrays["packed_vae_token_indexes"].tolist() == [11, 12]
    assert layout.arrays["packed_timesteps"].tolist() == [0.25, 0.25]
    assert layout.split_lens == (4, 6, 4)
    assert layout.attn_modes == ("causal", "full", "noise")
    assert (layout.num_text_tokens, layout.num_vit_tokens, layout.num_vae_tokens, layout.num_loss_tokens) == (
        8,
        4,
        2,
        2,
    )


def test_ids_that_do_not_fit_the_plan_are_refused():
    with pytest.raises(ValueError, match=r"texts of \[3\] tokens where the plan has \[2\]"):
        lay_out([sample(text(2))], [np.array([7, 8, 9], np.int32)], RULES)
