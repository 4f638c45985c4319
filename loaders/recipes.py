"""The recipes that these loaders know, by the name that `dataset.json` gives: the only place that asks for the name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loaders.bagel_form import BagelForm
from loaders.errors import FormatError
from loaders.format import DatasetManifest
from loaders.forms import PackForm
from loaders.order import CanonicalOrder
from loaders.recipe import ReadOptions, Recipe
from loaders.vlm_form import VlmForm

__all__ = ["form_of", "recipe_of"]


def form_of(manifest: DatasetManifest) -> PackForm[Any]:
    """How the packs of a bake are stored.

    Raises:
        FormatError: its recipe is not known here.
    """
    if manifest.recipe == "bagel":
        return BagelForm(vit_patch_size=manifest.vit_patch_size)
    if manifest.recipe == "vlm":
        return VlmForm()
    raise FormatError(
        f"dataset.json names the recipe {manifest.recipe!r}, these loaders know 'bagel' and 'vlm'; its packs would be "
        f"misread; use the parbake version that baked it."
    )


def recipe_of(
    manifest: DatasetManifest, order: CanonicalOrder, options: ReadOptions, read_bytes: Callable[[str], bytes]
) -> Recipe[Any, Any]:
    """What the recipe of a bake decides (`form_of` has accepted it).

    Args:
        manifest: Its `dataset.json`.
        order: Canonical order of its packs.
        options: The caller's wishes.
        read_bytes: Reads a file of the bake.

    Raises:
        FormatError: the bake lacks what its recipe needs.
        ValueError: an option does not belong to the recipe.
    """
    if manifest.recipe == "vlm":
        from loaders.vlm_recipe import VlmRecipe

        return VlmRecipe(manifest, order, options, read_bytes)
    from loaders.bagel_recipe import BagelRecipe

    return BagelRecipe(manifest, order, options)
