"""Patches and position ids against the reference's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nemo_automodel.components.datasets.multimodal.utils import (
    get_flattened_position_ids_extrapolate,
    get_flattened_position_ids_interpolate,
)
from nemo_automodel.components.datasets.multimodal.utils import patchify as reference_patchify

from pipeline.media.patches import patchify, position_ids, unpatchify


@pytest.mark.parametrize(("height", "width", "patch"), [(14, 14, 14), (42, 28, 14), (6, 4, 2), (5, 3, 1), (32, 64, 16)])
def test_patchify_is_the_references_and_unpatchify_its_inverse(height: int, width: int, patch: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    patches = patchify(pixels, patch)
    expected = reference_patchify(torch.from_numpy(pixels).permute(2, 0, 1), patch)
    np.testing.assert_array_equal(patches, expected.numpy())
    assert patches.flags.c_contiguous
    np.testing.assert_array_equal(unpatchify(patches, height, width, patch), pixels)


def test_patchify_reads_row_by_row_channel_fastest() -> None:
    pixels = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)
    np.testing.assert_array_equal(
        patchify(pixels, 2),
        [[0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 16, 17], [6, 7, 8, 9, 10, 11, 18, 19, 20, 21, 22, 23]],
    )


def test_patchify_refuses_edges_that_are_no_multiple_of_the_patch() -> None:
    with pytest.raises(ValueError, match="picture of 15x14 px does not divide into patches of 14 px"):
        patchify(np.zeros((14, 15, 3), dtype=np.uint8), 14)


@pytest.mark.parametrize("max_per_side", [1, 3, 32, 64, 70, 100])
def test_position_ids_are_the_references_for_every_side(max_per_side: int) -> None:
    """All sides up to 160 cells, so beyond `max_per_side` too, where extrapolated ids repeat."""
    for side in range(1, 161):
        for rows, columns in ((side, 3), (2, side)):
            for interpolate, reference in (
                (False, get_flattened_position_ids_extrapolate),
                (True, get_flattened_position_ids_interpolate),
            ):
                ids = position_ids(rows * 14 + 5, columns * 14, 14, max_per_side, interpolate)
                assert ids.dtype == np.int32
                expected = reference(rows * 14 + 5, columns * 14, 14, max_per_side).numpy()
                np.testing.assert_array_equal(ids, expected)


def test_extrapolated_ids_repeat_where_a_row_is_longer_than_the_grid() -> None:
    ids = position_ids(28, 42, 14, 2, interpolate=False)
    np.testing.assert_array_equal(ids, [0, 1, 2, 2, 3, 4])


def test_interpolated_ids_spread_a_small_grid_over_the_large_one() -> None:
    ids = position_ids(28, 28, 14, 4, interpolate=True)
    np.testing.assert_array_equal(ids, [0, 2, 8, 10])
