"""The sources, the oracle and the small recipe that all parity tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.datamaker.recipe import Recipe, Sources, small_recipe, write_sources
from tests.parity.oracle import Oracle


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small tensors on a busy machine: threads would wait for each other, not help."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Two data sets of each kind with everything awkward in them."""
    return write_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="session")
def recipe(sources: Sources) -> Recipe:
    """The small recipe over them."""
    return small_recipe(sources)


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    """nemo-automodel in its own process."""
    with Oracle() as running:
        yield running
