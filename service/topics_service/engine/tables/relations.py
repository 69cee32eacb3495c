"""Plans of queries that an analytical engine answers: rows of several sources, grouped, with windows, combined.

Each column that anything makes has a number of its own within the plan, by which expressions (`Column`) refer to it:
columns of what is read, keys, aggregates, windows, subqueries and results. So an expression means the same wherever
it stands, also in a subquery that refers to the rows around it.
"""

from collections.abc import Callable
from typing import Union

from msgspec import Struct

from topics_service.engine.tables.expressions import (
    Binary,
    Call,
    Case,
    Cast,
    Column,
    Expression,
    InList,
    IsNull,
    IsTruth,
    JsonGet,
    Like,
    Unary,
)
from topics_service.engine.tables.model import Table
from topics_service.engine.tables.plans import Order, Output
from topics_service.engine.tables.types import Type

Places = tuple[tuple[int, int], ...]


class Made(Struct, frozen=True):
    """An expression under a number."""

    number: int
    expression: Expression


class TableRows(Struct, frozen=True):
    """Rows of a table: pairs of a number and a column id."""

    table: Table
    columns: Places


class SystemRows(Struct, frozen=True):
    """Rows of a system table: pairs of a number and a position."""

    name: str
    columns: Places


class TopicRows(Struct, frozen=True):
    """Records of a topic: pairs of a number and a place in `TOPIC_COLUMNS`. `source` is its place in `Analysis.topics`,
    which tells what of them is read."""

    source: int
    columns: Places


class NamedRows(Struct, frozen=True):
    """Rows of a query of WITH: pairs of a number and the number in that query."""

    query: int
    columns: Places


class NestedRows(Struct, frozen=True):
    """Rows of a query. `lateral`: it refers to rows of what stands before it."""

    query: "Query"
    lateral: bool = False


class SeriesRows(Struct, frozen=True):
    """Rows of one value: generate_series. The arguments depend on no rows."""

    number: int
    arguments: tuple[Expression, ...]
    type: Type


class JoinedRows(Struct, frozen=True):
    """`inner`, `left`, `right`, `full` or `cross`; `merged` are the columns of USING that both sides make together."""

    kind: str
    left: "Rows"
    right: "Rows"
    on: Expression | None = None
    merged: tuple[Made, ...] = ()


Rows = Union[  # noqa: UP007 - it refers to itself
    TableRows, SystemRows, TopicRows, NamedRows, NestedRows, SeriesRows, JoinedRows
]


class Frame(Struct, frozen=True):
    """The frame of a window; ends are words, `preceding` and `following` with a number of rows."""

    unit: str
    start: str
    end: str
    start_rows: Expression | None = None
    end_rows: Expression | None = None
    exclude: str = ""


class Aggregate(Struct, frozen=True):
    """A call over rows together: an aggregate of a group, or a window function with `window`."""

    number: int
    function: str
    arguments: tuple[Expression, ...]
    type: Type | None
    distinct: bool = False
    filter: Expression | None = None
    order: tuple[Order, ...] = ()
    within: bool = False
    window: "Window | None" = None


class Window(Struct, frozen=True):
    """The window of a call."""

    partition: tuple[Expression, ...] = ()
    order: tuple[Order, ...] = ()
    frame: Frame | None = None


class Inner(Struct, frozen=True):
    """A query in the place of a value: `value`, `exists`, `any` or `all` (`operand op ANY (query)`)."""

    number: int
    kind: str
    query: "Query"
    type: Type | None
    op: str = "="
    operand: Expression | None = None


class Core(Struct, frozen=True):
    """One SELECT, in the order in which its parts apply. `keys` and `aggregates` are there if it is `grouped`.

    `sets` are those of GROUPING SETS, of the numbers of keys.
    """

    rows: Rows | None
    filter: Expression | None
    outputs: tuple[Made, ...]
    grouped: bool = False
    keys: tuple[Made, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()
    having: Expression | None = None
    windows: tuple[Aggregate, ...] = ()
    distinct: bool = False
    distinct_on: tuple[Expression, ...] = ()
    sets: tuple[tuple[int, ...], ...] = ()


class Constants(Struct, frozen=True):
    """VALUES; the numbers of its columns and their types."""

    rows: tuple[tuple[Expression, ...], ...]
    columns: tuple[tuple[int, Type | None], ...]


class Combined(Struct, frozen=True):
    """`union`, `intersect` or `except` of two queries; the numbers of its columns and their types."""

    op: str
    all: bool
    left: "Query"
    right: "Query"
    columns: tuple[tuple[int, Type | None], ...]


class Named(Struct, frozen=True):
    """A query of WITH. `recursive`: it reads itself."""

    number: int
    query: "Query"
    recursive: bool = False


class Query(Struct, frozen=True):
    """A query, with what applies to its result. The expressions of `outputs` are columns, by their numbers."""

    body: Core | Constants | Combined
    outputs: tuple[Output, ...]
    order: tuple[Order, ...] = ()
    limit: Expression | None = None
    offset: Expression | None = None
    named: tuple[Named, ...] = ()


def rebuilt(expression: Expression, change: Callable[[Expression], Expression | None]) -> Expression:
    """The expression with what `change` makes of its nodes, from the root down; None leaves a node."""
    changed = change(expression)
    if changed is not None:
        return changed

    def again(part: Expression) -> Expression:
        return rebuilt(part, change)

    match expression:
        case Unary(op=op, operand=operand, type=kind):
            return Unary(op, again(operand), kind)
        case Binary(op=op, left=left, right=right, type=kind):
            return Binary(op, again(left), again(right), kind)
        case IsNull(operand=operand, negated=negated):
            return IsNull(again(operand), negated)
        case IsTruth(operand=operand, truth=truth, negated=negated):
            return IsTruth(again(operand), truth, negated)
        case InList(operand=operand, items=items, negated=negated):
            return InList(again(operand), tuple(map(again, items)), negated)
        case Like():
            return Like(
                again(expression.operand), again(expression.pattern), expression.ignore_case, expression.negated,
                expression.escape,
            )  # fmt: skip
        case Case(branches=branches, otherwise=otherwise, type=kind):
            pairs = tuple((again(when), again(then)) for when, then in branches)
            return Case(pairs, None if otherwise is None else again(otherwise), kind)
        case Cast(operand=operand, type=target):
            return Cast(again(operand), target)
        case JsonGet(operand=operand, key=key, type=kind):
            return JsonGet(again(operand), again(key), kind)
        case Call(function=function, arguments=arguments, type=kind):
            return Call(function, tuple(map(again, arguments)), kind)
        case _:
            return expression


def numbers_of(expression: Expression) -> set[int]:
    """The numbers of the columns in an expression."""
    found: set[int] = set()

    def note(node: Expression) -> None:
        if isinstance(node, Column):
            found.add(node.column)

    rebuilt(expression, note)
    return found
