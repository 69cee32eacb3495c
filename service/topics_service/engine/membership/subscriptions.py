"""Subscriptions of members: metadata and assignments of classic consumers, and patterns of topic names."""

import struct
from collections.abc import Callable, Iterable
from typing import Protocol

from topics_service.engine.membership.members import GroupError, RefusedError

try:
    import re2  # type: ignore[import-untyped, unused-ignore]
except ImportError:  # the extension has no build for every platform
    re2 = None

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_PATTERN_MEMORY = 1 << 20
_MAX_MATCHES = 1_000


def consumer_topics(metadata: bytes) -> list[str] | None:
    """The topics in the metadata of a `consumer` protocol; None if it can't be read."""
    try:
        return _Reader(metadata).strings()
    except (struct.error, ValueError):
        return None


def consumer_assignment(assignment: bytes) -> dict[str, list[int]] | None:
    """The partitions in the assignment of a `consumer` protocol by topic; None if it can't be read."""
    if not assignment:
        return {}
    try:
        return _Reader(assignment).partitions()
    except (struct.error, ValueError):
        return None


class _Reader:
    """Reads the fields after the version of the two structures; raises struct.error or ValueError when cut short."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._at = _I16.size
        _I16.unpack_from(text)

    def strings(self) -> list[str]:
        return [self._string() for _ in range(self._count(_I16.size))]

    def partitions(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for _ in range(self._count(_I16.size + _I32.size)):
            name = self._string()
            found.setdefault(name, []).extend([self._int() for _ in range(self._count(_I32.size))])
        return found

    def _int(self) -> int:
        value: int = _I32.unpack_from(self._text, self._at)[0]
        self._at += _I32.size
        return value

    def _count(self, min_item_bytes: int) -> int:
        """The length of an array whose items take at least `min_item_bytes` each."""
        count = self._int()
        if not 0 <= count * min_item_bytes <= len(self._text) - self._at:
            raise ValueError("an array longer than its text")
        return count

    def _string(self) -> str:
        length: int = _I16.unpack_from(self._text, self._at)[0]
        start = self._at + _I16.size
        if not 0 <= length <= len(self._text) - start:
            raise ValueError("a string longer than its text")
        self._at = start + length
        return str(self._text[start : self._at], "utf-8")


class Pattern(Protocol):
    """A compiled pattern."""

    def fullmatch(self, text: str) -> object | None:
        """None unless all of `text` matches."""
        ...


def compile_pattern(text: str, max_chars: int) -> Pattern:
    """A pattern in the syntax of RE2, which matches in linear time. Raises RefusedError if it is not one."""
    if len(text) > max_chars:
        raise RefusedError(GroupError.INVALID_REGULAR_EXPRESSION, f"a pattern has at most {max_chars} characters")
    if re2 is None:
        raise RefusedError(GroupError.INVALID_REGULAR_EXPRESSION, "patterns are not served: google-re2 is missing")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY
    try:
        pattern: Pattern = re2.compile(text, options)
    except (re2.error, UnicodeError) as error:
        raise RefusedError(GroupError.INVALID_REGULAR_EXPRESSION, f"not a pattern of RE2: {_reason(error)}") from None
    return pattern


def matching(pattern: Pattern, names: Iterable[str]) -> list[str]:
    """The names that match as a whole."""
    return [name for name in names if pattern.fullmatch(name) is not None]


class Matches:
    """The topics of patterns: found once for all members of all groups that have the same one."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names
        self._version = -1
        self._found: dict[tuple[str, Callable[[str], bool]], frozenset[str]] = {}

    def for_pattern(self, regex: str, pattern: Pattern, allowed: Callable[[str], bool], version: int) -> frozenset[str]:
        """The names that `pattern`, which is `regex` compiled, may find in this version of the topics."""
        if version != self._version or len(self._found) >= _MAX_MATCHES:
            self._version = version
            self._found.clear()
        found = self._found.get((regex, allowed))
        if found is None:
            found = self._found[regex, allowed] = frozenset(filter(allowed, matching(pattern, self._names())))
        return found


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
