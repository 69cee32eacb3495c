"""Plans of definitions: tables, indexes, namespaces."""

from collections.abc import Container, Sequence
from typing import Final

from topics_service.engine.errors import Reason
from topics_service.engine.tables import plans
from topics_service.engine.tables.expressions import Call, Expression
from topics_service.engine.tables.model import (
    DEFAULT_NAMESPACE,
    DEFAULT_PLACEMENT,
    RESERVED_NAMESPACES,
    Check,
    ColumnSchema,
    Index,
    Table,
    TableName,
)
from topics_service.engine.tables.types import BIGINT, Kind, Type
from topics_sql import syntax
from topics_sql.binding.access import is_constant
from topics_sql.binding.changes import find_column
from topics_sql.binding.expressions import Expressions
from topics_sql.binding.scope import Context, relation
from topics_sql.binding.types import SERIALS, resolve
from topics_sql.syntax import ColumnName, Option

SNOWFLAKE: Final = "snowflake_id()"
DURABILITIES: Final = ("disk", "fsync")
TABLE_OPTIONS: Final = ("durability", "changes", "type", "access_level")
MAX_COLUMNS: Final = 1600
MAX_CONSTRAINTS: Final = 1000
"""UNIQUE and CHECK of one table."""


def create_table(context: Context, tree: syntax.CreateTable) -> plans.CreateTable:
    """Plan CREATE TABLE: column ids in the order of the text, constraints as indexes and checks."""
    full = new_name(context, tree.name.at, context.table_name(tree.name))
    _check_counts(context, tree)
    columns: list[ColumnSchema] = []
    names: set[str] = set()
    for number, definition in enumerate(tree.columns):
        if definition.name in names:
            message = f"column {definition.name} is defined twice"
            raise context.refuse(definition.at, message, Reason.INVALID_VALUE, "42701")
        names.add(definition.name)
        columns.append(_column(context, definition, number))
    if len(tree.primary_keys) != 1:
        at = tree.primary_keys[1].at if tree.primary_keys else tree.name.at
        message = "a table has one PRIMARY KEY" if tree.primary_keys else "a table must have a PRIMARY KEY"
        raise context.refuse(at, message, Reason.INVALID_VALUE, "42P16")
    draft = Table(0, full.namespace, full.name, tuple(columns), (), (), len(columns))
    key = _key(context, draft, tree.primary_keys[0].columns)
    columns = [
        ColumnSchema(each.id, each.name, each.type, each.not_null or each.id in key, each.default, each.default_text)
        for each in columns
    ]
    durability, placement, changes = _table_options(context, tree.options, full.namespace)
    indexes = _constraints(context, draft, tree.uniques)
    checks = _checks(context, draft, tree.checks)
    table = Table(
        0, full.namespace, full.name, tuple(columns), key, (tuple(each.id for each in columns),), len(columns),
        indexes=indexes, checks=checks, durability=durability, placement=placement,
    )  # fmt: skip
    return plans.CreateTable(table, tree.if_not_exists, changes)


def _check_counts(context: Context, tree: syntax.CreateTable) -> None:
    for what, found, most in (
        ("columns", tree.columns, MAX_COLUMNS),
        ("constraints", tree.uniques + tree.checks, MAX_CONSTRAINTS),
    ):
        if len(found) > most:
            message = f"a table has at most {most} {what}"
            raise context.refuse(found[most].at, message, Reason.INVALID_VALUE, "54011")


def new_name(context: Context, at: int, full: TableName) -> TableName:
    """Check a name that something gets. Raises `forbidden` in namespaces of the system."""
    if full.namespace in RESERVED_NAMESPACES:
        raise context.refuse(at, f"the namespace {full.namespace} is the server's own", Reason.FORBIDDEN, "42939")
    return full


