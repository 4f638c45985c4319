"""The installed command, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Outcome", "parbake", "start_parbake"]

COMMAND = Path(sys.executable).with_name("parbake")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended."""

    exit_code: int
    output: str  # stdout and stderr, as they came


def start_parbake(*arguments: str, folder: Path | None = None) -> subprocess.Popen[str]:
    """Start `parbake …` in a process group of its own."""
    return subprocess.Popen(
        [str(COMMAND), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb", "PYTHONUTF8": "1"},
        start_new_session=True,
    )


def parbake(*arguments: str, folder: Path | None = None) -> Outcome:
    """Run `parbake …` to its end."""
    process = start_parbake(*arguments, folder=folder)
    output, _ = process.communicate(timeout=300)
    return Outcome(process.returncode, output)
