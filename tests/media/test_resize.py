"""The resizing rule against the reference's, for every size, and the resampling against torchvision's."""

from __future__ import annotations

import io
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from nemo_automodel.components.datasets.multimodal.transforms import ImageTransform, MaxLongEdgeMinShortEdgeResize
from PIL import Image
from torchvision.transforms import functional

from pipeline.config import ImageTransformConfig
from pipeline.media.decode import decode_rgb
from pipeline.media.patches import patchify
from pipeline.media.resize import planned_size, resize
from tests.media.gallery import encode, noise

VIT = ImageTransformConfig(max_image_size=980, min_image_size=378, image_stride=14, max_pixels=2_007_040)
VAE = ImageTransformConfig(max_image_size=1024, min_image_size=512, image_stride=16)

edges = st.one_of(st.integers(1, 64), st.integers(1, 3000), st.integers(1, 20_000))


class Sizes:
    """Stands for a picture: the reference asks it for its size and hands it to the resampler, which is not called."""

    def __init__(self, width: int, height: int) -> None:
        self.size = (width, height)


def reference_size(width: int, height: int, transform: ImageTransformConfig, num_images: int) -> tuple[int, int]:
    """The size that the reference asks the resampler for."""
    reference = MaxLongEdgeMinShortEdgeResize(
        transform.max_image_size, transform.min_image_size, transform.image_stride, transform.max_pixels
    )
    asked: list[tuple[int, int]] = []
    with mock.patch.object(functional, "resize", lambda picture, size, *_, **__: asked.append(size)):
        reference(Sizes(width, height), img_num=num_images)
    new_height, new_width = asked[0]
    return new_width, new_height


@given(
    width=edges,
    height=edges,
    max_size=st.integers(1, 2000),
    min_size=st.integers(1, 1000),
    stride=st.sampled_from([1, 2, 7, 14, 16, 28, 32]),
    max_pixels=st.integers(1, 4_000_000),
    num_images=st.integers(1, 40),
)
@example(width=1, height=1, max_size=980, min_size=378, stride=14, max_pixels=2_007_040, num_images=1)
@example(width=1, height=4000, max_size=980, min_size=378, stride=14, max_pixels=2_007_040, num_images=1)
@example(width=10000, height=1, max_size=1024, min_size=512, stride=16, max_pixels=1_806_336, num_images=3)
@settings(max_examples=500, deadline=None)
def test_the_planned_size_is_the_references(
    width: int, height: int, max_size: int, min_size: int, stride: int, max_pixels: int, num_images: int
) -> None:
    transform = ImageTransformConfig(
        max_image_size=max_size, min_image_size=min_size, image_stride=stride, max_pixels=max_pixels
    )
    expected = reference_size(width, height, transform, num_images)
    assert planned_size(width, height, transform, num_images) == expected


@pytest.mark.parametrize("transform", [VIT, VAE])
def test_the_planned_size_is_the_references_for_a_grid_of_usual_sizes(transform: ImageTransformConfig) -> None:
    for width in range(1, 4001, 137):
        for height in range(1, 4001, 141):
            for num_images in (1, 2, 7):
                expected = reference_size(width, height, transform, num_images)
                assert planned_size(width, height, transform, num_images) == expected


def test_a_3000_by_2000_photograph_becomes_1024_by_688() -> None:
    assert planned_size(3000, 2000, VAE) == (1024, 688)


def test_area_by_ratio_wastes_pixels_and_by_square_root_uses_them() -> None:
    transform = ImageTransformConfig(max_image_size=2000, min_image_size=16, image_stride=16, max_pixels=1_000_000)
    assert planned_size(2000, 2000, transform) == (496, 496)
    assert planned_size(2000, 2000, transform, resize_area=True) == (992, 992)


@given(
    width=edges,
    height=edges,
    max_size=st.integers(32, 2000),
    min_size=st.integers(1, 1000),
    stride=st.sampled_from([7, 14, 16, 32]),
    max_pixels=st.integers(1024, 4_000_000),
    num_images=st.integers(1, 40),
)
@settings(max_examples=500, deadline=None)
def test_resize_area_keeps_the_area_limit_and_at_least_one_stride(
    width: int, height: int, max_size: int, min_size: int, stride: int, max_pixels: int, num_images: int
) -> None:
    assume(stride * stride <= max_pixels / num_images)
    transform = ImageTransformConfig(
        max_image_size=max_size, min_image_size=min_size, image_stride=stride, max_pixels=max_pixels
    )
    planned = planned_size(width, height, transform, num_images, resize_area=True)
    assert planned[0] * planned[1] <= max_pixels / num_images
    assert min(planned) >= stride
    assert planned[0] % stride == planned[1] % stride == 0


@pytest.mark.parametrize("size", [(57, 38), (320, 200), (33, 400), (1, 90), (640, 480), (224, 224)])
@pytest.mark.parametrize("transform", [VIT, VAE])
def test_resize_and_patchify_give_the_references_bytes(size: tuple[int, int], transform: ImageTransformConfig) -> None:
    """Through the reference's own transform: normalised floats, brought back to the 256 pixel values."""
    encoded = encode(Image.fromarray(noise(3, *size)), "PNG")
    reference = ImageTransform(**transform.model_dump())
    tensor = reference(Image.open(io.BytesIO(encoded)).convert("RGB"))
    planned = planned_size(*size, transform)
    pixels = np.asarray(resize(decode_rgb(encoded, corrections=frozenset()), *planned))
    assert tensor.shape == (3, planned[1], planned[0])
    values = (np.arange(256, dtype=np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    np.testing.assert_array_equal(values[pixels].transpose(2, 0, 1), tensor.numpy())

    from nemo_automodel.components.datasets.multimodal.utils import patchify as reference_patchify

    patches = patchify(pixels, transform.image_stride)
    assert patches.dtype == np.uint8
    np.testing.assert_array_equal(values[patches], reference_patchify(tensor, transform.image_stride).numpy())


def test_a_picture_that_has_its_size_already_is_not_touched() -> None:
    image = Image.fromarray(noise(3, 28, 42))
    assert resize(image, 28, 42) is image
