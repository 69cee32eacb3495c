"""Plans of queries."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables import plans
from topics_service.engine.tables.expressions import Binary, Column, Expression, Literal, type_of
from topics_service.engine.tables.model import RESERVED_NAMESPACES, Table, View
from topics_service.engine.tables.relations import rebuilt
from topics_service.engine.tables.topic_columns import TOPIC_COLUMNS
from topics_service.engine.tables.types import BIGINT
from topics_sql import syntax
from topics_sql.binding import topic_tables
from topics_sql.binding.access import choose, conjuncts, joined
from topics_sql.binding.analysis import analysis
from topics_sql.binding.beyond import beyond, beyond_expression, counts
from topics_sql.binding.expressions import Expressions
from topics_sql.binding.naming import MAX_OUTPUTS, name_of
from topics_sql.binding.scope import SYSTEM, TOPICS, Context, Relation, relation
from topics_sql.binding.view_queries import is_plain, plain_query, reading, view_of
from topics_sql.syntax import Tree

MAX_VIEW_COLUMNS: Final = 32 * MAX_OUTPUTS
"""Of views in views."""


def select(context: Context, tree: syntax.Query) -> plans.Select | plans.Analysis:
    """Plan a query: for the tables themselves, or for the analytical engine where it needs that.

    Raises the errors of names and types, with their places.
    """
    why = beyond(tree) or _of_view(context, tree)
    if why is None:
        assert isinstance(tree, syntax.Select)
        return native(context, tree)
    if isinstance(tree, syntax.Select) and _is_join_of_system_tables(context, tree):
        try:
            return native(context, tree)
        except TopicsError as error:
            if error.reason is not Reason.UNSUPPORTED_SQL:
                raise
    return analysis(context, tree, why)


def _of_view(context: Context, tree: syntax.Query) -> str | None:
    """Name the view that a query reads, unless it can be read as its table is."""
    view = view_of(context, tree.source) if isinstance(tree, syntax.Select) else None
    return None if view is None or is_plain(context, view) else "a view"


def native(context: Context, tree: syntax.Select) -> plans.Select:
    """Plan a query of one table, of two system tables that are joined, or of constants."""
    of_views: dict[int, Expression] = {}
    relations, source, condition = _from(context, tree, of_views)
    binder = Expressions(context, relations)
    if tree.where is not None:
        own = _through(binder.condition(tree.where), of_views)
        condition = joined([*conjuncts(condition), *conjuncts(own)])
    if isinstance(source, plans.Join) and not source.equal:
        assert isinstance(tree.source, syntax.Join)
        source, condition = _equal_pairs(context, source, condition, tree.source.at)
    count = _count(tree)
    if count is not None:
        outputs: tuple[plans.Output, ...] = (plans.Output(count, Literal(None, BIGINT), BIGINT),)
        order: tuple[plans.Order, ...] = ()
    else:
        outputs = select_list(binder, tree.items)
        if len(tree.order) > MAX_OUTPUTS:
            message = f"ORDER BY has more than {MAX_OUTPUTS} keys"
            raise context.refuse(tree.order[MAX_OUTPUTS].at, message, Reason.INVALID_REQUEST, "54011")
        order = tuple(_order(context, binder, item, outputs, tree) for item in tree.order)
    if tree.distinct:
        _check_distinct(context, tree, order, outputs)
    outputs = tuple(replace(each, expression=_through(each.expression, of_views)) for each in outputs)
    order = tuple(replace(each, expression=_through(each.expression, of_views)) for each in order)
    limit = None if tree.limit is None else binder.whole_number(tree.limit, "LIMIT")
    offset = None if tree.offset is None else binder.whole_number(tree.offset, "OFFSET")
    read: plans.TableSource | plans.SystemSource | plans.TopicSource | plans.Join | None
    if isinstance(source, plans.TopicSource):
        found = topic_tables.choose(conjuncts(condition), order, ())
        order = () if found.ordered else order
        made = plans.Select(
            source, outputs, filter=found.filter, order=order, limit=limit, offset=offset, count=count is not None,
            distinct=tree.distinct and count is None,
        )  # fmt: skip
        scan = replace(found.scan, columns=tuple(sorted(topic_tables.used_by(made))))
        return replace(made, source=plans.TopicSource(source.topic, scan))
    if isinstance(source, Table):
        access = choose(source, condition, order, limited=limit is not None)
        read, condition = plans.TableSource(source, access.path), access.filter
        order = () if access.ordered else order
    else:
        read = source
    return plans.Select(
        read, outputs, filter=condition, order=order, limit=limit, offset=offset, count=count is not None,
        distinct=tree.distinct and count is None,
    )  # fmt: skip


# --------------------------------------------------------------------------- FROM

Source = Table | plans.SystemSource | plans.TopicSource | plans.Join | None


def _from(
    context: Context, tree: syntax.Select, of_views: dict[int, Expression]
) -> tuple[list[Relation], Source, Expression | None]:
    """The relation that FROM names. The columns of views have negative ids, and `of_views` gets what they stand for."""
    if tree.source is None:
        return [], None, None
    if isinstance(tree.source, syntax.From):
        if (view := view_of(context, tree.source)) is not None:
            return _view(context, tree.source, view, of_views)
        left, rows = _table(context, tree.source)
        return [left], rows, None
    given = tree.source
    assert isinstance(given, syntax.Join), "others are beyond"
    assert isinstance(given.left, syntax.From)
    assert isinstance(given.right, syntax.From)
    left, rows = _table(context, given.left)
    right, others = _table(context, given.right)
    assert isinstance(rows, plans.SystemSource)
    assert isinstance(others, plans.SystemSource)
    if left.name == right.name:
        raise context.refuse(given.right.name.at, f"the name {right.name} is given twice", sqlstate="42712")
    width = len(left.columns)
    shifted = {name: Column(column.column + width, column.type) for name, column in right.columns.items()}
    right = Relation(right.name, shifted, right.namespace)
    relations = [left, right]
    join = plans.Join(rows, others, (), given.kind == "left")
    condition = _join_condition(context, relations, given)
    if join.outer:
        join, rest = _equal_pairs(context, join, condition, given.at)
        if rest is not None:
            raise context.refuse(given.at, "LEFT JOIN takes equalities of columns only", Reason.UNSUPPORTED_SQL)
        condition = None
    return relations, join, condition


def _view(
    context: Context, given: syntax.From, view: View, of_views: dict[int, Expression]
) -> tuple[list[Relation], Source, Expression | None]:
    """The table that a view picks rows of, its condition, and the columns of the view."""
    if len(of_views) > MAX_VIEW_COLUMNS:
        raise context.refuse(given.name.at, "views are nested too deep", Reason.INVALID_VALUE, "54001")
    with reading(context, view, given.name.at) as inside:
        tree = plain_query(view)
        if tree is None:
            raise context.refuse(given.name.at, f"{view.view_id} is a view that needs DuckDB", Reason.UNSUPPORTED_SQL)
        relations, source, condition = _from(inside, tree, of_views)
        binder = Expressions(inside, relations)
        if tree.where is not None:
            own = _through(binder.condition(tree.where), of_views)
            condition = joined([*conjuncts(condition), *conjuncts(own)])
        made: dict[str, plans.Output] = {}
        for output in select_list(binder, tree.items):
            made.setdefault(output.name, output)
    columns: dict[str, Column] = {}
    for shown, name in view.columns:
        if name not in made:
            message = f"the view {view.view_id} reads columns that are gone"
            raise context.refuse(given.name.at, message, Reason.COLUMN_NOT_FOUND)
        number = -1 - len(of_views)
        of_views[number] = _through(made[name].expression, of_views)
        columns[shown] = Column(number, made[name].type)
    relation = Relation(given.alias or view.name, columns, None if given.alias else view.namespace)
    return [relation], source, condition


def _through(expression: Expression, of_views: dict[int, Expression]) -> Expression:
    """The expression over the columns that those of views stand for."""
    if not of_views:
        return expression
    return rebuilt(expression, lambda node: of_views.get(node.column) if isinstance(node, Column) else None)


def _table(context: Context, given: syntax.From) -> tuple[Relation, Table | plans.SystemSource | plans.TopicSource]:
    full = context.table_name(given.name)
    if full.namespace == TOPICS:
        topic = topic_tables.topic_of(context, full, given.name.at)
        found = {name: Column(place, kind) for place, (name, kind) in enumerate(TOPIC_COLUMNS)}
        named = Relation(given.alias or full.name, found, None if given.alias else TOPICS)
        return named, plans.TopicSource(topic, plans.TopicScan())
    if full.namespace == SYSTEM:
        columns = context.schema.system.get(full.name)
        if columns is None:
            raise context.table_not_found(full, given.name.at)
        found = {name: Column(position, kind) for position, (name, kind) in enumerate(columns)}
        named = Relation(given.alias or full.name, found, None if given.alias else SYSTEM)
        return named, plans.SystemSource(full.name)
    if full.namespace in RESERVED_NAMESPACES:
        context.refuse_reserved(full.namespace, given.name.at)
    table = context.find_table(given.name)
    return relation(table, given.alias), table


def _join_condition(context: Context, relations: list[Relation], join: syntax.Join) -> Expression | None:
    if join.on is not None:
        return Expressions(context, relations).condition(join.on)
    terms: list[Tree] = []
    for name in join.using:
        left, right = (syntax.Name(join.at, (each.name, name)) for each in relations)
        terms.append(syntax.Infix(join.at, "=", left, right))
    return joined([Expressions(context, relations).condition(term) for term in terms])


def _equal_pairs(
    context: Context, join: plans.Join, condition: Expression | None, at: int
) -> tuple[plans.Join, Expression | None]:
    """Move the equalities of columns of both sides into the join."""
    width = len(context.schema.system[join.left.name])
    pairs: list[tuple[int, int]] = []
    rest: list[Expression] = []
    for term in conjuncts(condition):
        if isinstance(term, Binary) and term.op == "=":
            left, right = term.left, term.right
            if isinstance(left, Column) and isinstance(right, Column):
                low, high = sorted((left.column, right.column))
                if low < width <= high:
                    pairs.append((low, high))
                    continue
        rest.append(term)
    if not pairs:
        raise context.refuse(at, "a join without an equality of columns is not supported", Reason.UNSUPPORTED_SQL)
    return plans.Join(join.left, join.right, tuple(pairs), join.outer), joined(rest)


# ------------------------------------------------------------------------ columns


def select_list(binder: Expressions, items: Sequence[syntax.Item]) -> tuple[plans.Output, ...]:
    """The columns of a result: of SELECT and RETURNING."""
    outputs: list[plans.Output] = []
    for item in items:
        if item.star:
            outputs.extend(_star(binder, item))
        elif item.tree is not None:
            value = binder.value(item.tree)
            outputs.append(plans.Output(item.alias or name_of(item.tree), value, type_of(value)))
        if len(outputs) > MAX_OUTPUTS:
            message = f"a result has more than {MAX_OUTPUTS} columns"
            raise binder.context.refuse(item.at, message, Reason.INVALID_REQUEST, "54011")
    return tuple(outputs)


def _star(binder: Expressions, item: syntax.Item) -> list[plans.Output]:
    meant = [each for each in binder.relations if (each.bare if item.table is None else each.name == item.table)]
    if not meant:
        what = "* without a table to read" if item.table is None else f"no table {item.table} to take * from"
        reason = Reason.SYNTAX_ERROR if item.table is None else Reason.COLUMN_NOT_FOUND
        raise binder.context.refuse(item.at, what, reason)
    return [plans.Output(name, column, column.type) for each in meant for name, column in each.columns.items()]


def _count(tree: syntax.Select) -> str | None:
    """The name of the column if the query is a count of rows."""
    return tree.items[0].alias or "count" if counts(tree) else None


def _is_join_of_system_tables(context: Context, tree: syntax.Select) -> bool:
    """Return whether nothing but the join of two system tables is beyond."""
    join = tree.source
    if not isinstance(join, syntax.Join) or join.natural or join.kind not in ("inner", "left", "cross"):
        return False
    for side in (join.left, join.right):
        if not isinstance(side, syntax.From) or side.columns or context.table_name(side.name).namespace != SYSTEM:
            return False
    return beyond(replace(tree, source=None), constants=True) is None and beyond_expression(join.on) is None


# ------------------------------------------------------------------------ ORDER BY


def _order(
    context: Context, binder: Expressions, item: syntax.OrderItem, outputs: Sequence[plans.Output], tree: syntax.Select
) -> plans.Order:
    expression = _ordered(context, binder, item.tree, outputs)
    return plans.Order(expression, item.descending, item.nulls_first)


def _ordered(context: Context, binder: Expressions, given: Tree, outputs: Sequence[plans.Output]) -> Expression:
    if isinstance(given, syntax.Constant) and given.kind == "number":
        text = str(given.value)
        if not text.isdecimal() or len(text) > 6 or not 0 < int(text) <= len(outputs):
            raise context.refuse(
                given.at, f"ORDER BY {text[:20]}, but there are {len(outputs)} columns", sqlstate="42P10"
            )
        return outputs[int(text) - 1].expression
    if isinstance(given, syntax.Name) and len(given.parts) == 1:
        named = {output.expression for output in outputs if output.name == given.parts[0]}
        if len(named) == 1:
            return named.pop()
        if named:
            raise context.refuse(given.at, f"ORDER BY {given.parts[0]} may be several columns", sqlstate="42702")
    return binder.value(given)


def _check_distinct(
    context: Context, tree: syntax.Select, order: Sequence[plans.Order], outputs: Sequence[plans.Output]
) -> None:
    shown = {output.expression for output in outputs}
    for item, given in zip(order, tree.order, strict=False):
        if item.expression not in shown:
            message = "with DISTINCT, ORDER BY takes columns of the result"
            raise context.refuse(given.at, message, Reason.UNSUPPORTED_SQL, "42P10")
