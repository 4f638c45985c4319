"""Reading one YAML or JSON file: safely, with the line of every key, and without a key written twice.

Nothing in a file is imported or executed. An alias may repeat a value, but not contain itself, and not blow up.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from pipeline.configuration.errors import Origin, shown
from pipeline.errors import ConfigError
from pipeline.storage import Storage

__all__ = ["Document", "parse_json", "parse_yaml", "read_document", "with_environment"]

_MAX_VALUES = 2_000_000  # values of a document, every alias counted as often as it is used

_BRACED = re.compile(r"\$\{([^}]+)\}")
_PLAIN = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed file: its name, its content (plain dicts, lists and scalars), and the line of each dotted key."""

    name: str
    content: object
    lines: Mapping[str, int]


def read_document(name: str, storage: Storage, *, role: str, yaml_only: bool = False) -> Document:
    """Read a YAML file, or JSON unless it is called `.yaml` or `.yml` (reference: `_resolve_mapping`).

    Args:
        name: Any fsspec URL or local path.
        storage: How to reach it.
        role: What the file is for, for the message.
        yaml_only: Read YAML whatever the file is called.

    Raises:
        ConfigError: The file is missing, unreadable or not well-formed.
    """
    try:
        encoded = storage.read_bytes(name)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({type(error).__name__})"
        raise ConfigError(
            f"The {role} {name} {reason}: nothing says what to bake without it; check the path and its permissions"
        ) from error
    try:
        text = encoded.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"The {role} {name} is not UTF-8 (byte {error.start}): it cannot be read as text; save it as UTF-8"
        ) from error
    if yaml_only or name.endswith((".yaml", ".yml")):
        return parse_yaml(text, name)
    return parse_json(text, name)


def parse_yaml(text: str, name: str) -> Document:
    """Parse YAML with the safe loader.

    Raises:
        ConfigError: It is not well-formed, asks for a Python object, repeats a key, or nests without end.
    """
    try:
        loader = yaml.SafeLoader(text)
    except yaml.YAMLError as error:  # a character that no YAML may hold; its message has several lines
        reason = " ".join(str(error).split())
        raise ConfigError(f"The YAML cannot be read ({name}): {reason}; save the file as plain text") from error
    try:
        node = loader.get_single_node()
        lines = _checked_lines(node, name) if node is not None else {}
        content = _unshared(loader.construct_document(node)) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}, line {mark.line + 1}" if mark is not None else name
        raise ConfigError(
            f"The YAML cannot be read ({place}): {error.problem or error.context}; correct that line"
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"The YAML cannot be read ({name}): {' '.join(str(error).split())}; correct it") from error
    except RecursionError as error:
        raise ConfigError(f"The YAML cannot be read ({name}): it nests too deeply; flatten it") from error
    finally:
        loader.dispose()
    return Document(name=name, content=content, lines=lines)


def parse_json(text: str, name: str) -> Document:
    """Parse JSON; lines are not recorded.

    Raises:
        ConfigError: It is not well-formed or repeats a key.
    """

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        members: dict[str, object] = {}
        for key, value in pairs:
            if key in members:
                raise _repeated(key, name)
            members[key] = value
        return members

    try:
        return Document(name=name, content=json.loads(text, object_pairs_hook=unique), lines={})
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"The JSON cannot be read ({name}, line {error.lineno}): {error.msg}; correct that line"
        ) from error
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"The JSON cannot be read ({name}): it nests too deeply or is no JSON; correct it") from error


def _unshared(value: object) -> object:
    """A copy in which no two places hold the same dict or list, as aliases would have it."""
    if isinstance(value, dict):
        return {name: _unshared(member) for name, member in value.items()}
    return [_unshared(entry) for entry in value] if isinstance(value, list) else value


def _repeated(key: str, place: str) -> ConfigError:
    return ConfigError(
        f"The key '{key}' is written twice ({place}): only one of the two values can hold; remove one of them"
    )


def _checked_lines(root: yaml.Node, name: str) -> dict[str, int]:
    """Dotted key → line. Each node is visited once, under the first path that leads to it."""
    lines: dict[str, int] = {}
    sizes: dict[int, int] = {}  # node id → values in it, aliases counted each time; 0 while it is being visited

    def visit(node: yaml.Node, prefix: str) -> int:
        if id(node) in sizes:
            if sizes[id(node)] == 0:
                place = f"{name}, line {node.start_mark.line + 1}"
                raise ConfigError(f"A YAML alias contains itself ({place}): it has no end; remove the alias")
            return sizes[id(node)]
        sizes[id(node)] = 0
        size = 1
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key_node, value_node in node.value:
                key, line = str(key_node.value), key_node.start_mark.line + 1
                if key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                    raise _repeated(f"{prefix}{key}", f"{name}, line {line}")
                seen.add(key)
                lines.setdefault(f"{prefix}{key}", line)
                size += visit(value_node, f"{prefix}{key}.")
        elif isinstance(node, yaml.SequenceNode):
            for number, entry in enumerate(node.value):
                lines.setdefault(f"{prefix}{number}", entry.start_mark.line + 1)
                size += visit(entry, f"{prefix}{number}.")
        if size > _MAX_VALUES:
            raise ConfigError(f"The YAML in {name} holds more than {_MAX_VALUES:,} values: aliases repeat too often")
        sizes[id(node)] = size
        return size

    visit(root, "")
    return lines


def with_environment(value: object, key: str, origin: Origin) -> object:
    """`value` with `$NAME`, `${NAME}`, `${NAME,default}` and `${oc.env:NAME,default}` replaced in every string.

    The rule is AutoModel's (`components.config.loader.resolve_yaml_env_vars`).

    Raises:
        ConfigError: A variable without a default is not set.
    """
    if isinstance(value, dict):
        return {name: with_environment(member, f"{key}.{name}", origin) for name, member in value.items()}
    if isinstance(value, list):
        return [with_environment(entry, f"{key}.{number}", origin) for number, entry in enumerate(value)]
    if not isinstance(value, str) or "$" not in value:
        return value

    def variable(name: str, default: str | None) -> str:
        found = os.environ.get(name, default)
        if found is None:
            raise ConfigError(
                f"'{key}' is {shown(key, value)} ({origin.where(key)}) but the environment variable '{name}' is not"
                f" set: the value cannot be completed; set it, or write ${{{name},default}}"
            )
        return found

    def braced(match: re.Match[str]) -> str:
        name, comma, default = match.group(1).strip().removeprefix("oc.env:").partition(",")
        return variable(name.strip(), default.strip() if comma else None)

    return _PLAIN.sub(lambda match: variable(match.group(1), None), _BRACED.sub(braced, value))
