"""The columns and functions that expressions refer to."""

from collections.abc import Iterable, Iterator

from msgspec import Struct, structs

from topics_service.engine.tables.expressions import Call, Column, Expression
from topics_service.engine.tables.model import Route, Table


def nodes(expression: Expression) -> Iterator[Struct]:
    """Every node of an expression."""
    stack: list[object] = [expression]
    while stack:
        node = stack.pop()
        if isinstance(node, tuple):
            stack.extend(node)
        elif isinstance(node, Struct) and hasattr(node, "__struct_config__") and node.__struct_config__.tag is not None:
            yield node
            stack.extend(structs.astuple(node))


def columns_of(expressions: Iterable[Expression | None]) -> set[int]:
    """The ids of all columns."""
    return {
        node.column
        for expression in expressions
        if expression is not None
        for node in nodes(expression)
        if isinstance(node, Column)
    }


def functions_of(expression: Expression) -> set[str]:
    """The names of all functions."""
    return {node.function for node in nodes(expression) if isinstance(node, Call)}


def reads_of_route(route: Route) -> set[int]:
    """The columns that a route reads, besides those of its payload."""
    return columns_of((route.filter, *route.partition_by))


def checks_with(table: Table, column: int) -> list[str]:
    """The names of the checks that read a column."""
    return [check.name for check in table.checks if column in columns_of((check.expression,))]


def indexes_with(table: Table, column: int) -> list[str]:
    """The names of the indexes of a column."""
    return [index.name for index in table.indexes if column in index.columns]
