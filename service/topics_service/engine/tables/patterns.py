"""LIKE and ILIKE: simple patterns by methods of str, others by RE2, whose time is linear in the text."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from topics_service.engine.errors import Reason
from topics_service.engine.tables.errors import invalid_value, sql_error

try:
    import re2  # type: ignore[import-untyped, unused-ignore]
except ImportError:  # no wheel for this platform
    re2 = None

MAX_PATTERN: Final = 10_000
"""The most characters of a pattern."""
Matcher = Callable[[str], bool]
_ANY: Final = object()
_ONE: Final = object()


@lru_cache(maxsize=256)
def matcher(pattern: str, escape: str = "\\", ignore_case: bool = False) -> Matcher:
    """The function that tells whether a text matches as a whole. Raises `invalid_value`: 22025, or too long."""
    if len(pattern) > MAX_PATTERN:
        raise invalid_value(f"a pattern of LIKE has {len(pattern)} characters, at most {MAX_PATTERN}", sqlstate="54000")
    parts = _parts(pattern, escape)
    if not ignore_case and (simple := _simple(parts)):
        return simple
    return _by_expression(parts, ignore_case)


def prefix_of(pattern: str, escape: str = "\\") -> str:
    """The text that every match of a LIKE begins with. Raises as `matcher`."""
    parts = _parts(pattern, escape)
    return parts[0] if parts and isinstance(parts[0], str) else ""


def _parts(pattern: str, escape: str) -> list[Any]:
    """Runs of plain text, `_ANY` for % and `_ONE` for _."""
    parts: list[Any] = []
    plain: list[str] = []
    characters = iter(pattern)
    for each in characters:
        if each == escape:
            following = next(characters, None)
            if following is None:
                raise invalid_value("a pattern of LIKE must not end with its escape character", sqlstate="22025")
            plain.append(following)
        elif each in "%_":
            if plain:
                parts.append("".join(plain))
                plain = []
            if each == "_" or not parts or parts[-1] is not _ANY:
                parts.append(_ANY if each == "%" else _ONE)
        else:
            plain.append(each)
    return [*parts, "".join(plain)] if plain else parts


def _simple(parts: list[Any]) -> Matcher | None:
    match parts:
        case []:
            return lambda text: not text
        case [str(only)]:
            return lambda text: text == only
        case [object() as only] if only is _ANY:
            return lambda _: True
        case [str(start), any_] if any_ is _ANY:
            return lambda text: text.startswith(start)
        case [any_, str(end)] if any_ is _ANY:
            return lambda text: text.endswith(end)
        case [any_, str(middle), another] if any_ is _ANY and another is _ANY:
            return lambda text: middle in text
    return None if _ONE in parts else _by_pieces(parts)


def _by_pieces(parts: list[Any]) -> Matcher:
    """Plain texts with % between them: each is looked for behind the one before it."""
    start = parts[0] if parts[0] is not _ANY else ""
    end = parts[-1] if parts[-1] is not _ANY else ""
    inner = [each for each in parts[1 if start else 0 : -1 if end else None] if each is not _ANY]

    def match(text: str) -> bool:
        if not text.startswith(start) or not text.endswith(end):
            return False
        at = len(start)
        for piece in inner:
            at = text.find(piece, at) + len(piece)
            if at < len(piece):
                return False
        return at <= len(text) - len(end)

    return match


def _by_expression(parts: list[Any], ignore_case: bool) -> Matcher:
    if re2 is None:
        raise sql_error(Reason.UNSUPPORTED_SQL, "this pattern is not served: google-re2 is missing")
    # classes, not RE2's Latin-1 or lone bytes: `.` is one character of UTF-8
    expression = "".join(".*" if each is _ANY else "." if each is _ONE else re.escape(each) for each in parts)
    try:
        compiled = re2.compile(f"(?{'i' if ignore_case else ''}s){expression}", _options())
    except (re2.error, UnicodeError):
        raise invalid_value("a pattern of LIKE is too complex") from None
    match = compiled.fullmatch
    return lambda text: match(text) is not None


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False
    return options
