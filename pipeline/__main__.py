"""`python -m pipeline …` and the `parbake` command are the same program."""

from __future__ import annotations

from pipeline.cli import app

__all__ = ["main"]


def main() -> None:
    """Run the command line; ends the process with the exit code of design: 0, 1, 2 or 3."""
    app(prog_name="parbake")


if __name__ == "__main__":
    main()
