"""Definitions of tables, indexes and namespaces."""

from typing import Any

from msgspec import Struct

from topics_sql.grammar.cursor import Cursor
from topics_sql.grammar.expressions import expression, type_name
from topics_sql.syntax import (
    AddColumn,
    AlterAction,
    AlterTable,
    ChangeType,
    CheckDefinition,
    ColumnDefinition,
    ColumnName,
    CreateIndex,
    CreateNamespace,
    CreateTable,
    DropColumn,
    DropIndex,
    DropNamespace,
    DropTable,
    Key,
    Option,
    RenameColumn,
    RenameTable,
    SetDefault,
    SetOptions,
    Span,
    Truncate,
)
from topics_sql.tokens import refuse

WHY = "docs/sql-reference.md says why"


class _Items(Struct):
    """The items in the parentheses of CREATE TABLE."""

    columns: list[ColumnDefinition]
    primary_keys: list[Key]
    uniques: list[Key]
    checks: list[CheckDefinition]


def create_table(cursor: Cursor, at: int) -> CreateTable:
    """Read what follows CREATE TABLE."""
    if_not_exists = cursor.if_not_exists()
    name = cursor.object_name("a table")
    if cursor.word in ("as", "partition", "of"):
        raise cursor.unsupported(f"CREATE TABLE ... {cursor.word.upper()} is")
    cursor.expect_operator("(")
    items = _Items([], [], [], [])
    if not cursor.is_operator(")"):
        _item(cursor, items)
        while cursor.take_operator(","):
            _item(cursor, items)
    cursor.expect_operator(")")
    options: tuple[Option, ...] = ()
    if cursor.take("with"):
        options = cursor.options()
    if cursor.word in ("as", "partition", "inherits", "tablespace", "using", "without", "on", "engine"):
        raise cursor.unsupported(f"CREATE TABLE ... {cursor.word.upper()} is")
    return CreateTable(
        at=at, name=name, columns=tuple(items.columns), primary_keys=tuple(items.primary_keys),
        uniques=tuple(items.uniques), checks=tuple(items.checks), options=options, if_not_exists=if_not_exists,
    )  # fmt: skip


def _item(cursor: Cursor, items: _Items) -> None:
    at = cursor.at
    name = cursor.identifier("a name") if cursor.take("constraint") else None
    if cursor.take("primary"):
        cursor.expect("key")
        items.primary_keys.append(Key(at, name, cursor.columns()))
    elif cursor.word == "unique" and (name is not None or cursor.are_operators(1, "(")):
        cursor.expect("unique")
        items.uniques.append(Key(at, name, cursor.columns()))
    elif cursor.word == "check":
        items.checks.append(_check(cursor, name))
    elif cursor.word == "foreign":
        raise cursor.unsupported("FOREIGN KEY is", hint=WHY)
    elif cursor.word in ("exclude", "like") and (name is not None or cursor.word == "like"):
        raise cursor.unsupported(f"{cursor.word.upper()} in a table is")
    elif name is not None:
        raise cursor.unexpected("PRIMARY KEY, UNIQUE or CHECK")
    else:
        column = column_definition(cursor)
        items.columns.append(column)
        if column.primary_key:
            items.primary_keys.append(Key(column.at, None, (ColumnName(column.at, column.name),)))
        if column.unique:
            items.uniques.append(Key(column.at, None, (ColumnName(column.at, column.name),)))
        items.checks.extend(column.checks)


def _check(cursor: Cursor, name: str | None) -> CheckDefinition:
    at = cursor.at
    cursor.expect("check")
    cursor.expect_operator("(")
    begin = cursor.position
    span = cursor.span(begin, expression(cursor))
    cursor.expect_operator(")")
    return CheckDefinition(at, name, span)


