"""Parts of a query for which it needs the analytical engine."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from topics_service.engine.tables.aggregates import AGGREGATES
from topics_sql import syntax
from topics_sql.syntax import Tree

_NODES: Final[dict[type, str]] = {
    syntax.Subquery: "subqueries", syntax.Exists: "subqueries", syntax.InQuery: "subqueries",
    syntax.Quantified: "subqueries",
}  # fmt: skip


def beyond(tree: syntax.Query, *, constants: bool = False) -> str | None:
    """Name the first part of a query that tables alone can't answer; None if there is none."""
    if isinstance(tree, syntax.Compound):
        return tree.op.upper()
    if isinstance(tree, syntax.Values):
        return "VALUES"
    if tree.ctes:
        return "WITH"
    if isinstance(tree.source, syntax.Join):
        return "a join"
    if isinstance(tree.source, syntax.Derived):
        return "a query in FROM"
    if isinstance(tree.source, syntax.Series):
        return "generate_series"
    if tree.source is not None and tree.source.columns:
        return "names of columns in FROM"
    if tree.group is not None:
        return "GROUP BY"
    if tree.having is not None:
        return "HAVING"
    if tree.distinct_on:
        return "DISTINCT ON"
    if tree.windows:
        return "windows"
    if not counts(tree):
        for item in tree.items:
            if (found := beyond_expression(item.tree)) is not None:
                return found
        for key in tree.order:
            if (found := beyond_expression(key.tree)) is not None:
                return found
    return beyond_expression(tree.where)


def counts(tree: syntax.Select) -> bool:
    """Return whether a query is a count of rows."""
    call = tree.items[0].tree
    if len(tree.items) != 1 or not isinstance(call, syntax.Call) or call.function != "count" or call.distinct:
        return False
    if not call.is_plain or call.within:
        return False
    one = call.arguments[0] if len(call.arguments) == 1 else None
    return call.star or (isinstance(one, syntax.Constant) and one.kind != "null")


def beyond_expression(tree: Tree | None) -> str | None:
    """Name what an expression needs the engine for."""
    for node in _nodes(tree):
        if (what := _NODES.get(node.__class__)) is not None:
            return what
        if isinstance(node, syntax.Call):
            if node.over is not None:
                return "windows"
            if node.function in AGGREGATES or node.function == "grouping":
                return "aggregates"
    return None


def has_names(tree: Tree) -> bool:
    """Return whether an expression names columns."""
    return any(isinstance(node, syntax.Name) for node in _nodes(tree))


def _nodes(tree: Tree | None) -> Iterator[object]:
    stack: list[object] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, Struct):
            yield node
            stack.extend(getattr(node, name) for name in node.__struct_fields__)
        elif isinstance(node, tuple):
            stack.extend(node)
