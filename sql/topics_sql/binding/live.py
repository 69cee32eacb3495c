"""Plans of live queries."""

from typing import Final

from topics_service.engine.errors import Reason
from topics_service.engine.tables import plans, references
from topics_service.engine.tables.expressions import Call, Column, Expression, Literal
from topics_service.engine.tables.functions import FUNCTIONS, Volatility
from topics_service.engine.tables.types import BIGINT
from topics_sql import syntax
from topics_sql.binding.access import choose
from topics_sql.binding.beyond import beyond, counts
from topics_sql.binding.expressions import Expressions
from topics_sql.binding.queries import select_list
from topics_sql.binding.scope import Context, relation
from topics_sql.binding.tables import switch, unknown_option
from topics_sql.syntax import Option

OPTIONS: Final = ("last_rows", "snapshot")
MAX_LAST_ROWS: Final = 10_000


def subscribe(context: Context, tree: syntax.Subscribe) -> plans.Subscribe:
    """Plan a live query. Raises `unsupported_sql` for one that is more than columns and a condition of one table."""
    query, source = _source(context, tree.query)
    table = context.find_table(source.name)
    binder = Expressions(context, [relation(table, source.alias)])
    condition = None if query.where is None else binder.condition(query.where)
    outputs = select_list(binder, query.items)
    names = [output.name for output in outputs]
    for name in names:
        if names.count(name) > 1:
            message = f'a live query has two columns "{name}": name one of them by AS'
            raise context.refuse(query.at, message, Reason.INVALID_REQUEST, "42701")
    _check_pure(context, tree, condition, *(output.expression for output in outputs))
    last_rows, snapshot = _options(context, tree.options)
    order: tuple[plans.Order, ...] = ()
    if last_rows is not None:
        types = {column.id: column.type for column in table.columns}
        order = tuple(plans.Order(Column(key, types[key]), descending=True) for key in table.primary_key)
    access = choose(table, condition, order, limited=last_rows is not None)
    select = plans.Select(
        plans.TableSource(table, access.path), outputs, filter=access.filter, order=() if access.ordered else order,
        limit=None if last_rows is None else Literal(last_rows, BIGINT),
    )  # fmt: skip
    return plans.Subscribe(table, select, condition, last_rows, snapshot)


def _source(context: Context, query: syntax.Query) -> tuple[syntax.Select, syntax.From]:
    """The query, and the table that it reads."""
    why = beyond(query)
    if why is None and isinstance(query, syntax.Select):
        parts = {
            "ORDER BY": query.order,
            "LIMIT": query.limit is not None,
            "OFFSET": query.offset is not None,
            "DISTINCT": query.distinct,
            "count(*)": counts(query),
        }
        why = next((name for name, is_there in parts.items() if is_there), None)
        if why is None and isinstance(query.source, syntax.From):
            if context.table_name(query.source.name).namespace == "topics":
                message = "a live query follows a table: watch the topic, or consume it"
                raise context.refuse(query.source.name.at, message, Reason.UNSUPPORTED_SQL)
            return query, query.source
    message = f"a live query is columns and a condition of one table, not {why or 'a query without a table'}"
    raise context.refuse(query.at, message, Reason.UNSUPPORTED_SQL)


def _check_pure(context: Context, tree: syntax.Subscribe, *expressions: Expression | None) -> None:
    """Refuse functions of more than the row: a row would begin or cease to match without a change."""
    for expression in expressions:
        for node in () if expression is None else references.nodes(expression):
            function = FUNCTIONS.get(node.function) if isinstance(node, Call) else None
            if function is not None and function.volatility is not Volatility.IMMUTABLE:
                message = f"a live query can't use {function.name}(), which depends on more than the row"
                raise context.refuse(tree.at, message, Reason.UNSUPPORTED_SQL)


def _options(context: Context, options: tuple[Option, ...]) -> tuple[int | None, bool]:
    last_rows, snapshot = None, True
    for option in options:
        if option.name == "last_rows":
            value = option.value
            if not option.number or not str(value).isdecimal() or not 0 < int(str(value)[:9]) <= MAX_LAST_ROWS:
                message = f"last_rows is a number from 1 to {MAX_LAST_ROWS}"
                raise context.refuse(option.value_at, message, Reason.INVALID_VALUE, "22023")
            last_rows = int(str(value))
        elif option.name == "snapshot":
            snapshot = switch(context, option)
        else:
            unknown_option(context, option, OPTIONS)
    return last_rows, snapshot
