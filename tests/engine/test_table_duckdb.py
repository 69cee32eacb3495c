"""Expressions against DuckDB: random trees over random rows with NULLs give the same values, or both an error.

Where DuckDB differs from PostgreSQL, which is the rule here (D23), the tree is written for it so that it says the same:
`//` for the division of integers, `error()` for zero divisors, CASE for the laziness of AND and OR, ESCAPE for LIKE.
Left out: the division of DECIMAL, which is DOUBLE there; floats as text; overflow of DOUBLE, which is infinite there.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple

import duckdb
import pytest

from topics_service.engine.errors import TopicsError
from topics_service.engine.tables.compilation import compile_expression, compile_filter
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
    Like,
    Literal,
    Unary,
    children,
)
from topics_service.engine.tables.functions import operator, result
from topics_service.engine.tables.types import Kind, Type
from topics_service.engine.tables.values import coerce

ROWS: Final = 40
BOOLEAN, INTEGER, BIGINT, DOUBLE, TEXT, DATE, TIMESTAMP = (
    Type(kind) for kind in (Kind.BOOLEAN, Kind.INTEGER, Kind.BIGINT, Kind.DOUBLE, Kind.TEXT, Kind.DATE, Kind.TIMESTAMP)
)
MONEY: Final = Type(Kind.DECIMAL, precision=10, scale=2)
COLUMNS: Final = (
    INTEGER, INTEGER, BIGINT, DOUBLE, DOUBLE, MONEY, MONEY, TEXT, TEXT, BOOLEAN, BOOLEAN, DATE, TIMESTAMP, TIMESTAMP,
)  # fmt: skip
POSITIONS: Final = {i: i for i in range(len(COLUMNS))}
SQL_NAMES: Final = {Kind.TEXT: "VARCHAR", Kind.DECIMAL: "DECIMAL(10, 2)"}


class Both(NamedTuple):
    """The same expression for the engine and for DuckDB."""

    node: Expression
    sql: str
    type: Type


class Error:
    def __repr__(self) -> str:
        return "an error"


ERROR: Final = Error()


def sql_name(sql_type: Type) -> str:
    return SQL_NAMES.get(sql_type.kind, sql_type.kind.value)


def null(sql_type: Type) -> str:
    """A column without values: beside a constant NULL nothing is evaluated there."""
    return f"null_{sql_type.kind.value.lower()}"


class Maker:
    """Random expressions of a type."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def constant(self, sql_type: Type) -> Any:
        rng = self._rng
        match sql_type.kind:
            case Kind.BOOLEAN:
                return rng.random() < 0.5
            case Kind.INTEGER:
                return rng.choice([0, 1, -1, 2, 3, -7, 10, 100, 2_147_483_647, -2_147_483_648, rng.randint(-50, 50)])
            case Kind.BIGINT:
                return rng.choice([0, 1, -1, 5, 1 << 40, (1 << 63) - 1, -(1 << 62), rng.randint(-50, 50)])
            case Kind.DOUBLE:
                return rng.choice([0.0, 1.0, -1.5, 2.5, 0.5, 1e6, rng.uniform(-100, 100), float(rng.randint(-9, 9))])
            case Kind.DECIMAL:
                return Decimal(rng.choice([0, 1, -1, 250, 10_050, rng.randint(-9999, 9999)])).scaleb(-2)
            case Kind.TEXT:
                return "".join(rng.choices("aabbAB %_\\é1", k=rng.choice([0, 1, 1, 2, 3, 5])))
            case Kind.DATE:
                return date(2024, 2, 28) + timedelta(days=rng.choice([0, 1, 2, rng.randint(-800, 800)]))
            case _:
                seconds = rng.choice([0, 1, rng.randint(-(9**8), 9**8)])
                return datetime(2024, 2, 28, 23, 59, 59) + timedelta(seconds=seconds)  # noqa: DTZ001 - as DuckDB's

    def row(self) -> list[Any]:
        return [None if self._rng.random() < 0.25 else self.constant(each) for each in COLUMNS]

    def literal(self, sql_type: Type) -> Both:
        if self._rng.random() < 0.1:
            return Both(Literal(None, sql_type), null(sql_type), sql_type)
        value = self.constant(sql_type)
        text = "'" + str(value).replace("'", "''") + "'"
        return Both(Literal(coerce(value, sql_type, "c"), sql_type), f"CAST({text} AS {sql_name(sql_type)})", sql_type)

    def make(self, sql_type: Type, depth: int) -> Both:
        rng = self._rng
        if depth <= 0 or rng.random() < 0.1:
            places = [i for i, each in enumerate(COLUMNS) if each.kind is sql_type.kind]
            if rng.random() < 0.3:
                return self.literal(sql_type)
            place = rng.choice(places)
            return Both(Column(place, COLUMNS[place]), f"c{place}", COLUMNS[place])
        general: list[Callable[[Type, int], Both]] = [self.case, self.common]
        special = {
            Kind.BOOLEAN: [
                self.compare, self.compare, self.logic, self.logic, self.negate, self.in_list, self.is_null,
                self.is_truth, self.like, self.distinct, self.between, self.starts,
            ],
            Kind.INTEGER: [self.arithmetic] * 4 + [self.minus, self.to_integer, self.text_number, self.absolute],
            Kind.BIGINT: [self.arithmetic] * 3 + [self.minus, self.widen],
            Kind.DOUBLE: [self.arithmetic] * 3 + [self.minus, self.widen, self.rounded],
            Kind.DECIMAL: [self.arithmetic, self.minus, self.decimal_rounded],
            Kind.TEXT: [self.text, self.text, self.concatenation, self.to_text],
            Kind.DATE: [self.date_arithmetic, self.to_date],
            Kind.TIMESTAMP: [self.truncated, self.to_timestamp],
        }  # fmt: skip
        return rng.choice(general + special[sql_type.kind])(sql_type, depth - 1)

    # ---------------------------------------------------------- of any type

    def case(self, sql_type: Type, depth: int) -> Both:
        pairs = [(self.make(BOOLEAN, depth), self.make(sql_type, depth)) for _ in range(self._rng.randint(1, 2))]
        other = self.make(sql_type, depth) if self._rng.random() < 0.7 else None
        text = " ".join(f"WHEN {test.sql} THEN {value.sql}" for test, value in pairs)
        node = Case(
            tuple((test.node, value.node) for test, value in pairs), None if other is None else other.node, sql_type
        )
        return Both(node, f"(CASE {text} ELSE {null(sql_type) if other is None else other.sql} END)", sql_type)

    def common(self, sql_type: Type, depth: int) -> Both:
        name = self._rng.choice(["coalesce", "nullif", "greatest", "least"])
        parts = [self.make(sql_type, depth) for _ in range(2)]
        node = Call(name, tuple(each.node for each in parts), result(name, [each.type for each in parts]))
        return Both(node, f"{name}({', '.join(each.sql for each in parts)})", node.type or sql_type)

    # ------------------------------------------------------------- booleans

    def pair(self, depth: int) -> tuple[Both, Both]:
        numbers = [INTEGER, BIGINT, DOUBLE, MONEY]
        sql_type = self._rng.choice([INTEGER, BIGINT, DOUBLE, MONEY, TEXT, BOOLEAN, DATE, TIMESTAMP])
        other = self._rng.choice(numbers) if sql_type in numbers and self._rng.random() < 0.3 else sql_type
        return self.make(sql_type, depth), self.make(other, depth)

    def compare(self, _: Type, depth: int) -> Both:
        op = self._rng.choice(["=", "<>", "<", "<=", ">", ">="])
        a, b = self.pair(depth)
        return Both(Binary(op, a.node, b.node, BOOLEAN), f"({a.sql} {op} {b.sql})", BOOLEAN)

    def distinct(self, _: Type, depth: int) -> Both:
        op = self._rng.choice(["is distinct", "is not distinct"])
        a, b = self.pair(depth)
        return Both(Binary(op, a.node, b.node, BOOLEAN), f"({a.sql} {op} FROM {b.sql})", BOOLEAN)

    def logic(self, _: Type, depth: int) -> Both:
        op = self._rng.choice(["and", "or"])
        a, b = self.make(BOOLEAN, depth), self.make(BOOLEAN, depth)
        if op == "and":
            text = f"(CASE WHEN NOT {a.sql} THEN false ELSE {a.sql} AND {b.sql} END)"
        else:
            text = f"(CASE WHEN {a.sql} THEN true ELSE {a.sql} OR {b.sql} END)"
        return Both(Binary(op, a.node, b.node, BOOLEAN), text, BOOLEAN)

    def negate(self, _: Type, depth: int) -> Both:
        a = self.make(BOOLEAN, depth)
        return Both(Unary("not", a.node, BOOLEAN), f"(NOT {a.sql})", BOOLEAN)

    def in_list(self, _: Type, depth: int) -> Both:
        sql_type = self._rng.choice([INTEGER, DOUBLE, MONEY, TEXT, DATE])
        plain = self._rng.random() < 0.7
        a, items = self.make(sql_type, depth), [self.literal(sql_type) for _ in range(self._rng.randint(1, 4))]
        if not plain:
            items[0] = self.make(sql_type, depth - 1)
        negated = self._rng.random() < 0.5
        node = InList(a.node, tuple(each.node for each in items), negated)
        return Both(node, f"({a.sql} {'NOT ' * negated}IN ({', '.join(each.sql for each in items)}))", BOOLEAN)

    def is_null(self, _: Type, depth: int) -> Both:
        a, negated = self.pair(depth)[0], self._rng.random() < 0.5
        return Both(IsNull(a.node, negated), f"({a.sql} IS {'NOT ' * negated}NULL)", BOOLEAN)

    def is_truth(self, _: Type, depth: int) -> Both:
        a, truth, negated = self.make(BOOLEAN, depth), self._rng.random() < 0.5, self._rng.random() < 0.5
        text = f"({a.sql} IS {'' if negated else 'NOT '}DISTINCT FROM {truth})"
        return Both(IsTruth(a.node, truth, negated), text, BOOLEAN)

    def like(self, _: Type, depth: int) -> Both:
        """Patterns that end with the escape character are left out: here they are refused, there only when reached."""
        a, ignore_case, negated = self.make(TEXT, depth), self._rng.random() < 0.3, self._rng.random() < 0.3
        word = f"{'NOT ' * negated}{'I' * ignore_case}LIKE"
        if self._rng.random() < 0.2:
            b = self.make(TEXT, depth)
            node = Like(a.node, b.node, ignore_case, negated, escape="")
            return Both(node, f"({a.sql} {word} {b.sql})", BOOLEAN)
        pattern = str(self.constant(TEXT)).rstrip("\\")
        text = f"({a.sql} {word} '{pattern}' ESCAPE '\\')"
        return Both(Like(a.node, Literal(pattern, TEXT), ignore_case, negated), text, BOOLEAN)

    def between(self, _: Type, depth: int) -> Both:
        sql_type = self._rng.choice([INTEGER, DOUBLE, MONEY, TEXT, TIMESTAMP])
        a, low, high = (self.make(sql_type, each) for each in (depth, 0, 0))
        node = Binary("and", Binary(">=", a.node, low.node, BOOLEAN), Binary("<=", a.node, high.node, BOOLEAN), BOOLEAN)
        return Both(node, f"({a.sql} BETWEEN {low.sql} AND {high.sql})", BOOLEAN)

    def starts(self, _: Type, depth: int) -> Both:
        return self.called("starts_with", self.make(TEXT, depth), self.make(TEXT, 0))

    # -------------------------------------------------------------- numbers

    def arithmetic(self, sql_type: Type, depth: int) -> Both:
        op = self._rng.choice("+-*" if sql_type.kind is Kind.DECIMAL else "+-*/" if sql_type is DOUBLE else "+-*/%")
        a, b = self.make(sql_type, depth), self.make(sql_type, depth)
        made = operator(op, a.type, b.type)
        assert made is not None
        text = f"({a.sql} {op} {b.sql})"
        if op in "/%":
            symbol = "//" if op == "/" and sql_type is not DOUBLE else op
            quotient = f"{a.sql} {symbol} {b.sql}"
            text = f"(CASE WHEN {b.sql} = 0 AND {a.sql} IS NOT NULL THEN error('zero') ELSE {quotient} END)"
        return Both(Binary(op, a.node, b.node, made), text, made)

    def minus(self, sql_type: Type, depth: int) -> Both:
        a = self.make(sql_type, depth)
        zero = "0 " if a.type.kind in (Kind.INTEGER, Kind.BIGINT) else ""  # `-x` is of a wider type there
        return Both(Unary("-", a.node, a.type), f"({zero}- {a.sql})", a.type)

    def absolute(self, sql_type: Type, depth: int) -> Both:
        return self.called("abs", self.make(sql_type, depth))

    def rounded(self, _: Type, depth: int) -> Both:
        return self.called(self._rng.choice(["floor", "ceil"]), self.make(DOUBLE, depth))

    def decimal_rounded(self, _: Type, depth: int) -> Both:
        a = self.make(MONEY, 0)
        if self._rng.random() < 0.5:
            return self.called("round", a, Both(Literal(1, INTEGER), "1", INTEGER))
        return self.called(self._rng.choice(["floor", "ceil", "round"]), a)

    def to_integer(self, _: Type, depth: int) -> Both:
        return self.cast(self.make(self._rng.choice([BIGINT, DOUBLE, MONEY, BOOLEAN]), depth), INTEGER)

    def widen(self, sql_type: Type, depth: int) -> Both:
        return self.cast(
            self.make(self._rng.choice([INTEGER] if sql_type is BIGINT else [INTEGER, MONEY]), depth), sql_type
        )

    def text_number(self, _: Type, depth: int) -> Both:
        if self._rng.random() < 0.3:
            return self.called("strpos", self.make(TEXT, depth), self.make(TEXT, 0))
        if self._rng.random() < 0.3:
            digits = Both(Literal("12", TEXT), "'12'", TEXT)
            return self.cast(self.called("concat", self.make(INTEGER, 0), digits), INTEGER)
        return self.called("length", self.make(TEXT, depth))

    # -------------------------------------------------------- text and dates

    def text(self, _: Type, depth: int) -> Both:
        a = self.make(TEXT, depth)
        count = Both(Literal(self._rng.randint(-3, 4), INTEGER), "", INTEGER)
        count = count._replace(sql=str(count.node.value))  # type: ignore[union-attr]
        start = Both(Literal(self._rng.randint(1, 4), INTEGER), "", INTEGER)
        start = start._replace(sql=str(start.node.value))  # type: ignore[union-attr]
        match self._rng.randrange(6):
            case 0:
                return self.called(self._rng.choice(["lower", "upper", "trim", "ltrim", "rtrim"]), a)
            case 1:
                return self.called(self._rng.choice(["left", "right"]), a, count)
            case 2:
                return self.called("substring", a, start)
            case 3:
                return self.called("substring", a, start, Both(Literal(2, INTEGER), "2", INTEGER))
            case 4:
                return self.called("replace", a, self.make(TEXT, 0), self.make(TEXT, 0))
            case _:
                return self.called(
                    "concat", a, self.make(self._rng.choice([INTEGER, BOOLEAN, DATE, TIMESTAMP, TEXT]), depth)
                )

    def concatenation(self, _: Type, depth: int) -> Both:
        a, b = self.make(TEXT, depth), self.make(TEXT, depth)
        return Both(Binary("||", a.node, b.node, TEXT), f"({a.sql} || {b.sql})", TEXT)

    def to_text(self, _: Type, depth: int) -> Both:
        return self.cast(self.make(self._rng.choice([INTEGER, BIGINT, BOOLEAN, DATE, TIMESTAMP]), depth), TEXT)

    def date_arithmetic(self, _: Type, depth: int) -> Both:
        a, days = self.make(DATE, depth), Both(Literal(self._rng.randint(-99, 99), INTEGER), "", INTEGER)
        op = self._rng.choice("+-")
        return Both(Binary(op, a.node, days.node, DATE), f"({a.sql} {op} ({days.node.value}))", DATE)  # type: ignore[union-attr]

    def to_date(self, _: Type, depth: int) -> Both:
        return self.cast(self.make(TIMESTAMP, depth), DATE)

    def to_timestamp(self, _: Type, depth: int) -> Both:
        return self.cast(self.make(DATE, depth), TIMESTAMP)

    def truncated(self, _: Type, depth: int) -> Both:
        unit = self._rng.choice(["second", "minute", "hour", "day", "week", "month", "quarter", "year"])
        return self.called("date_trunc", Both(Literal(unit, TEXT), f"'{unit}'", TEXT), self.make(TIMESTAMP, depth))

    def called(self, name: str, *parts: Both) -> Both:
        made = result(name, [each.type for each in parts])
        assert made is not None
        text = f"{name}({', '.join(each.sql for each in parts)})"
        if made.kind is Kind.INTEGER:  # BIGINT there
            text = f"CAST({text} AS INTEGER)"
        return Both(Call(name, tuple(each.node for each in parts), made), text, made)

    def cast(self, part: Both, sql_type: Type) -> Both:
        return Both(Cast(part.node, sql_type), f"CAST({part.sql} AS {sql_name(sql_type)})", sql_type)


