"""The cursor of a listing: standard base64 of `{"after":"<last name>"}`, the same on every door."""

import base64
import binascii

import msgspec

from topics_service.engine.errors import invalid


def encode_cursor(after: str | None) -> str:
    """The cursor of the page behind the name `after`; empty when there is none."""
    return "" if after is None else base64.b64encode(msgspec.json.encode({"after": after})).decode()


def decode_cursor(cursor: str) -> str | None:
    """The name a page starts behind; None is the first page, which an object without a text `after` asks for too.

    Raises `invalid_request` for what is not standard base64 of JSON.
    """
    if not cursor:
        return None
    try:
        position = msgspec.json.decode(base64.b64decode(cursor, validate=True))
    except (binascii.Error, ValueError, RecursionError, msgspec.DecodeError):
        raise invalid("cursor: not a cursor of this server") from None
    after = position.get("after") if isinstance(position, dict) else None
    return after if isinstance(after, str) else None
