"""How a recipe's packs lie in a shard: what a reader of bytes must know of the recipe, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from torch import Tensor

__all__ = ["PackForm", "PictureDamaged"]

HeaderT_co = TypeVar("HeaderT_co", covariant=True)


class PictureDamaged(Exception):
    """A stored picture that is not what the header promises: the member's short name, and what is wrong with it."""

    def __init__(self, member: str, complaint: str) -> None:
        super().__init__(complaint)
        self.member, self.complaint = member, complaint


class PackForm(Protocol[HeaderT_co]):
    """One recipe's packs as they are stored. Implementations are `bagel_form.BagelForm` and `vlm_form.VlmForm`."""

    @property
    def fields(self) -> frozenset[str]:
        """What a reader may leave out, by the names that it is asked for with."""
        ...

    def field_of(self, member: str) -> str:
        """The field that a member (by its short name) belongs to, "" if it is always read."""
        ...

    def parse_header(self, content: bytes, where: str) -> HeaderT_co:
        """The pack's `.json` member; `where` is what messages call it.

        Raises:
            FormatError: it is not a header of this recipe.
        """
        ...

    def decode_pictures(self, header: object, pictures: Mapping[str, memoryview]) -> dict[str, Tensor]:
        """The arrays that encoded picture members stand for, as raw storage would hold them.

        Raises:
            PictureDamaged: one is not what the header promises.
        """
        ...
