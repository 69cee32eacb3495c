"""Expressions as trees: what WHERE, CHECK, DEFAULT, SET and the filters of routes are once they are bound.

The catalog stores them, so that a route or a check never depends on a parser. Nodes are immutable and know their
type; None is the type of a bare NULL and of a parameter that meets none. Columns are known by their ids, which outlive
renames and are never used again.
"""

from decimal import Decimal
from enum import Enum
from typing import Any, Union

from msgspec import Struct
from msgspec.structs import force_setattr

from topics_service.engine.tables.types import BOOLEAN, Kind, Type


class Side(Enum):
    """The row that a column is read from."""

    NEW = "new"
    """The row itself; of a change, the row after it (of a Delete, the row that goes)."""
    OLD = "old"
    """The row before a change; NULL in each column for an Insert."""
    EXCLUDED = "excluded"
    """The row that ON CONFLICT kept from being inserted."""


class Literal(Struct, frozen=True, tag_field="node", tag="literal", omit_defaults=True):
    """A constant: a `types.Value`."""

    value: Any
    type: Type | None = None

    def __post_init__(self) -> None:
        if isinstance(self.value, str) and self.type is not None and self.type.kind is Kind.DECIMAL:
            force_setattr(self, "value", Decimal(self.value))  # the catalog holds it as text


class Column(Struct, frozen=True, tag_field="node", tag="column", omit_defaults=True):
    """A column of a row, by its id."""

    column: int
    type: Type | None = None
    side: Side = Side.NEW


class Parameter(Struct, frozen=True, tag_field="node", tag="parameter", omit_defaults=True):
    """`$number`, counted from 1. Its value is coerced to `type` before the expression runs."""

    number: int
    type: Type | None = None


class Unary(Struct, frozen=True, tag_field="node", tag="unary"):
    """`not` or `-`."""

    op: str
    operand: "Expression"
    type: Type | None


class Binary(Struct, frozen=True, tag_field="node", tag="binary"):
    """One of `+ - * / % ||`, `= <> < <= > >=`, `and or`, `is distinct`, `is not distinct`.

    Operands have comparable types.
    """

    op: str
    left: "Expression"
    right: "Expression"
    type: Type | None


class IsNull(Struct, frozen=True, tag_field="node", tag="is_null", omit_defaults=True):
    """IS NULL, IS NOT NULL."""

    operand: "Expression"
    negated: bool = False


class IsTruth(Struct, frozen=True, tag_field="node", tag="is_truth", omit_defaults=True):
    """IS TRUE, IS FALSE, and their negations."""

    operand: "Expression"
    truth: bool
    negated: bool = False


class InList(Struct, frozen=True, tag_field="node", tag="in", omit_defaults=True):
    """IN, NOT IN a list of expressions."""

    operand: "Expression"
    items: tuple["Expression", ...]
    negated: bool = False


class Like(Struct, frozen=True, tag_field="node", tag="like", omit_defaults=True):
    """LIKE and ILIKE, with or without NOT. `escape` is one character, or empty for none."""

    operand: "Expression"
    pattern: "Expression"
    ignore_case: bool = False
    negated: bool = False
    escape: str = "\\"


class Case(Struct, frozen=True, tag_field="node", tag="case"):
    """CASE with conditions; the form with an operand is written as equalities."""

    branches: tuple[tuple["Expression", "Expression"], ...]
    otherwise: "Expression | None"
    type: Type | None


class Cast(Struct, frozen=True, tag_field="node", tag="cast"):
    """CAST(operand AS type)."""

    operand: "Expression"
    type: Type


class JsonGet(Struct, frozen=True, tag_field="node", tag="json_get"):
    """`operand -> key` (JSON) or `operand ->> key` (text); the key is the name of a member or an index."""

    operand: "Expression"
    key: "Expression"
    type: Type


class Call(Struct, frozen=True, tag_field="node", tag="call"):
    """A function, by its lower-case name: those of `functions.FUNCTIONS`."""

    function: str
    arguments: tuple["Expression", ...]
    type: Type | None


Expression = Union[  # noqa: UP007 - a forward reference in the nodes above
    Literal, Column, Parameter, Unary, Binary, IsNull, IsTruth, InList, Like, Case, Cast, JsonGet, Call
]


def children(expression: Expression) -> tuple[Expression, ...]:
    """The operands of a node, in the order of the text."""
    match expression:
        case Unary() | IsNull() | IsTruth() | Cast():
            return (expression.operand,)
        case Binary():
            return expression.left, expression.right
        case InList():
            return expression.operand, *expression.items
        case Like():
            return expression.operand, expression.pattern
        case Case(branches=branches, otherwise=otherwise):
            pairs = tuple(each for branch in branches for each in branch)
            return pairs if otherwise is None else (*pairs, otherwise)
        case JsonGet():
            return expression.operand, expression.key
        case Call():
            return expression.arguments
        case _:
            return ()


def type_of(expression: Expression) -> Type | None:
    """The type of a node: BOOLEAN of those that tell none."""
    return BOOLEAN if isinstance(expression, _TESTS) else expression.type


_TESTS = (IsNull, IsTruth, InList, Like)