def _column(context: Context, definition: syntax.ColumnDefinition, number: int) -> ColumnSchema:
    serial = definition.type.name in SERIALS and not definition.type.arguments
    kind = BIGINT if serial else resolve(context.text, definition.type)
    default, text = _default(context, definition.default, kind, definition.name)
    if definition.identity or serial:
        if kind.kind is not Kind.BIGINT:
            message = "IDENTITY takes BIGINT: its numbers are Snowflake ids of 63 bits"
            raise context.refuse(definition.type.at, message, Reason.UNSUPPORTED_SQL)
        if default is not None:
            raise context.refuse(definition.at, f"column {definition.name} has two defaults")
        default, text = Call("snowflake_id", (), BIGINT), SNOWFLAKE
    not_null = definition.not_null or definition.primary_key or definition.identity or serial
    return ColumnSchema(number, definition.name, kind, not_null, default, text)


def _default(context: Context, span: syntax.Span | None, kind: Type, name: str) -> tuple[Expression | None, str]:
    if span is None:
        return None, ""
    bound = Expressions(context, parameters=False).assigned(span.tree, kind, f'the default of column "{name}"')
    return bound, span.text


def _key(context: Context, table: Table, names: Sequence[ColumnName]) -> tuple[int, ...]:
    ids: list[int] = []
    for name in names:
        column = find_column(context, table, name)
        if column.id in ids:
            raise context.refuse(name.at, f"column {name.name} is named twice", sqlstate="42701")
        if column.type.kind is Kind.JSON:
            raise context.refuse(name.at, "JSON has no order and can't be part of a key", Reason.UNSUPPORTED_SQL)
        ids.append(column.id)
    return tuple(ids)


def _constraints(context: Context, table: Table, uniques: Sequence[syntax.Key]) -> tuple[Index, ...]:
    indexes: list[Index] = []
    taken: set[str] = set()
    for unique in uniques:
        columns = _key(context, table, unique.columns)
        names = "_".join(name.name for name in unique.columns)
        name = _free(unique.name or f"{table.name}_{names}_key", taken)
        if unique.name is not None and name != unique.name:
            raise context.refuse(unique.at, f"constraint {unique.name} is defined twice", Reason.INVALID_VALUE, "42710")
        taken.add(name)
        indexes.append(Index(0, name, columns, unique=True, constraint=True))
    return tuple(indexes)


def _free(name: str, taken: Container[str]) -> str:
    number = 0
    while (tried := f"{name}{number or ''}") in taken:
        number += 1
    return tried


def _checks(context: Context, table: Table, given: Sequence[syntax.CheckDefinition]) -> tuple[Check, ...]:
    binder = Expressions(context, [relation(table)], volatile=False, parameters=False)
    checks: list[Check] = []
    taken: set[str] = set()
    for check in given:
        name = _free(check.name or f"{table.name}_check", taken)
        if check.name is not None and name != check.name:
            raise context.refuse(check.at, f"constraint {check.name} is defined twice", Reason.INVALID_VALUE, "42710")
        taken.add(name)
        checks.append(Check(name, binder.condition(check.span.tree), check.span.text))
    return tuple(checks)


# ----------------------------------------------------------------------- options


def unknown_option(context: Context, option: Option, known: Sequence[str]) -> None:
    """Raise `invalid_value` with the names of all options."""
    message = f"there is no option {option.name}; there are {', '.join(known)}"
    raise context.refuse(option.at, message, Reason.INVALID_VALUE, "22023")


def one_of(context: Context, option: Option, known: Sequence[str]) -> str:
    """The value of an option that takes words."""
    value = option.value.lower() if isinstance(option.value, str) else option.value
    if value not in known:
        raise context.refuse(
            option.value_at, f"{option.name} takes {' or '.join(map(repr, known))}", Reason.INVALID_VALUE, "22023"
        )
    return str(value)


def switch(context: Context, option: Option) -> bool:
    """The value of an option that is on or off."""
    words = {True: "on", False: "off"}
    value = words[option.value] if isinstance(option.value, bool) else option.value
    return one_of(context, Option(option.at, option.name, value, option.value_at), ("on", "off")) == "on"


