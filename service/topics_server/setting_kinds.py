"""Kinds of settings: how each is read from text, shown, and named in the help of its flag."""

from collections.abc import Callable
from dataclasses import Field, field
from typing import Any, Final, NamedTuple

from topics_client import units
from topics_client.environment import split_host

_SWITCH: Final = {"1": True, "true": True, "0": False, "false": False}
_MAX_I64: Final = (1 << 63) - 1
_MAX_PORT: Final = 65535
_MAX_DIGITS: Final = 20

Read = Callable[[str], Any]
"""Makes a value of a text. Raises ValueError with the expected form, as text after "is not"."""


def _number(text: str, maximum: int) -> int:
    value = int(text) if _is_number(text) else -1
    if not 0 <= value <= maximum:
        raise ValueError("a number of at least 0" if maximum == _MAX_I64 else f"a number from 0 to {maximum}")
    return value


def read_port(text: str) -> int:
    """A port number."""
    if not (_is_number(text) and int(text) <= _MAX_PORT):
        raise ValueError(f"a port, a number from 0 to {_MAX_PORT}")
    return int(text)


def _switch(text: str) -> bool:
    if text not in _SWITCH:
        raise ValueError("1 or true (on), 0 or false (off)")
    return _SWITCH[text]


def one_of(*words: str) -> Read:
    """One of these words, in lower case."""

    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return text.lower()

    return read


def read_address(text: str) -> str:
    """A host or host:port."""
    host, number = split_host(text)
    is_cut = text.endswith(":") and (text.count(":") == 1 or text.startswith("["))
    if "/" in text or not host or is_cut:
        raise ValueError("an address: a host or host:port, without a scheme such as http://")
    if number:
        try:
            read_port(number)
        except ValueError as error:
            raise ValueError(f"an address: its port must be {error}") from None
    return text


def read_store(text: str) -> str:
    """The URL of a bucket, with or without a prefix."""
    bucket = text.removeprefix("s3://").partition("/")[0]
    if not text.startswith("s3://") or not bucket:
        raise ValueError("the URL of an object store, such as s3://bucket/prefix")
    return text.rstrip("/")


def read_members(text: str) -> str:
    """Addresses, each with a port."""
    for member in text.split(","):
        try:
            has_port = bool(split_host(read_address(member))[1])
        except ValueError:
            has_port = False
        if not has_port:
            raise ValueError("a list of addresses, such as 10.0.0.1:2379,10.0.0.2:2379")
    return text


def _within_i64(read: Callable[[str], int]) -> Read:
    def bounded(text: str) -> int:
        value = read(text)
        if value > _MAX_I64:
            raise ValueError("below 2**63")
        return value

    return bounded


class _Unit(NamedTuple):
    """Parser and formatter of a setting, and the name of its value in the help of its flag."""

    read: Read
    shown: Callable[[int], str]
    what: str


_WHOLE_SECONDS: Final = _Unit(_within_i64(units.whole_seconds), lambda seconds: units.shown_ms(seconds * 1000), "TIME")
_UNITS: Final = {
    "_BYTES": _Unit(_within_i64(units.size), units.shown_size, "SIZE"),
    "_MS": _Unit(_within_i64(units.milliseconds), units.shown_ms, "TIME"),
    "_SECONDS": _WHOLE_SECONDS,
    "_TIMEOUT": _WHOLE_SECONDS,
}
"""The unit of a plain number, by a part of the setting's name; the first one counts."""


def _unit(env: str) -> _Unit | None:
    return next((unit for part, unit in _UNITS.items() if f"{part}_" in f"{env}_"), None)


def setting(
    env: str,
    default: Any,
    meaning: str,
    *,
    flag: bool = True,
    maximum: int = _MAX_I64,
    read: Read | None = None,
    what: str = "",
) -> Any:
    """One setting. The text of its environment variable or flag goes through `read`; without one it is a number up to
    `maximum`, with a unit where its name says so, a switch, or any text. `what` is its text in the help.
    """
    unit = _unit(env) if isinstance(default, int) else None
    if isinstance(default, bool):
        read = read or _switch
    elif isinstance(default, int):
        read = read or (unit.read if unit is not None else lambda text: _number(text, maximum))
        what = what or (unit.what if unit is not None else "N")
    details = {"env": env, "help": meaning, "flag": flag, "read": read or str, "what": what or "TEXT"}
    return field(default=default, metadata=details)


def shown_default(setting: Field[Any]) -> str:
    """The default of a setting as people write it: `1GiB`, `30s`, `off`; empty where there is none."""
    default: Any = setting.default
    if default is False:
        return "off"
    if default in ("", None):
        return ""
    unit = _unit(setting.metadata["env"])
    return unit.shown(default) if unit is not None and default else str(default)


def shown_value(setting: Field[Any], value: Any) -> str:
    """A value of a setting as people write it: `1GiB`, `30s`, `off`."""
    if isinstance(value, bool):
        return "on" if value else "off"
    unit = _unit(setting.metadata["env"])
    return unit.shown(value) if unit is not None and isinstance(value, int) and value else str(value)


def _is_number(text: str) -> bool:
    """True for a number as people write one: Python refuses to read one of thousands of digits."""
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
