"""Small sources of the VLM recipe: meta files, Nemotron subsets, and a configuration for them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.vlm_config import ConversationSourceConfig, NemotronConfig, VlmBakeConfig, VlmConfig
from tests.datamaker.pictures import encode, picture

__all__ = ["meta_row", "tar_bytes", "vlm_config", "write_jsonl", "write_meta", "write_nemotron"]


def meta_row(number: int, *images: str, **more: Any) -> dict[str, Any]:
    """A ShareGPT row with AutoModel's default names."""
    question = "<image>" * len(images) + f"what is number {number}?"
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": "a red circle " * (number + 1)}]
    return {"messages": messages, "images": list(images), **more}


def write_jsonl(path: Path, rows: Sequence[Any]) -> Path:
    """Rows as lines; strings as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_meta(folder: Path, num_rows: int = 6, **entry: Any) -> Path:
    """`rows.jsonl` with every third row without a picture, its media folder, and `meta.json`."""
    media = folder / "media"
    media.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(num_rows):
        name = f"{number}.png"
        if number % 3:
            (media / name).write_bytes(encode(picture(number, 40 + 10 * number, 60), "PNG"))
        rows.append(meta_row(number, name) if number % 3 else meta_row(number))
    write_jsonl(folder / "rows.jsonl", rows)
    meta = {"shapes": {"file_name": "rows.jsonl", "media_dir": str(media), **entry}}
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder / "meta.json"


def tar_bytes(entries: Sequence[tuple[str, bytes] | tarfile.TarInfo], mode: str = "w") -> bytes:
    """A tar of files and of bare entries."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode, format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                tar.addfile(entry)
                continue
            header = tarfile.TarInfo(entry[0])
            header.size = len(entry[1])
            tar.addfile(header, io.BytesIO(entry[1]))
    return file.getvalue()


def openai_row(number: int, *images: str, key: str = "image") -> dict[str, Any]:
    """A row as the Nemotron set has it."""
    parts = [{"type": "image", key: name} for name in images]
    return {
        "id": f"row-{number}",
        "messages": [
            {"role": "user", "content": [*parts, {"type": "text", "text": f"read number {number}"}]},
            {"role": "assistant", "content": [{"type": "text", "text": f"it says {number}"}]},
        ],
    }


def write_nemotron(folder: Path, subsets: Mapping[str, tuple[Mapping[str, bytes], Sequence[Any]]]) -> Path:
    """Subsets: {name: ({tar name: bytes}, rows)}."""
    for subset, (tars, rows) in subsets.items():
        (folder / subset / "media").mkdir(parents=True, exist_ok=True)
        for name, content in tars.items():
            (folder / subset / "media" / name).write_bytes(content)
        write_jsonl(folder / subset / f"{subset}.jsonl", rows)
    return folder


def vlm_config(output: Path, processor: Path, *sources: ConversationSourceConfig, **more: Any) -> VlmConfig:
    """A configuration of these sources."""
    bake = {"executor": "inline", "max_dropped_fraction": 1.0, **more.pop("bake", {})}
    return VlmConfig(
        processor_path=str(processor), sources=sources, bake=VlmBakeConfig(output=str(output), **bake), **more
    )


def nemotron_source(folder: Path, *subsets: str, **more: Any) -> ConversationSourceConfig:
    """A Nemotron source."""
    return ConversationSourceConfig(
        name="nemotron", kind="nemotron", path=str(folder), nemotron=NemotronConfig(subsets=subsets, **more)
    )


def meta_source(folder: Path, **more: Any) -> ConversationSourceConfig:
    """The data set that `write_meta` wrote."""
    path = more.pop("path", str(folder / "rows.jsonl"))
    return ConversationSourceConfig(name="shapes", kind="meta", path=path, media_dir=str(folder / "media"), **more)
