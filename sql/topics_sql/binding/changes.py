"""Plans of INSERT, UPDATE and DELETE."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables import plans, values
from topics_service.engine.tables.casts import NUMBERS
from topics_service.engine.tables.expressions import Expression, Literal, Parameter, Side, type_of
from topics_service.engine.tables.model import ColumnSchema, Table
from topics_service.engine.tables.types import Kind, Value
from topics_sql import syntax
from topics_sql.binding import computed
from topics_sql.binding.access import choose
from topics_sql.binding.beyond import beyond_expression, has_names
from topics_sql.binding.expressions import Expressions, python_number, rounded
from topics_sql.binding.queries import select, select_list
from topics_sql.binding.scope import Context, relation
from topics_sql.syntax import Default, Tree

Cell = Tree | Default


def insert(context: Context, tree: syntax.Insert) -> plans.Insert:
    """Plan INSERT."""
    table = context.find_table(tree.table)
    own = relation(table, tree.alias)
    columns = _columns(context, table, tree)
    rows: tuple[tuple[Expression | None, ...], ...] = ()
    query: plans.Select | None = None
    found: computed.Computed | None = None
    if tree.select is not None:
        given = computed.within(tree.select, tree.ctes, recursive=tree.recursive)
        planned, constants = computed.apart(given)
        source = select(context, planned)
        if isinstance(source, plans.Select) and constants:
            source = select(context, given)
        columns = columns or list(table.columns)[: len(source.outputs)]
        _check_width(context, source, columns, tree.select.at)
        if isinstance(source, plans.Select):
            query = _fitted(context, source, columns, tree)
        else:
            found = computed.Computed(source)
            rows = (_computed_row(context, found, columns, constants, tree.select.at),)
    elif tree.rows == ():
        columns, rows = [], ((),)
    else:
        assert tree.rows is not None
        columns = columns or list(table.columns)[: max(1, len(tree.rows[0]))]
        scalars = computed.Scalars(context, tree.ctes, recursive=tree.recursive)
        rows = _rows(context, columns, tree.rows, scalars)
        found = scalars.computed()
    conflict = None if tree.conflict is None else _conflict(context, table, tree.conflict, tree.alias)
    returning = select_list(Expressions(context, [own]), tree.returning) if tree.returning else ()
    action = plans.Insert(table, tuple(column.id for column in columns), rows, query, conflict, returning)
    return action if found is None else found.change(action)


def _check_width(
    context: Context, query: plans.Select | plans.Analysis, columns: Sequence[ColumnSchema], at: int
) -> None:
    if len(columns) != len(query.outputs):
        message = f"the query has {len(query.outputs)} columns, but {len(columns)} are inserted"
        raise context.refuse(at, message)


def _computed_row(
    context: Context, found: computed.Computed, columns: Sequence[ColumnSchema], constants: Mapping[int, Tree], at: int
) -> tuple[Expression | None, ...]:
    binder = Expressions(context)
    row: list[Expression | None] = []
    for place, column in enumerate(columns):
        if place in constants:
            row.append(_cell(context, column)(constants[place]))
        else:
            value = found.value(place, column.type)
            row.append(binder.assign(value, column.type, f'column "{column.name}"', at))
    return tuple(row)


def _columns(context: Context, table: Table, tree: syntax.Insert) -> list[ColumnSchema]:
    columns: list[ColumnSchema] = []
    for name in tree.columns or ():
        column = find_column(context, table, name)
        if column in columns:
            raise context.refuse(name.at, f"column {name.name} is named twice", sqlstate="42701")
        columns.append(column)
    return columns


def find_column(context: Context, table: Table, name: syntax.ColumnName) -> ColumnSchema:
    """The column of a table that a statement changes. Raises `column_not_found`."""
    for column in table.columns:
        if column.name == name.name:
            return column
    raise context.column_not_found(name.at, name.name, table.table_id)


def _fitted(
    context: Context, query: plans.Select, columns: Sequence[ColumnSchema], tree: syntax.Insert
) -> plans.Select:
    assert tree.select is not None
    binder = Expressions(context)
    outputs = []
    for output, column in zip(query.outputs, columns, strict=True):
        expression = output.expression
        if isinstance(expression, Literal) and isinstance(expression.value, str) and column.type.kind is not Kind.TEXT:
            expression = Literal(expression.value)
        if not query.count:
            expression = binder.assign(expression, column.type, f'column "{column.name}"', tree.select.at)
        outputs.append(plans.Output(output.name, expression, type_of(expression)))
    return plans.Select(
        query.source, tuple(outputs), filter=query.filter, order=query.order, limit=query.limit, offset=query.offset,
        count=query.count, distinct=query.distinct,
    )  # fmt: skip


def _rows(
    context: Context, columns: Sequence[ColumnSchema], given: Sequence[Sequence[Cell]], scalars: computed.Scalars
) -> tuple[tuple[Expression | None, ...], ...]:
    cells = [_cell(context, column, scalars) for column in columns]
    width, rows = len(columns), []
    for row in given:
        if len(row) != width:
            excess = row[width].at if len(row) > width else row[-1].at
            raise context.refuse(excess, f"{len(row)} values for {width} columns")
        rows.append(tuple([cell(value) for cell, value in zip(cells, row, strict=True)]))
    return tuple(rows)


def _cell(
    context: Context, column: ColumnSchema, scalars: computed.Scalars | None = None
) -> Callable[[Cell], Expression | None]:
    """The function that binds values of one column: quick for literals, of which there may be thousands."""
    kind, what = column.type, f'column "{column.name}"'
    convert = values.coercer(kind, what)
    binder = Expressions(context)
    binder.inner = None if scalars is None else scalars.bind
    numeric = kind.kind in NUMBERS
    text: Callable[[Any], Value] = convert
    if kind.kind is Kind.BYTES:
        text = lambda given: values.from_text(given, kind, what)  # noqa: E731

    def cell(tree: Cell) -> Expression | None:
        if tree.__class__ is syntax.Constant:
            given = tree.value
            try:
                if tree.kind == "number":
                    if numeric:
                        return Literal(convert(rounded(python_number(str(given)), kind)), kind)
                elif tree.kind == "string":
                    return Literal(text(given), kind)
                elif tree.kind == "null":
                    return Literal(None, kind)
            except TopicsError as error:
                context.place(error, tree.at)
                raise
        elif tree.__class__ is syntax.Parameter:
            context.use_parameter(tree.number)
            known = context.type_parameter(tree.number, kind, tree.at)
            return binder.assign(Parameter(tree.number, known), kind, what, tree.at)
        return None if isinstance(tree, Default) else binder.assigned(tree, kind, what)

    return cell


def _conflict(context: Context, table: Table, tree: syntax.Conflict, alias: str | None) -> plans.OnConflict:
    index, anything = _target(context, table, tree)
    if tree.assignments is None:
        return plans.OnConflict(index, anything)
    relations = [relation(table, alias), relation(table, "excluded", Side.EXCLUDED)]
    binder = Expressions(context, relations)
    assignments = tuple(_assignments(context, binder, table, tree.assignments))
    condition = None if tree.where is None else binder.condition(tree.where)
    return plans.OnConflict(index, anything, assignments, condition)


def _target(context: Context, table: Table, tree: syntax.Conflict) -> tuple[int | None, bool]:
    if tree.constraint is not None:
        if tree.constraint == f"{table.name}_pkey":
            return None, False
        for index in table.indexes:
            if index.unique and index.name == tree.constraint:
                return index.number, False
        raise context.refuse(tree.at, f"constraint {tree.constraint} does not exist", Reason.INDEX_NOT_FOUND)
    if tree.columns is None:
        return None, True
    wanted = sorted(find_column(context, table, name).id for name in tree.columns)
    if wanted == sorted(table.primary_key):
        return None, False
    for index in table.indexes:
        if index.unique and sorted(index.columns) == wanted:
            return index.number, False
    message = "ON CONFLICT names neither the primary key nor a unique key"
    raise context.refuse(tree.columns[0].at, message, Reason.INVALID_VALUE, "42P10")


def _assignments(
    context: Context, binder: Expressions, table: Table, given: Sequence[syntax.Assignment]
) -> list[tuple[int, Any]]:
    found: dict[int, Expression | None] = {}
    for assignment in given:
        column = _target_column(context, table, assignment.column, found)
        if isinstance(assignment.value, Default):
            found[column.id] = None
        else:
            found[column.id] = binder.assigned(assignment.value, column.type, f'column "{column.name}"')
    return list(found.items())


def _target_column(context: Context, table: Table, name: syntax.ColumnName, known: Mapping[int, Any]) -> ColumnSchema:
    """The column that an assignment is about, none of those that are known."""
    column = find_column(context, table, name)
    if column.id in known:
        raise context.refuse(name.at, f"column {name.name} is set twice")
    if column.id in table.primary_key:
        message = f"column {name.name} is part of the primary key and can't be changed"
        raise context.refuse(name.at, message, Reason.UNSUPPORTED_SQL)
    return column


def _computed_update(context: Context, table: Table, tree: syntax.Update, why: str) -> plans.Update:
    """Plan an UPDATE whose rows a query finds, with those of the new values that need it as well."""
    binder = Expressions(context, [relation(table, tree.table.alias)])
    assignments: dict[int, Any] = {}
    wanted: list[tuple[ColumnSchema, Tree]] = []
    for assignment in tree.assignments:
        column, value = _target_column(context, table, assignment.column, assignments), assignment.value
        assignments[column.id] = None
        if isinstance(value, Default):
            continue
        if beyond_expression(value) is not None or (tree.source is not None and has_names(value)):
            wanted.append((column, value))
        else:
            assignments[column.id] = binder.assigned(value, column.type, f'column "{column.name}"')
    found = computed.Found(context, tree, table, [value for _, value in wanted], why)
    for place, (column, value) in enumerate(wanted):
        bound = found.assigned(place, column.type)
        assignments[column.id] = binder.assign(bound, column.type, f'column "{column.name}"', value.at)
    returning = _returning(context, found, table, tree)
    return found.change(plans.Update(table, found.key, tuple(assignments.items()), None, returning))


def _returning(
    context: Context, found: computed.Found, table: Table, tree: syntax.Update | syntax.Delete
) -> tuple[plans.Output, ...]:
    """RETURNING of a change of several tables."""
    if not tree.returning:
        return ()
    others = found.others() if tree.source is not None else []
    return select_list(Expressions(context, [relation(table, tree.table.alias), *others]), tree.returning)


def update(context: Context, tree: syntax.Update) -> plans.Update:
    """Plan UPDATE."""
    table = context.find_table(tree.table.name)
    if (why := computed.reason(tree)) is not None:
        return _computed_update(context, table, tree, why)
    binder = Expressions(context, [relation(table, tree.table.alias)])
    assignments = _assignments(context, binder, table, tree.assignments)
    access = choose(table, None if tree.where is None else binder.condition(tree.where))
    returning = select_list(binder, tree.returning) if tree.returning else ()
    return plans.Update(table, access.path, tuple(assignments), access.filter, returning)


def delete(context: Context, tree: syntax.Delete) -> plans.Delete:
    """Plan DELETE."""
    table = context.find_table(tree.table.name)
    if (why := computed.reason(tree)) is not None:
        found = computed.Found(context, tree, table, (), why)
        return found.change(plans.Delete(table, found.key, None, _returning(context, found, table, tree)))
    binder = Expressions(context, [relation(table, tree.table.alias)])
    access = choose(table, None if tree.where is None else binder.condition(tree.where))
    returning = select_list(binder, tree.returning) if tree.returning else ()
    return plans.Delete(table, access.path, access.filter, returning)