# ------------------------------------------------------------------------ running


@contextmanager
def database(rows: list[list[Any]]) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1; PRAGMA disable_optimizer; SET TimeZone = 'UTC'")
        columns = ", ".join(f"c{i} {sql_name(each)}" for i, each in enumerate(COLUMNS))
        nulls = ", ".join({f"{null(each)} {sql_name(each)}": None for each in COLUMNS})
        connection.execute(f"CREATE TABLE t (n INTEGER, {columns}, {nulls})")
        names = ", ".join(f"c{i}" for i in range(len(COLUMNS)))
        marks = ", ".join("?" * (len(COLUMNS) + 1))
        made = [[n, *row] for n, row in enumerate(rows)]
        connection.executemany(f"INSERT INTO t (n, {names}) VALUES ({marks})", made)
        yield connection


def theirs(connection: duckdb.DuckDBPyConnection, sql: str, count: int) -> list[Any]:
    try:
        return [value for (value,) in connection.execute(f"SELECT {sql} FROM t ORDER BY n").fetchall()]
    except duckdb.Error:
        return [their_row(connection, sql, n) for n in range(count)]


def their_row(connection: duckdb.DuckDBPyConnection, sql: str, n: int) -> Any:
    try:
        found = connection.execute(f"SELECT {sql} FROM (SELECT * FROM t WHERE n = {n})").fetchone()
    except (duckdb.BinderException, duckdb.ParserException, duckdb.CatalogException):
        raise  # a fault of this test
    except duckdb.Error:
        return ERROR
    assert found is not None
    return found[0]


