"""Plans of the remaining statements: users, transactions, SHOW, DESCRIBE, EXPLAIN."""

from collections.abc import Sequence
from typing import Final

from topics_service.engine.errors import Reason
from topics_service.engine.tables import plans
from topics_service.engine.tables.expressions import Binary, Column, Expression, Literal
from topics_service.engine.tables.model import RESERVED_NAMESPACES
from topics_service.engine.tables.types import BOOLEAN, TEXT
from topics_sql import syntax
from topics_sql.binding.access import joined
from topics_sql.binding.changes import delete, insert, update
from topics_sql.binding.explain import explain
from topics_sql.binding.queries import select
from topics_sql.binding.scope import SYSTEM, TOPICS, Context

ROLES: Final = ("user", "service", "dba", "system")
SHOWN: Final[dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]]] = {
    "tables": ("tables", ("namespace", "name", "primary_key", "durability"), ("namespace", "name")),
    "topics": ("topics", ("name", "alias", "type", "partitions", "durability"), ("name",)),
    "namespaces": ("namespaces", ("name", "placement"), ("name",)),
    "schemas": ("namespaces", ("name", "placement"), ("name",)),
    "indexes": ("indexes", ("namespace", "table_name", "name", "columns", "is_unique", "state"), ("namespace", "name")),
    "users": ("users", ("name", "role"), ("name",)),
    "all": ("settings", ("name", "value", "description"), ("name",)),
}
"""The system table that SHOW reads, its columns, and their order."""
DESCRIBED: Final = ("name", "data_type", "is_nullable", "is_primary_key", "column_default")


def create_user(context: Context, tree: syntax.CreateUser) -> plans.CreateUser:
    """Plan CREATE USER."""
    return plans.CreateUser(tree.name, tree.password, _role(context, tree.role, tree.role_at), tree.if_not_exists)


def alter_user(context: Context, tree: syntax.AlterUser) -> plans.AlterUser:
    """Plan ALTER USER."""
    role = None if tree.role is None else _role(context, tree.role, tree.role_at)
    return plans.AlterUser(tree.name, tree.password, role)


def _role(context: Context, role: str, at: int) -> str:
    if role not in ROLES:
        raise context.refuse(
            at, f"there is no role {role[:40]}; there are {', '.join(ROLES)}", Reason.INVALID_VALUE, "22023"
        )
    return role


def drop_user(context: Context, tree: syntax.DropUser) -> plans.DropUser:
    """Plan DROP USER."""
    return plans.DropUser(tree.name, tree.if_exists)


def transaction(context: Context, tree: syntax.Transaction) -> plans.Action:
    """Plan BEGIN, COMMIT, ROLLBACK and savepoints."""
    if tree.what == "begin":
        return plans.Begin()
    if tree.what == "commit":
        return plans.Commit()
    if tree.what == "rollback":
        return plans.Rollback()
    if tree.what == "savepoint":
        return plans.Savepoint(tree.name)
    return plans.Release(tree.name) if tree.what == "release" else plans.RollbackTo(tree.name)


# ------------------------------------------------------------------ SHOW and DESCRIBE


def show(context: Context, tree: syntax.Show) -> plans.Action:
    """Plan SHOW: a query of a system table."""
    if tree.what in SHOWN:
        table, columns, order = SHOWN[tree.what]
        return _query(context, table, columns, order)
    return _query(context, "settings", ("value",), (), {"name": tree.what}, names=(tree.what,))


def describe(context: Context, tree: syntax.Describe) -> plans.Action:
    """Plan DESCRIBE: the columns of a table in their order."""
    full = context.table_name(tree.name)
    is_view = full.namespace not in RESERVED_NAMESPACES and context.schema.view(full) is not None
    if is_view or full.namespace == TOPICS or (full.namespace == SYSTEM and full.name in context.schema.system):
        return select(
            context,
            syntax.Select(
                at=tree.at,
                items=(syntax.Item(tree.at, None, star=True),),
                source=syntax.From(tree.name),
                limit=syntax.Constant(tree.at, "number", "0"),
            ),
        )
    if full.namespace in RESERVED_NAMESPACES:
        raise context.table_not_found(full, tree.name.at)
    table = context.find_table(tree.name)
    where = {"namespace": table.namespace, "table_name": table.name}
    return _query(context, "columns", DESCRIBED, ("position",), where)


def _query(
    context: Context,
    table: str,
    columns: Sequence[str],
    order: Sequence[str],
    where: dict[str, str] | None = None,
    names: Sequence[str] = (),
) -> plans.Select:
    found = {name: Column(place, kind) for place, (name, kind) in enumerate(context.schema.system[table])}
    outputs = tuple(
        plans.Output(label, found[name], found[name].type)
        for label, name in zip(names or columns, columns, strict=True)
    )
    terms: list[Expression] = [
        Binary("=", found[name], Literal(value, TEXT), BOOLEAN) for name, value in (where or {}).items()
    ]
    keys = tuple(plans.Order(found[name]) for name in order)
    return plans.Select(plans.SystemSource(table), outputs, filter=joined(terms), order=keys)


def explain_statement(context: Context, tree: syntax.Explain) -> plans.Explain:
    """Plan EXPLAIN: the plan of another statement as lines."""
    statement = tree.statement
    if isinstance(statement, syntax.Select | syntax.Compound | syntax.Values):
        return explain(select(context, statement), context.schema)
    if isinstance(statement, syntax.Insert):
        return explain(insert(context, statement), context.schema)
    if isinstance(statement, syntax.Update):
        return explain(update(context, statement), context.schema)
    return explain(delete(context, statement), context.schema)
