"""JSON text stored verbatim: validated once on input, never parsed into objects or re-serialized."""

import re
from typing import Final

import msgspec
from msgspec import Raw

from topics_service.engine.errors import TopicsError, invalid
from topics_service.engine.limits import Limits
from topics_service.storage.recordbatch.jsonvalue import MALFORMED

_SPACE: Final = b" \t\r\n"
_ESCAPE: Final = re.compile(  # the first group is half of a surrogate pair
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_VALUE: Final = msgspec.json.Decoder(Raw)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])


def normalize_json(data: bytes) -> bytes:
    """`data` without the white space around its one JSON value; every other byte is kept.

    Raises `invalid_request` unless `data` is exactly one JSON value in valid UTF-8. Lone surrogate escapes and
    nesting deeper than the decoder takes (several hundred levels) are malformed; duplicate keys are not.
    """
    try:
        if not data.isascii():
            data.decode()  # msgspec skips over string bytes when it makes a Raw
        value = bytes(_VALUE.decode(data))
    except MALFORMED as error:
        raise _malformed(error, data) from None
    return data if len(value) == len(data) else value


def check_json(data: bytes) -> None:
    """Raise `invalid_request` unless `normalize_json` takes `data`; white space around the value is allowed."""
    normalize_json(data)


def check_meta(meta: bytes, limits: Limits, *, checked: bool = False) -> None:
    """Raise `invalid_request` unless `meta` is one JSON object within the size and key limits.

    `checked` says that the text is known to be valid JSON in valid UTF-8. A key that comes twice counts once.
    """
    if len(meta) > limits.max_meta_bytes:
        raise invalid(f"meta has {len(meta)} bytes, the limit is {limits.max_meta_bytes}")
    if not checked:
        check_json(meta)
    if not meta.startswith(b"{") and not meta.lstrip(_SPACE).startswith(b"{"):
        raise invalid("meta must be a JSON object")
    # `"":0` and then `,"a":0` for each further key, in braces: n keys need 6n bytes. And each has its colon.
    max_keys = limits.max_meta_keys
    if len(meta) < 6 * (max_keys + 1) or meta.count(b":") <= max_keys:
        return
    try:
        keys = len(_OBJECT.decode(meta))
    except MALFORMED as error:
        raise _malformed(error, meta) from None
    if keys > max_keys:
        raise invalid(f"meta has {keys} keys, the limit is {max_keys}")


def _malformed(error: Exception, data: bytes) -> TopicsError:
    if isinstance(error, RecursionError):
        return invalid("JSON is nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return invalid(f"JSON is not valid UTF-8 (byte {error.start})")
    lone = next((found for found in _ESCAPE.finditer(data) if found[1]), None)
    if lone is not None and any(word in str(error) for word in ("truncated", "surrogate")):  # msgspec says either
        return invalid(f"JSON is malformed: lone surrogate \\{lone[1].decode()} (byte {lone.start()})")
    return invalid(str(error))
