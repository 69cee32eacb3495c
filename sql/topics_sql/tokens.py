"""Tokens of SQL text, as PostgreSQL divides it, within bounds."""

import re
from array import array
from typing import Final, NoReturn

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables.errors import Place, sql_error

MAX_BYTES: Final = 1 << 20
MAX_TOKENS: Final = 200_000
LOOKAHEAD: Final = 3
"""Tokens of kind END after the last one, so that rules may look at the next three without asking whether they exist."""
MAX_DEPTH: Final = 200
"""Of parentheses, and of operators within operators."""

WORD: Final = "word"
NAME: Final = "name"
STRING: Final = "string"
NUMBER: Final = "number"
PARAMETER: Final = "parameter"
OPERATOR: Final = "operator"
END: Final = "end"

TOKEN: Final = re.compile(
    r"""[\ \t\r\n\f\v]++
    | --[^\n]*+
    | (?P<comment> /\*)
    | (?P<word> [^\W\d][\w$]*+)
    | (?P<number> (?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?\d++)?+)
    | '(?P<string> [^']*+(?:''[^']*+)*+)'
    | "(?P<name> [^"]*+(?:""[^"]*+)*+)"
    | \$(?P<parameter> \d++)
    | (?P<operator> ->>|->|::|<>|!=|<=|>=|\|\||\#>>|\#>|@>|<@|!~\*|!~|~\*|[-+*/%<>=(),.;:\[\]{}~!@\#^&|?])
    """,
    re.VERBOSE | re.DOTALL,
)
COMMENT_EDGE: Final = re.compile(r"/\*|\*/")
JOINED: Final = re.compile(r"[\w$]")
PREFIXES: Final = frozenset({"b", "n", "u", "x"})
ESCAPED: Final = re.compile(r"'((?:[^'\\]|\\.|'')*+)'", re.DOTALL)
ESCAPE: Final = re.compile(
    r"''|\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{1,3})|(.))", re.DOTALL
)
ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
UPPER_ASCII: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def words(text: str) -> frozenset[str]:
    """The words of a list in text."""
    return frozenset(text.split())


class Tokens:
    """The tokens of a text: three lists of the same length, the last `LOOKAHEAD` of kind `END`.

    `values` has words folded to lower case, the contents of quotes, numbers as written, operators.
    """

    __slots__ = ("kinds", "starts", "text", "values")

    def __init__(self, text: str, kinds: list[str], values: list[str], starts: "array[int]") -> None:
        self.text, self.kinds, self.values, self.starts = text, kinds, values, starts

    def statements(self) -> int:
        """The number of statements that a `;` ends."""
        ends = [value == ";" and kind == OPERATOR for kind, value in zip(self.kinds, self.values, strict=True)]
        return sum(end and place > 0 and not ends[place - 1] for place, end in enumerate(ends))


def place_of(text: str, position: int) -> Place:
    """The line and column of a position."""
    return Place(text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position))


def refuse(
    text: str, position: int, message: str, reason: Reason = Reason.SYNTAX_ERROR, sqlstate: str = ""
) -> TopicsError:
    """Make the error of a place in a text."""
    return sql_error(reason, message, sqlstate=sqlstate, place=place_of(text, position))


def tokenize(text: str) -> Tokens:
    """Divide a text. Raises `syntax_error`, or `invalid_request` for one beyond the bounds."""
    _check_characters(text)
    tokens = Tokens(text, [], [], array("l"))
    try:
        _scan(text, tokens.kinds, tokens.values, tokens.starts)
    except TopicsError as error:
        number = tokens.statements()
        if number and isinstance(error.detail, dict):
            error.detail["statement"] = number
        raise
    tokens.kinds += [END] * LOOKAHEAD
    tokens.values += [""] * LOOKAHEAD
    tokens.starts.extend([len(text)] * LOOKAHEAD)
    return tokens


def _scan(text: str, kinds: list[str], values: list[str], starts: "array[int]") -> None:
    position, size, depth = 0, len(text), 0
    match_at = TOKEN.match
    while position < size:
        found = match_at(text, position)
        if found is None:
            _fail(text, position)
        kind = found.lastgroup
        start, position = position, found.end()
        if kind is None:
            continue
        if kind == OPERATOR:
            value = found[kind]
            if value == "(":
                depth += 1
                if depth > MAX_DEPTH:
                    raise refuse(text, start, f"parentheses are nested more than {MAX_DEPTH} deep")
            elif value == ")":
                depth -= 1
        elif kind == WORD:
            value = found[kind]
            value = value.lower() if value.isascii() else value.translate(UPPER_ASCII)
            if position < size and text[position] == "'" and value == "e":
                kind = STRING
                value, position = escaped(text, start, position)
            elif position < size and text[position] == "'" and value in PREFIXES:
                raise refuse(
                    text, start, f"strings with the prefix {found[kind]} are not supported", Reason.UNSUPPORTED_SQL
                )
        elif kind == STRING:
            value = found[kind]
            if "''" in value:
                value = value.replace("''", "'")
        elif kind == NAME:
            value = found[kind].replace('""', '"')
            if not value:
                raise refuse(text, start, "a quoted name is empty")
        elif kind == "comment":
            position = _end_of_comment(text, start)
            continue
        else:
            value = found[kind]
            if position < size and JOINED.match(text, position):
                raise refuse(text, start, f"a {kind} is followed by {text[position]!r}")
        kinds.append(kind)
        values.append(value)
        starts.append(start)
        if len(kinds) > MAX_TOKENS:
            raise refuse(
                text,
                start,
                f"the text has more than {MAX_TOKENS} tokens; send rows as parameters",
                Reason.INVALID_REQUEST,
                "54000",
            )


def escaped(text: str, start: int, quote: int) -> tuple[str, int]:
    """Read the rest of a string with escapes, as `E'a\\n'`: its value and its end."""
    found = ESCAPED.match(text, quote)
    if found is None:
        raise refuse(text, start, "a string is not closed")
    return ESCAPE.sub(lambda each: _unescaped(text, start, each), found[1]), found.end()


def _unescaped(text: str, start: int, found: re.Match[str]) -> str:
    """The character of one escape. Codes above 127 are for `\\u` only: others would be bytes of UTF-8."""
    if found[0] == "''":
        return "'"
    if found[5] is not None and found[5] not in "uU":
        return ESCAPES.get(found[5], found[5])
    unicode = found[2] or found[3]
    code = int(found[4], 8) if found[4] else int(unicode or found[1] or "0", 16)
    if not code or code > (0x10FFFF if unicode else 0x7F) or 0xD800 <= code < 0xE000:
        sqlstate = "22021" if found[1] or found[4] else "22025"
        raise refuse(text, start, f"{found[0]} is no character", Reason.INVALID_VALUE, sqlstate)
    return chr(code)


def _check_characters(text: str) -> None:
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise refuse(text, error.start, "the text has half of a surrogate pair") from None
    if size > MAX_BYTES:
        raise sql_error(Reason.INVALID_REQUEST, f"the text has {size} bytes, more than {MAX_BYTES}", sqlstate="54000")
    if (zero := text.find("\0")) >= 0:
        raise refuse(text, zero, "the text has a NUL character")


def _end_of_comment(text: str, start: int) -> int:
    depth = 0
    for edge in COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if not depth:
            return edge.end()
    raise refuse(text, start, "a comment is not closed")


def _fail(text: str, position: int) -> NoReturn:
    what = text[position]
    if what == "'":
        raise refuse(text, position, "a string is not closed")
    if what == '"':
        raise refuse(text, position, "a quoted name is not closed")
    raise refuse(text, position, f"unexpected character {what!r}")
