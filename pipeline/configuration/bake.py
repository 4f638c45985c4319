"""The `bake` section: what the stream sets where the user says nothing, sizes with units, the length of a lane."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from pipeline.config import CORRECTIONS, BakeConfig, LengthConfig
from pipeline.configuration.check import checked, mapping_at
from pipeline.configuration.errors import Origin, config_error, suggestion, unknown_key
from pipeline.errors import ConfigError

__all__ = ["num_bytes_of", "read_bake", "read_length", "without_none"]

IMPROVED_DEFAULTS: Mapping[str, object] = {
    "packer": "best_fit",
    "corrections": list(CORRECTIONS),
    "drop_tail": False,
    "check_images": "header",
}
"""What `stream: improved` sets where the user says nothing; `reference` is what the fields' own defaults are."""

BEST_FIT_ONLY = ("pool_size", "balance_window", "max_vit_tokens", "max_vae_tokens", "max_images")

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_LENGTH_REMEDY = "write 'bake: {length: {packs_per_lane: 1000}}', or {tokens: 2.0e9}, or {epochs: 1}"


def read_bake(section: object, origin: Origin) -> BakeConfig:
    """The `bake` section with every switch resolved.

    Raises:
        ConfigError: `output` or `length` is missing, or a value cannot be used.
    """
    values = {} if section is None else dict(mapping_at(section, "bake", origin))
    values.pop("recipe", None)  # it has been followed already
    for name, value in values.items():
        if name not in BakeConfig.model_fields:
            raise unknown_key(f"bake.{name}", value, tuple(BakeConfig.model_fields), origin)
    if values.get("output") is None:
        raise ConfigError(
            f"'bake.output' is missing ({origin.where('bake')}): parbake must know where the bake goes;"
            " write any folder or fsspec URL there, or give --output"
        )
    values["length"] = read_length(values.get("length"), origin).model_dump()
    if "storage_options" in values:
        values["storage_options"] = without_none(values["storage_options"])
    given = frozenset(values)
    if values.get("stream") == "improved":
        values = {**IMPROVED_DEFAULTS, **values}
    if values.get("balance") is False:
        values["balance"] = "off"  # YAML 1.1 reads a bare `off` as false
    if "balance" not in values and values.get("packer") == "best_fit":
        values["balance"] = "window"
    if "corrections" in values:
        values["corrections"] = _corrections(values["corrections"], origin)
    if isinstance(values.get("shard_bytes"), str):
        values["shard_bytes"] = num_bytes_of(cast("str", values["shard_bytes"]), origin)
    bake = checked(BakeConfig, values, "bake", origin)
    _check_best_fit_only(bake, given, values, origin)
    return bake


def without_none(options: object) -> object:
    """Storage options whose value was removed for safety (`resolved_yaml`) are left to the environment."""
    if isinstance(options, dict):
        return {key: option for key, option in options.items() if option is not None}
    return options


def read_length(section: object, origin: Origin) -> LengthConfig:
    """`bake.length`: exactly one way to count."""
    if section is None:
        raise ConfigError(
            f"'bake.length' is missing ({origin.where('bake')}): the stream of packs never ends by itself, so parbake"
            f" must know how many to make; {_LENGTH_REMEDY}"
        )
    length = checked(LengthConfig, mapping_at(section, "bake.length", origin), "bake.length", origin)
    given = [name for name, value in length if value is not None]
    if len(given) != 1:
        raise config_error(
            "bake.length",
            section,
            origin,
            wrong="but must hold exactly one of packs_per_lane, tokens and epochs",
            why="a lane has one end",
            remedy=_LENGTH_REMEDY,
        )
    return length


def _corrections(value: object, origin: Origin) -> list[str]:
    """The named corrections in their canonical order; `all` and `none` are words for the whole list and no list."""
    if value in ("all", "none", "None", None):
        return list(CORRECTIONS) if value == "all" else []
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list):
        raise config_error(
            "bake.corrections",
            value,
            origin,
            wrong="but must be a list of names, 'all' or 'none'",
            why="each correction is switched on by its name",
            remedy=suggestion("", CORRECTIONS),
        )
    for name in names:
        if name not in CORRECTIONS:
            raise config_error(
                "bake.corrections",
                name,
                origin,
                wrong="which is no correction",
                why="pixels or texts would stay as they are",
                remedy=suggestion(str(name), (*CORRECTIONS, "all", "none")),
            )
    return [name for name in CORRECTIONS if name in names]


def num_bytes_of(text: str, origin: Origin) -> int:
    """Bytes of `1GiB` (powers of 1024), `512MB` (powers of 1000), `1000000`."""
    match = _SIZE.fullmatch(text.strip().replace("_", ""))
    if match is None:
        raise config_error(
            "bake.shard_bytes",
            text,
            origin,
            wrong="which is no size",
            why="a shard closes before it grows beyond it",
            remedy="write a number of bytes, or one with a unit such as 1GiB or 512MB",
        )
    number, prefix, binary = match.groups()
    factor = (1024 if binary else 1000) ** " KMGT".index(prefix.upper() or " ")
    return int(float(number) * factor)


def _check_best_fit_only(bake: BakeConfig, given: frozenset[str], values: Mapping[str, object], origin: Origin) -> None:
    """The greedy packer is the reference's and has no further settings."""
    if bake.packer == "best_fit":
        return
    settings = [name for name in BEST_FIT_ONLY if name in given and values[name] is not None]
    settings += ["balance"] if bake.balance != "off" else []
    for name in settings:
        raise config_error(
            f"bake.{name}",
            values[name],
            origin,
            wrong="but 'bake.packer' is 'greedy'",
            why="the reference's packer knows no such setting and would ignore it",
            remedy="write 'packer: best_fit', or remove the key",
        )
