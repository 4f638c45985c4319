"""The batch object is the reference's: same attributes, keys, order, dtypes and bits."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from nemo_automodel.components.datasets.multimodal.collate_fns import SimpleCustomBatch
from nemo_automodel.components.datasets.multimodal.utils import patchify as reference_patchify
from nemo_automodel.components.datasets.multimodal.utils import prepare_attention_mask_per_sample
from torchvision import transforms

from loaders.batch import BatchRecipe, PackedBatch
from loaders.errors import FormatError
from loaders.format import PackHeader
from loaders.masks import splits_of_samples
from tests.loaders.synthetic import MAX_NUM_TOKENS, NORMALISATIONS, PATCH, Drawn, draw_pack, members

VAE_ONLY = 1  # seed of a pack without ViT images


def recipe(*, use_flex: bool = True, dtype: torch.dtype = torch.float32) -> BatchRecipe:
    return BatchRecipe(
        use_flex=use_flex,
        max_num_tokens=MAX_NUM_TOKENS,
        vit_patch_size=PATCH,
        normalisations=NORMALISATIONS,
        pixel_dtype=dtype,
    )


def batch_of(drawn: Drawn, **settings: Any) -> PackedBatch:
    arrays, _ = members(drawn, "raw")
    return PackedBatch(
        drawn.header, {name: torch.from_numpy(array) for name, array in arrays.items()}, recipe(**settings)
    )


def normalised(pixels: np.ndarray[Any, Any], number: int) -> torch.Tensor:
    """ToTensor and Normalize as the reference calls them."""
    facts = NORMALISATIONS[number]
    tensor = transforms.ToTensor()(pixels)
    return transforms.Normalize(mean=list(facts.mean), std=list(facts.std), inplace=True)(tensor)


def reference_batch(drawn: Drawn, *, use_flex: bool) -> SimpleCustomBatch:
    """The dict that the reference's `to_tensor` makes of the same lists, in its own batch object."""
    header, lists = drawn.header, {name: array.tolist() for name, array in drawn.arrays.items()}
    data: dict[str, Any] = {
        "sequence_length": header.sequence_length,
        "sample_lens": list(header.sample_lens),
        "batch_data_indexes": list(header.batch_data_indexes),
    }
    present = ["packed_text_ids", "packed_text_indexes", "packed_position_ids"]
    split_lens, attn_modes = list(header.split_lens), list(header.attn_modes)
    if use_flex:
        pad = MAX_NUM_TOKENS - header.sequence_length
        data["sample_lens"] = [*header.sample_lens, pad]
        data["split_lens"], data["attn_modes"] = [*split_lens, pad], [*attn_modes, "causal"]
    else:
        data["nested_attention_masks"] = [
            prepare_attention_mask_per_sample(split_lens[own], attn_modes[own])
            for own in splits_of_samples(header.sample_lens, split_lens)
        ]
    if drawn.vae_pictures:
        images = [normalised(drawn.vae_pictures[i], header.vae_normalisation[i]) for i in header.vae_image_index]
        height, width = (max(image.shape[side] for image in images) for side in (1, 2))
        padded = torch.zeros(len(images), 3, height, width)
        for number, image in enumerate(images):
            padded[number, :, : image.shape[1], : image.shape[2]] = image
        data["padded_images"] = padded
        data["patchified_vae_latent_shapes"] = [tuple(shape) for shape in header.patchified_vae_latent_shapes]
        present += ["packed_latent_position_ids", "packed_vae_token_indexes", "packed_timesteps", "mse_loss_indexes"]
    if drawn.vit_pictures:
        data["packed_vit_tokens"] = torch.cat(
            [
                reference_patchify(normalised(picture, number), PATCH)
                for picture, number in zip(drawn.vit_pictures, header.vit_normalisation, strict=True)
            ]
        )
        present += ["packed_vit_position_ids", "packed_vit_token_indexes", "vit_token_seqlens"]
    if lists.get("packed_label_ids"):
        present += ["packed_label_ids", "ce_loss_indexes", "ce_loss_weights"]
    data |= {name: torch.tensor(lists[name]) for name in present}
    return SimpleCustomBatch([data])


def assert_same(ours: Any, theirs: Any, name: str) -> None:
    assert type(ours) is type(theirs), name
    if isinstance(ours, torch.Tensor):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name
        assert torch.equal(ours, theirs), name
    elif name == "nested_attention_masks":
        for mine, other in zip(ours, theirs, strict=True):
            assert_same(mine, other, "mask")
    else:
        assert ours == theirs, name


