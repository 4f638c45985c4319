"""A pack as one HTML file: pictures as PNG data URIs, texts escaped, nothing fetched from anywhere."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path

import jinja2
import numpy as np
import numpy.typing as npt
from PIL import Image

from pipeline.inspect.console import heading, loss_text, sample_heading
from pipeline.inspect.view import PackView
from pipeline.storage import Storage

__all__ = ["page", "write_page"]

_TEMPLATE = "pack.html"


def page(*packs: PackView) -> str:
    """The page's HTML: the packs one after another."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(heading=heading, sample_heading=sample_heading, loss_text=loss_text, picture=data_uri)
    return environment.get_template(_TEMPLATE).render(packs=packs)


def write_page(packs: Sequence[PackView], url: str) -> None:
    """Publish the page of some packs at `url` (any fsspec URL or local path)."""
    Storage().publish_bytes(url, page(*packs).encode("utf-8"))


def data_uri(pixels: npt.NDArray[np.uint8]) -> str:
    """A picture, uint8 [height, width, 3], as a PNG data URI: lossless, so that what is seen is what is trained on."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
