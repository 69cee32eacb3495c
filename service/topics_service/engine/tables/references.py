"""The columns that expressions read."""

from collections.abc import Iterable, Iterator

from topics_service.engine.tables.expressions import Column, Expression, children
from topics_service.engine.tables.model import Route, Table


def nodes(expression: Expression) -> Iterator[Expression]:
    """Every node of an expression."""
    stack = [expression]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(children(node))


def columns_of(expressions: Iterable[Expression | None]) -> set[int]:
    """The ids of all columns."""
    return {
        node.column
        for expression in expressions
        if expression is not None
        for node in nodes(expression)
        if isinstance(node, Column)
    }


def reads_of_route(route: Route) -> set[int]:
    """The columns that a route reads, besides those of its payload."""
    return columns_of((route.filter, *route.partition_by))


def checks_with(table: Table, column: int) -> list[str]:
    """The names of the checks that read a column."""
    return [check.name for check in table.checks if column in columns_of((check.expression,))]


def indexes_with(table: Table, column: int) -> list[str]:
    """The names of the indexes of a column."""
    return [index.name for index in table.indexes if column in index.columns]
