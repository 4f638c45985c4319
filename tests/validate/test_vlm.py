"""A sound VLM bake holds every law, packed, unpacked or THD; each kind of damage breaks the law that names it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaders.format import shard_path, sidecar_path
from pipeline.law_report import VLM_LAWS, LawResult, ValidationReport
from pipeline.validate import validate
from pipeline.validate.vlm_packs import vlm_pack_violations
from tests.loaders.vlm_synthetic import SETTINGS, VOCABULARY, draw_sample, stored_pack, write_vlm_bake

CASES: dict[str, dict[str, Any]] = {
    "neat": {"world_size": 2},
    "mRoPE": {"mrope": True},
    "thd, aligned": {"packing_format": "thd", "cp_size": 2},
    "unpacked": {"packing": "none", "pack_size": None, "max_length": 40},
    "unpacked by length": {"packing": "none", "pack_size": None, "order": "length_grouped", "world_size": 2},
    "own data per rank": {"lane_lengths": [5, 4]},
    "pixels as floats": {"stored_floats": True},
}


def broken(report: ValidationReport) -> dict[int, LawResult]:
    return {result.law: result for result in report.laws if result.num_broken}


@pytest.mark.parametrize("case", CASES)
def test_a_sound_bake_holds_every_law(case: str, tmp_path: Path) -> None:
    write_vlm_bake(tmp_path, 9, **CASES[case])
    report = validate(str(tmp_path))
    assert report.broken is None
    assert [(result.law, result.verdict) for result in report.laws] == [(law, "holds") for law in range(1, 9)]
    assert [result.title for result in report.laws] == list(VLM_LAWS.values())


def test_figures_tell_fill_media_and_what_bytes_are_saved(tmp_path: Path) -> None:
    made = write_vlm_bake(tmp_path, 9)
    figures = validate(str(tmp_path)).figures
    assert figures is not None
    lengths = [sum(len(sample["input_ids"]) - 1 for sample in pack) for pack in made.samples]
    assert figures.tokens["total"] == sum(lengths) == sum(figures.tokens[kind] for kind in ("text", "image", "video"))
    assert figures.fill["mean"] == pytest.approx(sum(lengths) / 9 / 160)
    assert figures.fill["highest"] == max(lengths) / 160
    floats = [sample[key] for pack in made.samples for sample in pack for key in sample if key.startswith("pixel")]
    assert figures.num_bytes_of["pixels_float32"] == sum(values.nbytes for values in floats)
    images = [len(sample.get("image_grid_thw", ())) for pack in made.samples for sample in pack]
    assert figures.images["image"] == sum(images) > 0
    num_samples = sum(map(len, made.samples))
    assert figures.groups["synthetic"] == {"samples": num_samples, "tokens": sum(lengths), "empty": 0}
    assert figures.loss_tokens > 0


@pytest.fixture
def bake(tmp_path: Path) -> Path:
    write_vlm_bake(tmp_path / "bake", 9, world_size=2)
    return tmp_path / "bake"


def edit_json(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))


def test_a_flipped_byte_breaks_law_six(bake: Path) -> None:
    path = bake / shard_path(1, 0)
    content = bytearray(path.read_bytes())
    content[-20_000] ^= 1
    path.write_bytes(content)
    assert 6 in broken(validate(str(bake)))


def test_packs_in_another_order_than_epoch_0_break_law_seven(bake: Path) -> None:
    edit_json(bake / "dataset.json", lambda manifest: manifest["settings"].update(order_seed=1))
    found = broken(validate(str(bake)))
    assert found.keys() == {7}
    assert "lane 0" in found[7].examples[0]


def test_a_replaced_row_is_accounted_for_by_what_stands_in_its_place(bake: Path) -> None:
    def replace_one(manifest: Any) -> None:
        account = manifest["rows"]["synthetic"]["passes"][0]
        account.update(drawn=account["drawn"] + 1, dropped={"replaced: truncated": 1})

    edit_json(bake / "dataset.json", replace_one)
    found = broken(validate(str(bake)))
    assert found.keys() == {5}
    assert "1 replaced, 0 dropped in render, and the shards hold" in " ".join(found[5].examples)


def test_render_drops_are_held_to_the_accounts_in_sum_where_rows_are_replaced(bake: Path) -> None:
    path = bake / sidecar_path(0, 0)
    drop = {"pack": 0, "source": "synthetic", "path": "rows.jsonl", "row": 99, "reason": "decode_error"}
    edit_json(path, lambda record: record.update(drops=[drop]))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()

    def account(manifest: Any) -> None:
        manifest["lanes"][0]["shards"][0]["sidecar_sha256"] = digest
        rows = manifest["rows"]["synthetic"]
        rows["dropped_in_render"] = {"decode_error": 1}
        rows["passes"][0].update(drawn=rows["passes"][0]["drawn"] + 1, dropped={"replaced: truncated": 1})

    edit_json(bake / "dataset.json", account)
    assert validate(str(bake)).broken is None


def test_settings_of_another_recipe_are_a_configuration_error(bake: Path) -> None:
    shutil.rmtree(bake / "shards")
    edit_json(bake / "dataset.json", lambda manifest: manifest.update(settings={"packer": "greedy"}))
    from pipeline.errors import ConfigError

    with pytest.raises(ConfigError, match="settings"):
        validate(str(bake))


SAMPLES = [draw_sample(str(seed), mrope=False) for seed in (2, 7, 5)]
HEADER, ARRAYS = stored_pack(3, SAMPLES, SETTINGS)


def laws_broken(
    header: dict[str, Any] | None = None, settings: dict[str, Any] | None = None, **arrays: Any
) -> dict[int, str]:
    """Law → complaint of the pack with some header fields, settings and arrays replaced (None: left out)."""
    changed = {name: array for name, array in {**ARRAYS, **arrays}.items() if array is not None}
    violations = vlm_pack_violations(
        "00000-00000000",
        dataclasses.replace(HEADER, **(header or {})),
        changed,
        dataclasses.replace(SETTINGS, **(settings or {})),
        VOCABULARY,
    )
    return {violation.law: violation.complaint for violation in violations}


def edited(name: str, *changes: tuple[int, int]) -> np.ndarray[Any, Any]:
    array = ARRAYS[name].copy()
    for place, value in changes:
        array[place] = value
    return array


def test_the_pack_has_images_videos_and_three_documents() -> None:
    assert laws_broken() == {}
    assert HEADER.n_images >= 2
    assert HEADER.n_videos >= 1
    assert len(HEADER.seq_lens) == 3


FIRST_IMAGE = int(np.flatnonzero(ARRAYS["mm_token_type_ids"] == 1)[0])
INSIDE_VIDEO = int(np.flatnonzero(ARRAYS["mm_token_type_ids"] == 2)[0]) + 1
TORN = dict.fromkeys(("seq_lens", "seq_lens_padded"), (INSIDE_VIDEO, HEADER.num_tokens - INSIDE_VIDEO))
LAST_LABEL = int(np.flatnonzero(ARRAYS["labels"][: HEADER.seq_lens[0] - 1] != -100)[-1])


@pytest.mark.parametrize(
    ("law", "message", "changes"),
    [
        (1, "neither text, image nor video", {"mm_token_type_ids": edited("mm_token_type_ids", (0, 3))}),
        (1, "stands for 4 and for", {"mm_token_type_ids": edited("mm_token_type_ids", (FIRST_IMAGE, 0))}),
        (1, "image tokens for 0 images", {"header": {"n_images": 0}, "image_grid_thw": None, "pixel_values_u1": None}),
        (1, "rows of pixel_values for grids", {"pixel_values_u1": ARRAYS["pixel_values_u1"][1:]}),
        (1, "0 rows of pixel_values_videos", {"pixel_values_videos_u1": None}),
        (1, "image_grid_thw has shape", {"header": {"n_images": 1}}),
        (1, "document 0 ends inside the tokens of a video", {"header": TORN}),
        (2, "labels has", {"labels": ARRAYS["labels"][1:]}),
        (2, "position_ids have shape None where mRoPE is on", {"settings": {"mrope": True}}),
        (2, "aligned to 8", {"settings": {"packing_format": "thd", "cp_size": 4}}),
        (2, "3 samples where nothing is packed", {"settings": {"packing": "none"}}),
        (3, "is not the token it should predict", {"labels": edited("labels", (LAST_LABEL, 1))}),
        (4, "exceed pack_size 20", {"settings": {"pack_size": 20}}),
        (4, "exceeds max_length 5", {"settings": {"max_length": 5}}),
        (4, "the vocabulary ends at", {"input_ids": edited("input_ids", (0, VOCABULARY))}),
        (4, "input_ids holds id -100", {"input_ids": edited("input_ids", (0, -100))}),
    ],
)
def test_each_law_is_broken_by_what_it_forbids(law: int, message: str, changes: dict[str, Any]) -> None:
    found = laws_broken(**changes)
    assert message in found[law]