@pytest.mark.parametrize("use_flex", [True, False])
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("samples", [1, 3])
def test_a_batch_equals_the_reference_key_by_key_and_bit_by_bit(seed: int, samples: int, use_flex: bool) -> None:
    drawn = draw_pack(seed, samples=samples)
    ours = batch_of(drawn, use_flex=use_flex)
    theirs = reference_batch(drawn, use_flex=use_flex)
    expected = theirs.to_dict()
    found = ours.cuda("cpu").to_dict()
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert_same(found[name], value, name)
        assert_same(getattr(ours, name), value, name)
    for name in ("padded_images", "packed_vit_tokens", "packed_timesteps", "packed_label_ids", "split_lens"):
        assert hasattr(ours, name) == hasattr(theirs, name), name
    assert ours.use_flex == theirs.use_flex


def test_a_pack_whose_items_were_all_dropped_gives_what_torch_tensor_of_nothing_gives() -> None:
    header = PackHeader(sequence_length=0, sample_lens=(0,), split_lens=(), attn_modes=(), batch_data_indexes=({},))
    found = PackedBatch(header, {}, recipe()).to_dict()
    for name in ("packed_text_ids", "packed_text_indexes", "packed_position_ids"):
        assert_same(found[name], torch.tensor([]), name)
    assert found["split_lens"] == [MAX_NUM_TOKENS]
    assert "packed_label_ids" not in found


def test_a_pack_of_conditioning_images_has_empty_float_loss_indexes() -> None:
    drawn = draw_pack(VAE_ONLY, samples=1)
    drawn.arrays.pop("mse_loss_indexes")
    assert_same(batch_of(drawn).to_dict()["mse_loss_indexes"], torch.tensor([]), "mse_loss_indexes")


def test_counting_tokens_makes_no_pixels_and_popping_them_leaves_no_copy_behind() -> None:
    batch = batch_of(draw_pack(3))
    counted = batch.to_dict()
    assert counted["ce_loss_indexes"].numel() + counted["sequence_length"] > 0
    assert not {"padded_images", "packed_vit_tokens"} & batch.__dict__.keys()
    images = counted.pop("padded_images")
    assert "padded_images" not in counted
    assert "padded_images" not in batch.__dict__
    assert torch.equal(images, batch.padded_images)
    assert batch.padded_images is batch.padded_images


def test_pixels_stay_bytes_until_they_are_asked_for() -> None:
    batch = batch_of(draw_pack(3))
    assert batch.vit_pixels.dtype == batch.vae_pixels.dtype == torch.uint8
    assert "vit_pixels" not in batch.to_dict()


def test_another_pixel_dtype_is_the_rounded_float32() -> None:
    drawn = draw_pack(3)
    exact, rounded = batch_of(drawn), batch_of(drawn, dtype=torch.bfloat16)
    assert torch.equal(rounded.padded_images, exact.padded_images.to(torch.bfloat16))
    assert torch.equal(rounded.packed_vit_tokens, exact.packed_vit_tokens.to(torch.bfloat16))


def test_every_pixel_value_is_normalised_as_torchvision_does() -> None:
    pixels = np.repeat(np.arange(256, dtype=np.uint8), 3).reshape(16, 16, 3)
    for number in range(len(NORMALISATIONS)):
        header = PackHeader(
            sequence_length=0,
            sample_lens=(),
            split_lens=(),
            attn_modes=(),
            vae_image_sizes=((16, 16),),
            vae_image_index=(0,),
            vae_normalisation=(number,),
            patchified_vae_latent_shapes=((4, 4),),
        )
        batch = PackedBatch(header, {"vae_pixels": torch.from_numpy(pixels.reshape(-1))}, recipe())
        assert torch.equal(batch.padded_images[0], normalised(pixels, number))


def test_to_leaves_the_batch_as_it_is_and_cuda_moves_it() -> None:
    batch = batch_of(draw_pack(3))
    moved = batch.to("meta")
    assert batch.device.type == "cpu"
    assert moved.device.type == moved.vae_pixels.device.type == moved.padded_images.device.type == "meta"
    assert batch.cuda("meta") is batch
    assert batch.device.type == "meta"


def test_what_was_made_on_one_device_is_made_anew_on_the_next() -> None:
    batch = batch_of(draw_pack(3))
    assert batch.padded_images.device.type == "cpu"
    assert batch.cuda("meta").padded_images.device.type == "meta"


def test_a_batch_survives_the_way_from_a_worker() -> None:
    drawn = draw_pack(3)
    batch, copied = batch_of(drawn), pickle.loads(pickle.dumps(batch_of(drawn)))
    for name, value in batch.to_dict().items():
        assert_same(copied.to_dict()[name], value, name)


def test_pixels_that_contradict_the_image_sizes_are_refused() -> None:
    drawn = draw_pack(3)
    drawn.vae_pictures[0] = drawn.vae_pictures[0][:-1]
    with pytest.raises(FormatError, match="vae_pixels has shape"):
        batch_of(drawn)
