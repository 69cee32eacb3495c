"""Opaque cursor of list calls: standard base64 of `{"after":"<last name>"}`, the same for every protocol."""

from base64 import b64decode, b64encode

import msgspec

from topics_service.engine.errors import invalid


def write_cursor(after: str | None) -> str:
    """Write the cursor of the page after the name `after`; empty if there is none."""
    if after is None:
        return ""
    return b64encode(msgspec.json.encode({"after": after})).decode()


def read_cursor(cursor: str) -> str | None:
    """Read the name after which a page begins, None for the first page. Raises `invalid_request` for a corrupt cursor.

    A space counts as `+`: clients send cursors back unescaped.
    """
    if not cursor:
        return None
    try:
        value = msgspec.json.decode(b64decode(cursor.replace(" ", "+"), validate=True))
    except (ValueError, RecursionError):  # bad base64, JSON and UTF-8 are all ValueErrors
        raise invalid("the cursor is corrupt") from None
    after = value.get("after") if isinstance(value, dict) else None
    return after if isinstance(after, str) else None