def _table_options(context: Context, options: Sequence[Option], namespace: str) -> tuple[str, str, bool]:
    found, changes = context.schema.namespace(namespace), False
    durability, placement = "disk", DEFAULT_PLACEMENT if found is None else found.placement
    for option in options:
        if option.name == "durability":
            durability = one_of(context, option, DURABILITIES)
        elif option.name == "changes":
            changes = switch(context, option)
        elif option.name == "type":
            if str(option.value).lower() in ("user", "stream"):
                message = f"{str(option.value).upper()} tables are not supported"
                raise context.refuse(option.value_at, message, Reason.UNSUPPORTED_SQL)
            one_of(context, option, ("shared",))
        elif option.name == "ttl_seconds":
            raise context.refuse(option.at, "ttl_seconds of a table is not supported", Reason.UNSUPPORTED_SQL)
        elif option.name != "access_level":
            unknown_option(context, option, TABLE_OPTIONS)
    return durability, placement, changes


def placement_of(context: Context, option: Option) -> str:
    """The name of a placement group."""
    if not isinstance(option.value, str) or not option.value or option.number:
        raise context.refuse(option.value_at, "placement takes a name", Reason.INVALID_VALUE, "22023")
    return option.value


# ------------------------------------------------------------------------- changes


def alter_table(context: Context, tree: syntax.AlterTable) -> plans.Action:
    """Plan one change of a table."""
    full = context.table_name(tree.name)
    if tree.if_exists and full.namespace not in RESERVED_NAMESPACES and context.schema.table(full) is None:
        return plans.Nothing(f"table {full} does not exist")
    table = context.find_table(tree.name)
    change = tree.change
    if isinstance(change, syntax.AddColumn):
        return _add_column(context, table, change)
    if isinstance(change, syntax.DropColumn):
        return _drop_column(context, table, change)
    if isinstance(change, syntax.RenameTable):
        return plans.RenameTable(table, change.name.name)
    if isinstance(change, syntax.SetOptions):
        return _set_options(context, table, change.options)
    column = find_column(context, table, change.column)
    if isinstance(change, syntax.RenameColumn):
        if any(each.name == change.name.name and each is not column for each in table.columns):
            raise _column_exists(context, table, change.name)
        return plans.RenameColumn(table, column.id, change.name.name)
    if isinstance(change, syntax.ChangeType):
        return plans.ChangeType(table, column.id, resolve(context.text, change.type))
    default, text = _default(context, change.default, column.type, column.name)
    return plans.SetDefault(table, column.id, default, text)


def _column_exists(context: Context, table: Table, name: ColumnName) -> Exception:
    message = f"column {name.name} of {table.table_id} exists already"
    return context.refuse(name.at, message, Reason.ALREADY_EXISTS, "42701")


def _add_column(context: Context, table: Table, change: syntax.AddColumn) -> plans.Action:
    definition = change.column
    if any(column.name == definition.name for column in table.columns):
        if change.if_not_exists:
            return plans.Nothing(f"column {definition.name} exists already")
        raise _column_exists(context, table, ColumnName(definition.at, definition.name))
    if definition.primary_key or definition.unique or definition.checks:
        message = "PRIMARY KEY, UNIQUE and CHECK of a column that is added are not supported (see CREATE UNIQUE INDEX)"
        raise context.refuse(definition.at, message, Reason.UNSUPPORTED_SQL)
    column = _column(context, definition, table.next_column)
    if column.default is not None and not is_fixed(column.default):
        message = "the default of a column that is added must be constant: rows that exist are not written again"
        raise context.refuse(definition.at, message, Reason.UNSUPPORTED_SQL)
    return plans.AddColumn(table, column, change.if_not_exists)


def is_fixed(expression: Expression) -> bool:
    """Return whether an expression has one value at all times."""
    return is_constant(expression, immutable=True)


def _drop_column(context: Context, table: Table, change: syntax.DropColumn) -> plans.Action:
    if change.if_exists and all(column.name != change.column.name for column in table.columns):
        return plans.Nothing(f"column {change.column.name} does not exist")
    column = find_column(context, table, change.column)
    if column.id in table.primary_key:
        message = f"column {column.name} is part of the primary key"
        raise context.refuse(change.column.at, message, Reason.DEPENDENT_OBJECTS)
    return plans.DropColumn(table, column.id, change.cascade)


