"""The command line: exit codes, messages, and what reaches the stages. The stages themselves are tested elsewhere."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from pipeline import errors, stages
from pipeline.cli import app
from pipeline.config import Config

RECIPE = yaml.safe_load(
    """
    optimizer: {lr: 1.0}
    tokenizer: /tokenizer
    dataset:
      dataset_info: {t2i_pretrain: {t2i: {data_dir: /data/t2i}}}
      grouped_datasets:
        t2i_pretrain:
          dataset_names: [t2i]
          image_transform_args: {image_stride: 16, max_image_size: 1024, min_image_size: 512}
          num_used_data: [8]
          weight: 1
    bake: {output: /out, length: {packs_per_lane: 10}, executor: inline}
    """
)


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    return str(path)


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make `parbake run` end with an exception."""

    def arrange(error: BaseException) -> None:
        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(stages, "run", fail)

    return arrange


def parbake(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
    )


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (errors.ConfigError("so it is: therefore; do this"), 2),
        (errors.SourceError("so it is: therefore; do this"), 2),
        (errors.BakeConflict("so it is: therefore; do this"), 2),
        (errors.TooManyDrops("so it is: therefore; do this"), 1),
        (errors.LawBroken("so it is: therefore; do this"), 1),
        (errors.RunFailed("so it is: therefore; do this"), 3),
        (errors.Bug("so it is: therefore; do this"), 3),
    ],
)
def test_every_error_ends_in_its_sentence_and_its_exit_code(
    recipe: str, raising: Callable[[BaseException], None], error: errors.ParbakeError, exit_code: int
) -> None:
    raising(error)

    result = parbake("run", recipe)

    assert result.exit_code == exit_code
    assert result.stderr.splitlines()[-1] == "Error: so it is: therefore; do this"
    assert "Traceback" not in result.stderr


def test_a_full_disk_is_a_run_that_can_be_run_again(recipe: str, raising: Callable[[BaseException], None]) -> None:
    raising(OSError(errno.ENOSPC, "No space left on device", "/out/x"))

    result = parbake("run", recipe)

    assert result.exit_code == 3
    assert "No space is left" in result.stderr
    assert "run the same command again" in result.stderr
    assert "Traceback" not in result.stderr


def test_another_failure_of_storage_is_no_bug(recipe: str, raising: Callable[[BaseException], None]) -> None:
    raising(PermissionError(errno.EACCES, "Permission denied", "/out/x"))

    result = parbake("run", recipe)

    assert result.exit_code == 3
    assert "PermissionError" in result.stderr
    assert "Bug" not in result.stderr


def test_what_was_not_foreseen_is_a_bug_with_its_traceback(
    recipe: str, raising: Callable[[BaseException], None]
) -> None:
    raising(ZeroDivisionError("division by zero"))

    result = parbake("run", recipe)

    assert result.exit_code == 3
    assert "Bug: ZeroDivisionError: division by zero" in result.stderr
    assert "Traceback" in result.stderr


def test_an_interrupt_exits_as_shells_expect(recipe: str, raising: Callable[[BaseException], None]) -> None:
    raising(KeyboardInterrupt())

    result = parbake("run", recipe)

    assert result.exit_code == 130
    assert "run the same command again" in result.stderr


def test_a_traceback_is_shown_on_request(
    recipe: str, raising: Callable[[BaseException], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARBAKE_DEBUG", "1")
    raising(errors.SourceError("x"))

    assert "Traceback" in parbake("run", recipe).stderr


@pytest.mark.parametrize("stage", ["run", "index", "plan", "render"])
def test_flags_and_overrides_reach_every_stage(recipe: str, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Config] = []

    def record(config: Config, *_: object) -> Any:
        seen.append(config)
        raise errors.SourceError("enough")

    monkeypatch.setattr(stages, stage, record)
    flags = ("--output", "/x", "--world-size", "3", "--packs-per-lane", "4", "--executor", "ray")

    result = parbake(stage, recipe, *flags, "--set", "dataset.use_flex=true", "--set", "seed=7")

    assert result.exit_code == 2
    (config,) = seen
    assert (config.bake.output, config.bake.world_size, config.bake.executor) == ("/x", 3, "ray")
    assert (config.bake.length.packs_per_lane, config.dataset.use_flex, config.seed) == (4, True, 7)


def test_ignored_sections_are_named_in_one_line(recipe: str, raising: Callable[[BaseException], None]) -> None:
    raising(errors.SourceError("x"))

    assert parbake("run", recipe).stderr.splitlines()[0] == "parbake: ignoring the trainer's sections optimizer"


def test_a_configuration_error_comes_before_anything_is_started(
    recipe: str, raising: Callable[[BaseException], None]
) -> None:
    raising(AssertionError("the stages must not be reached"))

    result = parbake("run", recipe, "--set", "bake.world_sice=2")

    assert result.exit_code == 2
    assert "'bake.world_size'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give --position"),
        (("--step", "1"), "give --position"),
        (("--step", "1", "--rank", "0"), "give --position"),
        (("--position", "1", "--step", "1"), "give either"),
        (("--step", "1", "--rank", "2", "--world-size", "2"), "--rank 2 is not below --world-size 2"),
        (("--position", "-1"), "--position"),
    ],
)
def test_inspect_asks_for_one_place(arguments: tuple[str, ...], words: str) -> None:
    result = parbake("inspect", "/bake", *arguments)

    assert result.exit_code == 2
    assert words in result.stderr


def test_inspect_passes_on_a_step_as_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import pipeline.inspect

    seen: list[object] = []

    def record(bake: str, *place: int) -> Any:
        seen.append((bake, *place))
        raise errors.ConfigError("enough")

    monkeypatch.setattr(pipeline.inspect, "describe", record)
    monkeypatch.setattr(pipeline.inspect, "describe_step", record)

    parbake("inspect", "/bake", "--step", "7", "--rank", "2", "--world-size", "4")
    parbake("inspect", "/bake", "--position", "3")

    assert seen == [("/bake", 7, 2, 4), ("/bake", 3)]


def test_a_wrong_command_or_flag_exits_with_2() -> None:
    assert parbake("bake").exit_code == 2
    assert parbake("run").exit_code == 2
    assert parbake("run", "x.yaml", "--nothing").exit_code == 2


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, pipeline.__main__\n"
        "try: pipeline.__main__.app(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'ray', 'pyarrow', 'transformers', 'pydantic', 'PIL', 'fsspec'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert shown.returncode == 0, shown.stderr
    for command in ("run", "index", "plan", "render", "validate", "inspect", "demo"):
        assert f"\n  {command} " in shown.stdout


def test_python_dash_m_pipeline_is_the_same_program(tmp_path: Path) -> None:
    done = program("run", str(tmp_path / "nowhere.yaml"))

    assert done.returncode == 2
    assert done.stderr.startswith("Error: The configuration ")
    assert "Traceback" not in done.stderr
