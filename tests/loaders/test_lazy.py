"""A LazyDict is a dict to everyone who looks, and makes an entry only for those who take it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from loaders.lazy import LazyDict, Pending


class Maker:
    """Counts how often the value was made."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        return "pixels"


def lazy() -> tuple[LazyDict, Maker]:
    maker = Maker()
    made = LazyDict(a=1)
    made["p"] = Pending(maker)
    made["z"] = 3
    return made, maker


FINISHED = {"a": 1, "p": "pixels", "z": 3}


@pytest.mark.parametrize(
    "read",
    [
        lambda d: (lambda **entries: entries)(**d),
        lambda d: (lambda first, **entries: entries)(0, **d),
        lambda d: {**d},
        lambda d: dict(d),
        lambda d: dict(d.items()),
        lambda d: dict(zip(d.keys(), d.values(), strict=True)),
        lambda d: {key: d[key] for key in d},
        lambda d: {key: d.get(key) for key in d},
        lambda d: {key: d.pop(key) for key in list(d)},
        lambda d: {key: d.setdefault(key, None) for key in list(d)},
        lambda d: dict(reversed([d.popitem() for _ in range(3)])),
        lambda d: dict(d.copy()),
        lambda d: d | {},
        lambda d: {} | d,
        lambda d: _update({}, d),
        lambda d: pickle.loads(pickle.dumps(dict(d))),
        copy.copy,
        copy.deepcopy,
    ],
)
def test_every_way_of_reading_a_dict_sees_finished_values(read: Callable[[LazyDict], dict[str, Any]]) -> None:
    entries, _ = lazy()
    found = read(entries)
    assert type(found) is dict
    assert found == FINISHED
    assert list(found) == list(FINISHED)
    assert not any(isinstance(value, Pending) for value in found.values())


def _update(target: dict[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    target.update(source)
    return target


def test_a_pickled_one_comes_back_as_a_plain_finished_dict() -> None:
    entries = LazyDict(a=1)
    entries["p"] = Pending(str)  # makes ""
    found = pickle.loads(pickle.dumps(entries))
    assert type(found) is dict
    assert found == {"a": 1, "p": ""}


def test_looking_without_taking_makes_nothing() -> None:
    entries, maker = lazy()
    assert "p" in entries
    assert len(entries) == 3
    assert list(entries) == ["a", "p", "z"]
    assert list(entries.keys()) == ["a", "p", "z"]
    assert entries["a"] == 1
    assert repr(entries) == "{'a': 1, 'p': <not made yet>, 'z': 3}"
    assert {key for key in entries if key != "p"} == {"a", "z"}
    entries.copy()
    del entries["p"]
    assert maker.count == 0


def test_an_entry_is_made_once() -> None:
    entries, maker = lazy()
    assert [entries["p"], entries["p"], *entries.values()].count("pixels") == 3
    assert maker.count == 1


def test_equality_looks_at_finished_values() -> None:
    assert lazy()[0] == FINISHED
    assert lazy()[0] == lazy()[0]
    assert lazy()[0] != {"a": 1}


def test_pop_and_get_honour_defaults() -> None:
    entries, _ = lazy()
    assert entries.pop("none", 7) == 7
    assert entries.get("none", 8) == 8
    assert entries.setdefault("new", 9) == 9
    with pytest.raises(KeyError):
        entries.pop("none")
    with pytest.raises(KeyError):
        entries["none"]
