"""Law 5: every row is packed, dropped for a counted reason, discarded, waiting, not reached or in no lane. Exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.datamaker.recipe import Recipe, Sources
from tests.laws.conftest import BAKES
from tests.laws.reading import raw_manifest, raw_packs
from tests.parity.baking import bake_recipe


def rows_of_sources(sources: Sources) -> dict[str, list[int]]:
    """Rows of every file of every source, counted here and now."""
    rows = {}
    for number, name in enumerate(("one", "two")):
        for kind, folders in (("t2i_pretrain", sources.t2i), ("unified_edit", sources.edit)):
            files = sorted(folders[number].glob("*.parquet"))
            rows[f"{kind}/{name}"] = [pq.ParquetFile(file).metadata.num_rows for file in files]
        with sources.lines[number].open(encoding="utf-8") as lines:
            rows[f"vlm_sft/{name}"] = [len(lines.readlines())]
    return rows


def assert_every_row_is_accounted_for(folder: Path, num_rows: dict[str, int]) -> None:
    """The equations of law 5, with the packs themselves as witnesses."""
    accounts: dict[str, dict[str, Any]] = raw_manifest(folder)["rows"]
    in_packs = Counter(entry["source"] for pack in raw_packs(folder) for entry in pack.header["provenance"])
    assert accounts.keys() == num_rows.keys()
    for source, account in accounts.items():
        for number, once in enumerate(account["passes"]):
            fates = once["packed"] + sum(once["dropped"].values()) + once["discarded"] + once["waiting"]
            assert once["drawn"] == fates, (source, number)
        drawn_first = account["passes"][0]["drawn"] if account["passes"] else 0
        assert drawn_first + account["not_reached"] + account["not_assigned"] == num_rows[source], source
        packed = sum(once["packed"] for once in account["passes"])
        assert packed - sum(account["dropped_in_render"].values()) == in_packs[source], source


@pytest.mark.parametrize("name", BAKES)
def test_conservation_to_the_last_row(name: str, finished: Callable[[str], Path], sources: Sources) -> None:
    rows = {source: sum(files) for source, files in rows_of_sources(sources).items()}
    assert_every_row_is_accounted_for(finished(name), rows)


def test_an_epoch_reaches_every_row(recipe: Recipe, sources: Sources, tmp_path: Path) -> None:
    rows = {source: sum(files) for source, files in rows_of_sources(sources).items()}
    folder = bake_recipe(recipe, tmp_path, 1, length={"epochs": 1})
    assert_every_row_is_accounted_for(folder, rows)
    accounts = raw_manifest(folder)["rows"]
    assert {source: account["not_reached"] for source, account in accounts.items()} == dict.fromkeys(rows, 0)
    assert {source: account["passes"][0]["drawn"] for source, account in accounts.items()} == rows


def test_repeated_files_count_once_per_occurrence_and_unused_ones_are_in_no_lane(
    recipe: Recipe, sources: Sources, tmp_path: Path
) -> None:
    files = rows_of_sources(sources)
    repeated = recipe.changed(
        groups={
            "t2i_pretrain": {"num_used_data": [17, 3]},
            "unified_edit": {"num_used_data": [2, 5]},
            "vlm_sft": {"num_used_data": [31, 10]},
        }
    )
    rows = {
        "t2i_pretrain/one": sum((files["t2i_pretrain/one"] * 3)[:17]),
        "t2i_pretrain/two": sum(files["t2i_pretrain/two"]),
        "unified_edit/one": sum(files["unified_edit/one"]),
        "unified_edit/two": sum((files["unified_edit/two"] * 3)[:5]),
        "vlm_sft/one": files["vlm_sft/one"][0],
        "vlm_sft/two": files["vlm_sft/two"][0],
    }
    folder = bake_recipe(repeated, tmp_path, 12, world_size=2)
    assert_every_row_is_accounted_for(folder, rows)


def test_reasons_tell_the_faults_apart(recipe: Recipe, tmp_path: Path) -> None:
    folder = bake_recipe(recipe, tmp_path, 1, length={"epochs": 1})
    reasons: Counter[str] = Counter()
    for account in raw_manifest(folder)["rows"].values():
        reasons.update(account["passes"][0]["dropped"])
    assert len(reasons) >= 10, reasons
    assert not [reason for reason in reasons if " " in reason or not reason], reasons
