"""Lines of files and of standard input, and diagnosis of invalid JSON."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NoReturn, Protocol

LONGEST_LINE: Final = 16 << 20
JSON_SPACE: Final = b" \t\r\n"  # white space that JSON allows around a value; `bytes.strip()` would take more
_CHUNK: Final = 1 << 18
_BOM: Final = b"\xef\xbb\xbf"
_ESCAPES: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_OUTSIDE: Final = re.compile(r'"(?:[^"\\]|\\.)*"|(-?Infinity|NaN)', re.DOTALL)


class Source(Protocol):
    """Bytes that come as they are there: an open binary file, a pipe."""

    def read1(self, size: int = -1, /) -> bytes:
        """At most `size` bytes, at least one; none at the end."""
        ...


class BadTextError(ValueError):
    """A text is invalid. `column` counts characters from 1, or bytes where it is not UTF-8."""

    def __init__(self, column: int, what: str) -> None:
        super().__init__(column, what)
        self.column = column
        self.what = what

    def __str__(self) -> str:
        return f"column {self.column}: {self.what}"


def chunks(source: Source, longest: int = LONGEST_LINE) -> Iterator[tuple[int, list[bytes | None]]]:
    """The lines, in the groups in which they are read: the number of the first, from 1, and the lines without their
    ends; the last of all needs none. A group comes before more is waited for.

    A byte order mark in front is left out. A line of more than `longest` bytes is None, and not kept in memory.
    """
    number = 1
    pieces: list[bytes] = []  # of the line that has not ended yet
    held: int | None = 0  # bytes in them; None once it is too long
    first = True
    while chunk := source.read1(_CHUNK):
        if first:
            # A mark that a pipe cuts in two is as rare as it is harmless: the line is then named as no JSON.
            chunk, first = chunk.removeprefix(_BOM), False
        head, *tail = chunk.split(b"\n")
        if held is not None:
            pieces.append(head)
            held += len(head)
            if held > longest:
                pieces, held = [], None
        if not tail:
            continue
        found: list[bytes | None] = [None if held is None else b"".join(pieces), *tail]
        rest = tail[-1]
        found.pop()
        yield number, found
        number += len(found)
        pieces, held = [rest], len(rest)
    if held is None or held:
        yield number, [None if held is None else b"".join(pieces)]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


_scan: Final[Callable[[str, int], tuple[Any, int]]] = json.JSONDecoder(parse_constant=_refuse_constant).scan_once  # type: ignore[attr-defined]  # typeshed lacks it
# Python refuses integers of thousands of digits by default; the value is not needed here.
_patient: Final = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=float)


def json_value(text: bytes) -> Any:
    """The value of one JSON text without surrounding white space, as strict as the server. Raises BadTextError."""
    try:
        decoded = text.decode()
        value, end = _scan(decoded, 0)
    except (ValueError, StopIteration, RecursionError):
        return _careful(text)
    if end != len(decoded) or b"\\ud" in text or b"\\uD" in text:
        return _careful(text)
    return value


def all_json(texts: Sequence[bytes]) -> bool:
    """Return True if `json_value` would accept each of the texts.

    Where msgspec is installed, as it is with the server, they are looked at all together: six times as fast.
    """
    try:
        import msgspec
    except ModuleNotFoundError:
        return all(map(_is_json, texts))
    joined = b"[%b]" % b",".join(texts)
    try:
        if not joined.isascii():
            joined.decode()  # msgspec checks only the fields that it needs
        found = msgspec.json.decode(joined, type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    # `1,2` and `[3` and `4]` are three values, too, but not of these lengths: the commas are where they were put.
    return list(map(len, found)) == list(map(len, texts))


def _is_json(text: bytes) -> bool:
    try:
        json_value(text)
    except BadTextError:
        return False
    return True


def _careful(text: bytes) -> Any:
    """The same, for texts that are wrong or rare: says where and why."""
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        raise BadTextError(error.start + 1, f"byte 0x{text[error.start]:02x} is not UTF-8") from None
    try:
        value = _patient.decode(decoded)
    except json.JSONDecodeError as error:
        raise BadTextError(error.pos + 1, _what(error, decoded)) from None
    except RecursionError:
        raise BadTextError(1, "it is nested too deeply") from None
    except ValueError:
        found = next(match for match in _OUTSIDE.finditer(decoded) if match[1])
        raise BadTextError(found.start() + 1, f"JSON has no {found[1]}") from None
    _check_surrogates(decoded)
    return value


def _what(error: json.JSONDecodeError, text: str) -> str:
    if not text:
        return "it is empty"
    what = error.msg[0].lower() + error.msg[1:].removesuffix(" at")
    if error.pos >= len(text):
        return f"{what}, but it ends here"
    return what if error.msg.startswith("Unterminated") else f"{what}, found {text[error.pos]!r}"


def _check_surrogates(text: str) -> None:
    """Halves of a character that are escaped alone stand for no text."""
    high = None
    for match in _ESCAPES.finditer(text):
        code = int(match[1], 16) if match[1] else 0
        low = 0xDC00 <= code < 0xE000
        if (high is not None) != low or (high is not None and high.end() != match.start()):
            break
        high = match if 0xD800 <= code < 0xDC00 else None
    else:
        if high is None:
            return
        match = high
    wrong = high or match
    raise BadTextError(wrong.start() + 1, f"{wrong[0]} is half a character")
