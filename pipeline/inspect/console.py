"""A pack on the terminal: a heading per sample, a table row per split."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.inspect.view import PackView, SampleView, SplitView

__all__ = ["heading", "loss_text", "print_pack", "printable", "sample_heading", "tables", "wide_console"]

PIPE_COLUMNS = 140

_STYLES = {"text": "green", "vit": "cyan", "vae": "magenta", "image": "cyan", "video": "yellow"}
_NAMES = {"text": "text", "vit": "ViT image", "vae": "VAE image", "image": "image", "video": "video"}


def print_pack(pack: PackView, console: Console | None = None) -> None:
    """Print everything the pack holds; pictures by their sizes."""
    console = console or wide_console()
    console.print(Text(heading(pack), style="bold"))
    if pack.note:
        console.print(Text(pack.note, style="yellow"))
    for sample in pack.removed:
        console.print(Text(f"left out by render: {printable(sample)}", style="yellow"))
    for title, table in tables(pack):
        console.print()
        console.print(Text(title, style="bold"))
        console.print(table)


def wide_console() -> Console:
    """Standard output: as wide as the terminal, and wide enough for a table where there is none (a pipe, a log)."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=PIPE_COLUMNS)


def heading(pack: PackView) -> str:
    """Where the pack lies and how full it is."""
    fill = pack.sequence_length / pack.max_num_tokens
    return (
        f"position {pack.position:,} of {pack.num_positions:,}: lane {pack.lane}, pack {pack.pack:,};"
        f" {pack.sequence_length:,} of {pack.max_num_tokens:,} tokens ({fill:.1%}), {len(pack.samples)} samples"
    )


def sample_heading(number: int, sample: SampleView) -> str:
    """The source row behind a sample and where it lies in the sequence."""
    where = f"tokens {sample.start:,} to {sample.start + sample.num_tokens - 1:,}" if sample.num_tokens else "no tokens"
    return f"sample {number}: {sample.source}, {printable(sample.path)}, row {sample.row:,} ({where})"


def tables(pack: PackView) -> Iterator[tuple[str, Table]]:
    """Per sample its heading and the table of its splits."""
    for number, sample in enumerate(pack.samples):
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("tokens", "rope", "mode", "what", "loss"):
            table.add_column(column, no_wrap=True)
        table.add_column("content", overflow="fold")
        for split in sample.splits:
            table.add_row(
                f"{split.start:,}-{split.end - 1:,}",
                _rope(split),
                split.mode,
                Text(_NAMES[split.kind], style=_STYLES[split.kind]),
                loss_text(split),
                Text(_content(split)),
            )
        for fact in sample.facts:
            table.add_row("", "", "", "", "", Text(printable(fact), style="dim"))
        for item in sample.dropped:
            table.add_row("", "", "", "", "", Text(f"dropped as a condition: {item}", style="dim"))
        yield sample_heading(number, sample), table


def loss_text(split: SplitView) -> str:
    """What the split is trained on: `cross entropy on 12, weight 3.5`, `flow matching, timestep -0.31`, or nothing."""
    if split.num_loss_tokens:
        weight = f", weight {split.loss_weight:.3g}" if split.loss_weight else ""
        return f"CE on {split.num_loss_tokens:,}{weight}"
    return "" if math.isnan(split.timestep) else f"MSE, timestep {split.timestep:.4g}"


def printable(text: str) -> str:
    """`text` without control characters: what a data set says must not steer the terminal."""
    return "".join(
        character if character.isprintable() or character == "\n" else f"\\x{ord(character):02x}" for character in text
    )


def _rope(split: SplitView) -> str:
    if split.first_position == split.last_position:
        return f"{split.first_position:,}"
    return f"{split.first_position:,}-{split.last_position:,}"


def _content(split: SplitView) -> str:
    if split.pixels is not None:
        height_px, width_px = split.pixels.shape[:2]
        picture = f", picture {split.stored_picture}" if split.kind == "vae" else ""
        return f"{width_px}x{height_px} px, {split.grid[0]}x{split.grid[1]} cells{picture}"
    if split.kind in ("image", "video"):
        return "the rest of it"
    return " ".join(str(token) for token in split.token_ids) if split.text is None else printable(split.text)
