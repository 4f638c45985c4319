"""Laws 1 to 4 of a pack, each broken on purpose."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from pipeline.validate.packs import PackLimits, pack_violations
from tests.loaders.synthetic import DOWNSAMPLE, MAX_NUM_TOKENS, PATCH, VOCABULARY, draw_pack

LIMITS = PackLimits(
    max_num_tokens=MAX_NUM_TOKENS,
    max_num_tokens_per_sample=100,
    vocab_size=VOCABULARY,
    counts_only=False,
    vae_image_downsample=DOWNSAMPLE,
    vit_patch_size=PATCH,
)
DRAWN = draw_pack(0)


def broken_laws(
    header: dict[str, Any] | None = None, limits: dict[str, Any] | None = None, **arrays: Any
) -> dict[int, str]:
    """Law → complaint of the pack with some header fields, limits and arrays replaced."""
    changed = {**DRAWN.arrays, **arrays}
    violations = pack_violations(
        "00000-00000000",
        dataclasses.replace(DRAWN.header, **(header or {})),
        changed,
        dataclasses.replace(LIMITS, **(limits or {})),
    )
    assert all(violation.subject == "pack 00000-00000000" for violation in violations)
    return {violation.law: violation.complaint for violation in violations}


def without_last(name: str) -> np.ndarray[Any, Any]:
    return DRAWN.arrays[name][:-1]


@pytest.mark.parametrize("seed", range(9))
def test_a_lawful_pack_breaks_nothing(seed: int) -> None:
    drawn = draw_pack(seed)
    assert pack_violations("00000-00000000", drawn.header, drawn.arrays, LIMITS) == []


def test_a_token_that_no_index_names_breaks_law_one() -> None:
    text = DRAWN.arrays["packed_text_indexes"].copy()
    text[1] = text[0]
    assert "do not partition [0, 56)" in broken_laws(packed_text_indexes=text)[1]


@pytest.mark.parametrize(
    "name",
    [
        "packed_position_ids",
        "packed_text_ids",
        "packed_vit_position_ids",
        "packed_latent_position_ids",
        "vit_token_seqlens",
    ],
)
def test_a_token_without_what_it_needs_breaks_law_one(name: str) -> None:
    assert name in broken_laws(**{name: without_last(name)})[1]


def test_an_image_with_another_grid_than_its_size_breaks_law_one() -> None:
    shapes = ((1, 9), *DRAWN.header.patchified_vae_latent_shapes[1:])
    assert "another latent grid" in broken_laws({"patchified_vae_latent_shapes": shapes})[1]


@pytest.mark.parametrize("name", ["split_lens", "sample_lens"])
def test_sums_that_differ_break_law_two(name: str) -> None:
    longer = (*getattr(DRAWN.header, name)[:-1], 99)
    assert "the sequence is 56" in broken_laws({name: longer})[2]


def test_a_split_across_two_samples_breaks_law_two() -> None:
    first, second, *rest = DRAWN.header.sample_lens
    assert "masks would mix samples" in broken_laws({"sample_lens": (first - 1, second + 1, *rest)})[2]


def test_a_mode_nobody_knows_breaks_law_two() -> None:
    modes = ("loud", *DRAWN.header.attn_modes[1:])
    assert "loud" in broken_laws({"attn_modes": modes})[2]


def test_a_sample_without_provenance_breaks_law_two() -> None:
    assert "2 provenances" in broken_laws({"provenance": DRAWN.header.provenance[1:]})[2]


@pytest.mark.parametrize("name", ["packed_label_ids", "ce_loss_indexes", "ce_loss_weights"])
def test_labels_places_and_weights_of_different_lengths_break_law_three(name: str) -> None:
    assert "loss weights" in broken_laws(**{name: without_last(name)})[3]


def test_a_loss_on_a_token_that_is_no_text_breaks_law_three() -> None:
    places = DRAWN.arrays["ce_loss_indexes"].copy()
    places[0] = DRAWN.arrays["packed_vae_token_indexes"][0]
    assert "no text" in broken_laws(ce_loss_indexes=places)[3]


@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan, np.inf])
def test_a_weight_that_is_no_positive_number_breaks_law_three(weight: float) -> None:
    weights = DRAWN.arrays["ce_loss_weights"].copy()
    weights[0] = weight
    assert "positive number" in broken_laws(ce_loss_weights=weights)[3]


def test_noise_on_a_token_of_no_image_breaks_law_three() -> None:
    noised = DRAWN.arrays["mse_loss_indexes"].copy()
    noised[0] = 0
    assert "no VAE image" in broken_laws(mse_loss_indexes=noised)[3]


def test_a_noised_token_without_timestep_breaks_law_three() -> None:
    steps = np.full_like(DRAWN.arrays["packed_timesteps"], -np.inf)
    assert "no finite timestep" in broken_laws(packed_timesteps=steps)[3]


def test_a_timestep_on_a_condition_breaks_law_three() -> None:
    steps = np.zeros_like(DRAWN.arrays["packed_timesteps"])
    assert "other than -inf" in broken_laws(packed_timesteps=steps)[3]


def test_a_pack_that_teaches_nothing_breaks_law_three() -> None:
    nothing = np.zeros(0, dtype=np.int32)
    names = ("packed_label_ids", "ce_loss_indexes", "ce_loss_weights", "mse_loss_indexes")
    steps = np.full_like(DRAWN.arrays["packed_timesteps"], -np.inf)
    assert "carries loss" in broken_laws(packed_timesteps=steps, **dict.fromkeys(names, nothing))[3]


def test_budgets_are_judged_where_our_packer_packed_and_only_counted_where_the_reference_did() -> None:
    for limits in ({"max_num_tokens": 55}, {"max_num_tokens_per_sample": 20}):
        assert "exceed" in broken_laws(limits=limits)[4]
        assert broken_laws(limits={**limits, "counts_only": True}) == {}


@pytest.mark.parametrize("name", ["packed_text_ids", "packed_label_ids"])
@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_an_id_outside_the_vocabulary_breaks_law_four(name: str, token: int) -> None:
    ids = DRAWN.arrays[name].copy()
    ids[0] = token
    assert f"holds id {token}, the vocabulary ends at {VOCABULARY}" in broken_laws(**{name: ids})[4]
