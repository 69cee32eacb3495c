"""Statements by their first words, and a text by its `;`."""

from collections.abc import Callable
from typing import Final, NamedTuple

from topics_service.engine.errors import Reason, TopicsError
from topics_sql.grammar.changes import delete, insert, update, with_statement
from topics_sql.grammar.cursor import Cursor
from topics_sql.grammar.queries import query
from topics_sql.grammar.tables import (
    alter_table,
    create_index,
    create_namespace,
    create_table,
    drop_index,
    drop_namespace,
    drop_table,
    truncate,
)
from topics_sql.grammar.topics import ack, alter_topic, clear_topic, consume, create_topic, drop_topic, subscribe
from topics_sql.grammar.views import create_view, drop_view
from topics_sql.syntax import (
    AlterUser,
    Compound,
    CreateUser,
    Delete,
    Describe,
    DropUser,
    Explain,
    Insert,
    Query,
    Select,
    Show,
    Statement,
    Transaction,
    Update,
    Use,
    Values,
)
from topics_sql.tokens import NAME, PARAMETER, STRING, Tokens, refuse, tokenize, words

MAX_STATEMENTS: Final = 10_000
OTHER_DIALECTS: Final = words(
    """analyse analyze attach call checkpoint cluster comment copy deallocate declare detach discard do exec execute
    export fetch flush grant handler import install kill listen load lock merge move notify optimize pivot pragma
    prepare reassign refresh reindex repair replace reset revoke security set summarize table unlisten unlock unpivot
    upsert vacuum xa"""
)
OTHER_OBJECTS: Final = words(
    """access aggregate cast collation constraint conversion database domain event extension external foreign function
    global group language local macro materialized operator or policy procedure publication role rule secret sequence
    server statistics stream subscription tablespace temp temporary text transform trigger type unlogged virtual"""
)


class Parsed(NamedTuple):
    """A statement, and the token where it begins."""

    tree: Statement
    position: int


def statements(text: str) -> list[Parsed]:
    """Read all statements of a text. Raises the error of the first that is refused."""
    tokens = tokenize(text)
    cursor = Cursor(tokens)
    found: list[Parsed] = []
    try:
        while True:
            while cursor.take_operator(";"):
                pass
            if cursor.at_end:
                break
            position = cursor.at
            if len(found) == MAX_STATEMENTS:
                message = f"the text has more than {MAX_STATEMENTS} statements"
                raise refuse(text, position, message, Reason.INVALID_REQUEST, "54000")
            cursor.depth = 0
            tree = statement(cursor)
            if not cursor.at_end:
                raise cursor.unexpected("the end of the statement")
            found.append(Parsed(tree, position))
    except TopicsError as error:
        number_error(error, len(found), several=bool(found) or tokens.statements() > 0)
        raise
    if not found:
        raise refuse(text, 0, "the text has no statement")
    _check_parameters(tokens)
    return found


def view_query(text: str) -> Query:
    """Read the query of a view. Raises as `statements`."""
    cursor = Cursor(tokenize(text))
    found = query(cursor)
    if not cursor.at_end:
        raise cursor.unexpected("the end of the query")
    return found


def _check_parameters(tokens: Tokens) -> None:
    """Raise `invalid_request` if the text names `$3` and no `$2`."""
    named: dict[int, int] = {}
    for place, kind in enumerate(tokens.kinds):
        if kind == PARAMETER:
            named.setdefault(int(tokens.values[place]), tokens.starts[place])
    greatest = max(named, default=0)
    if greatest != len(named):
        missing = next(number for number in range(1, greatest) if number not in named)
        message = f"the text has ${greatest} and no ${missing}"
        raise refuse(tokens.text, named[greatest], message, Reason.INVALID_REQUEST)


def number_error(error: TopicsError, number: int, *, several: bool) -> None:
    """Note in an error which statement of a text it is about."""
    if several and isinstance(error.detail, dict):
        error.detail.setdefault("statement", number)


