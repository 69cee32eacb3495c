"""SQL text on its way to the server: where statements end, and the place of an error."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""--[^\n]*|/\*(?:[^*]|\*(?!/))*(?:\*/|\Z)        # a comment, perhaps without its end
    |'(?:[^']|'')*(?:'|\Z)|"(?:[^"]|"")*(?:"|\Z)        # a text or a quoted name
    |\$\$.*?(?:\$\$|\Z)
    |;|[A-Za-z_][A-Za-z_0-9]*|\s+|.""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT: Final = ("--", "/*")
_ENDS: Final = frozenset({"commit", "rollback", "end"})
_USE: Final = re.compile(r'\s*use\s+(?:"((?:[^"]|"")+)"|([A-Za-z_][A-Za-z_0-9]*))\s*;?\s*', re.IGNORECASE)
_CUT: Final = 100  # characters of a line that are shown


class Part(NamedTuple):
    """A part of a text that is sent on its own: a statement, or all of a transaction. `line` is its first, from 0."""

    text: str
    line: int
    complete: bool


def parts(text: str) -> Iterator[Part]:
    """Split a text at its semicolons; statements from BEGIN to COMMIT or ROLLBACK stay together.

    Only the last part may be not complete: it lacks its semicolon or the end of its transaction.
    """
    start = line = 0
    words: list[str] = []  # of the current statement, at most two
    empty, in_transaction = True, False
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token == ";":
            begins, ends = _begins(words), words[:1] and words[0] in _ENDS and words[1:2] != ["to"]
            in_transaction = (in_transaction or begins) and not ends
            if not in_transaction:
                if not empty:
                    yield Part(text[start : found.end()], line, complete=True)
                line += text.count("\n", start, found.end())
                start, empty = found.end(), True
            words = []
        elif not token.isspace() and not token.startswith(_COMMENT):
            empty = False
            if len(words) < 2:
                words.append(token.lower())
    if not empty:
        yield Part(text[start:], line, complete=False)


def _begins(words: list[str]) -> bool:
    return words[:1] == ["begin"] or words == ["start", "transaction"]


def used_namespace(text: str) -> str | None:
    """The namespace of a USE; None for another statement."""
    found = _USE.fullmatch(text)
    if found is None:
        return None
    return found[1].replace('""', '"') if found[1] else found[2].lower()


def pointed(text: str, line: int, column: int, first: int = 0) -> str:
    """The line of an error with a caret under its column, both from 1. `first` lines came before the text."""
    lines = text.splitlines()
    if not 1 <= line <= len(lines):
        return ""
    shown = lines[line - 1].replace("\t", " ")
    cut = max(0, column - _CUT // 2)
    head = f"line {line + first}: "
    return f"{head}{shown[cut : cut + _CUT]}\n{' ' * (len(head) + column - 1 - cut)}^"
