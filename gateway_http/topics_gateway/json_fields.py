"""Strict reading of small JSON objects: every body but the records of a write."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from topics_service.api.jsontext import check_json
from topics_service.engine.config import U64_MAX
from topics_service.engine.errors import invalid

_HUGE: Final = 10**40  # stands for any longer integer, whose digits Python would take seconds to convert
MAX_PARTS: Final = 100_000
FEW_PARTS: Final = 32_768  # of a request with long lists, which take the most time to read
_MAX_DIGITS: Final = 40
_LONG: Final = re.compile(rb"\d{%d}" % (_MAX_DIGITS + 1))
_SMALL: Final = 4096
_WHITE_SPACE: Final = b" \t\r\n"
_read: Final = msgspec.json.Decoder().decode
_write: Final = msgspec.json.Encoder().encode


class JsonObject:
    """A JSON object as its members in order of appearance, duplicates included."""

    __slots__ = ("members",)

    def __init__(self, members: list[tuple[str, Any]]) -> None:
        self.members = members


def parse_object(text: bytes, what: str = "the body", *, max_parts: int = MAX_PARTS) -> JsonObject:
    """The JSON object that is all of `text`; `what` names it in the error.

    Raises `invalid_request` for anything else: invalid UTF-8, lone surrogates, NaN, trailing bytes, deep nesting; and
    for more than `max_parts` members and elements, of which Python reads some 200,000 a second.
    """
    if len(text) > max_parts and text.count(b",") > max_parts:
        raise invalid(f"{what} has more than {max_parts} members and elements")
    value: Any = _plain(text) if len(text) <= _SMALL else None
    if value is not None:
        return JsonObject(value)
    check_json(text)
    try:
        value = _DECODER.decode(text.decode())
    except (ValueError, RecursionError) as error:
        raise invalid(f"{what} is not valid JSON: {error}") from None
    if not isinstance(value, JsonObject):
        raise invalid(f"{what} must be a JSON object")
    return value


class Fields:
    """The known members of an object, read one at a time as the type they must have; unknown ones are ignored.

    Every reader gives None for an absent member and raises `invalid_request` for a wrong type. JSON null is a wrong
    type, except for the names in `nullable`, where it means absent. A known name that comes twice is refused.
    """

    def __init__(self, found: JsonObject, known: frozenset[str], nullable: frozenset[str] = frozenset()) -> None:
        given: dict[str, Any] = {}
        for name, value in found.members:
            if name in known:
                if name in given:
                    raise invalid(f'duplicate member "{name}"')
                given[name] = value
        self._given: Mapping[str, Any] = {
            name: value for name, value in given.items() if value is not None or name not in nullable
        }

    def has(self, name: str) -> bool:
        """Return True if the member is present."""
        return name in self._given

    def value(self, name: str) -> Any:
        """The member as parsed, whatever its type: an object is a JsonObject."""
        return self._given.get(name)

    def integer(self, name: str, low: int = 0, high: int = U64_MAX) -> int | None:
        """An integer in the range, written without fraction or exponent."""
        if name not in self._given:
            return None
        value = self._given[name]
        if type(value) is not int or not low <= value <= high:
            raise invalid(f"{name} must be an integer from {low} to {high}")
        return value

    def amount(self, name: str) -> int:
        """A count or duration that is clamped instead of refused: zero when absent, at most 2^64-1."""
        return min(self.integer(name, high=_HUGE) or 0, U64_MAX)

    def boolean(self, name: str) -> bool | None:
        """true or false."""
        if name not in self._given:
            return None
        value = self._given[name]
        if not isinstance(value, bool):
            raise invalid(f"{name} must be true or false")
        return value

    def text(self, name: str) -> str | None:
        """A string."""
        if name not in self._given:
            return None
        value = self._given[name]
        if not isinstance(value, str):
            raise invalid(f"{name} must be a string")
        return value


def _plain(text: bytes) -> list[tuple[str, Any]] | None:
    """The members of the object that `text` is, read the quick way; None where only the careful one will do.

    Text that, but for white space, is written just as it was has no member twice and nothing else that is unusual.
    """
    try:
        value = _read(text)
        if type(value) is dict and _write(value) == text.translate(None, _WHITE_SPACE) and not _LONG.search(text):
            return _members(value)
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    return None


def _members(found: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, _nested(value) if type(value) in (dict, list) else value) for name, value in found.items()]


def _nested(found: dict[str, Any] | list[Any]) -> Any:
    if isinstance(found, dict):
        return JsonObject(_members(found))
    return [_nested(value) if type(value) in (dict, list) else value for value in found]


def _integer(digits: str) -> int:
    if len(digits) <= _MAX_DIGITS:
        return int(digits)
    return -_HUGE if digits.startswith("-") else _HUGE


_DECODER: Final = json.JSONDecoder(object_pairs_hook=JsonObject, parse_int=_integer)