def statement(cursor: Cursor) -> Statement:
    """Read one statement."""
    rule = RULES.get(cursor.word)
    if rule is not None:
        return rule(cursor)
    if cursor.word in OTHER_DIALECTS:
        raise cursor.unsupported(f"{cursor.word.upper()} is")
    if cursor.is_operator("("):
        return query(cursor)
    raise cursor.unexpected("a statement")


def _create(cursor: Cursor) -> Statement:
    at = cursor.at
    cursor.expect("create")
    if cursor.take("topic"):
        return create_topic(cursor, at)
    if cursor.take("table") or cursor.take("shared", "table"):
        return create_table(cursor, at)
    if cursor.word == "user" and cursor.word_after() != "table":
        return _create_user(cursor, at)
    if cursor.take("index"):
        return create_index(cursor, at, unique=False)
    if cursor.take("unique"):
        cursor.expect("index")
        return create_index(cursor, at, unique=True)
    if cursor.take("namespace") or cursor.take("schema"):
        return create_namespace(cursor, at)
    if cursor.take("view"):
        return create_view(cursor, at, replace=False)
    if cursor.take("or", "replace", "view"):
        return create_view(cursor, at, replace=True)
    return _other(cursor, "TOPIC, TABLE, INDEX, VIEW, NAMESPACE or USER")


def _alter(cursor: Cursor) -> Statement:
    at = cursor.at
    cursor.expect("alter")
    if cursor.take("topic"):
        return alter_topic(cursor, at)
    if cursor.take("table"):
        return alter_table(cursor, at)
    if cursor.take("user"):
        return _alter_user(cursor, at)
    if cursor.word in ("index", "namespace", "schema", "system"):
        raise cursor.unsupported(f"ALTER {cursor.word.upper()} is")
    return _other(cursor, "TOPIC, TABLE or USER")


def _drop(cursor: Cursor) -> Statement:
    at = cursor.at
    cursor.expect("drop")
    if cursor.take("topic"):
        return drop_topic(cursor, at)
    if cursor.take("table"):
        return drop_table(cursor, at)
    if cursor.take("index"):
        return drop_index(cursor, at)
    if cursor.take("namespace") or cursor.take("schema"):
        return drop_namespace(cursor, at)
    if cursor.take("user"):
        if_exists = cursor.if_exists()
        return DropUser(at, _user(cursor), if_exists)
    if cursor.take("view"):
        return drop_view(cursor, at)
    return _other(cursor, "TOPIC, TABLE, INDEX, VIEW, NAMESPACE or USER")


def _other(cursor: Cursor, expected: str) -> Statement:
    if cursor.word in OTHER_OBJECTS or (cursor.word == "user" and cursor.word_after() == "table"):
        what = "USER TABLE" if cursor.word == "user" else cursor.word.upper()
        raise cursor.unsupported(f"{cursor.values[cursor.position - 1].upper()} {what} is")
    raise cursor.unexpected(expected)


def _user(cursor: Cursor) -> str:
    if cursor.kinds[cursor.position] in (STRING, NAME):
        cursor.position += 1
        return cursor.values[cursor.position - 1]
    return cursor.identifier("a user in quotes")


def _role(cursor: Cursor) -> tuple[str, int]:
    at = cursor.at
    return (cursor.string("") if cursor.kinds[cursor.position] == STRING else cursor.label("a role")).lower(), at


def _create_user(cursor: Cursor, at: int) -> CreateUser:
    cursor.expect("user")
    if_not_exists = cursor.if_not_exists()
    name = _user(cursor)
    cursor.expect("with", "password")
    password = cursor.string("a password in quotes")
    cursor.expect("role")
    role, role_at = _role(cursor)
    return CreateUser(at, name, password, role, role_at, if_not_exists)


def _alter_user(cursor: Cursor, at: int) -> AlterUser:
    name = _user(cursor)
    cursor.expect("set")
    if cursor.take("password"):
        return AlterUser(at, name, cursor.string("a password in quotes"), None, at)
    cursor.expect("role")
    role, role_at = _role(cursor)
    return AlterUser(at, name, None, role, role_at)