def ours(evaluate: Callable[..., Any], row: list[Any]) -> Any:
    try:
        return evaluate(row, None, ())
    except TopicsError:
        return ERROR


def skips(expression: Expression, row: list[Any]) -> bool:
    """Tell whether an operand fails beside one that is NULL.

    DuckDB may not look at it where PostgreSQL does, and conditions of CASE here end at the first NULL of an AND.
    """
    below = children(expression)
    made = [ours(compile_expression(each, POSITIONS), row) for each in below]
    return (None in made and ERROR in made) or any(skips(each, row) for each in below)


def agree(a: Any, b: Any, sql_type: Type) -> bool:
    if a is ERROR or b is ERROR or a is None or b is None:
        return a is b
    if sql_type.kind in (Kind.DATE, Kind.TIMESTAMP):
        return bool(a == coerce(b, sql_type, "c"))
    if sql_type.kind is Kind.DOUBLE:
        return bool(a == b or abs(a - b) <= 1e-9 * max(abs(a), abs(b)) or (a != a and b != b))
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def compare_some(seed: int, count: int) -> tuple[int, int, int]:
    """Try `count` expressions; how many values were compared, and how many of them were NULL or an error."""
    maker = Maker(random.Random(seed))
    rows = [maker.row() for _ in range(ROWS)]
    inner = [[coerce(value, each, "c") for value, each in zip(row, COLUMNS, strict=True)] for row in rows]
    values = nulls = errors = skipped = 0
    with database(rows) as connection:
        for _ in range(count):
            sql_type = maker._rng.choice([BOOLEAN, BOOLEAN, BOOLEAN, *COLUMNS])
            both = maker.make(sql_type, maker._rng.randint(1, 4))
            evaluate, passes = compile_expression(both.node, POSITIONS), compile_filter(both.node, POSITIONS)
            for n, (row, their) in enumerate(zip(inner, theirs(connection, both.sql, ROWS), strict=True)):
                our = ours(evaluate, row)
                if (our is ERROR) is not (their is ERROR) and skips(both.node, row):
                    skipped += 1
                    continue
                assert agree(our, their, both.type), f"{our!r} is not {their!r}: {both.sql} of {rows[n]}, seed {seed}"
                if both.type.kind is Kind.BOOLEAN and our is not ERROR:
                    assert passes(row, None, ()) is (our is True), f"{both.sql} of {rows[n]}, seed {seed}"
                values, nulls, errors = values + 1, nulls + (our is None), errors + (our is ERROR)
    assert skipped < values / 100
    return values, nulls, errors


@pytest.mark.parametrize("seed", range(3))
def test_values_are_those_of_duckdb(seed: int) -> None:
    values, nulls, errors = compare_some(seed, 200)
    assert values > 195 * ROWS
    assert values / 20 < nulls < values / 2, "neither all NULL nor none"
    assert 0 < errors < values / 3


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_values_are_those_of_duckdb_for_long() -> None:
    for seed in range(100, 400):
        compare_some(seed, 300)
