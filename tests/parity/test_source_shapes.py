"""Parity for sources that the small recipe does not have: pandas labels, line ends, listed row groups, videos."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.datamaker.jsonl import conversation, write_conversations
from tests.datamaker.parquet import edit_row, phrase, t2i_row, write_edit, write_parquet_info
from tests.datamaker.pictures import encode, picture
from tests.datamaker.recipe import Recipe, Sources
from tests.datamaker.video import write_video
from tests.parity.baking import bake_recipe, replayed
from tests.parity.comparison import assert_same_batch
from tests.parity.oracle import Oracle, Request


@pytest.fixture
def compare(oracle: Oracle, tmp_path: Path) -> Callable[..., None]:
    """Bake a recipe and compare each rank with the oracle."""
    numbers = itertools.count()

    def run(
        recipe: Recipe, packs_per_lane: int = 10, world_size: int = 1, reference: Recipe | None = None, **request: Any
    ) -> None:
        folder = bake_recipe(recipe, tmp_path / f"run-{next(numbers)}", packs_per_lane, world_size)
        packs = packs_per_lane * max(1, recipe.num_workers)
        body = (reference or recipe).body
        ranks = oracle.packs(Request(recipe=body, world_size=world_size, packs_per_rank=packs, **request))
        for rank, expected in enumerate(ranks):
            ours = list(replayed(folder, rank, world_size))
            for step, (our_batch, reference_batch) in enumerate(zip(ours, expected, strict=True)):
                assert_same_batch(our_batch, reference_batch, f"rank {rank}, step {step}")

    return run


def _only_group(recipe: Recipe, group: str, info: dict[str, Any], **arguments: Any) -> Recipe:
    """The recipe with one group over one data set."""
    changed = recipe.changed(only=(group,), groups={group: {"dataset_names": ["it"], **arguments}})
    changed.dataset["dataset_info"] = {group: {"it": info}}
    return changed


@pytest.mark.parametrize(
    "index",
    [
        pd.Index([f"row-{n}" for n in range(12)]),
        pd.Index([100 - 3 * n for n in range(12)]),
        pd.Index([n / 2 for n in range(12)]),
        pd.RangeIndex(5, 5 + 24, 2),
        pd.Index([f"row-{n // 2}" for n in range(12)], name="sample"),
    ],
    ids=["strings", "numbers", "fractions", "range", "named and repeated"],
)
@pytest.mark.parametrize("rows_per_group", [5, 12])
def test_a_stored_pandas_index_gives_the_row_labels(
    index: pd.Index, rows_per_group: int, recipe: Recipe, tmp_path: Path, compare: Callable[..., None]
) -> None:
    draws = random.Random(3)
    (tmp_path / "t2i").mkdir()
    for number in range(2):
        frame = pd.DataFrame([t2i_row(draws) for _ in range(12)], index=index)
        frame.to_parquet(tmp_path / "t2i" / f"{number}.parquet", row_group_size=rows_per_group)
    compare(_only_group(recipe, "t2i_pretrain", {"data_dir": str(tmp_path / "t2i")}, num_used_data=[2]), 4)


def test_without_parquet_info_the_files_tell_their_row_groups(
    recipe: Recipe, sources: Sources, compare: Callable[..., None]
) -> None:
    ours = recipe.changed(only=("unified_edit",))
    for entry in ours.dataset["dataset_info"]["unified_edit"].values():
        del entry["parquet_info_path"]
    compare(ours, 10, 2, parquet_info=str(sources.parquet_info))


def test_parquet_info_decides_which_files_and_row_groups_are_read(
    recipe: Recipe, sources: Sources, tmp_path: Path, compare: Callable[..., None]
) -> None:
    listing = write_parquet_info(tmp_path / "info.json", sources.edit, leave_out=["chains-001.parquet"])
    counts = json.loads(listing.read_text())
    first = min(counts)
    counts[first]["num_row_groups"] = 2
    counts[str(tmp_path / "nowhere.parquet")] = {"num_row_groups": 3}
    listing.write_text(json.dumps(counts))
    changed = recipe.changed(only=("unified_edit",))
    for entry in changed.dataset["dataset_info"]["unified_edit"].values():
        entry["parquet_info_path"] = str(listing)
    compare(changed, 12)


def test_an_unreadable_edit_file_loses_its_own_row_groups_only(
    recipe: Recipe, tmp_path: Path, compare: Callable[..., None]
) -> None:
    folder = write_edit(tmp_path / "edit", seed=8, num_files=4)
    listing = write_parquet_info(tmp_path / "info.json", [folder])
    broken = folder / "chains-002.parquet"
    broken.write_bytes(broken.read_bytes()[:1000])
    info = {"data_dir": str(folder), "parquet_info_path": str(listing)}
    compare(_only_group(recipe, "unified_edit", info, num_used_data=[4]), 12)


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_lines_end_as_python_reads_them(
    line_end: str, recipe: Recipe, tmp_path: Path, compare: Callable[..., None]
) -> None:
    draws = random.Random(5)
    (tmp_path / "a.jpg").write_bytes(encode(picture(1, 60, 50), "JPEG"))
    rows: list[object] = []
    for number in range(30):
        text = f"{phrase(draws)}\u2028{phrase(draws)}"
        rows.append(
            {"image": "a.jpg", "conversations": conversation(("human", f"<image>{text}"), ("gpt", f"{number}"))}
        )
    same = json.dumps({"conversations": conversation(("human", "twice"), ("gpt", "the same line"))})
    rows[5:5] = ["\ufeff" + same, same, same, "", "   ", same.replace('"human"', '"human"\r')]
    lines = write_conversations(tmp_path / "lines.jsonl", rows, line_end=line_end, last_line_end=False)
    info = {"data_dir": str(tmp_path), "jsonl_path": str(lines)}
    for shuffled in (True, False):
        changed = _only_group(recipe, "vlm_sft", info, num_used_data=[1000], shuffle_lines=shuffled)
        compare(changed.changed(num_workers=2), 4)


def test_two_media_roots_may_share_the_same_lines(recipe: Recipe, tmp_path: Path, compare: Callable[..., None]) -> None:
    draws = random.Random(6)
    rows = []
    for number in range(20):
        text = f"<image>{phrase(draws)}"
        rows.append({"image": f"{number}.jpg", "conversations": conversation(("human", text), ("gpt", phrase(draws)))})
        for root, seed in (("b", 1), ("a", 2)):
            (tmp_path / root).mkdir(exist_ok=True)
            image = picture(seed * 100 + number, 40 + seed * 20, 50)
            (tmp_path / root / f"{number}.jpg").write_bytes(encode(image, "JPEG"))
    lines = write_conversations(tmp_path / "lines.jsonl", rows)
    changed = recipe.changed(only=("vlm_sft",), groups={"vlm_sft": {"dataset_names": ["b", "a"]}})
    changed.dataset["dataset_info"] = {
        "vlm_sft": {name: {"data_dir": str(tmp_path / name), "jsonl_path": str(lines)} for name in ("a", "b")}
    }
    compare(changed, 6)


def test_video_files_spend_the_references_draws(recipe: Recipe, tmp_path: Path, compare: Callable[..., None]) -> None:
    draws = random.Random(7)
    rows: list[object] = []
    for count in (1, 2, 3, 5, 6, 7, 11, 12, 13, 30):
        write_video(tmp_path / f"clip{count}.mp4", count, seed=count)
        ask = conversation(("human", f"<video>{phrase(draws)}"), ("gpt", phrase(draws)))
        rows.append({"video": f"clip{count}.mp4", "conversations": ask})
        rows.append({"conversations": conversation(("human", phrase(draws)), ("gpt", phrase(draws)))})
    rows.append({"video": "clip5.mp4", "conversations": conversation(("human", "no clip"), ("gpt", "here"))})
    rows.append({"video": "clip5.mp4", "conversations": conversation(("human", "<video> no answer"))})
    lines = write_conversations(tmp_path / "lines.jsonl", rows)
    info = {"data_dir": str(tmp_path), "jsonl_path": str(lines)}
    compare(_only_group(recipe, "vlm_sft", info, num_used_data=[1000]), 12, decode_videos_with_pyav=True)


def test_frame_folders_spend_the_references_draws(
    recipe: Recipe, sources: Sources, tmp_path: Path, compare: Callable[..., None]
) -> None:
    draws = random.Random(8)
    media = sources.media[0]
    rows: list[object] = []
    for count in (1, 2, 3, 4, 5, 7, 9, 12, 14) * 2:
        ask = conversation(("human", f"{phrase(draws)}<video>"), ("gpt", phrase(draws)))
        rows.append({"video": f"clip{count}/", "conversations": ask})
    rows.append({"video": "clip9/", "conversations": conversation(("human", "no clip"), ("gpt", "here"))})
    rows.append({"video": "clip9/", "conversations": conversation(("human", "<video> no answer"))})
    lines = write_conversations(tmp_path / "lines.jsonl", rows)
    info = {"data_dir": str(media), "jsonl_path": str(lines)}
    compare(_only_group(recipe, "vlm_sft", info, num_used_data=[1000]), 15, 2)


def test_a_chain_longer_than_any_budget_is_left_out(
    recipe: Recipe, tmp_path: Path, compare: Callable[..., None]
) -> None:
    from tests.datamaker.parquet import EDIT_SCHEMA, write_parquet

    draws = random.Random(9)
    rows = [edit_row(draws, count) for count in (2, 5, 3, 2, 4, 2, 2, 3)]
    write_parquet(tmp_path / "edit" / "a.parquet", rows, EDIT_SCHEMA, 4)
    listing = write_parquet_info(tmp_path / "info.json", [tmp_path / "edit"])
    info = {"data_dir": str(tmp_path / "edit"), "parquet_info_path": str(listing)}
    changed = _only_group(recipe, "unified_edit", info, num_used_data=[1])
    compare(changed.changed(dataset={"max_num_tokens_per_sample": 120, "use_flex": True}), 12)