def _begin(cursor: Cursor) -> Transaction:
    at = cursor.at
    started = cursor.take("start")
    if started:
        cursor.expect("transaction")
    else:
        cursor.expect("begin")
        _work(cursor)
    while cursor.word in ("isolation", "read", "not", "deferrable"):
        if cursor.take("isolation", "level"):
            _isolation(cursor)
        elif cursor.take("read", "write"):
            pass
        else:
            raise cursor.unsupported("that kind of transaction is")
        cursor.take_operator(",")
    return Transaction(at, "begin")


def _isolation(cursor: Cursor) -> None:
    """Take every level: statements of a transaction run in one turn, which is the strictest."""
    if not (cursor.take("serializable") or cursor.take("repeatable", "read") or cursor.take("read", "committed")):
        cursor.expect("read", "uncommitted")


def _work(cursor: Cursor) -> None:
    if not cursor.take("work"):
        cursor.take("transaction")


def _commit(cursor: Cursor) -> Transaction:
    at = cursor.at
    cursor.position += 1
    _work(cursor)
    if cursor.word in ("and", "prepared"):
        raise cursor.unsupported(f"COMMIT {cursor.word.upper()} is")
    return Transaction(at, "commit")


def _rollback(cursor: Cursor) -> Transaction:
    at = cursor.at
    cursor.position += 1
    _work(cursor)
    if cursor.take("to"):
        cursor.take("savepoint")
        return Transaction(at, "rollback to", cursor.identifier("a savepoint"))
    if cursor.word in ("and", "prepared"):
        raise cursor.unsupported(f"ROLLBACK {cursor.word.upper()} is")
    return Transaction(at, "rollback")


def _savepoint(cursor: Cursor) -> Transaction:
    at = cursor.at
    cursor.expect("savepoint")
    return Transaction(at, "savepoint", cursor.identifier("a savepoint"))


def _release(cursor: Cursor) -> Transaction:
    at = cursor.at
    cursor.expect("release")
    cursor.take("savepoint")
    return Transaction(at, "release", cursor.identifier("a savepoint"))


def _use(cursor: Cursor) -> Use:
    at = cursor.at
    cursor.expect("use")
    if cursor.word in ("namespace", "schema") and cursor.kinds[cursor.position + 1] in ("word", "name"):
        cursor.position += 1
    return Use(at, cursor.label("a namespace"))


def _show(cursor: Cursor) -> Show:
    at = cursor.at
    cursor.expect("show")
    name = cursor.label("TABLES, TOPICS, NAMESPACES or a setting")
    while cursor.take_operator("."):
        name += "." + cursor.label("a name")
    return Show(at, name)


def _describe(cursor: Cursor) -> Describe:
    at = cursor.at
    cursor.position += 1
    cursor.take("table")
    return Describe(at, cursor.object_name("a table"))


def _explain(cursor: Cursor) -> Explain:
    at = cursor.at
    cursor.expect("explain")
    if cursor.word in ("analyze", "analyse", "verbose") or cursor.is_operator("("):
        raise cursor.unsupported("options of EXPLAIN are")
    target = statement(cursor)
    if not isinstance(target, Select | Compound | Values | Insert | Update | Delete):
        raise refuse(cursor.text, at, "EXPLAIN takes SELECT, INSERT, UPDATE or DELETE")
    return Explain(at, target)


def _truncate(cursor: Cursor) -> Statement:
    return truncate(cursor, cursor.at)


def _clear(cursor: Cursor) -> Statement:
    return clear_topic(cursor, cursor.at)


RULES: Final[dict[str, Callable[[Cursor], Statement]]] = {
    "abort": _rollback,
    "ack": ack,
    "alter": _alter,
    "begin": _begin,
    "clear": _clear,
    "commit": _commit,
    "consume": consume,
    "create": _create,
    "delete": delete,
    "desc": _describe,
    "describe": _describe,
    "drop": _drop,
    "end": _commit,
    "explain": _explain,
    "insert": insert,
    "release": _release,
    "rollback": _rollback,
    "savepoint": _savepoint,
    "select": query,
    "show": _show,
    "start": _begin,
    "subscribe": subscribe,
    "truncate": _truncate,
    "update": update,
    "use": _use,
    "values": query,
    "with": with_statement,
}
