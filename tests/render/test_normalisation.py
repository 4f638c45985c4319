"""Which mean and deviation a picture gets."""

from __future__ import annotations

from pipeline.config import DatasetConfig, GroupConfig, ImageTransformConfig, SourceConfig
from pipeline.records import ItemKind
from pipeline.render.normalisation import normalisations


def transform(mean):
    return ImageTransformConfig(max_image_size=64, min_image_size=16, image_stride=16, image_mean=(mean,) * 3)


def group(name, kind, image_mean, vit_mean=None):
    return GroupConfig(
        name=name,
        kind=kind,
        weight=1.0,
        is_mandatory=False,
        sources=(
            SourceConfig(name=f"{name}/a", data_dir="a", num_used_data=1),
            SourceConfig(name=f"{name}/b", data_dir="b", num_used_data=1),
        ),
        image_transform=transform(image_mean),
        vit_image_transform=None if vit_mean is None else transform(vit_mean),
    )


def test_equal_pairs_share_a_number_and_numbers_follow_the_order_of_the_groups():
    numbered = normalisations(
        DatasetConfig(
            groups=(
                group("edit", "unified_edit", 0.5, vit_mean=0.4),
                group("sft", "vlm_sft", 0.3),
                group("t2i", "t2i_pretrain", 0.5),
            )
        )
    )
    assert [pair.mean for pair in numbered.table] == [(0.5,) * 3, (0.4,) * 3, (0.3,) * 3]
    assert numbered.number("edit/a", ItemKind.VAE) == 0
    assert numbered.number("edit/b", ItemKind.VIT) == 1
    assert numbered.number("sft/a", ItemKind.VIT) == 2
    assert numbered.number("t2i/b", ItemKind.VAE) == 0
