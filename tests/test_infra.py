"""What lies in `infra/` agrees with the code: versions, commands, fields."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from pipeline.cli import app

REPOSITORY = Path(__file__).parents[1]
INFRA = REPOSITORY / "infra"


def document(name: str) -> Any:
    return yaml.safe_load((INFRA / name).read_text())


def pinned_ray() -> str:
    found = re.search(r"^ray==(\S+)$", (REPOSITORY / ".ci" / "constraints.txt").read_text(), re.MULTILINE)
    assert found
    return found[1]


def test_image_and_kubernetes_job_have_the_ray_that_the_tests_run() -> None:
    assert f"FROM rayproject/ray:{pinned_ray()}-py311" in (INFRA / "Dockerfile").read_text()
    assert document("rayjob.yaml")["spec"]["rayClusterSpec"]["rayVersion"] == pinned_ray()


def test_the_image_copies_what_is_there() -> None:
    for line in (INFRA / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY"):
            *sources, _ = [word for word in line.split()[1:] if not word.startswith("--")]
            assert all((REPOSITORY / source).exists() for source in sources), line


def test_every_container_of_a_file_runs_one_image() -> None:
    spec = document("rayjob.yaml")["spec"]["rayClusterSpec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    containers = [group["template"]["spec"]["containers"][0] for group in groups]
    assert len({container["image"] for container in containers}) == 1
    services = document("compose.yaml")["services"]
    assert {services[name]["image"] for name in ("head", "worker", "bucket")} == {"parbake:0.1"}


def commands_in(text: str) -> list[list[str]]:
    """Every `parbake …` and `python -m pipeline …` in a text, as words; continued lines joined, comments cut."""
    joined = re.sub(r"\\\n\s*#?\s*", " ", text)
    found = re.findall(r"(?:(?<![\w/.])parbake|python -m pipeline) ((?:run|index|plan|render|demo)\b[^\n`|]*)", joined)
    return [shlex.split(command.split("  #")[0]) for command in found]


@pytest.mark.parametrize("name", ["README.md", "compose.yaml", "rayjob.yaml"])
def test_the_commands_that_are_shown_exist_with_their_options(name: str) -> None:
    shown = [words for words in commands_in((INFRA / name).read_text()) if len(words) > 1]
    assert shown
    known: Any = get_command(app)
    for verb, *words in shown:
        options = {option for parameter in known.commands[verb].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, (verb, words)


def test_the_tests_that_the_walkthrough_names_exist() -> None:
    for path in re.findall(r"`(tests/[^`]+)`", (INFRA / "README.md").read_text()):
        assert (REPOSITORY / path).exists(), path
