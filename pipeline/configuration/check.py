"""Turning a plain mapping into a typed model, strictly, with errors that a person can act on.

No pydantic text or traceback reaches the user. A number may be written as a string where the field is a number
(`2.0e9` without a sign in the exponent is a string to YAML 1.1, and AutoModel reads it as a number); nothing else is
coerced: no `"3 "`, no `yes` for 1, no 1 for true.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pipeline.configuration.errors import Origin, config_error, suggestion, unknown_key
from pipeline.errors import ConfigError

__all__ = ["checked", "mapping_at", "plain_value"]

Model = TypeVar("Model", bound=BaseModel)

_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a string",
    "dict": "a mapping",
    "model": "a mapping",
    "tuple": "a list",
    "list": "a list",
}
_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_WORDS = {"none": None, "None": None, "true": True, "True": True, "false": False, "False": False}


def mapping_at(value: object, key: str, origin: Origin) -> dict[str, object]:
    """`value` as a mapping with string keys.

    Raises:
        ConfigError: It is something else, or one of its keys is no string (YAML reads `on:` and `2024:` otherwise).
    """
    if not isinstance(value, dict):
        raise config_error(
            key,
            value,
            origin,
            wrong="but must be a mapping",
            why="its keys are what parbake reads",
            remedy=f"write keys and values, indented, below '{key}'",
        )
    for name in value:
        if not isinstance(name, str):
            raise ConfigError(
                f"The key {name!r} of '{key}' ({origin.where(key)}) is no string: names are compared as strings;"
                " put it in quotes"
            )
    return value


def plain_value(text: str) -> object:
    """A word that YAML left a string, as AutoModel reads it: none, true, false, or a number; else itself."""
    if text in _WORDS:
        return _WORDS[text]
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def checked(model: type[Model], values: Mapping[str, object], key: str, origin: Origin) -> Model:
    """The model built from `values`, which were written under `key`.

    Raises:
        ConfigError: An unknown key, a missing one, or a value of the wrong type or out of range. Unknown keys are
            named first: a misspelled key is also a missing one.
    """
    prepared = {name: _prepared(_annotation(model, name), value) for name, value in values.items()}
    for name, value in prepared.items():
        _refuse_infinite(value, f"{key}.{name}", origin)
    try:
        return model.model_validate_json(json.dumps(prepared, default=str), strict=True)
    except ValidationError as error:
        details = error.errors(include_url=False)
        first = min(details, key=lambda detail: detail["type"] != "extra_forbidden")
        raise _translated(model, first, key, origin) from None


def _refuse_infinite(value: object, key: str, origin: Origin) -> None:
    if isinstance(value, dict | list):
        for name, member in value.items() if isinstance(value, dict) else enumerate(value):
            _refuse_infinite(member, f"{key}.{name}", origin)
    elif isinstance(value, float) and not math.isfinite(value):
        raise config_error(
            key,
            value,
            origin,
            wrong="but must be finite",
            why="nothing can be computed from it",
            remedy="write a plain number",
        )


def _annotation(model: type[BaseModel], name: str) -> object:
    field = model.model_fields.get(name)
    return str if field is None else field.annotation


def _members(annotation: object) -> tuple[object, ...]:
    """The alternatives of a union, or the annotation alone."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _prepared(annotation: object, value: object) -> object:
    """`value` with words and numbers read where the field holds no strings."""
    members = _members(annotation)
    if isinstance(value, str):
        if type(None) in members and value in ("none", "None"):
            return None
        if any(member is str or get_origin(member) is Literal for member in members):
            return value
        value = plain_value(value)
    if isinstance(value, float) and int in members and float not in members and value.is_integer():
        return int(value)
    for member in members:
        if isinstance(member, type) and issubclass(member, BaseModel) and isinstance(value, dict):
            return {str(name): _prepared(_annotation(member, str(name)), entry) for name, entry in value.items()}
        if get_origin(member) is tuple and isinstance(value, list):
            return [_prepared(get_args(member)[0], entry) for entry in value]
    if isinstance(value, dict):
        return {str(name): _prepared(str, entry) for name, entry in value.items()}
    return value


def _field_at(model: type[BaseModel], location: Sequence[int | str]) -> tuple[type[BaseModel], object]:
    """The model that directly holds a location, and the default of the field there (`...` if it has none)."""
    default: object = ...
    for part in location:
        field = model.model_fields.get(str(part))
        if field is None:
            continue
        default = ... if field.is_required() or field.default_factory is not None else field.default
        for member in _members(field.annotation):
            if isinstance(member, type) and issubclass(member, BaseModel) and part != location[-1]:
                model = member
    return model, default


def _translated(model: type[BaseModel], detail: ErrorDetails, key: str, origin: Origin) -> ConfigError:
    kind, value = detail["type"], detail["input"]
    context: Mapping[str, object] = detail.get("ctx", {})
    location = [part for part in detail["loc"] if part != "[key]"]
    dotted = ".".join([key, *(str(part) for part in location)]) if key else ".".join(str(part) for part in location)
    owner, default = _field_at(model, location)
    if kind == "extra_forbidden":
        return unknown_key(dotted, value, tuple(owner.model_fields), origin)
    if kind == "missing" and isinstance(location[-1], str):
        return ConfigError(
            f"'{dotted}' is missing ({origin.where(dotted)}): parbake has no default that would be right for every"
            f" data set; add it to '{dotted.rpartition('.')[0]}'"
        )
    if kind == "missing":
        dotted, kind = dotted.rpartition(".")[0], "too_short"
    keep = "" if default is ... else f", or remove the key to have {json.dumps(default, default=str)}"
    if kind == "literal_error":
        alternatives = [str(member) for member in _alternatives(owner, location)]
        return config_error(
            dotted,
            value,
            origin,
            wrong="which is none of its values",
            why="it selects what parbake does",
            remedy=suggestion(str(value), alternatives),
        )
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return config_error(
            dotted,
            value,
            origin,
            wrong=f"but must be {words} {context.get(bound)}",
            why="outside of that it has no meaning",
            remedy=f"write a value that is {words} {context.get(bound)}{keep}",
        )
    expected = _EXPECTED.get(kind.split("_")[0], "")
    if kind in ("too_short", "too_long"):
        expected = "a list of three numbers, one for each channel"  # the only tuples of fixed length
    expected = expected or detail["msg"].lower().removeprefix("input should be ")
    return config_error(
        dotted,
        value,
        origin,
        wrong=f"but must be {expected}",
        why="parbake takes values as they are written and guesses nothing",
        remedy=f"write {expected}{keep}",
    )


def _alternatives(model: type[BaseModel], location: Sequence[int | str]) -> tuple[object, ...]:
    """The values of the `Literal` that a location's field holds, alone or in a tuple or union."""
    names = [str(part) for part in location if str(part) in model.model_fields]
    pending = [model.model_fields[names[-1]].annotation] if names else []
    while pending:
        annotation = pending.pop()
        if get_origin(annotation) is Literal:
            return get_args(annotation)
        pending.extend(get_args(annotation))
    return ()