def column_definition(cursor: Cursor) -> ColumnDefinition:
    """Read a column with its constraints, each at most once but CHECK."""
    at = cursor.at
    facts: dict[str, Any] = {"at": at, "name": cursor.identifier("a column"), "type": type_name(cursor)}
    checks: list[CheckDefinition] = []
    while True:
        here = cursor.at
        constraint = cursor.identifier("a name") if cursor.take("constraint") else None
        if cursor.word == "check":
            checks.append(_check(cursor, constraint))
            continue
        fact = _constraint(cursor)
        if fact is None:
            if constraint is not None:
                raise cursor.unexpected("a constraint")
            break
        if fact[0] in facts:
            raise refuse(cursor.text, here, f"the column {facts['name']} says so twice")
        facts[fact[0]] = fact[1]
    if facts.pop("null", False) and (facts.get("not_null") or facts.get("primary_key")):
        raise refuse(cursor.text, at, f"the column {facts['name']} is NULL and NOT NULL")
    return ColumnDefinition(**facts, checks=tuple(checks))


def _constraint(cursor: Cursor) -> tuple[str, Any] | None:
    if cursor.take("not"):
        cursor.expect("null")
        return "not_null", True
    if cursor.take("null"):
        return "null", True
    if cursor.take("default"):
        return "default", _default(cursor)
    if cursor.take("primary"):
        cursor.expect("key")
        return "primary_key", True
    if cursor.take("unique"):
        return "unique", True
    if cursor.take("generated"):
        if cursor.take("by"):
            cursor.expect("default")
        else:
            cursor.expect("always")
        cursor.expect("as")
        if not cursor.take("identity"):
            raise cursor.unsupported("columns that are computed are")
        if cursor.is_operator("("):
            raise cursor.unsupported("options of IDENTITY are")
        return "identity", True
    if cursor.word in ("references", "foreign"):
        raise cursor.unsupported("FOREIGN KEY is", hint=WHY)
    if cursor.word in ("collate", "auto_increment", "autoincrement", "storage", "compression", "deferrable"):
        raise cursor.unsupported(f"{cursor.word.upper()} is")
    return None


def _default(cursor: Cursor) -> Span:
    begin = cursor.position
    return cursor.span(begin, expression(cursor))


def alter_table(cursor: Cursor, at: int) -> AlterTable:
    """Read what follows ALTER TABLE: one change."""
    if_exists = cursor.if_exists()
    cursor.take("only")
    name = cursor.object_name("a table")
    change = _change(cursor)
    if cursor.is_operator(","):
        raise cursor.unsupported("several changes in one ALTER TABLE are")
    return AlterTable(at, name, if_exists, change)


def _change(cursor: Cursor) -> AlterAction:
    if cursor.take("add"):
        if cursor.word in ("constraint", "check", "primary", "unique", "foreign", "exclude"):
            if "foreign" in (cursor.word, cursor.word_after(2)):
                raise cursor.unsupported("FOREIGN KEY is", hint=WHY)
            raise cursor.unsupported("adding a constraint is", hint="CREATE UNIQUE INDEX adds a unique key")
        cursor.take("column")
        if_not_exists = cursor.if_not_exists()
        return AddColumn(column_definition(cursor), if_not_exists)
    if cursor.take("drop"):
        if cursor.word == "constraint":
            raise cursor.unsupported("DROP CONSTRAINT is")
        cursor.take("column")
        if_exists = cursor.if_exists()
        return DropColumn(cursor.column(), if_exists, cursor.cascade())
    if cursor.take("rename"):
        if cursor.take("to"):
            return RenameTable(cursor.column())
        if cursor.word == "constraint":
            raise cursor.unsupported("RENAME CONSTRAINT is")
        cursor.take("column")
        column = cursor.column()
        cursor.expect("to")
        return RenameColumn(column, cursor.column())
    if cursor.take("alter"):
        cursor.take("column")
        return _alter_column(cursor, cursor.column())
    if cursor.take("set"):
        if cursor.word in ("schema", "tablespace", "logged", "unlogged"):
            raise cursor.unsupported(f"SET {cursor.word.upper()} is")
        return SetOptions(cursor.options())
    if cursor.word in (
        "owner",
        "enable",
        "disable",
        "attach",
        "detach",
        "inherit",
        "no",
        "replica",
        "cluster",
        "reset",
    ):
        raise cursor.unsupported(f"ALTER TABLE ... {cursor.word.upper()} is")
    raise cursor.unexpected("ADD, DROP, RENAME, ALTER or SET")


