"""The opaque cursor of the list calls: standard base64 of `{"after":"<last name>"}`, the same on every door."""

from base64 import b64decode, b64encode

import msgspec

from topics_service.engine.errors import invalid


def write_cursor(after: str | None) -> str:
    """The cursor of the page behind the name `after`; empty when there is none."""
    if after is None:
        return ""
    return b64encode(msgspec.json.encode({"after": after})).decode()


def read_cursor(cursor: str) -> str | None:
    """The name to go on behind, or None for the first page. Raises `invalid_request` for a corrupt cursor.

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
