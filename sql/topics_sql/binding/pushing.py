"""Conditions of an analytical query that say which records of its topics it needs, and the columns that it uses.

They stay in the query as well: what is pushed down only spares records that no row of it would have.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from topics_service.engine.tables.expressions import Column, Expression
from topics_service.engine.tables.model import Table
from topics_service.engine.tables.plans import TopicScan, TopicSource
from topics_service.engine.tables.relations import (
    Combined,
    Core,
    Inner,
    JoinedRows,
    NestedRows,
    Query,
    Rows,
    TableRows,
    TopicRows,
    numbers_of,
    rebuilt,
)
from topics_sql.binding import topic_tables
from topics_sql.binding.access import conjuncts

Terms = Sequence[Expression]


def pruned(query: Query, inner: tuple[Inner, ...]) -> tuple[Query, tuple[Inner, ...]]:
    """The plan without the columns of queries in FROM that nothing uses."""
    while True:
        used = set(_columns_in((query, inner)))
        less = _within(query, used), tuple(replace(each, query=_within(each.query, used)) for each in inner)
        if less == (query, inner):
            return less
        query, inner = less


def _within(query: Query, used: set[int]) -> Query:
    named = tuple(replace(each, query=_within(each.query, used)) for each in query.named)
    body = query.body
    if isinstance(body, Core):
        body = body if body.rows is None else replace(body, rows=_lighter(body.rows, used))
    elif isinstance(body, Combined):
        body = replace(body, left=_within(body.left, used), right=_within(body.right, used))
    return replace(query, body=body, named=named)


def _lighter(rows: Rows, used: set[int]) -> Rows:
    if isinstance(rows, JoinedRows):
        return replace(rows, left=_lighter(rows.left, used), right=_lighter(rows.right, used))
    if not isinstance(rows, NestedRows):
        return rows
    query = _within(rows.query, used)
    body = query.body
    if isinstance(body, Core) and not body.distinct:
        kept = tuple(each for each in body.outputs if each.number in used)
        query = replace(query, body=replace(body, outputs=kept))
    return replace(rows, query=query)


def topic_scans(topics: Sequence[str], query: Query, inner: Sequence[Inner]) -> tuple[TopicSource, ...]:
    """Scans of the topics, in the order of `topics`."""
    used = set(_columns_in((query, inner)))
    scans = [TopicScan()] * len(topics)

    def reached(rows: TopicRows, terms: Terms) -> None:
        numbers = dict(rows.columns)
        columns = [place for number, place in rows.columns if number in used]
        own = [term for term in terms if numbers_of(term) and numbers_of(term) <= numbers.keys()]
        scans[rows.source] = topic_tables.choose(own, (), columns, numbers).scan

    push = _Pushing(reached)
    push.query(query, ())
    for each in inner:
        push.query(each.query, ())
    return tuple(TopicSource(topic, scan) for topic, scan in zip(topics, scans, strict=True))


class _Pushing:
    """Takes conditions down to the topics that they are about."""

    def __init__(self, reached: Any) -> None:
        self._reached = reached

    def query(self, query: Query, above: Terms) -> None:
        """Push what holds for the rows of a query: `above`, unless it has a LIMIT, and its own conditions."""
        for named in query.named:
            self.query(named.query, ())
        body = query.body
        if isinstance(body, Core):
            alone = query.limit is not None or query.offset is not None
            self._core(body, () if alone else above)
            return
        for side in (getattr(body, "left", None), getattr(body, "right", None)):
            if side is not None:
                self.query(side, ())

    def _core(self, core: Core, above: Terms) -> None:
        terms = list(conjuncts(core.filter))
        if above and not (core.grouped or core.windows or core.distinct or core.distinct_on):
            made = {each.number: each.expression for each in core.outputs}
            terms += [_through(term, made) for term in above if numbers_of(term) <= made.keys()]
        if core.rows is not None:
            self._rows(core.rows, terms)

    def _rows(self, rows: Rows, terms: Terms) -> None:
        match rows:
            case TopicRows():
                self._reached(rows, terms)
            case NestedRows(query=query):
                self.query(query, terms)
            case JoinedRows(kind=kind, on=on, left=left, right=right):
                own = conjuncts(on)
                self._rows(left, [*(terms if kind != "right" and kind != "full" else ()), *_inner(kind, "right", own)])
                self._rows(right, [*(terms if kind != "left" and kind != "full" else ()), *_inner(kind, "left", own)])


def _inner(kind: str, other: str, own: Terms) -> Terms:
    """The terms of ON for a side: those of an inner join, and of an outer one for the side that is not kept whole."""
    return own if kind == "inner" or kind == other else ()


def _through(term: Expression, made: dict[int, Expression]) -> Expression:
    return rebuilt(term, lambda node: made.get(node.column) if isinstance(node, Column) else None)


def table_columns(root: object) -> Iterator[tuple[Table, int]]:
    """The columns of tables that a plan uses, by their ids."""
    used = set(_columns_in(root))
    for node in _nodes(root):
        if isinstance(node, TableRows):
            yield from ((node.table, column) for number, column in node.columns if number in used)


def _columns_in(root: object) -> Iterator[int]:
    """The numbers of all columns that the expressions of a plan read."""
    return (node.column for node in _nodes(root) if isinstance(node, Column))


def _nodes(root: object) -> Iterator[object]:
    """Everything in a plan, without the definitions of its tables."""
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, tuple):
            stack.extend(node)
        elif isinstance(node, NestedRows):  # its outputs are for those who use them
            query = node.query
            yield node
            stack.extend((query.body, query.order, query.limit, query.offset, query.named))
        elif isinstance(node, Struct) and not isinstance(node, Table):
            yield node
            stack.extend(getattr(node, name) for name in node.__struct_fields__)
