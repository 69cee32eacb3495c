"""Access paths: which keys or which range of the primary key or of an index a condition leaves to read."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final, NamedTuple

from topics_service.engine.errors import TopicsError
from topics_service.engine.tables.casts import FLOATS, INTEGERS, NUMBERS
from topics_service.engine.tables.expressions import (
    Binary,
    Call,
    Cast,
    Column,
    Expression,
    InList,
    Literal,
    Parameter,
    Side,
    Unary,
    type_of,
)
from topics_service.engine.tables.functions import FUNCTIONS, Volatility
from topics_service.engine.tables.model import IndexState, Table
from topics_service.engine.tables.plans import Bound, Lookup, Order, Scan
from topics_service.engine.tables.types import BOOLEAN, Kind, Type
from topics_service.engine.tables.values import coerce

MAX_KEYS: Final = 10_000
"""Of a Lookup; more are found by a scan."""
MIRRORED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Access(NamedTuple):
    """A way to find rows, what is left to check, and whether they come in the order that was asked for."""

    path: Scan | Lookup
    filter: Expression | None
    ordered: bool


class Fact(NamedTuple):
    """A fact of a column that one term of a condition says. `exact`: the path alone makes sure of it."""

    term: int
    op: str
    values: tuple[Expression, ...]
    exact: bool


class _Candidate(NamedTuple):
    score: tuple[int, ...]
    path: Scan | Lookup
    used: frozenset[int]
    ordered: bool


def choose(table: Table, condition: Expression | None, order: Sequence[Order] = (), *, limited: bool = False) -> Access:
    """The best access: whole keys, else the longest equal prefix and a range behind it, the primary key at a tie.

    Without any of these an index serves that gives the order of a limited query.
    """
    terms = conjuncts(condition)
    facts = facts_of({column.id: column.type for column in table.columns}, terms)
    best = _lookup(table, facts, order)
    if best is None:
        ready = [index for index in table.indexes if index.state is IndexState.READY]
        candidates = [_scan(table, index.number, index.columns, facts, order) for index in ready]
        candidates.insert(0, _scan(table, None, table.primary_key, facts, order))
        best = max(candidates, key=lambda each: (*each.score, each.ordered and (each.score[0] > 0 or limited)))
    left = [term for number, term in enumerate(terms) if number not in best.used]
    return Access(best.path, joined(left), best.ordered)


def conjuncts(condition: Expression | None) -> list[Expression]:
    """The terms that a condition joins by AND."""
    if condition is None:
        return []
    if isinstance(condition, Binary) and condition.op == "and":
        return conjuncts(condition.left) + conjuncts(condition.right)
    return [condition]


def joined(terms: Sequence[Expression]) -> Expression | None:
    """The terms as one condition, as a balanced tree."""
    return _joined(terms) if terms else None


def _joined(terms: Sequence[Expression]) -> Expression:
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    return Binary("and", _joined(terms[:middle]), _joined(terms[middle:]), BOOLEAN)


# ------------------------------------------------------------------------- facts


def facts_of(types: Mapping[int, Type], terms: Sequence[Expression]) -> dict[int, list[Fact]]:
    """The facts of columns that terms say, by the columns, whose types are given."""
    facts: dict[int, list[Fact]] = {}
    for number, term in enumerate(terms):
        for column, op, given in _comparisons(term):
            if column not in types:
                continue
            fitted = [_fitted(value, types[column]) for value in given]
            if all(fitted):
                keys = tuple(each[0] for each in fitted if each is not None)
                exact = all(each[1] for each in fitted if each is not None)
                facts.setdefault(column, []).append(Fact(number, op, keys, exact))
    return facts


def _comparisons(term: Expression) -> list[tuple[int, str, tuple[Expression, ...]]]:
    if isinstance(term, Binary) and term.op in MIRRORED:
        left, right, op = term.left, term.right, term.op
        if not isinstance(left, Column):
            left, right, op = right, left, MIRRORED[op]
        if isinstance(left, Column) and left.side is Side.NEW and is_constant(right):
            return [(left.column, op, (right,))]
    elif isinstance(term, InList) and not term.negated and isinstance(term.operand, Column):
        items = tuple(item for item in term.items if not (isinstance(item, Literal) and item.value is None))
        if items and len(items) <= MAX_KEYS and all(map(is_constant, items)):
            return [(term.operand.column, "in", items)]
    elif isinstance(term, Column) and term.type == BOOLEAN:
        return [(term.column, "=", (Literal(True, BOOLEAN),))]
    elif isinstance(term, Unary) and term.op == "not" and isinstance(term.operand, Column):
        return [(term.operand.column, "=", (Literal(False, BOOLEAN),))]
    return []


def is_constant(expression: Expression, *, immutable: bool = False) -> bool:
    """Return whether an expression has one value in a whole statement; with `immutable`, always the same."""
    if isinstance(expression, Literal | Parameter):
        return True
    if isinstance(expression, Cast | Unary):
        return is_constant(expression.operand, immutable=immutable)
    if isinstance(expression, Binary):
        sides = (expression.left, expression.right)
        return all(is_constant(each, immutable=immutable) for each in sides)
    if isinstance(expression, Call):
        volatility = FUNCTIONS[expression.function].volatility
        known = volatility is Volatility.IMMUTABLE or (volatility is Volatility.STABLE and not immutable)
        return known and all(is_constant(each, immutable=immutable) for each in expression.arguments)
    return False


def _fitted(value: Expression, target: Type) -> tuple[Expression, bool] | None:
    """The value as one that keys of the column are made of, and whether a comparison with it is the same.

    Integers of all widths have the same keys, as have REAL and DOUBLE.
    """
    own = type_of(value)
    if isinstance(value, Literal):
        if value.value is None:
            return Literal(None, target), True
        if own is not None and own.kind in NUMBERS and target.kind in NUMBERS:
            return _fitted_number(value, target)
    if own is None:
        return None
    kind = own.kind
    if {kind, target.kind} <= INTEGERS or {kind, target.kind} <= FLOATS:
        return value, True
    if target.kind in FLOATS and kind in NUMBERS:
        return Cast(value, Type(Kind.DOUBLE)), True  # as the comparison does
    if (kind, target.kind) == (Kind.DATE, Kind.TIMESTAMP):
        return Cast(value, target), True
    if kind is Kind.DECIMAL and target.kind is kind and target.precision:
        return Cast(value, target), False
    return (value, True) if kind is target.kind else None


def _fitted_number(literal: Literal, target: Type) -> tuple[Expression, bool] | None:
    """A number as one of the column's kind, unless rounding would make another one of it."""
    given = literal.value
    wide = {Kind.REAL: Type(Kind.DOUBLE), Kind.SMALLINT: Type(Kind.BIGINT), Kind.INTEGER: Type(Kind.BIGINT)}
    kind = wide.get(target.kind, target)
    try:
        fitted = coerce(given, kind, "the number")
    except TopicsError:
        return None
    return (Literal(fitted, kind), True) if kind.kind is Kind.DOUBLE or fitted == given else None


