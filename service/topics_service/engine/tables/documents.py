"""JSON documents as compact text: checked once when they come in, read in place later."""

import math
import re
from typing import Any, Final

import msgspec
import orjson

from topics_service.engine.tables.errors import invalid_value
from topics_service.engine.tables.numbers import not_a
from topics_service.engine.tables.types import Type

MAX_DEPTH: Final = 100
"""The most arrays and objects inside each other."""
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_TEXT: Final = msgspec.json.Decoder(str)


def compact(text: str, sql_type: Type, what: str) -> str:
    """Check JSON text and take the spaces out; numbers stay as they are written. Raises `invalid_value`."""
    try:
        value = orjson.loads(text)
        if text.count("[") + text.count("{") > MAX_DEPTH:
            _check_depth(value, what)
        if "\\u0000" in text and _NUL.search(text):
            raise invalid_value(f"{what}: NUL characters can't be stored")
        return str(msgspec.json.format(text, indent=-1))
    except (ValueError, RecursionError, msgspec.MsgspecError):
        raise not_a(text, sql_type, what) from None


def from_value(given: Any, sql_type: Type, what: str) -> str:
    """Write a JSON value, such as a dict, as compact text. Raises `invalid_value`."""
    _check_depth(given, what)
    try:
        return orjson.dumps(given).decode()
    except (TypeError, ValueError):  # orjson's error is a TypeError
        raise not_a(given, sql_type, what) from None


def _check_depth(value: Any, what: str) -> None:
    """Walk a value without recursion. Raises `invalid_value` for what is too deep, not finite, or has a NUL."""
    level, depth = [value], 0
    while level:
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict | list | tuple):
                if depth == MAX_DEPTH:
                    raise invalid_value(f"{what}: JSON is nested deeper than {MAX_DEPTH}")
                below += each
                if isinstance(each, dict):
                    below += each.values()
            elif isinstance(each, float) and not math.isfinite(each):
                raise invalid_value(f"{what}: NaN and infinities are not JSON")
            elif isinstance(each, str) and "\0" in each:
                raise invalid_value(f"{what}: NUL characters can't be stored")
        level, depth = below, depth + 1


def to_value(text: str) -> Any:
    """Read a stored document."""
    return orjson.loads(text)


def get(text: str, key: str | int) -> str | None:
    """`->`: a member or an element as compact JSON text; a negative index counts from the end."""
    raw = _raw(text, key)
    return None if raw is None else bytes(raw).decode()


def get_text(text: str, key: str | int) -> str | None:
    """`->>`: the same as text: strings without quotes, JSON's null as NULL."""
    raw = _raw(text, key)
    return None if raw is None else text_of(bytes(raw).decode())


def text_of(document: str) -> str | None:
    """A document as text: strings without quotes, JSON's null as NULL."""
    if document.startswith('"'):
        return _TEXT.decode(document)
    return None if document == "null" else document


def elements(text: str) -> list[msgspec.Raw] | None:
    """The elements of an array, as they are written."""
    return _ARRAY.decode(text) if text.startswith("[") else None


def _raw(text: str, key: str | int) -> msgspec.Raw | None:
    if isinstance(key, str):
        return _OBJECT.decode(text).get(key) if text.startswith("{") else None
    items = elements(text)
    return items[key] if items is not None and -len(items) <= key < len(items) else None


def type_name(document: str) -> str:
    """The kind of a JSON value: object, array, string, number, boolean or null."""
    return _NAMES.get(document[0], "number")


_NAMES: Final = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
