"""Mean and deviation of every picture, as numbers into one short table of the bake."""

from __future__ import annotations

from dataclasses import dataclass

from loaders.format import Normalisation
from pipeline.config import DatasetConfig, ImageTransformConfig
from pipeline.records import ItemKind

__all__ = ["Normalisations", "normalisations"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalisations:
    """The distinct mean/std pairs of a recipe in the order of its groups, and which pictures use which.

    Attributes:
        table: Distinct pairs, as `dataset.json` lists them.
        numbers: (source, kind) → number in the table.
    """

    table: tuple[Normalisation, ...]
    numbers: dict[tuple[str, ItemKind], int]

    def number(self, source: str, kind: ItemKind) -> int:
        """Number of the pair that pictures of this source and tower are normalised with."""
        return self.numbers[source, kind]


def normalisations(dataset: DatasetConfig) -> Normalisations:
    """A group's ViT images use `vit_image_transform_args` where it has them, else its only transform."""
    table: dict[Normalisation, int] = {}
    numbers: dict[tuple[str, ItemKind], int] = {}
    for group in dataset.groups:
        transforms = (
            (ItemKind.VAE, group.image_transform),
            (ItemKind.VIT, group.vit_image_transform or group.image_transform),
        )
        for kind, transform in transforms:
            number = table.setdefault(_pair(transform), len(table))
            numbers |= {(source.name, kind): number for source in group.sources}
    return Normalisations(table=tuple(table), numbers=numbers)


def _pair(transform: ImageTransformConfig) -> Normalisation:
    return Normalisation(mean=transform.image_mean, std=transform.image_std)