# --------------------------------------------------------------------- candidates


def _lookup(table: Table, facts: dict[int, list[Fact]], order: Sequence[Order]) -> _Candidate | None:
    """Whole primary keys."""
    chosen: list[Fact] = []
    count = 1
    for column in table.primary_key:
        equal = _first(facts, column, "=") or _first(facts, column, "in")
        if equal is None:
            return None
        chosen.append(equal)
        count *= len(equal.values)
    if count > MAX_KEYS:
        return None
    keys = tuple(product(*(fact.values for fact in chosen)))
    used = frozenset(fact.term for fact in chosen if fact.exact)
    if count == 1:
        return _Candidate((), Lookup(keys), used, True)
    fixed = {column for column, fact in zip(table.primary_key, chosen, strict=True) if len(fact.values) == 1}
    reverse = _direction(table, table.primary_key, fixed, set(), order)
    return _Candidate((), Lookup(keys), used, not order or reverse is False)


def _scan(
    table: Table, index: int | None, columns: Sequence[int], facts: dict[int, list[Fact]], order: Sequence[Order]
) -> _Candidate:
    prefix: list[Expression] = []
    used: set[int] = set()
    fixed: set[int] = set()
    not_null: set[int] = set()
    lower: Bound | None = None
    upper: Bound | None = None
    for column in columns:
        equal = _first(facts, column, "=")
        if equal is not None:
            prefix.append(equal.values[0])
            fixed.add(column)
            used.update({equal.term} if equal.exact else ())
            continue
        low = _first(facts, column, ">") or _first(facts, column, ">=")
        high = _first(facts, column, "<") or _first(facts, column, "<=")
        if low is not None:
            lower = Bound(low.values[0], low.op == ">=")
            used.update({low.term} if low.exact else ())
        if high is not None:
            upper = Bound(high.values[0], high.op == "<=")
            nullable = index is not None and low is None and not _column_not_null(table, column)
            used.update({high.term} if high.exact and not nullable else ())
        if low is not None or high is not None:
            not_null.add(column)
        break
    key = tuple(columns) if index is None else (*columns, *(each for each in table.primary_key if each not in columns))
    reverse = _direction(table, key, fixed, not_null, order)
    path = Scan(index, tuple(prefix), lower, upper, bool(reverse))
    score = (len(prefix), (lower is not None) + (upper is not None), index is None and not order)
    return _Candidate(score, path, frozenset(used), not order or reverse is not None)


def _first(facts: dict[int, list[Fact]], column: int, op: str) -> Fact | None:
    return next((fact for fact in facts.get(column, ()) if fact.op == op), None)


def _column_not_null(table: Table, column: int) -> bool:
    return column in table.primary_key or next(each.not_null for each in table.columns if each.id == column)


def _direction(
    table: Table, key: Sequence[int], fixed: set[int], not_null: set[int], order: Sequence[Order]
) -> bool | None:
    """The direction in which rows in the order of `key` come as asked for: True in reverse, None if in neither."""
    reverse: bool | None = None
    rest = [column for column in key if column not in fixed]
    for item in order:
        if not isinstance(item.expression, Column):
            return None
        column = item.expression.column
        if column in fixed:
            continue
        if not rest:
            return bool(reverse)
        if rest.pop(0) != column or (reverse is not None and reverse != item.descending):
            return None
        nulls_first = not item.descending
        if item.nulls_first != nulls_first and column not in not_null and not _column_not_null(table, column):
            return None
        reverse = item.descending
        fixed = fixed | {column}
    return bool(reverse)