def _set_options(context: Context, table: Table, options: Sequence[Option]) -> plans.SetTableOptions:
    durability, changes = table.durability, None
    for option in options:
        if option.name == "changes":
            changes = switch(context, option)
            continue
        if option.name != "durability":
            unknown_option(context, option, ("durability", "changes"))
        durability = one_of(context, option, DURABILITIES)
    return plans.SetTableOptions(table, durability, changes)


def drop_table(context: Context, tree: syntax.DropTable) -> plans.Action:
    """Plan DROP TABLE."""
    full = context.table_name(tree.name)
    if tree.if_exists and full.namespace not in RESERVED_NAMESPACES and context.schema.table(full) is None:
        return plans.Nothing(f"table {full} does not exist")
    return plans.DropTable(context.find_table(tree.name), tree.cascade)


def truncate(context: Context, tree: syntax.Truncate) -> plans.Truncate:
    """Plan TRUNCATE."""
    return plans.Truncate(context.find_table(tree.name))


def create_index(context: Context, tree: syntax.CreateIndex) -> plans.CreateIndex:
    """Plan CREATE INDEX; one without a name is called after its columns."""
    table = context.find_table(tree.table)
    columns = _key(context, table, tree.columns)
    if tree.name is None:
        names = "_".join(name.name for name in tree.columns)
        taken = {index.name for index in table.indexes}
        name = _free(f"{table.name}_{names}_idx", taken)
    else:
        name = tree.name.name
    return plans.CreateIndex(table, Index(0, name, columns, unique=tree.unique), tree.if_not_exists)


def drop_index(context: Context, tree: syntax.DropIndex) -> plans.Action:
    """Plan DROP INDEX."""
    full = context.table_name(tree.name)
    found = context.schema.index(full)
    if found is None:
        if tree.if_exists:
            return plans.Nothing(f"index {full} does not exist")
        raise context.refuse(tree.name.at, f"index {full} does not exist", Reason.INDEX_NOT_FOUND)
    table, index = found
    if index.constraint:
        message = f"index {full} belongs to a UNIQUE of table {table.table_id}"
        raise context.refuse(tree.name.at, message, Reason.DEPENDENT_OBJECTS)
    return plans.DropIndex(table, index.number)


def create_namespace(context: Context, tree: syntax.CreateNamespace) -> plans.CreateNamespace:
    """Plan CREATE NAMESPACE."""
    new_name(context, tree.at, TableName(tree.name, ""))
    placement = DEFAULT_PLACEMENT
    for option in tree.options:
        if option.name != "placement":
            unknown_option(context, option, ("placement",))
        placement = placement_of(context, option)
    return plans.CreateNamespace(tree.name, placement, tree.if_not_exists)


def drop_namespace(context: Context, tree: syntax.DropNamespace) -> plans.Action:
    """Plan DROP NAMESPACE."""
    if tree.name not in RESERVED_NAMESPACES and context.schema.namespace(tree.name) is None and tree.if_exists:
        return plans.Nothing(f"namespace {tree.name} does not exist")
    new_name(context, tree.at, TableName(tree.name, ""))
    if context.schema.namespace(tree.name) is None:
        raise namespace_not_found(context, tree.at, tree.name)
    return plans.DropNamespace(tree.name, tree.cascade)


def namespace_not_found(context: Context, at: int, name: str) -> Exception:
    """Make the error of a namespace that is not there."""
    return context.refuse(at, f"namespace {name} does not exist", Reason.NAMESPACE_NOT_FOUND)


def use(context: Context, tree: syntax.Use) -> plans.Use:
    """Plan USE."""
    known = tree.namespace in (DEFAULT_NAMESPACE, "system") or context.schema.namespace(tree.namespace) is not None
    if not known:
        raise namespace_not_found(context, tree.at, tree.namespace)
    return plans.Use(tree.namespace)
