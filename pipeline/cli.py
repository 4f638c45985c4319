"""The command line: names, flags and exit codes. What a command does lies in `stages`, `validate`, `inspect`, `demo`.

Exit codes: 0 done; 1 a law is broken or too much was dropped; 2 the command, the configuration or a source is wrong;
3 the run failed half-way and can be run again; 130 interrupted. Only typer is imported before a command is known, so
that `parbake --help` answers at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import sys
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.errors import ParbakeError, RunFailed

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.vlm_config import VlmConfig

__all__ = ["app"]

INTERRUPTED = 130
FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})

app = typer.Typer(
    help="Bake multimodal training data: index, plan and render packs once; train on bytes.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

ConfigPath = Annotated[str, typer.Argument(metavar="CONFIG", help="Recipe YAML: a path or any fsspec URL.")]
Output = Annotated[str | None, typer.Option(metavar="URL", help="Where the bake goes (bake.output).")]
WorldSize = Annotated[int | None, typer.Option(metavar="N", help="Ranks to lay lanes out for (bake.world_size).")]
PacksPerLane = Annotated[int | None, typer.Option(metavar="N", help="Length of each lane (bake.length).")]
ExecutorName = Annotated[str | None, typer.Option("--executor", metavar="inline|ray", help="bake.executor")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override any value: --set dataset.use_flex=true. Repeatable."),
]
BakeUrl = Annotated[str, typer.Argument(metavar="BAKE", help="Output folder of a bake: a path or any fsspec URL.")]


@app.command()
def run(
    config: ConfigPath,
    output: Output = None,
    world_size: WorldSize = None,
    packs_per_lane: PacksPerLane = None,
    executor: ExecutorName = None,
    overrides: Overrides = None,
) -> None:
    """Index, plan and render CONFIG. Run it again to resume."""
    with _exit_codes():
        from pipeline import stages
        from pipeline.progress import make_progress

        settings = _settings(config, output, world_size, packs_per_lane, executor, overrides)
        _print(stages.summary(settings, stages.run(settings, make_progress())))


@app.command()
def index(
    config: ConfigPath,
    output: Output = None,
    world_size: WorldSize = None,
    packs_per_lane: PacksPerLane = None,
    executor: ExecutorName = None,
    overrides: Overrides = None,
) -> None:
    """Measure every source row: image sizes, token counts, faults."""
    with _exit_codes():
        from pipeline import stages
        from pipeline.progress import make_progress

        settings = _settings(config, output, world_size, packs_per_lane, executor, overrides)
        for line in stages.index_lines(stages.index(settings, make_progress())):
            _print(line)


@app.command()
def plan(
    config: ConfigPath,
    output: Output = None,
    world_size: WorldSize = None,
    packs_per_lane: PacksPerLane = None,
    executor: ExecutorName = None,
    overrides: Overrides = None,
) -> None:
    """Index if needed, decide every pack, and show what rendering would write."""
    with _exit_codes():
        from pipeline import stages
        from pipeline.plan.report import plan_table
        from pipeline.progress import make_progress

        settings = _settings(config, output, world_size, packs_per_lane, executor, overrides)
        _print_table(plan_table(stages.plan(settings, make_progress())))


@app.command()
def render(
    config: ConfigPath,
    output: Output = None,
    world_size: WorldSize = None,
    packs_per_lane: PacksPerLane = None,
    executor: ExecutorName = None,
    overrides: Overrides = None,
) -> None:
    """Write the shards that the plan in the output folder describes."""
    with _exit_codes():
        from pipeline import stages
        from pipeline.progress import make_progress

        settings = _settings(config, output, world_size, packs_per_lane, executor, overrides)
        _print(stages.summary(settings, stages.render(settings, make_progress())))


@app.command()
def validate(
    bake: BakeUrl,
    report: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder for the report instead of BAKE/report.")
    ] = None,
) -> None:
    """Check the laws of a finished bake and write its report; exit 1 if one is broken."""
    with _exit_codes():
        from pipeline import stages
        from pipeline.progress import make_progress

        found = stages.validate_bake(bake, report, make_progress())
        _print_table(found.table)
        if found.broken is not None:
            raise found.broken


@app.command()
def inspect(
    bake: BakeUrl,
    position: Annotated[int | None, typer.Option(min=0, help="Position of the pack in the canonical order.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Step; needs --rank and --world-size.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Data-parallel rank that read the pack.")] = None,
    world_size: Annotated[int | None, typer.Option(min=1, help="Number of data-parallel ranks.")] = None,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write a page with the pictures.")] = None,
) -> None:
    """Show what is in a pack, or in all packs of a step: source rows, texts, pictures, splits, losses."""
    with _exit_codes():
        where = _place(position, step, rank, world_size)
        from pipeline import inspect as inspection

        packs = [inspection.describe(bake, where)] if isinstance(where, int) else inspection.describe_step(bake, *where)
        for pack in packs:
            inspection.print_pack(pack)
        if html is not None:
            inspection.write_page(packs, html)
            _print(f"wrote {html}")


@app.command()
def demo(folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder to write to.")]) -> None:
    """Write a small data set of every source kind and a configuration; needs no network."""
    with _exit_codes():
        from pipeline.demo import write_demo

        write_demo(folder)
        config = shlex.quote(folder.rstrip("/") + "/config.yaml")
        _print(f"wrote {folder}; bake it with: parbake run {config}")


def _settings(
    config: str,
    output: str | None,
    world_size: int | None,
    packs_per_lane: int | None,
    executor: str | None,
    overrides: list[str] | None,
) -> Config | VlmConfig:
    from pipeline.configuration.reader import Flags, load_config

    flags = Flags(output=output, world_size=world_size, packs_per_lane=packs_per_lane, executor=executor)
    settings = load_config(config, overrides or (), flags)
    if settings.ignored_sections:
        _say(f"parbake: ignoring the trainer's sections {', '.join(settings.ignored_sections)}")
    return settings


def _place(
    position: int | None, step: int | None, rank: int | None, world_size: int | None
) -> int | tuple[int, int, int]:
    """The place asked for: a position, or (step, rank, world size)."""
    if position is not None:
        if (step, rank, world_size) != (None, None, None):
            raise typer.BadParameter("give either --position, or --step with --rank and --world-size")
        return position
    if step is None or rank is None or world_size is None:
        raise typer.BadParameter("give --position, or --step with --rank and --world-size")
    if rank >= world_size:
        raise typer.BadParameter(f"--rank {rank} is not below --world-size {world_size}")
    return step, rank, world_size


@contextlib.contextmanager
def _exit_codes() -> Iterator[None]:
    """Turn every error into one sentence on stderr and the exit code of its class; a traceback only on request."""
    try:
        yield
    except (typer.Exit, typer.BadParameter):
        raise
    except ParbakeError as error:
        raise _exit(error.exit_code, f"Error: {error}") from error
    except KeyboardInterrupt as error:
        raise _exit(INTERRUPTED, "Interrupted: what is finished stays; run the same command again to go on") from error
    except OSError as error:
        raise _exit(RunFailed.exit_code, f"Error: {_storage_sentence(error)}") from error
    except Exception as error:  # the outermost frame: whatever was not foreseen is a bug of ours
        from pipeline.publishing import is_storage_error

        if is_storage_error(error):  # an object store's client has error classes of its own
            raise _exit(RunFailed.exit_code, f"Error: {_storage_sentence(error)}") from error
        traceback.print_exc()
        sentence = f"{type(error).__name__}: {error}"
        raise _exit(
            3, f"Bug: {sentence}: parbake did not foresee this; please report it with the lines above"
        ) from error


def _storage_sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in FULL_DISK:
        return f"No space is left ({error}): nothing half-written is visible; make room and run the same command again"
    return (
        f"A file or connection failed ({type(error).__name__}: {error}): what is finished stays; check it and run the"
        " same command again"
    )


def _exit(code: int, message: str) -> typer.Exit:
    if os.environ.get("PARBAKE_DEBUG") == "1":
        traceback.print_exc()
    _say(message)
    return typer.Exit(code)


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _print(message: str) -> None:
    print(message, flush=True)


def _print_table(table: object) -> None:
    from pipeline.inspect.console import wide_console

    wide_console().print(table)
