"""The stages one after another on one output, and outputs that hold another bake."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from pipeline import output, stages
from pipeline.config import Config
from pipeline.configuration.reader import load_config
from pipeline.demo import write_demo
from pipeline.errors import BakeConflict, ConfigError, LawBroken, RunFailed, SourceError
from pipeline.inspect import describe, print_pack

Loader = Callable[..., Config]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    write_demo(str(folder))
    return folder / "config.yaml"


def settings(demo: Path, output: Path, *overrides: str) -> Config:
    fixed = (f"bake.output={output}", "bake.executor=inline", "bake.length.packs_per_lane=3", "bake.world_size=1")
    return load_config(str(demo), (*fixed, *overrides))


@pytest.fixture(scope="module")
def finished(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("bake") / "out"
    stages.run(settings(demo, output))
    return output


@pytest.fixture
def bake(finished: Path, tmp_path: Path) -> Path:
    """A finished bake of three packs that a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "out"))


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_stage_at_a_time_gives_what_run_gives(demo: Path, finished: Path, tmp_path: Path) -> None:
    config = settings(demo, tmp_path / "out")

    sources = stages.index(config)
    manifest = stages.plan(config)
    stages.render(config)

    assert [line.partition(":")[0] for line in stages.index_lines(sources)] == [
        source.name for group in config.dataset.groups for source in group.sources
    ]
    assert manifest.lanes[0].num_packs == 3
    here, there = contents(tmp_path / "out"), contents(finished)
    for apart in (here, there):
        apart.pop("config.yaml")  # it names the output
    assert here == there


def test_render_without_a_plan_says_what_to_run_first(demo: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="parbake plan"):
        stages.render(settings(demo, tmp_path / "out"))


def test_render_refuses_a_plan_of_another_configuration(demo: Path, tmp_path: Path) -> None:
    stages.plan(settings(demo, tmp_path / "out"))

    with pytest.raises(RunFailed, match="another configuration"):
        stages.render(settings(demo, tmp_path / "out", "dataset.expected_num_tokens=1000"))


def test_the_output_holds_the_configuration_it_was_made_with(demo: Path, bake: Path) -> None:
    again = load_config(str(bake / "config.yaml"))

    assert again.bake.length.packs_per_lane == 3
    assert [group.name for group in again.dataset.groups] == [
        group.name for group in settings(demo, bake).dataset.groups
    ]


def test_running_again_changes_nothing(demo: Path, bake: Path) -> None:
    stages.run(settings(demo, bake))
    before = contents(bake)

    stages.run(settings(demo, bake))

    assert contents(bake) == before


def test_a_summary_counts_packs_shards_and_lanes(demo: Path, bake: Path) -> None:
    config = settings(demo, bake)

    assert stages.summary(config, stages.run(config)).startswith(f"{bake}: 3 packs in ")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("dataset.expected_num_tokens=1000", "another configuration"),
        ("bake.world_size=2", "another configuration"),
        ("bake.stream=improved", "another configuration"),
        ("bake.pixels=webp", "pixels raw instead of webp"),
        ("bake.shard_bytes=1MB", "instead of 1000000"),
        ("bake.length.packs_per_lane=2", "a longer bake"),
        ("bake.length.tokens=100", "would end before the last of them with tokens 100"),
    ],
)
@pytest.mark.parametrize("unfinished", [False, True])
def test_another_bake_is_refused_and_left_as_it_is(
    demo: Path, bake: Path, override: str, words: str, unfinished: bool
) -> None:
    if unfinished:
        (bake / "dataset.json").unlink()
    before = contents(bake)

    with pytest.raises(BakeConflict, match=words):
        stages.run(settings(demo, bake, override))

    assert contents(bake) == before


