"""One rule, two forms: dense masks equal the reference's, the flex predicate equals the dense masks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nemo_automodel.components.datasets.multimodal.utils import prepare_attention_mask_per_sample

from loaders.masks import block_mask, dense_mask, dense_masks, mask_mod, splits_of_samples

splits = st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["causal", "full", "noise"])), max_size=6)
packs = st.lists(splits, min_size=1, max_size=4)

Y, X = 0.0, float("-inf")  # yes, may see; no


def flatten(samples: list[list[tuple[int, str]]]) -> tuple[list[int], list[int], list[str]]:
    sample_lens = [sum(length for length, _ in sample) for sample in samples]
    flat = [split for sample in samples for split in sample]
    return sample_lens, [length for length, _ in flat], [mode for _, mode in flat]


def test_caption_noise_and_condition_as_drawn() -> None:
    assert dense_mask([2, 2, 2], ["causal", "noise", "full"]).tolist() == [
        [Y, X, X, X, X, X],
        [Y, Y, X, X, X, X],
        [Y, Y, Y, Y, X, X],
        [Y, Y, Y, Y, X, X],
        [Y, Y, X, X, Y, Y],
        [Y, Y, X, X, Y, Y],
    ]


@given(splits)
def test_dense_masks_equal_the_reference_to_the_bit(sample: list[tuple[int, str]]) -> None:
    lengths, modes = [length for length, _ in sample], [mode for _, mode in sample]
    ours, theirs = dense_mask(lengths, modes), prepare_attention_mask_per_sample(lengths, modes)
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32))


@given(packs)
def test_the_flex_predicate_equals_the_dense_masks_and_keeps_samples_apart(
    samples: list[list[tuple[int, str]]],
) -> None:
    sample_lens, split_lens, modes = flatten(samples)
    tokens = torch.arange(sum(sample_lens))
    zero = torch.tensor(0)
    allowed = mask_mod(sample_lens, split_lens, modes)(zero, zero, tokens[:, None], tokens[None, :])
    blocks = [mask == 0.0 for mask in dense_masks(sample_lens, split_lens, modes)]
    expected = torch.block_diag(*[block.int() for block in blocks]).bool()[: len(tokens), : len(tokens)]
    assert torch.equal(allowed, expected)


def test_a_sample_whose_items_were_all_dropped_has_an_empty_mask() -> None:
    assert splits_of_samples([3, 0, 2], [1, 2, 2]) == [slice(0, 2), slice(2, 2), slice(2, 3)]
    assert [mask.shape for mask in dense_masks([3, 0, 2], [1, 2, 2], ["causal"] * 3)] == [(3, 3), (0, 0), (2, 2)]


def test_splits_that_do_not_add_up_are_an_error() -> None:
    with pytest.raises(ValueError, match="hold 4 tokens, sample 0 has 3"):
        splits_of_samples([3], [2, 2])


def test_a_block_mask_with_its_pad_split_covers_the_budget() -> None:
    mask = block_mask([150, 106], [128, 22, 106], ["noise", "full", "causal"])
    assert mask.seq_lengths == (256, 256)
    # blocks of 128: the second holds the rest of sample 0, which may not see its noise, and all of sample 1
    assert mask.to_dense()[0, 0].tolist() == [[1, 0], [0, 1]]
