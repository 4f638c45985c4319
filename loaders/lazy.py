"""A dict whose dear entries are made when they are first used, and which otherwise behaves as a dict.

AutoModel calls `batch.to_dict()` once on the CPU just to count tokens and again on the GPU; normalising pixels for the
first would cost more than reading the pack did. `pop`, `in`, `len`, `get`, `items()`, `values()`, `**batch`,
`dict(batch)`, `|`, `copy`, `==` and pickling all see finished values. (CPython copies a dict subclass entry by entry,
through `keys` and `__getitem__`, exactly when it overrides `__iter__`: that is why this one does.)
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, ValuesView
from typing import Any

__all__ = ["LazyDict", "Pending"]


class Pending:
    """An entry that has not been made yet."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


class LazyDict(dict[str, Any]):
    """A dict[str, Any] in which a `Pending` value is replaced by what it makes as soon as it is read."""

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, Pending):
            value = value.make()
            super().__setitem__(key, value)
        return value

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`, or `default`."""
        if key not in self:
            return default
        return self[key]

    def pop(self, key: str, *default: Any) -> Any:
        """Remove `key` and return its value; `default`, if given, where there is none."""
        value = super().pop(key, *default)
        return value.make() if isinstance(value, Pending) else value

    def popitem(self) -> tuple[str, Any]:
        """Remove and return the last entry."""
        key, value = super().popitem()
        return key, value.make() if isinstance(value, Pending) else value

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The value of `key`, set to `default` first where there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        """(key, value) pairs, each made as it is reached."""
        return ItemsView(self)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """Values, each made as it is reached."""
        return ValuesView(self)

    def copy(self) -> LazyDict:
        """A shallow copy; what is pending here is pending there."""
        copied = LazyDict()
        for key in self:
            dict.__setitem__(copied, key, dict.__getitem__(self, key))
        return copied

    def __or__(self, other: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        return dict(self) | dict(other)

    def __ror__(self, other: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        return dict(other) | dict(self)

    def __eq__(self, other: object) -> bool:
        return dict(self) == (dict(other) if isinstance(other, LazyDict) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __repr__(self) -> str:
        entries = (
            f"{key!r}: <not made yet>" if isinstance(value, Pending) else f"{key!r}: {value!r}"
            for key, value in ((key, dict.__getitem__(self, key)) for key in self)
        )
        return "{" + ", ".join(entries) + "}"

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()
