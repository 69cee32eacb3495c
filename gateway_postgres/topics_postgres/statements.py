"""A text of a client divided into statements, with those that are of the session and not of the engine."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from topics_postgres import cursor_statements
from topics_postgres.arrays import ArrayQuery, places_of
from topics_postgres.catalog.detection import asks_for_catalog
from topics_postgres.cursor_statements import Declare, Execute, Fetch, Prepare
from topics_postgres.errors import PgError, Piece, from_topics
from topics_service.engine.errors import TopicsError
from topics_sql.tokens import END, NAME, NUMBER, OPERATOR, STRING, WORD, Tokens, tokenize, words

MAX_STATEMENTS: Final = 1000
MAX_CACHED_CHARS: Final = 4096
_CACHED: Final = 1000
_MAX_OPTIONS: Final = 32


class Sql(Struct, frozen=True):
    """A statement of the engine. `calls`: it has functions of the session, which become constants."""

    piece: Piece
    first: str
    calls: "tuple[Call, ...]" = ()


class CatalogQuery(Struct, frozen=True):
    """A query of `pg_catalog` or `information_schema`."""

    piece: Piece
    first: str = "select"


class Call(Struct, frozen=True):
    """A call of a function of the session, from `start` to `end` in the piece. `is_column`: it gets a name as one."""

    function: str
    arguments: tuple[str, ...]
    start: int
    end: int
    is_column: bool


class Begin(Struct, frozen=True):
    """BEGIN with its modes."""

    isolation: str = ""
    read_only: bool | None = None


class Set(Struct, frozen=True):
    """SET. `value` None is the default."""

    name: str
    value: str | None
    is_local: bool = False


class Show(Struct, frozen=True):
    """SHOW of a variable."""

    name: str


class Forget(Struct, frozen=True):
    """DEALLOCATE, CLOSE, DISCARD, UNLISTEN: `tag` is what the client gets, `name` None means all."""

    tag: str
    what: str
    name: str | None = None


class Copy(Struct, frozen=True):
    """COPY. `query` is what to read, or the INSERT of a row to write, without its values."""

    piece: Piece
    is_in: bool
    table: str
    columns: tuple[str, ...]
    query: str
    options: dict[str, str]


Statement = Sql | ArrayQuery | CatalogQuery | Declare | Fetch | Prepare | Execute | Begin | Set | Show | Forget | Copy


class Splitter:
    """Divides texts, and keeps short ones that come again."""

    def __init__(self, shown: Callable[[str], bool]) -> None:
        """`shown` tells whether SHOW of this name is of the session."""
        self._shown = shown
        self._kept: OrderedDict[str, Sequence[Statement]] = OrderedDict()

    def split(self, text: str) -> Sequence[Statement]:
        """The statements of a text. Raises PgError."""
        found = self._kept.get(text)
        if found is not None:
            self._kept.move_to_end(text)
            return found
        try:
            tokens = tokenize(text)
        except TopicsError as error:
            raise from_topics(error, Piece(text, 0)) from None
        made = [self._statement(each) for each in _ranges(tokens)]
        if len(text) <= MAX_CACHED_CHARS:
            self._kept[text] = made
            if len(self._kept) > _CACHED:
                self._kept.popitem(last=False)
        return made

    def _statement(self, reading: "_Words") -> Statement:
        first = reading.word
        rule = _RULES.get(first)
        if rule is not None:
            return rule(reading)
        if first in cursor_statements.RULES:
            found: Statement = cursor_statements.RULES[first](reading, self._statement)
            return found
        if first == "show":
            name = _shown_name(reading)
            if name and (self._shown(name) or "." in name):
                return Show(name)
        if first in _QUERIES and asks_for_catalog(reading.tokens, reading.first, reading.last, FUNCTIONS):
            return CatalogQuery(reading.piece)
        places = places_of(reading)
        if places:
            return ArrayQuery(reading.piece, places)
        return Sql(reading.piece, first, tuple(_calls(reading)) if first in _CALLING else ())


class _Words:
    """The tokens of one statement."""

    def __init__(self, tokens: Tokens, first: int, last: int) -> None:
        self.tokens = tokens
        self.first = self.at = first
        self.last = last
        start = tokens.starts[first]
        end = tokens.starts[last] if last < len(tokens.starts) else len(tokens.text)
        self.piece = Piece(tokens.text[start:end].rstrip(), start)

    @property
    def at_end(self) -> bool:
        return self.at >= self.last

    @property
    def kind(self) -> str:
        return END if self.at_end else self.tokens.kinds[self.at]

    @property
    def value(self) -> str:
        return "" if self.at_end else self.tokens.values[self.at]

    @property
    def word(self) -> str:
        return self.value if self.kind == WORD else ""

    @property
    def offset(self) -> int:
        """The place of the next token in the piece."""
        if self.at_end:
            return len(self.piece.text)
        return self.tokens.starts[self.at] - self.piece.start

    def take(self, *words: str) -> bool:
        """Pass over these words if they come next."""
        for step, word in enumerate(words):
            at = self.at + step
            if at >= self.last or self.tokens.kinds[at] != WORD or self.tokens.values[at] != word:
                return False
        self.at += len(words)
        return True

    def operator(self, operator: str) -> bool:
        """Pass over an operator if it comes next."""
        if self.kind == OPERATOR and self.value == operator:
            self.at += 1
            return True
        return False

    def name(self) -> str:
        """A name, with a namespace in front of it or without."""
        found = self._name()
        while self.operator("."):
            found += f".{self._name()}"
        return found

    def _name(self) -> str:
        if self.kind not in (WORD, NAME):
            raise self.unexpected("a name")
        found = self.value
        self.at += 1
        return found

    def setting(self) -> str:
        """A value of SET or of an option: a word, a number or a string."""
        sign = "-" if self.operator("-") else ""
        if self.kind not in (WORD, NAME, STRING, NUMBER):
            raise self.unexpected("a value")
        found = self.value
        self.at += 1
        return sign + found

    def expect_end(self) -> None:
        """Raise unless the statement ends here."""
        if not self.at_end:
            raise self.unexpected("the end of the statement")

    def unexpected(self, wanted: str) -> PgError:
        """The error of a token that is not what the statement needs here."""
        found = "the end" if self.at_end else f'"{self.value[:40]}"'
        return PgError("42601", f"{wanted} is expected, not {found}", position=self.piece.start + self.offset + 1)

    def refused(self, what: str, sqlstate: str = "0A000") -> PgError:
        """The error of something that is not supported."""
        return PgError(sqlstate, what, position=self.piece.start + self.offset + 1)


def _ranges(tokens: Tokens) -> "list[_Words]":
    found, first = list[_Words](), 0
    for at, kind in enumerate(tokens.kinds):
        if kind == END or (kind == OPERATOR and tokens.values[at] == ";"):
            if at > first:
                if len(found) == MAX_STATEMENTS:
                    raise PgError("54000", f"the text has more than {MAX_STATEMENTS} statements")
                found.append(_Words(tokens, first, at))
            first = at + 1
            if kind == END:
                break
    return found


# ------------------------------------------------------------------------------------------------ transactions


def _begin(words: _Words) -> Statement:
    words.at += 1
    if words.tokens.values[words.first] == "start" and not words.take("transaction"):
        raise words.unexpected("TRANSACTION")
    if not words.take("work"):
        words.take("transaction")
    isolation, read_only = _modes(words)
    words.expect_end()
    return Begin(isolation, read_only)


def _modes(words: _Words) -> tuple[str, bool | None]:
    isolation, read_only = "", None
    while not words.at_end:
        if words.take("isolation", "level"):
            isolation = _isolation(words)
        elif words.take("read", "only"):
            read_only = True
        elif words.take("read", "write"):
            read_only = False
        elif not (words.take("not", "deferrable") or words.take("deferrable")):
            raise words.unexpected("a mode of transactions")
        words.operator(",")
    return isolation, read_only


def _isolation(words: _Words) -> str:
    for level in ("read committed", "read uncommitted", "repeatable read", "serializable"):
        if words.take(*level.split()):
            return level
    raise words.unexpected("an isolation level")


def _ending(sql: str) -> Callable[[_Words], Statement]:
    """A rule for END and ABORT, which are other words for COMMIT and ROLLBACK."""

    def rule(words: _Words) -> Statement:
        words.at += 1
        if not words.take("work"):
            words.take("transaction")
        if sql == "COMMIT":
            words.take("and", "no", "chain")
        elif words.take("to"):
            words.take("savepoint")
            name = words.name()
            words.expect_end()
            return Sql(Piece(f'ROLLBACK TO "{name}"', words.piece.start), "rollback")
        words.expect_end()
        return Sql(Piece(sql, words.piece.start), sql.lower())

    return rule


# ---------------------------------------------------------------------------------------------------- variables


def _set(words: _Words) -> Statement:
    words.at += 1
    if words.take("session", "characteristics", "as", "transaction"):
        isolation, read_only = _modes(words)
        return _of_modes(words, isolation, read_only, "default_transaction_")
    is_local = words.take("local")
    if not is_local:
        words.take("session")
    if words.take("transaction"):
        isolation, read_only = _modes(words)
        return _of_modes(words, isolation, read_only, "transaction_", is_local=True)
    if words.take("time", "zone"):
        name = "timezone"
    elif words.take("names"):
        name = "client_encoding"
    else:
        name = words.name().lower()
        if not words.operator("=") and not words.take("to"):
            raise words.unexpected("TO")
    if words.take("default"):
        words.expect_end()
        return Set(name, None, is_local)
    values = [words.setting()]
    while words.operator(","):
        values.append(words.setting())
    words.expect_end()
    return Set(name, ", ".join(values), is_local)


def _of_modes(
    words: _Words, isolation: str, read_only: bool | None, prefix: str, *, is_local: bool = False
) -> Statement:
    words.expect_end()
    if isolation and read_only is not None:
        raise words.refused("set the isolation level and READ ONLY one after the other")
    if isolation:
        return Set(f"{prefix}isolation", isolation, is_local)
    return Set(f"{prefix}read_only", "on" if read_only else "off", is_local)


def _reset(words: _Words) -> Statement:
    words.at += 1
    name = "all" if words.take("all") else words.name().lower()
    words.expect_end()
    return Set(name, None)


def _shown_name(words: _Words) -> str:
    """The variable of a SHOW; empty if it is another form."""
    words.at += 1
    if words.take("transaction", "isolation", "level"):
        name = "transaction_isolation"
    elif words.take("time", "zone"):
        name = "timezone"
    elif words.kind in (WORD, NAME):
        name = words.name().lower()
    else:
        name = ""
    found = name if words.at_end else ""
    words.at = words.first
    return found


# ---------------------------------------------------------------------------------------------------- forgetting


def _deallocate(words: _Words) -> Statement:
    words.at += 1
    words.take("prepare")
    if words.take("all"):
        words.expect_end()
        return Forget("DEALLOCATE ALL", "statements")
    name = words.name()
    words.expect_end()
    return Forget("DEALLOCATE", "statements", name)


def _close(words: _Words) -> Statement:
    words.at += 1
    if words.take("all"):
        words.expect_end()
        return Forget("CLOSE CURSOR ALL", "portals")
    name = words.name()
    words.expect_end()
    return Forget("CLOSE CURSOR", "portals", name)


def _discard(words: _Words) -> Statement:
    words.at += 1
    what = words.word
    if what not in ("all", "plans", "sequences", "temp", "temporary"):
        raise words.unexpected("ALL")
    words.at += 1
    words.expect_end()
    return Forget(f"DISCARD {what.upper()}", "all" if what == "all" else "nothing")


def _unlisten(words: _Words) -> Statement:
    words.at += 1
    if not words.operator("*"):
        words.name()
    words.expect_end()
    return Forget("UNLISTEN", "nothing")


# ---------------------------------------------------------------------------------------------------------- COPY


def _copy(words: _Words) -> Statement:
    words.at += 1
    table, columns, query = "", [], ""
    if words.kind == OPERATOR and words.value == "(":
        query = _parenthesized(words)
    else:
        start = words.offset
        table = words.name()
        quoted = words.piece.text[start : words.offset].strip()
        if words.operator("("):
            while True:
                columns.append(words.name())
                if not words.operator(","):
                    break
            if not words.operator(")"):
                raise words.unexpected(")")
        names = ", ".join(f'"{name.replace(chr(34), chr(34) * 2)}"' for name in columns)
        query = f"SELECT {names or '*'} FROM {quoted}"
    is_in = words.take("from")
    if not is_in and not words.take("to"):
        raise words.unexpected("FROM or TO")
    if is_in and not table:
        raise words.refused("a query can't be copied into", "42601")
    if not words.take("stdin" if is_in else "stdout"):
        raise words.refused("COPY reads from STDIN and writes to STDOUT only: the server has no files for clients")
    if is_in:
        query = f"INSERT INTO {quoted}" + (f" ({names})" if columns else "")
    return Copy(words.piece, is_in, table, tuple(columns), query, _copy_options(words))


def _parenthesized(words: _Words) -> str:
    start, depth = words.offset + 1, 0
    while not words.at_end:
        if words.kind == OPERATOR and words.value in "()":
            depth += 1 if words.value == "(" else -1
            if not depth:
                found = words.piece.text[start : words.offset]
                words.at += 1
                return found
        words.at += 1
    raise words.unexpected(")")


def _copy_options(words: _Words) -> dict[str, str]:
    words.take("with")
    found: dict[str, str] = {}
    if not words.operator("("):
        _old_options(words, found)
        return found
    while True:
        name = words.name().lower()
        if words.operator("("):
            values = [words.name()]
            while words.operator(","):
                values.append(words.name())
            if not words.operator(")"):
                raise words.unexpected(")")
            found[name] = ",".join(values)
        elif words.operator("*"):
            found[name] = "*"
        else:
            at_value = not words.at_end and not (words.kind == OPERATOR and words.value in ",)")
            found[name] = words.setting() if at_value else "true"
        if len(found) > _MAX_OPTIONS:
            raise words.refused("COPY has too many options", "54000")
        if not words.operator(","):
            break
    if not words.operator(")"):
        raise words.unexpected(")")
    words.expect_end()
    return found


def _old_options(words: _Words, found: dict[str, str]) -> None:
    """Options without parentheses, as PostgreSQL had them before version 9.0."""
    while not words.at_end:
        if words.word in ("binary", "csv", "text"):
            found["format"] = words.setting()
        elif words.word == "header":
            found[words.setting()] = "true"
        elif words.word in ("delimiter", "null", "quote", "escape"):
            name = words.setting()
            words.take("as")
            found[name] = words.setting()
        else:
            raise words.unexpected("an option of COPY")


# ------------------------------------------------------------------------------------------ functions of sessions

FUNCTIONS: Final = words(
    """current_catalog current_database current_role current_schema current_setting current_user inet_server_addr
    inet_server_port pg_advisory_unlock_all pg_backend_pid pg_current_xact_id pg_is_in_recovery
    pg_postmaster_start_time session_user set_config txid_current version"""
)
_QUERIES: Final = frozenset({"select", "with", "values", "table", ""})
"""The words that a query begins with; none if it is in parentheses."""
_CALLING: Final = frozenset({"select", "with", "values", "insert", "update", "delete", "explain"})
_BARE: Final = frozenset({"current_user", "session_user", "current_schema", "current_catalog", "current_role"})
"""Functions that may stand without parentheses."""


def _calls(words: _Words) -> list[Call]:
    """The calls of functions of the session in a statement."""
    tokens, found, at = words.tokens, list[Call](), words.first
    while at < words.last:
        is_call = tokens.kinds[at] == WORD and tokens.values[at] in FUNCTIONS
        if not is_call or (at > words.first and tokens.values[at - 1] == "." and tokens.values[at - 2] != "pg_catalog"):
            at += 1
            continue
        call, at = _call(words, at)
        if call is not None:
            found.append(call)
    return found


def _call(words: _Words, at: int) -> tuple[Call | None, int]:
    """The call at a token, and the token behind it; None if the name is something else."""
    tokens, function = words.tokens, words.tokens.values[at]
    first = at - 2 if at - 2 >= words.first and tokens.values[at - 1] == "." else at
    arguments: list[str] = []
    last = at
    if at + 1 < words.last and tokens.kinds[at + 1] == OPERATOR and tokens.values[at + 1] == "(":
        last = at + 2
        while last < words.last and tokens.values[last] != ")":
            if tokens.kinds[last] in (STRING, WORD, NUMBER):
                arguments.append(tokens.values[last])
            elif tokens.values[last] != ",":
                return None, at + 1
            last += 1
        if last >= words.last:
            return None, at + 1
    elif function not in _BARE or first != at:
        return None, at + 1
    before = tokens.values[first - 1] if first > words.first else ""
    after = tokens.values[last + 1] if last + 1 < words.last else ""
    is_column = before in ("select", ",") and after in ("", ",", "from", "where", "limit", "order")
    start = tokens.starts[first] - words.piece.start
    if last + 1 < words.last:
        end = len(words.piece.text[: tokens.starts[last + 1] - words.piece.start].rstrip())
    else:
        end = len(words.piece.text)
    return Call(function, tuple(arguments), start, end, is_column), last + 1


def substituted(statement: Sql, value: Callable[[Call], str]) -> str:
    """The text of a statement with literals in the place of functions of the session."""
    text, parts, at = statement.piece.text, list[str](), 0
    for call in statement.calls:
        parts += (text[at : call.start], value(call), f' AS "{call.function}"' if call.is_column else "")
        at = call.end
    return "".join((*parts, text[at:]))


_RULES: Final[dict[str, Callable[[_Words], Statement]]] = {
    "begin": _begin,
    "start": _begin,
    "end": _ending("COMMIT"),
    "commit": _ending("COMMIT"),
    "abort": _ending("ROLLBACK"),
    "rollback": _ending("ROLLBACK"),
    "set": _set,
    "reset": _reset,
    "deallocate": _deallocate,
    "close": _close,
    "discard": _discard,
    "unlisten": _unlisten,
    "copy": _copy,
}
