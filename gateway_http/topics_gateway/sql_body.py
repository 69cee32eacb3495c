"""The body of an SQL request: a few members, of which one may hold a megabyte of parameters."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from topics_gateway.json_fields import Fields, parse_object
from topics_service.api.sql.live import LiveRequest
from topics_service.api.sql.requests import SqlRequest
from topics_service.engine.errors import invalid
from topics_service.engine.tables.model import DEFAULT_NAMESPACE
from topics_service.storage.recordbatch.jsonvalue import MALFORMED

_MEMBERS: Final = frozenset({"sql", "params", "param_rows", "namespace_id", "bigint"})
_LIVE_MEMBERS: Final = frozenset({"sql", "params", "namespace_id", "bigint", "after"})
_LONG: Final = 64  # bytes of a value that is looked at by itself
_MAX_OUTLINE: Final = 1 << 20
_ROOM: Final = len(b'"sql":"",')  # of the smallest member that comes twice
_OUTLINE: Final = msgspec.json.Decoder(dict[str, Raw])
_TEXT: Final = msgspec.json.Decoder(str)
_VALUES: Final = msgspec.json.Decoder(list[Any] | None)
_ROWS: Final = msgspec.json.Decoder(list[list[Any]] | None)


def read_sql(text: bytes) -> tuple[SqlRequest, bool]:
    """The request, and whether BIGINT values are to be text. Raises `invalid_request`."""
    outline = _outline(text, _MEMBERS)
    request = SqlRequest(
        sql=_sql(outline),
        params=_member(outline, "params", _VALUES, "an array"),
        param_rows=_member(outline, "param_rows", _ROWS, "an array of arrays"),
        namespace=_text(outline, "namespace_id") or DEFAULT_NAMESPACE,
        size=len(text),
    )
    return request, _bigint_as_text(outline)


def read_live(text: bytes) -> tuple[LiveRequest, bool]:
    """A live query, and whether BIGINT values are to be text. Raises `invalid_request`."""
    outline = _outline(text, _LIVE_MEMBERS)
    request = LiveRequest(
        sql=_sql(outline),
        params=_member(outline, "params", _VALUES, "an array"),
        namespace=_text(outline, "namespace_id") or DEFAULT_NAMESPACE,
        after=_text(outline, "after"),
    )
    return request, _bigint_as_text(outline)


def _outline(text: bytes, members: frozenset[str]) -> dict[str, Raw]:
    try:
        if not text.isascii():
            text.decode()  # msgspec skips over string bytes when it makes a Raw
        outline = _OUTLINE.decode(text)
    except msgspec.ValidationError:
        raise invalid("the body must be a JSON object") from None
    except MALFORMED as error:
        raise invalid(f"the body is not valid JSON: {error}") from None
    if _may_repeat(text, outline):
        _refuse_repeated(text, outline, members)
    return outline


def _sql(outline: Mapping[str, Raw]) -> str:
    sql: str | None = _member(outline, "sql", _TEXT, "a string")
    if sql is None:
        raise invalid("sql is missing")
    return sql


def _text(outline: Mapping[str, Raw], name: str) -> str | None:
    """A text; None for null too."""
    found: str | None = None if _is_null(outline, name) else _member(outline, name, _TEXT, "a string")
    return found


def _bigint_as_text(outline: Mapping[str, Raw]) -> bool:
    bigint = _text(outline, "bigint")
    if bigint not in (None, "number", "string"):
        raise invalid('bigint must be "number" or "string"')
    return bigint == "string"


def _is_null(outline: Mapping[str, Raw], name: str) -> bool:
    return name in outline and bytes(outline[name]) == b"null"


def _member(outline: Mapping[str, Raw], name: str, decoder: msgspec.json.Decoder[Any], what: str) -> Any:
    raw = outline.get(name)
    if raw is None:
        return None
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise invalid(f"{name} must be {what}: {error}") from None
    except MALFORMED as error:
        raise invalid(f"{name} is not valid JSON: {error}") from None


def _may_repeat(text: bytes, outline: Mapping[str, Raw]) -> bool:
    """Return whether the text has room for a member twice: it is longer than its members once, without white space."""
    compact = 1 + sum(len(name.encode()) + len(raw) + 4 for name, raw in outline.items())
    return len(text) - compact >= _ROOM


def _refuse_repeated(text: bytes, outline: Mapping[str, Raw], members: frozenset[str]) -> None:
    """Raise `invalid_request` if a member comes twice. Long values are replaced: they hold none of the members."""
    for raw in outline.values():
        if len(raw) > _LONG:
            text = text.replace(bytes(raw), b"0", 1)
    if len(text) > _MAX_OUTLINE:
        raise invalid(f"the body has more than {_MAX_OUTLINE} bytes of white space or unknown members")
    Fields(parse_object(text), members, members - {"sql"})
