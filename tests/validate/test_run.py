"""A sound bake holds every law; each kind of damage breaks the law that names it, and only that."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loaders.format import Sidecar, parse_dataset_manifest, parse_sidecar, shard_path, sidecar_path, to_json
from pipeline.bake import BakeFolder
from pipeline.errors import ConfigError, LawBroken
from pipeline.fingerprint import fingerprint
from pipeline.index_table import source_index_to_json
from pipeline.law_report import LawResult, ValidationReport
from pipeline.plan_table import LanePlan, PlanManifest, ShardPlan, manifest_to_json
from pipeline.records import IndexedUnit, SourceIndex
from pipeline.validate import validate
from tests.loaders.synthetic import SAMPLES_PER_PACK, write_bake

SOURCE = "synthetic/all"


def plan_of(folder: Path) -> PlanManifest:
    """The plan that would have led to a synthetic bake, whose `dataset.json` gets its fingerprint."""
    manifest = parse_dataset_manifest((folder / "dataset.json").read_bytes())
    prints = fingerprint([["" for _ in lane.shards] for lane in manifest.lanes])
    manifest = replace(manifest, fingerprints={**manifest.fingerprints, "plan": prints})
    (folder / "dataset.json").write_bytes(to_json(manifest))
    lanes = []
    for lane in manifest.lanes:
        first, shards = 0, []
        for shard in lane.shards:
            shards.append(ShardPlan(first_pack=first, num_packs=shard.num_packs, pixel_bytes=0, fingerprint=""))
            first += shard.num_packs
        rows = SAMPLES_PER_PACK * first
        account = {"drawn": rows, "packed": rows, "dropped": {}, "discarded": 0, "waiting": 0}
        lanes.append(LanePlan(shards=tuple(shards), rows={SOURCE: [account]}, not_reached={SOURCE: 0}))
    return PlanManifest(
        stream=manifest.stream,
        fingerprints=manifest.fingerprints,
        world_size=manifest.world_size,
        num_workers=manifest.num_workers,
        lanes=tuple(lanes),
        special_tokens=manifest.special_tokens,
        vocab_size=manifest.vocab_size,
        not_assigned={SOURCE: 0},
        statistics={},
        versions=manifest.versions,
    )


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bake")
    write_bake(folder, [4, 5])
    bake = BakeFolder(str(folder))
    for url, content in (
        (bake.plan, manifest_to_json(plan_of(folder))),
        (bake.source_index(SOURCE), index_of(27)),
    ):
        Path(url).parent.mkdir(parents=True, exist_ok=True)
        Path(url).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def index_of(num_rows: int) -> str:
    unit = IndexedUnit(unit="rows.parquet", path="rows.parquet", first_row=0, num_rows=num_rows)
    return source_index_to_json(SourceIndex(source=SOURCE, units=(unit,)))


@pytest.fixture
def bake(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "bake"))


def broken(report: ValidationReport) -> dict[int, LawResult]:
    return {result.law: result for result in report.laws if result.num_broken}


def edit_json(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))


def test_a_sound_bake_holds_every_law(template: Path) -> None:
    report = validate(str(template))
    assert report.broken is None
    assert [(result.law, result.verdict) for result in report.laws] == [(law, "holds") for law in range(1, 9)]
    assert [result.num_checked for result in report.laws[:7]] == [9, 9, 9, 9, 1, 4, 2]
    assert report.figures is not None
    assert report.figures.packs == 9
    assert report.figures.tokens == parse_dataset_manifest((template / "dataset.json").read_bytes()).tokens
    assert sum(report.figures.fill["histogram"]) == 9
    assert report.figures.groups["synthetic"]["samples"] == 27


def test_without_plan_and_index_the_notes_say_what_was_not_seen(bake: Path) -> None:
    shutil.rmtree(bake / "plan")
    shutil.rmtree(bake / "index")
    report = validate(str(bake))
    assert report.broken is None
    assert any("plan.json is not here" in note for note in report.laws[4].notes)
    assert any("the index of synthetic/all is not here" in note for note in report.laws[4].notes)


def test_a_flipped_byte_breaks_law_six_and_names_the_pack(bake: Path) -> None:
    sidecar = parse_sidecar((bake / sidecar_path(1, 1)).read_bytes())
    with open(bake / shard_path(1, 1), "r+b") as file:
        file.seek(sidecar.packs[0].members["packed_text_ids"].data_offset)
        file.write(b"\x7f")
    report = validate(str(bake))
    found = broken(report)
    assert found.keys() == {6}
    assert found[6].num_broken == 2
    assert "pack 00001-00000003" in " ".join(found[6].examples)
    assert isinstance(report.broken, LawBroken)
    assert "law 6" in str(report.broken)


@pytest.mark.parametrize("path", [shard_path(0, 1), sidecar_path(0, 1)])
def test_a_missing_file_breaks_law_six(bake: Path, path: str) -> None:
    (bake / path).unlink()
    found = broken(validate(str(bake)))
    assert 6 in found
    assert "missing" in " ".join(found[6].examples)


def test_a_shard_that_is_cut_short_breaks_law_six(bake: Path) -> None:
    path = bake / shard_path(0, 0)
    path.write_bytes(path.read_bytes()[:4000])
    assert broken(validate(str(bake))).keys() >= {6}


def test_a_tar_with_an_owner_breaks_law_six_even_if_its_digests_agree(bake: Path) -> None:
    path = bake / shard_path(0, 1)
    content = bytearray(path.read_bytes())
    content[265:268] = b"bob"  # user name of the first member
    content[148:156] = b"        "
    content[148:156] = b"%06o\0 " % sum(content[:512])
    path.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    sidecar = bake / sidecar_path(0, 1)
    edit_json(sidecar, lambda record: record.update(sha256=digest))
    sidecar_digest = hashlib.sha256(sidecar.read_bytes()).hexdigest()
    edit_json(
        bake / "dataset.json",
        lambda record: record["lanes"][0]["shards"][1].update(sha256=digest, sidecar_sha256=sidecar_digest),
    )
    found = broken(validate(str(bake)))
    assert found.keys() == {6}
    assert "depend on where they were made" in found[6].examples[0]


def test_token_totals_that_the_shards_do_not_hold_break_law_six(bake: Path) -> None:
    edit_json(bake / "dataset.json", lambda record: record["tokens"].update(text=1))
    found = broken(validate(str(bake)))
    assert found.keys() == {6}
    assert "the shards hold" in found[6].examples[0]


ACCOUNT_CHANGES: dict[str, tuple[Callable[[Any], None], str]] = {
    "a row drawn and forgotten": (lambda rows: rows[SOURCE]["passes"][0].update(drawn=28), "drew 28 rows and knows"),
    "a row packed twice": (lambda rows: rows[SOURCE]["passes"][0].update(drawn=28, packed=28), "the shards hold 27"),
    "a drop of render that no sidecar has": (
        lambda rows: rows[SOURCE].update(dropped_in_render={"truncated": 1}),
        "dataset.json counts the drops",
    ),
    "rows not reached that the plan did reach": (lambda rows: rows[SOURCE].update(not_reached=5), "(5, 0)"),
    "a source that is not in the shards": (lambda rows: rows.update({"b": rows[SOURCE]}), "source b"),
    "no account at all": (lambda rows: rows.clear(), "no account"),
}


@pytest.mark.parametrize("name", ACCOUNT_CHANGES)
def test_accounts_that_contradict_a_witness_break_law_five(bake: Path, name: str) -> None:
    change, message = ACCOUNT_CHANGES[name]
    edit_json(bake / "dataset.json", lambda record: change(record["rows"]))
    found = broken(validate(str(bake)))
    assert found.keys() == {5}
    assert message in " ".join(found[5].examples)


def test_rows_of_the_index_that_nobody_accounts_for_break_law_five(bake: Path) -> None:
    Path(BakeFolder(str(bake)).source_index(SOURCE)).write_text(index_of(28))
    found = broken(validate(str(bake)))
    assert found.keys() == {5}
    assert "hold 28 rows, 27 are accounted for" in found[5].examples[0]


def test_lanes_that_were_not_planned_so_break_law_seven(bake: Path) -> None:
    edit_json(bake / "plan/plan.json", lambda plan: plan["lanes"][1]["shards"].pop())
    found = broken(validate(str(bake)))
    assert found.keys() == {7}
    assert "lane 1: has 5 packs in 2 shards, planned 3 in 1" in found[7].examples[0]


def test_render_drops_are_named_in_the_figures(bake: Path) -> None:
    path = bake / sidecar_path(0, 0)
    drop = {"pack": 2, "source": SOURCE, "path": "rows.parquet", "row": 99, "reason": "decode_error"}
    edit_json(path, lambda record: record.update(drops=[drop]))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()

    def account(record: Any) -> None:
        record["lanes"][0]["shards"][0]["sidecar_sha256"] = digest
        record["rows"][SOURCE]["dropped_in_render"] = {"decode_error": 1}
        record["rows"][SOURCE]["passes"][0].update(drawn=28, packed=28)

    edit_json(bake / "dataset.json", account)
    shutil.rmtree(bake / "plan")
    report = validate(str(bake))
    assert report.broken is None
    assert report.figures is not None
    assert report.figures.render_drops == {SOURCE: {"decode_error": ["rows.parquet:99 (pack 2)"]}}


def test_a_folder_without_a_finished_bake_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no dataset\.json"):
        validate(str(tmp_path))


def test_a_bake_on_s3_is_validated_where_it_lies(template: Path, s3: str) -> None:
    import fsspec

    fsspec.filesystem("s3").put(str(template), f"{s3}/bake", recursive=True)
    report = validate(f"{s3}/bake")
    assert report.broken is None
    assert report.figures == validate(str(template)).figures


def test_a_sidecar_survives_the_way_through_json(template: Path) -> None:
    content = (template / sidecar_path(0, 0)).read_bytes()
    sidecar = parse_sidecar(content)
    assert isinstance(sidecar, Sidecar)
    assert to_json(sidecar) == content
