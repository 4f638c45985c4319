"""Planned images: size, condition and tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import BakeConfig, DatasetConfig, ImageTransformConfig, LengthConfig
from pipeline.media.resize import planned_size
from pipeline.records import Condition, ImageEntry, ItemKind
from pipeline.sources.items import image_item, is_aliased, num_stride_cells, plan_image

CORRECTED = BakeConfig(output="x", length=LengthConfig(packs_per_lane=1), corrections=("resize_area",))
edges = st.integers(1, 5000)


@given(edges, edges, st.integers(1, 5), st.sampled_from([14, 16]), st.integers(1, 8), st.integers(1, 30))
def test_the_area_condition_is_told_exactly_where_the_two_rules_differ(
    width_px: int, height_px: int, num_images: int, stride: int, smallest: int, largest: int
) -> None:
    transform = ImageTransformConfig(
        max_image_size=stride * max(smallest, largest),
        min_image_size=stride * smallest,
        image_stride=stride,
        max_pixels=60_000,
    )
    by_ratio = planned_size(width_px, height_px, transform, num_images)
    by_area = planned_size(width_px, height_px, transform, num_images, resize_area=True)
    condition = int(Condition.RESIZE_AREA) if by_ratio != by_area else 0
    entry = ImageEntry(width_px=width_px, height_px=height_px)
    assert plan_image(entry, transform, None, num_images) == (*by_ratio, condition)
    assert plan_image(entry, transform, CORRECTED, num_images) == (*by_area, condition)


def test_tokens_follow_the_cells_and_the_count_follows_the_stride() -> None:
    dataset = DatasetConfig(groups=(), vit_patch_size=14, vae_image_downsample=16)
    transform = ImageTransformConfig(max_image_size=280, min_image_size=28, image_stride=28)
    planned = plan_image(ImageEntry(width_px=140, height_px=56), transform, None)
    assert planned == (140, 56, 0)
    assert image_item(ItemKind.VIT, 0, planned, dataset).num_tokens == 10 * 4
    assert image_item(ItemKind.VAE, 0, planned, dataset).num_tokens == 8 * 3
    assert num_stride_cells(planned, transform) == 5 * 2


def test_a_side_is_too_long_by_its_own_table_and_never_with_interpolated_positions() -> None:
    dataset = DatasetConfig(groups=(), max_num_patch_per_side=4, max_latent_size=3)
    vit = image_item(ItemKind.VIT, 0, (14 * 4, 14, 0), dataset)
    vae = image_item(ItemKind.VAE, 0, (16 * 4, 16, 0), dataset)
    assert not is_aliased(vit, dataset)
    assert is_aliased(vae, dataset)
    assert is_aliased(image_item(ItemKind.VIT, 0, (14, 14 * 5, 0), dataset), dataset)
    assert not is_aliased(vae, dataset.model_copy(update={"interpolate_pos": True}))