def _alter_column(cursor: Cursor, column: ColumnName) -> AlterAction:
    if cursor.take("type") or cursor.take("set", "data", "type"):
        kind = type_name(cursor)
        if cursor.word in ("using", "collate"):
            raise cursor.unsupported(f"{cursor.word.upper()} is")
        return ChangeType(column, kind)
    if cursor.take("set", "default"):
        return SetDefault(column, _default(cursor))
    if cursor.take("drop", "default"):
        return SetDefault(column, None)
    if cursor.word in ("set", "drop") and cursor.word_after() in (
        "not",
        "statistics",
        "storage",
        "identity",
        "expression",
    ):
        raise cursor.unsupported("that change of a column is")
    raise cursor.unexpected("TYPE, SET DEFAULT or DROP DEFAULT")


def drop_table(cursor: Cursor, at: int) -> DropTable:
    """Read what follows DROP TABLE."""
    if_exists = cursor.if_exists()
    name = cursor.object_name("a table")
    _one(cursor)
    return DropTable(at, name, if_exists, cursor.cascade())


def _one(cursor: Cursor) -> None:
    if cursor.is_operator(","):
        raise cursor.unsupported("several names in one statement are")


def truncate(cursor: Cursor, at: int) -> Truncate:
    """Read TRUNCATE."""
    cursor.expect("truncate")
    cursor.take("table")
    name = cursor.object_name("a table")
    _one(cursor)
    if cursor.word in ("cascade", "restart", "continue", "restrict"):
        raise cursor.unsupported(f"TRUNCATE ... {cursor.word.upper()} is")
    return Truncate(at, name)


def create_index(cursor: Cursor, at: int, unique: bool) -> CreateIndex:
    """Read what follows CREATE [UNIQUE] INDEX."""
    cursor.take("concurrently")  # indexes are always built beside writers
    if_not_exists = cursor.if_not_exists()
    name = None if cursor.word == "on" else cursor.column()
    cursor.expect("on")
    table = cursor.object_name("a table")
    if cursor.take("using") and not cursor.take("btree"):
        raise cursor.unsupported("other indexes than BTREE are")
    cursor.expect_operator("(")
    columns = [_indexed(cursor)]
    while cursor.take_operator(","):
        columns.append(_indexed(cursor))
    cursor.expect_operator(")")
    if cursor.word in ("where", "include", "with", "tablespace", "nulls"):
        raise cursor.unsupported(f"CREATE INDEX ... {cursor.word.upper()} is")
    return CreateIndex(at, name, table, tuple(columns), unique, if_not_exists)


def _indexed(cursor: Cursor) -> ColumnName:
    if cursor.is_operator("(") or cursor.are_operators(1, "("):
        raise cursor.unsupported("indexes of expressions are")
    column = cursor.column()
    cursor.take("asc")
    if cursor.word in ("desc", "nulls", "collate"):
        raise cursor.unsupported(f"{cursor.word.upper()} in an index is")
    return column


def drop_index(cursor: Cursor, at: int) -> DropIndex:
    """Read what follows DROP INDEX."""
    if_exists = cursor.if_exists()
    name = cursor.object_name("an index")
    _one(cursor)
    cursor.cascade()
    return DropIndex(at, name, if_exists)


def create_namespace(cursor: Cursor, at: int) -> CreateNamespace:
    """Read what follows CREATE NAMESPACE."""
    if_not_exists = cursor.if_not_exists()
    name = cursor.identifier("a namespace")
    options = cursor.options() if cursor.take("with") else ()
    return CreateNamespace(at, name, options, if_not_exists)


def drop_namespace(cursor: Cursor, at: int) -> DropNamespace:
    """Read what follows DROP NAMESPACE."""
    if_exists = cursor.if_exists()
    name = cursor.identifier("a namespace")
    _one(cursor)
    return DropNamespace(at, name, if_exists, cursor.cascade())
