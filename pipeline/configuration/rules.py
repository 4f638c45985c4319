"""What a configuration must satisfy as a whole: the conditions under which the packer and the patches make sense.

Each rule names the reference's own failure: an assertion, a division by zero, or a stream that never makes a pack.
"""

from __future__ import annotations

from pipeline.config import Config, DatasetConfig, FrameSamplerConfig, GroupConfig
from pipeline.configuration.errors import Origin, config_error
from pipeline.errors import ConfigError

__all__ = ["check_rules"]

_PROBABILITIES = ("text_cond_dropout_prob", "vit_cond_dropout_prob", "vae_cond_dropout_prob")
_POSITIVE = (
    "expected_num_tokens",
    "max_num_tokens_per_sample",
    "max_num_tokens",
    "vae_image_downsample",
    "max_latent_size",
    "vit_patch_size",
    "max_num_patch_per_side",
)
_NOT_NEGATIVE = ("prefer_buffer_before", "max_buffer_size")


def check_rules(config: Config, origin: Origin) -> None:
    """Raise the first broken rule as a ConfigError."""
    _check_ranges(config, origin)
    _check_budgets(config.dataset, origin)
    _check_weights(config.dataset, origin)
    for group in config.dataset.groups:
        _check_strides(group, config.dataset, origin)
        _check_frames(group, origin)


def _check_ranges(config: Config, origin: Origin) -> None:
    dataset = config.dataset
    for name in _PROBABILITIES:
        value = getattr(dataset, name)
        if not 0.0 <= value <= 1.0:
            raise config_error(
                f"dataset.{name}",
                value,
                origin,
                wrong="but must lie between 0 and 1",
                why="it is a probability",
                remedy="write a value such as 0.1",
            )
    for names, least in ((_POSITIVE, 1), (_NOT_NEGATIVE, 0)):
        for name in names:
            _check_at_least(f"dataset.{name}", getattr(dataset, name), least, origin)
    _check_at_least("dataloader.num_workers", config.num_workers, 0, origin)


def _check_at_least(key: str, value: int, least: int, origin: Origin) -> None:
    if value < least:
        raise config_error(
            key,
            value,
            origin,
            wrong=f"but must be at least {least}",
            why="no pack could be made with less",
            remedy=f"write a whole number from {least} up",
        )


def _check_budgets(dataset: DatasetConfig, origin: Origin) -> None:
    for name, why in (
        ("expected_num_tokens", "a pack is emitted when it reaches the one, and must not outgrow the other"),
        ("max_num_tokens_per_sample", "a sample between the two fits into no pack and would empty the packer"),
    ):
        value = getattr(dataset, name)
        if value > dataset.max_num_tokens:
            raise config_error(
                f"dataset.{name}",
                value,
                origin,
                wrong=f"but must be at most 'dataset.max_num_tokens' ({dataset.max_num_tokens})",
                why=why,
                remedy="lower the one or raise the other",
            )


def _check_weights(dataset: DatasetConfig, origin: Origin) -> None:
    key = "dataset.grouped_datasets"
    if not dataset.groups:
        raise ConfigError(f"'{key}' is empty ({origin.where(key)}): there is nothing to pack; add a group")
    if sum(group.weight for group in dataset.groups) <= 0.0:
        names = ", ".join(group.name for group in dataset.groups)
        raise ConfigError(
            f"No group of '{key}' has a weight ({names}; {origin.where(key)}): samples are drawn by weight, and it is 0"
            " where it is not written; write 'weight: 1' in at least one group"
        )


def _check_strides(group: GroupConfig, dataset: DatasetConfig, origin: Origin) -> None:
    """Sides are multiples of the stride, so the stride must be one of the patch or latent cell."""
    patch = ("vit_patch_size", dataset.vit_patch_size)
    cell = ("vae_image_downsample", dataset.vae_image_downsample)
    image = patch if group.reads_lines else cell
    for name, transform, (unit, unit_px) in (
        ("image_transform_args", group.image_transform, image),
        ("vit_image_transform_args", group.vit_image_transform, patch),
    ):
        if transform is None:
            continue
        key = f"dataset.grouped_datasets.{group.name}.{name}"
        if transform.image_stride % unit_px:
            raise config_error(
                f"{key}.image_stride",
                transform.image_stride,
                origin,
                wrong=f"but must be a multiple of 'dataset.{unit}' ({unit_px})",
                why="images are resized to multiples of the stride and then cut into cells of that size",
                remedy=f"write {unit_px}, or change 'dataset.{unit}'",
            )
        if 0.0 in transform.image_std:
            raise config_error(
                f"{key}.image_std",
                list(transform.image_std),
                origin,
                wrong="but must not hold 0",
                why="pixels are divided by it",
                remedy="write a positive number for each channel",
            )


def _check_frames(group: GroupConfig, origin: Origin) -> None:
    sampler = group.frame_sampler
    if sampler is None or sampler == FrameSamplerConfig():  # the reference's defaults: for data without videos
        return
    if not 0 < sampler.min_num_frames <= sampler.max_num_frames:
        raise config_error(
            f"dataset.grouped_datasets.{group.name}.frame_sampler_args.max_num_frames",
            sampler.max_num_frames,
            origin,
            wrong=f"but must be at least 'min_num_frames' ({sampler.min_num_frames}), which must be at least 1",
            why="a number of frames is drawn between the two, and every video row would be lost",
            remedy="write for instance {min_num_frames: 8, max_num_frames: 12}",
        )
