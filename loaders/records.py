"""Strict reading of format records: JSON bytes in, a frozen dataclass out, or a FormatError that names the place.

The dataclasses of `loaders.format` are their own schema: keys, types and defaults come from their annotations. A
missing or unknown key, a wrong type, NaN or an infinity is an error, so that what parses can be trusted by the code
that maps bytes. The place ("sidecar.packs[3].members.vit_pixels.offset") is put together only for a complaint.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from loaders.errors import FormatError

__all__ = ["decode_record", "parse_json"]

Decoder = Callable[[Any], Any]


class _Mismatch(Exception):
    """A value is not of its annotation's type; `place` grows on the way out."""

    def __init__(self, complaint: str) -> None:
        super().__init__(complaint)
        self.complaint = complaint
        self.place = ""

    def inside(self, step: str) -> _Mismatch:
        self.place = step + self.place
        return self


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def parse_json(content: bytes, what: str) -> dict[str, Any]:
    """`content` as a JSON object; `what` is what messages call it.

    Raises:
        FormatError: it is not UTF-8 JSON, is nested too deeply, or is no object.
    """
    try:
        value = json.loads(content.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{what} is not readable JSON ({error}); nothing in it can be trusted; "
            f"the file is damaged or is something else: bake it again or copy it anew."
        ) from error
    if not isinstance(value, dict):
        raise FormatError(
            f"{what} holds a JSON {type(value).__name__} where an object belongs; nothing in it can be used; "
            f"the file is something else: check the path you gave."
        )
    return value


def decode_record(record: type, value: Any, where: str) -> Any:
    """A parsed JSON value as an instance of the dataclass `record`; `where` is what messages call it.

    Raises:
        FormatError: a key is missing or unknown, or a value has another type than the field's annotation.
    """
    try:
        return _record_decoder(record)(value)
    except _Mismatch as mismatch:
        raise FormatError(
            f"{where}{mismatch.place} {mismatch.complaint}; the record cannot be trusted; "
            f"it is damaged or was written by another version of parbake."
        ) from None


def _wrong(value: object, expected: str) -> _Mismatch:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return _Mismatch(f"is {shown} where {expected} belongs")


def _plain(expected: str, *accepted: type) -> Decoder:
    def decode(value: Any) -> Any:
        if type(value) not in accepted:
            raise _wrong(value, expected)
        return value

    return decode


def _number(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise _wrong(value, "a number")
    return float(value)


_PLAIN: Mapping[Any, Decoder] = types.MappingProxyType(
    {
        int: _plain("an integer", int),
        float: _number,
        str: _plain("a string", str),
        bool: _plain("true or false", bool),
        Any: lambda value: value,
    }
)


def _list_decoder(item: Decoder, length: int | None) -> Decoder:
    expected = "a list" if length is None else f"a list of {length}"

    def decode(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or (length is not None and len(value) != length):
            raise _wrong(value, expected)
        number = 0
        decoded = []
        try:
            for number, entry in enumerate(value):  # noqa: B007  (the number is for the except clause)
                decoded.append(item(entry))
        except _Mismatch as mismatch:
            raise mismatch.inside(f"[{number}]") from None
        return tuple(decoded)

    return decode


def _dict_decoder(item: Decoder) -> Decoder:
    def decode(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _wrong(value, "an object")
        decoded = {}
        key = ""
        try:
            for key, entry in value.items():
                decoded[key] = item(entry)
        except _Mismatch as mismatch:
            raise mismatch.inside(f".{key}") from None
        return decoded

    return decode


def _choice_decoder(choices: tuple[Any, ...]) -> Decoder:
    def decode(value: Any) -> Any:
        if type(value) is not str or value not in choices:
            raise _wrong(value, f"one of {', '.join(choices)}")
        return value

    return decode


def _optional_decoder(item: Decoder) -> Decoder:
    return lambda value: None if value is None else item(value)


def _decoder_of(hint: Any) -> Decoder:
    """The decoder of a type annotation; only the forms that `loaders.format` uses."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    if dataclasses.is_dataclass(hint):
        return _record_decoder(typing.cast(type, hint))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _list_decoder(_decoder_of(arguments[0]), None)
    if origin is tuple and len(set(arguments)) == 1:
        return _list_decoder(_decoder_of(arguments[0]), len(arguments))
    if origin is dict:
        return _dict_decoder(_decoder_of(arguments[1]))
    if origin is typing.Literal:
        return _choice_decoder(arguments)
    if origin is types.UnionType and len(arguments) == 2 and arguments[1] is types.NoneType:
        return _optional_decoder(_decoder_of(arguments[0]))
    raise TypeError(f"no decoder for {hint!r}; teach loaders.records this form of annotation")


@cache
def _record_decoder(record: type) -> Decoder:
    hints = typing.get_type_hints(record)
    fields = dataclasses.fields(record)
    decoders = {field.name: _decoder_of(hints[field.name]) for field in fields}
    every = frozenset(decoders)
    required = frozenset(
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    )

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong(value, "an object")
        if value.keys() != every and not required <= value.keys() <= every:
            missing, unknown = sorted(required - value.keys()), sorted(value.keys() - decoders.keys())
            raise _Mismatch(f"lacks the keys {missing} and has the unknown keys {unknown}")
        decoded = {}
        name = ""
        try:
            for name, entry in value.items():
                decoded[name] = decoders[name](entry)
        except _Mismatch as mismatch:
            raise mismatch.inside(f".{name}") from None
        return record(**decoded)

    return decode
