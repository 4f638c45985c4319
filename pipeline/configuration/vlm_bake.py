"""The `bake` section of a VLM recipe: what the stream sets where the user says nothing, and the switches of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from pipeline.configuration.bake import num_bytes_of, read_length, without_none
from pipeline.configuration.check import checked
from pipeline.configuration.errors import Origin, unknown_key
from pipeline.configuration.vlm_sources import SourcesRead
from pipeline.errors import ConfigError
from pipeline.vlm_config import VLM_CORRECTIONS, VlmBakeConfig

__all__ = ["read_vlm_bake", "storage_options_of"]

SWITCHES = ("packing", "order", "truncation", "positions", "mask", "max_retries")
"""Keys of `bake` that are fields of VlmConfig itself."""

IMPROVED_DEFAULTS: Mapping[str, object] = {
    "on_bad_row": "drop",
    "corrections": list(VLM_CORRECTIONS),
    "check_images": "header",
}


def storage_options_of(bake: Mapping[str, object]) -> dict[str, object]:
    """Options with which files that the recipe names are read."""
    options = bake.get("storage_options")
    return cast("dict[str, object]", without_none(options)) if isinstance(options, dict) else {}


def read_vlm_bake(
    values: dict[str, object], read: SourcesRead, origin: Origin
) -> tuple[VlmBakeConfig, dict[str, object]]:
    """The `bake` section, and those of its keys that belong to the recipe."""
    values.pop("recipe", None)
    known = (*VlmBakeConfig.model_fields, *SWITCHES)
    for name, value in values.items():
        if name not in known:
            raise unknown_key(f"bake.{name}", value, (*known, "recipe"), origin)
    switches = {name: value for name, value in values.items() if name in SWITCHES and value is not None}
    values = {name: value for name, value in values.items() if name not in SWITCHES}
    if values.get("output") is None:
        raise ConfigError(
            f"'bake.output' is missing ({origin.where('bake')}): parbake must know where the bake goes;"
            " write any folder or fsspec URL there, or give --output"
        )
    if values.get("length") is not None:
        values["length"] = read_length(values["length"], origin).model_dump()
    if isinstance(values.get("storage_options"), dict):
        values["storage_options"] = without_none(values["storage_options"])
    if isinstance(values.get("shard_bytes"), str):
        values["shard_bytes"] = num_bytes_of(cast("str", values["shard_bytes"]), origin)
    if values.get("stream") == "improved":
        values = {**IMPROVED_DEFAULTS, **values}
        switches.setdefault("truncation", "turns")
    elif any(source.nemotron and source.nemotron.sampling == "reference" for source in read.sources):
        values = {"on_bad_row": "drop", **values}  # ModelOpt replaces nothing
    if values.get("on_bad_row") == "truncate":
        values["on_bad_row"] = "drop"
        switches.setdefault("truncation", "turns")
    if values.get("corrections") in ("all", "none", None) and "corrections" in values:
        values["corrections"] = list(VLM_CORRECTIONS) if values["corrections"] == "all" else []
    for name in ("packing", "truncation"):
        if switches.get(name) is False:
            switches[name] = {"packing": "none", "truncation": "off"}[name]  # YAML 1.1 reads a bare `off` as false
    return checked(VlmBakeConfig, values, "bake", origin), switches