def test_epochs_that_a_bake_has_reached_are_no_extension(demo: Path, tmp_path: Path) -> None:
    stages.run(settings(demo, tmp_path / "out", "bake.length.epochs=1"))
    num_packs = stages.plan(settings(demo, tmp_path / "out", "bake.length.epochs=1")).lanes[0].num_packs
    stages.run(settings(demo, tmp_path / "out", f"bake.length.packs_per_lane={num_packs + 1}"))
    before = contents(tmp_path / "out")

    with pytest.raises(BakeConflict, match="all that epochs 1 asks for"):
        stages.run(settings(demo, tmp_path / "out", "bake.length.epochs=1"))

    assert contents(tmp_path / "out") == before


def test_a_longer_plan_that_was_never_rendered_binds_nobody(demo: Path, bake: Path) -> None:
    stages.run(settings(demo, bake))
    before = contents(bake)

    stages.plan(settings(demo, bake, "bake.length.packs_per_lane=9"))

    assert stages.validate_bake(str(bake), str(bake.parent / "report")).broken is None
    stages.run(settings(demo, bake))
    assert contents(bake) == before


def test_a_finished_bake_of_other_versions_is_left_as_it_is(
    demo: Path, bake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(bake)
    own = output.pixel_versions()
    monkeypatch.setattr(output, "pixel_versions", lambda: {**own, "pillow": "99.0"})

    with pytest.raises(BakeConflict, match=r"instead of 99\.0"):
        stages.run(settings(demo, bake, "bake.length.packs_per_lane=4"))

    assert contents(bake) == before


def test_a_plan_with_other_packs_in_place_of_finished_ones_is_not_rendered(demo: Path, bake: Path) -> None:
    manifest = json.loads((bake / "plan/plan.json").read_bytes())
    manifest["lanes"][0]["shards"][0]["fingerprint"] = "0" * 32
    (bake / "plan/plan.json").write_text(json.dumps(manifest))
    before = contents(bake)

    with pytest.raises(BakeConflict, match="is finished, and this plan has other packs in its place"):
        stages.render(settings(demo, bake, f"bake.output={bake}"))

    before.pop("config.yaml")
    assert before.items() <= contents(bake).items()


def test_a_source_of_which_nothing_is_used_is_planned_beside_others(demo: Path, tmp_path: Path) -> None:
    one = demo.parent / "t2i"
    group = "dataset.grouped_datasets.t2i_pretrain"
    sources = (
        f"{group}.dataset_names=[scenes, more]",
        f"dataset.dataset_info.t2i_pretrain={{scenes: {{data_dir: {one}}}, more: {{data_dir: {one}}}}}",
    )

    manifest = stages.plan(settings(demo, tmp_path / "out", *sources, f"{group}.num_used_data=[4, 0]"))

    assert manifest.lanes[0].num_packs == 3
    with pytest.raises(SourceError, match="t2i_pretrain has 0 paths"):
        stages.plan(settings(demo, tmp_path / "none", *sources, f"{group}.num_used_data=[0, 0]"))


def test_a_configuration_given_as_a_file_url_finds_what_lies_beside_it(demo: Path, tmp_path: Path) -> None:
    config = load_config(f"file://{demo}", (f"bake.output={tmp_path / 'out'}", "bake.executor=inline"))

    assert stages.plan(config).lanes[0].num_packs > 0


@pytest.mark.parametrize("damage", [("normalisations", []), ("use_flex", True), ("max_num_tokens", 7)])
def test_a_dataset_json_that_was_changed_breaks_law_6(bake: Path, damage: tuple[str, object]) -> None:
    manifest = json.loads((bake / "dataset.json").read_bytes())
    (bake / "dataset.json").write_text(json.dumps({**manifest, damage[0]: damage[1]}))

    with pytest.raises(LawBroken, match=r"law 6.*not as it was written"):
        stages.validate_bake(str(bake))


@pytest.mark.parametrize("content", ["{", "[]", '{"lanes": []}'])
def test_a_damaged_plan_breaks_law_7_and_leaves_the_rest_judged(bake: Path, content: str) -> None:
    (bake / "plan/plan.json").write_text(content)

    found = stages.validate_bake(str(bake))

    assert [law.law for law in found.laws if law.verdict == "broken"] == [7]


def test_a_plan_of_another_vocabulary_or_other_shards_breaks_law_7(bake: Path) -> None:
    manifest = json.loads((bake / "plan/plan.json").read_bytes())
    manifest["vocab_size"] += 1
    manifest["lanes"][0]["shards"][0]["fingerprint"] = "0" * 32
    (bake / "plan/plan.json").write_text(json.dumps(manifest))

    [law] = [law for law in stages.validate_bake(str(bake)).laws if law.verdict == "broken"]

    assert (law.law, law.num_broken) == (7, 2)


def test_a_damaged_dataset_json_is_not_overwritten(demo: Path, bake: Path) -> None:
    (bake / "dataset.json").write_text("{}")

    with pytest.raises(BakeConflict, match="not of this version or are damaged"):
        stages.run(settings(demo, bake))

    assert (bake / "dataset.json").read_text() == "{}"


def test_another_plan_without_shards_is_simply_planned_anew(demo: Path, tmp_path: Path) -> None:
    stages.plan(settings(demo, tmp_path / "out"))

    manifest = stages.plan(settings(demo, tmp_path / "out", "bake.length.packs_per_lane=1"))

    assert manifest.lanes[0].num_packs == 1


def test_a_tokenizer_that_cannot_be_loaded_leaves_no_trace(demo: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tokenizer"):
        stages.run(settings(demo, tmp_path / "out", "tokenizer=/nowhere/tokenizer"))

    assert not (tmp_path / "out").exists()


def test_a_finished_bake_holds_its_laws_and_gets_a_report(bake: Path, tmp_path: Path) -> None:
    before = contents(bake)

    assert stages.validate_bake(str(bake), str(tmp_path / "apart")).broken is None

    assert contents(bake) == before
    assert sorted(path.name for path in (tmp_path / "apart").iterdir()) == ["report.html", "report.json"]
    stages.validate_bake(str(bake))
    assert (bake / "report" / "report.html").exists()


def test_a_broken_law_is_reported_and_not_raised(bake: Path) -> None:
    shard = next((bake / "shards").rglob("*.tar"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")

    found = stages.validate_bake(str(bake))

    assert isinstance(found.broken, LawBroken)
    assert (bake / "report" / "report.json").exists()


def test_a_folder_without_a_bake_cannot_be_validated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        stages.validate_bake(str(tmp_path))

    assert not list(tmp_path.iterdir())


def test_any_pack_of_a_bake_explains_itself(bake: Path) -> None:
    pack = describe(str(bake), 1)
    console = Console(file=io.StringIO(), width=160)
    print_pack(pack, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]

    assert (pack.lane, pack.pack, pack.num_positions) == (0, 1, 3)
    assert pack.note == ""
    assert "<|im_start|>" in shown
    assert "row " in shown


def test_a_bake_whose_tokenizer_is_gone_shows_ids(bake: Path) -> None:
    text = (bake / "config.yaml").read_text()
    (bake / "config.yaml").write_text("tokenizer: {pretrained_model_name_or_path: /nowhere}\n")

    assert "Token ids are shown" in describe(str(bake), 0).note
    assert "pretrained_model_name_or_path" in text


def test_a_position_beyond_the_end_is_named(bake: Path) -> None:
    with pytest.raises(ConfigError, match="holds 3 packs"):
        describe(str(bake), 3)


def test_a_folder_that_is_no_bake_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        describe(str(tmp_path), 0)


def test_a_damaged_shard_breaks_a_law(bake: Path) -> None:
    shard = next((bake / "shards").rglob("*.tar"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 3 : len(content) // 2] = b"\xff" * (len(content) // 2 - len(content) // 3)
    shard.write_bytes(content)

    with pytest.raises(LawBroken, match=r"shard .*\.tar"):
        describe(str(bake), 0)
