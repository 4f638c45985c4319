"""The report says what was found, twice, and nothing in it is executed or fetched."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from pipeline.law_report import LAWS, BakeFigures, LawResult, ValidationReport, Violation, judge
from pipeline.report import page, report_json, write_report
from pipeline.report.page import drop_lines, group_lines, source_lines
from pipeline.storage import Storage

EVIL = "<script>alert(1)</script>"
ACCOUNT = {
    "passes": [
        {"drawn": 10, "packed": 6, "dropped": {"truncated": 2, EVIL: 1}, "discarded": 1, "waiting": 0},
        {"drawn": 2, "packed": 1, "dropped": {"truncated": 1}, "discarded": 0, "waiting": 0},
    ],
    "dropped_in_render": {"decode_error": 1},
    "not_reached": 4,
    "not_assigned": 3,
}
FIGURES = BakeFigures(
    packs=3,
    shards=2,
    lanes=1,
    num_bytes=5_000_000,
    max_num_tokens=100,
    tokens={"total": 240, "text": 120, "vit": 60, "vae": 60},
    fill={"mean": 0.8, "lowest": 0.5, "highest": 1.0, "histogram": [0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1]},
    images={"vit": 4, "vae": 3, "vae_stored": 2},
    groups={"t2i": {"samples": 5, "tokens": 180, "empty": 1}, "vlm": {"samples": 2, "tokens": 60, "empty": 0}},
    sources={"t2i/a": ACCOUNT},
    render_drops={"t2i/a": {"decode_error": ["part.parquet:7 (pack 2)"]}},
    plan={
        "drop_examples": {"t2i/a": {"truncated": [["part.parquet", 3]]}},
        "weights": {"t2i": 3.0, "vlm": 1.0},
        "groups": {"t2i": {"draws": 6}, "vlm": {"draws": 2}},
        "conditions": {"t2i/a": {"EXIF": 2}},
    },
)


def report(*violations: Violation) -> ValidationReport:
    return ValidationReport(
        bake="/bakes/one",
        stream="abc",
        laws=tuple(judge(law, 3, violations, ["a note"] if law == 4 else ()) for law in LAWS),
        figures=FIGURES,
        versions={"numpy": "2.0"},
        settings={"packer": "greedy"},
    )


BROKEN = report(Violation(law=3, subject="pack 00000-00000001", complaint=EVIL))


def test_the_json_holds_verdicts_and_figures() -> None:
    content = json.loads(report_json(BROKEN))
    assert content["ok"] is False
    assert [law["verdict"] for law in content["laws"]] == ["holds", "holds", "broken", *["holds"] * 5]
    assert content["laws"][2]["examples"] == [f"pack 00000-00000001: {EVIL}"]
    assert content["figures"]["sources"]["t2i/a"] == ACCOUNT
    assert json.loads(report_json(report()))["ok"] is True


def test_the_page_names_the_offending_pack_and_escapes_what_it_shows() -> None:
    html = page(BROKEN)
    assert "pack 00000-00000001" in html
    assert EVIL not in html
    assert "&lt;script&gt;" in html
    assert "Every law that could be checked holds." not in html
    assert "Every law that could be checked holds." in page(report())


def test_the_page_is_self_contained() -> None:
    assert not re.search(r"(src|href)=|@import|url\(|<script", page(BROKEN))


def test_the_page_shows_fill_tokens_groups_rows_drops_and_conditions() -> None:
    html = page(report())
    for shown in ("80.0%", "120", "t2i", "truncated", "part.parquet:3", "part.parquet:7 (pack 2)", "exif", "numpy 2.0"):
        assert shown in html, shown


def test_drops_are_listed_by_frequency_with_stage_and_examples() -> None:
    lines = [(line.reason, line.stage, line.rows, line.examples) for line in drop_lines(FIGURES)]
    assert lines == [
        ("truncated", "plan", 3, ("part.parquet:3",)),
        (EVIL, "plan", 1, ()),
        ("decode_error", "render", 1, ("part.parquet:7 (pack 2)",)),
    ]


def test_accounts_of_a_source_are_summed_over_passes_and_render() -> None:
    [line] = source_lines(FIGURES)
    assert (line.drawn, line.packed, line.dropped, line.discarded) == (12, 6, 5, 1)


def test_groups_stand_beside_their_weight() -> None:
    first, second = group_lines(FIGURES)
    assert (first.share, first.drawn_share, first.weight_share) == (0.75, 0.75, 0.75)
    assert (second.share, second.drawn_share, second.weight_share) == (0.25, 0.25, 0.25)


def test_an_empty_report_has_a_page() -> None:
    law = LawResult(law=1, title=LAWS[1], num_checked=0, num_broken=0)
    empty = ValidationReport(bake="b", stream="s", laws=(law,))
    assert "not checked" in page(empty)
    assert empty.broken is None


def test_both_files_are_published(tmp_path: Path) -> None:
    write_report(report(), str(tmp_path / "out"), Storage())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "report.json"]


def test_the_error_of_a_broken_bake_says_which_law_and_where() -> None:
    assert BROKEN.broken is not None
    assert BROKEN.broken.exit_code == 1
    assert "breaks law 3; first: law 3, losses point at their tokens: pack 00000-00000001" in str(BROKEN.broken)


@pytest.mark.parametrize("num_violations", [1, 25])
def test_all_violations_are_counted_and_the_first_are_named(num_violations: int) -> None:
    every = [Violation(law=2, subject=f"pack {number}", complaint="x") for number in range(num_violations)]
    result = judge(2, 30, every)
    assert result.num_broken == num_violations
    assert len(result.examples) == min(10, num_violations)


def test_the_page_of_a_vlm_bake_shows_media_pixels_and_replaced_rows() -> None:
    figures = dataclasses.replace(
        FIGURES,
        recipe="vlm",
        tokens={"total": 240, "text": 120, "image": 80, "video": 40},
        images={"image": 4, "video": 1},
        groups={"chats": {"samples": 5, "tokens": 240, "empty": 0}},
        sources={"chats": {**ACCOUNT, "passes": [{**ACCOUNT["passes"][0], "dropped": {"replaced: truncated": 2}}]}},  # type: ignore[index]
        plan={},
        counted={"replacements": 2, "packs_with_float_pixels": 0},
        loss_tokens=77,
        num_bytes_of={"pixels_stored": 1_000_000, "pixels_float32": 8_000_000},
    )
    settings = {"packing": "neat", "pixel_tables": {"pixel_values": {"tables": [[0.123456]]}}}
    html = page(dataclasses.replace(report(), figures=figures, settings=settings))
    assert "0.123456" not in html
    for shown in (
        "77 of them carry loss",
        "4 images; 1 videos",
        "8.0 times as much",
        "as a bfloat16 batch 4.0 MB",
        "replaced: truncated",
        "cut by max_packs",
        "replacements: 2",
    ):
        assert shown in html, shown
    assert "packs with float pixels" not in html
    assert "of every step is padding" not in page(
        dataclasses.replace(report(), figures=dataclasses.replace(figures, has_budget=False))
    )
