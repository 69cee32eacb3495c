"""Compiled expressions: three-valued logic, errors of arithmetic, functions, and the bounds of the compiler."""

import math
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables.compilation import (
    MAX_DEPTH,
    Environment,
    compile_expression,
    compile_filter,
    compile_list,
)
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
    Literal,
    Parameter,
    Side,
    Unary,
    children,
)
from topics_service.engine.tables.functions import FUNCTIONS, operator, result
from topics_service.engine.tables.types import Kind, Type

BOOLEAN, INTEGER, BIGINT, DOUBLE, TEXT, JSON = (
    Type(each) for each in (Kind.BOOLEAN, Kind.INTEGER, Kind.BIGINT, Kind.DOUBLE, Kind.TEXT, Kind.JSON)
)
DECIMAL, DATE, TIMESTAMP, REAL, BYTES = (
    Type(each) for each in (Kind.DECIMAL, Kind.DATE, Kind.TIMESTAMP, Kind.REAL, Kind.BYTES)
)
NOW = 1_769_860_800_123_456  # 2026-01-31 12:00:00.123456
ENVIRONMENT = Environment(lambda: NOW, lambda: 7, random.Random(1).randbytes)
NAN, INFINITY = math.nan, math.inf


def lit(value: Any, sql_type: Type | None = None) -> Literal:
    if sql_type is None and value is not None:
        natural = {bool: BOOLEAN, int: INTEGER, float: DOUBLE, str: TEXT, Decimal: DECIMAL, bytes: BYTES}
        sql_type = natural[type(value)]
        if sql_type is INTEGER and abs(value) >= 1 << 31:
            sql_type = BIGINT
    return Literal(value, sql_type)


def op(left: Any, symbol: str, right: Any) -> Binary:
    a, b = (each if hasattr(each, "__struct_fields__") else lit(each) for each in (left, right))
    if symbol in ("and", "or"):
        return Binary(symbol, a, b, BOOLEAN)
    types = [BOOLEAN if isinstance(each, IsNull | IsTruth | InList | Like) else each.type for each in (a, b)]
    return Binary(symbol, a, b, operator(symbol, *types))


def call(name: str, *arguments: Any) -> Call:
    nodes = tuple(each if hasattr(each, "__struct_fields__") else lit(each) for each in arguments)
    return Call(name, nodes, result(name, [each.type for each in nodes]))


def run(expression: Expression, row: Any = (), other: Any = None, parameters: Any = ()) -> Any:
    return compile_expression(expression, {i + 1: i for i in range(9)}, ENVIRONMENT)(row, other, parameters)


def refused(expression: Expression, row: Any = ()) -> str:
    with pytest.raises(TopicsError) as caught:
        run(expression, row)
    assert caught.value.detail is not None
    return str(caught.value.detail["sqlstate"])


A, B = Column(1, INTEGER), Column(2, INTEGER)
NULL = Literal(None)
THREE = (True, False, None)


def test_three_valued_logic() -> None:
    a, b = Column(1, BOOLEAN), Column(2, BOOLEAN)
    both = {x: {y: False if False in (x, y) else None if None in (x, y) else True for y in THREE} for x in THREE}
    either = {x: {y: True if True in (x, y) else None if None in (x, y) else False for y in THREE} for x in THREE}
    for x in THREE:
        assert run(Unary("not", a, BOOLEAN), [x]) is (None if x is None else not x)
        for y in THREE:
            assert run(op(a, "and", b), [x, y]) is both[x][y]
            assert run(op(a, "or", b), [x, y]) is either[x][y]
            for symbol, table in (("and", both), ("or", either)):
                for negated in (False, True):
                    node: Expression = op(a, symbol, b)
                    wanted = table[x][y] is (not negated)
                    node = Unary("not", node, BOOLEAN) if negated else node
                    assert compile_filter(node, {1: 0, 2: 1})([x, y], None, ()) is wanted
    for value in THREE:
        for truth in (True, False):
            assert run(IsTruth(a, truth), [value]) is (value is truth)
            assert run(IsTruth(a, truth, negated=True), [value]) is (value is not truth)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (op(7, "/", -2), -3), (op(-7, "%", 2), -1), (op(7, "%", -2), 1), (op(7, "/", 2.0), 3.5),
        (op(Decimal("1.10"), "+", 1), Decimal("2.10")), (op(Decimal("1.5"), "*", Decimal("-0.10")), Decimal("-0.150")),
        (op(Decimal(1), "/", Decimal(3)), Decimal("0.33333333333333333333")),
        (op(Decimal(10000), "/", 3), Decimal("3333.3333333333333333")), (op(Decimal("7.5"), "%", 2), Decimal("1.5")),
        (op("a", "||", "b"), "ab"), (op("a", "||", 1), "a1"), (op("a", "||", NULL), None),
        (op(b"a", "||", b"b"), b"ab"),
        (op(1, "<", 2.5), True), (op(Decimal("0.1"), "=", 0.1), True), (op(1, "=", Decimal("1.0")), True),
        (op((1 << 53) + 1, "=", float(1 << 53)), True), (op(NAN, "=", NAN), True), (op(NAN, ">", INFINITY), True),
        (op(NAN, "<", 1.0), False), (op(1.0, "<", NAN), True), (op(NAN, "<>", NAN), False), (op(NAN, ">=", 1.0), True),
        (op(1, "is distinct", NULL), True), (op(NULL, "is not distinct", NULL), True), (op(1, "+", NULL), None),
        (op(lit(1, DATE), "+", 2), 3), (op(lit(5, DATE), "-", lit(2, DATE)), 3), (op(2, "+", lit(1, DATE)), 3),
        (op(lit(1, DATE), "<", lit(86_400_000_001, TIMESTAMP)), True), (Unary("-", lit(5), INTEGER), -5),
        (Unary("-", lit(Decimal("1." + "3" * 37)), DECIMAL), Decimal("-1." + "3" * 37)),
        (InList(lit(1), (lit(1), NULL)), True), (InList(lit(2), (lit(1), NULL)), None), (InList(lit(2),
        (lit(1),)), False),
        (InList(lit(2), (lit(1), NULL), negated=True), None), (InList(lit(2), (lit(1),), negated=True), True),
        (InList(NULL, (lit(1),)), None), (InList(lit(NAN), (lit(NAN),)), True), (InList(lit(1.0), (lit(1),)), True),
        (InList(lit(1), (lit(Decimal("1.0")), lit(5))), True), (InList(lit(3), (op(1, "+", 2), NULL)), True),
        (Case(((op(1, "=", 2), lit(1)), (op(1, "=", 1), lit(2))), None, INTEGER), 2),
        (Case(((NULL, lit(1)),), None, INTEGER), None), (Case(((NULL, lit(1)),), lit(2.5), DOUBLE), 2.5),
        (Case(((lit(True), lit(1)),), op(1, "/", 0), INTEGER), 1),
        (Case(((lit(True), lit(1)),), lit(Decimal("2.5")), DECIMAL), Decimal(1)),
        (IsNull(NULL), True), (IsNull(lit(1)), False), (IsNull(lit(1), negated=True), True),
        (Cast(lit("12"), INTEGER), 12), (Cast(lit(2.5), INTEGER), 2), (Cast(lit(Decimal("2.5")), INTEGER), 3),
        (Cast(lit(True), INTEGER), 1), (Cast(lit(0), BOOLEAN), False),
        (Cast(lit("abc"), Type(Kind.TEXT, length=2)), "ab"),
        (Cast(lit(1.5), Type(Kind.DECIMAL, precision=4, scale=2)), Decimal("1.50")), (Cast(lit(1), TEXT), "1"),
        (Cast(lit(12345, INTEGER), Type(Kind.TEXT, length=2)), "12"), (Cast(NULL, INTEGER), None),
        (Cast(lit("2026-01-31", TEXT), TIMESTAMP), 1_769_817_600_000_000),
        (Cast(lit(1, DATE), TIMESTAMP), 86_400_000_000),
        (Cast(lit(-1, TIMESTAMP), DATE), -1), (Cast(lit(-1, TIMESTAMP), Type(Kind.TIME)), 86_399_999_999),
        (Cast(lit("5.5", JSON), INTEGER), 6), (Cast(lit("true", JSON), BOOLEAN), True),
        (Cast(lit("null", JSON), DOUBLE), None),
        (Cast(lit("2.5", JSON), DOUBLE), 2.5), (Cast(lit('{"a": 1}'), JSON), '{"a":1}'),
        (Cast(lit(b"\xff"), TEXT), "\\xff"),
        (JsonGet(lit('{"a":{"b":"x"}}', JSON), lit("a"), JSON), '{"b":"x"}'),
        (JsonGet(lit('{"a":"x\\u00e4"}', JSON), lit("a"), TEXT), "xä"),
        (JsonGet(lit("[1,2.50]", JSON), lit(-1), TEXT), "2.50"),
        (JsonGet(lit('{"a":null}', JSON), lit("a"), TEXT), None),
        (JsonGet(lit('{"a":null}', JSON), lit("a"), JSON), "null"),
        (JsonGet(lit("[1]", JSON), lit("a"), TEXT), None), (JsonGet(lit("5", JSON), lit(0), TEXT), None),
    ],
)  # fmt: skip
def test_values(expression: Expression, value: Any) -> None:
    made = run(expression)
    assert made == value
    assert type(made) is type(value)
    assert str(made) == str(value)


@pytest.mark.parametrize(
    ("expression", "state"),
    [
        (op(1, "/", 0), "22012"), (op(1, "%", 0), "22012"), (op(1.0, "/", 0.0), "22012"),
        (op(Decimal(1), "/", 0), "22012"), (op(Decimal(1), "%", Decimal(0)), "22012"), (op(0.0, "/", 0), "22012"),
        (op(2_147_483_647, "+", 1), "22003"), (op((1 << 63) - 1, "*", 2), "22003"),
        (op(-(1 << 31) + 1, "-", 2), "22003"),
        (op(lit(-(1 << 63), BIGINT), "/", lit(-1, BIGINT)), "22003"),
        (Unary("-", lit(-(1 << 31), INTEGER), INTEGER), "22003"),
        (op(1e308, "*", 10.0), "22003"), (op(1e-308, "*", 1e-308), "22003"), (op(1e308, "+", 1e308), "22003"),
        (op(lit(3e38, REAL), "*", lit(2.0, REAL)), "22003"), (op(Decimal(10) ** 37, "*", 10), "22003"),
        (op(lit(2_932_896, DATE), "+", 1), "22003"), (call("abs", lit(-(1 << 31), INTEGER)), "22003"),
        (Cast(lit("x"), INTEGER), "22P02"), (Cast(lit(3e9), INTEGER), "22003"), (Cast(lit(NAN), INTEGER), "22003"),
        (Cast(lit('"5"', JSON), INTEGER), "22P02"), (Cast(lit("1", JSON), BOOLEAN), "22P02"),
        (Cast(lit("[]", JSON), DECIMAL), "22P02"), (call("substring", "a", 1, -1), "22011"),
        (Like(lit("a"), lit("a\\")), "22025"), (call("date_trunc", "aeon", lit(0, TIMESTAMP)), "22023"),
        (call("extract", "hour", lit(0, DATE)), "22023"), (call("date_add", lit(0, DATE), "soon"), "22007"),
        (call("date_add", lit(0, DATE), "1.5 months"), "22007"), (call("date_add", lit(0, DATE), ""), "22007"),
        (call("date_add", lit(0, DATE), "9000 years"), "22003"),
        (call("date_add", lit(0, DATE), "9" * 15 + "d"), "22003"),
        (call("date_subtract", lit(0, DATE), "1970 years"), "22003"),
        (call("date_add", lit(0, DATE), "1" * 300), "22007"), (call("json_array_length", lit("{}", JSON)), "22023"),
        (Cast(lit(True), TIMESTAMP), "42846"), (op(NULL, "+", Parameter(1)), "42P18"),
        (call("replace", "x" * 100_000, "x", "y" * 100_000), "22001"),
        (call("date_trunc", "week", lit(-62_135_596_800_000_000, TIMESTAMP)), None),
    ],
)  # fmt: skip
def test_errors(expression: Expression, state: str | None) -> None:
    if state is None:  # the first day of the first year is a Monday
        assert run(expression) == -62_135_596_800_000_000
    else:
        assert refused(expression) == state


def test_strict_operators_evaluate_all_operands_as_postgresql_does() -> None:
    assert refused(op(A, "+", op(1, "/", B)), [None, 0]) == "22012"
    assert refused(op(op(A, "+", op(1, "/", B)), "<", 5), [None, 0]) == "22012"
    assert run(op(A, "+", op(1, "/", B)), [None, 1]) is None
    guarded = op(op(B, "<>", 0), "and", op(op(10, "/", B), ">", 1))
    assert [compile_filter(guarded, {1: 0, 2: 1})([None, b], None, ()) for b in (0, 2, None)] == [False, True, False]


def test_sides_and_parameters() -> None:
    new, old = Column(1, INTEGER), Column(1, INTEGER, Side.OLD)
    changed = op(new, "is distinct", old)
    assert run(changed, [1], [1]) is False
    assert run(changed, [1], [2]) is True
    assert run(changed, [1], None) is True
    assert run(op(new, "+", Parameter(2, INTEGER)), [1], None, ["x", 5]) == 6
    assert run(op(Parameter(1), "<", Parameter(2)), (), None, [1, 2]) is True
    with pytest.raises(TopicsError, match="can't be compared"):
        run(op(Parameter(1), "<", Parameter(2)), (), None, [1, "x"])
    assert compile_list([new, lit(5), old], {1: 0})([1], [2], ()) == [1, 5, 2]


@pytest.mark.parametrize(
    ("text", "pattern", "matches", "ignoring"),
    [
        ("abc", "abc", True, True), ("abc", "ABC", False, True), ("abc", "a%", True, True), ("abc", "%C", False, True),
        ("abc", "%b%", True, True), ("abc", "a_c", True, True), ("aäc", "a_c", True, True), ("a\nc", "a_c", True, True),
        ("", "", True, True), ("", "%", True, True), ("a", "", False, False), ("a%c", "a\\%c", True, True),
        ("abc", "a\\%c", False, False), ("a.c", "a.c", True, True), ("abc", "a.c", False, False),
        ("ab", "%%", True, True),
        ("a\\c", "a\\\\c", True, True), ("aXbXc", "a%b%c", True, True), ("ab", "_", False, False),
        ("Ä", "ä", False, True),
        ("x" * 5000, "%x%x%x%y", False, False), ("[a]", "[a]%", True, True), ("a b", "a b%_", False, False),
    ],
)  # fmt: skip
def test_like(text: str, pattern: str, matches: bool, ignoring: bool) -> None:
    for node in (lit(pattern), Parameter(1, TEXT)):
        assert run(Like(lit(text), node), (), None, [pattern]) is matches
        assert run(Like(lit(text), node, negated=True), (), None, [pattern]) is not matches
        assert run(Like(lit(text), node, ignore_case=True), (), None, [pattern]) is ignoring
    assert run(Like(NULL, lit(pattern))) is None
    assert run(Like(lit(text), Literal(None, TEXT))) is None


def test_like_with_another_escape_or_none() -> None:
    assert run(Like(lit("a%"), lit("a!%"), escape="!")) is True
    assert run(Like(lit("a\\b"), lit("a\\_"), escape="")) is True
    with pytest.raises(TopicsError, match="10001 characters"):
        run(Like(lit("a"), lit("a" * 10_001)))


DAY = lit(20_484, DATE)  # 2026-01-31, a Saturday


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (call("lower", "ÄB"), "äb"), (call("upper", NULL), None), (call("length", "äb"), 2),
        (call("length", b"abc"), 3),
        (call("octet_length", "äb"), 3), (call("trim", "  a "), "a"), (call("trim", "xax", "x"), "a"),
        (call("ltrim", " a "), "a "), (call("rtrim", "axx", "x"), "a"), (call("substring", "abcdef", 2, 3), "bcd"),
        (call("substring", "abc", -1, 3), "a"), (call("substring", "abc", 2), "bc"), (call("left", "abc", -1), "ab"),
        (call("right", "abc", 2), "bc"), (call("right", "abc", -1), "bc"), (call("right", "abc", 0), ""),
        (call("replace", "aXa", "a", "bb"), "bbXbb"), (call("replace", "ab", "", "x"), "ab"),
        (call("strpos", "abc", "c"), 3), (call("strpos", "abc", "x"), 0), (call("starts_with", "abc", "ab"), True),
        (call("concat", "a", NULL, 1, True), "a1true"), (call("abs", -5), 5),
        (call("abs", Decimal("-1.50")), Decimal("1.50")),
        (call("mod", -7, 4), -3), (call("mod", 7, Decimal("2.5")), Decimal("2.0")), (call("round", 2.5), 2.0),
        (call("round", Decimal("2.5")), Decimal(3)), (call("round", Decimal("-1.005"), 2), Decimal("-1.01")),
        (call("round", Decimal("155.5"), -1), Decimal(160)), (call("round", 5), 5.0), (call("floor", -1.5), -2.0),
        (call("ceil", Decimal("1.2")), Decimal(2)), (call("ceil", INFINITY), INFINITY),
        (call("coalesce", NULL, 1, op(1, "/", 0)), 1), (call("coalesce", NULL, NULL), None),
        (call("coalesce", NULL, 1, 2.5), 1.0), (call("nullif", 1, 1), None), (call("nullif", 1, 2), 1),
        (call("greatest", 1, NULL, 3), 3), (call("least", NULL, NULL), None), (call("greatest", 1.0, NAN), NAN),
        (call("least", "b", "a"), "a"), (call("now"), NOW), (call("current_timestamp"), NOW),
        (call("current_date"), 20_484),
        (call("extract", "epoch", lit(NOW, TIMESTAMP)), Decimal("1769860800.123456")),
        (call("extract", "second", lit(NOW, TIMESTAMP)), Decimal("0.123456")),
        (call("extract", "dow", DAY), Decimal(6)),
        (call("extract", "YEAR", DAY), Decimal(2026)), (call("extract", "week", DAY), Decimal(5)),
        (call("extract", "doy", DAY), Decimal(31)), (call("extract", "quarter", DAY), Decimal(1)),
        (call("extract", "minute", lit(61_000_000, Type(Kind.TIME))), Decimal(1)),
        (call("date_trunc", "hour", lit(NOW, TIMESTAMP)), 1_769_860_800_000_000),
        (call("date_trunc", "quarter", lit(NOW, TIMESTAMP)), 1_767_225_600_000_000),
        (call("date_add", DAY, "1 month"), 1_772_236_800_000_000),  # the last of February
        (call("date_subtract", lit(NOW, TIMESTAMP), "-1 day 01:00:00.5"), NOW + 86_400_000_000 - 3_600_500_000),
        (call("date_add", lit(NOW, TIMESTAMP), "1.5 hours 2us -1 y 1 year"), NOW + 5_400_000_002),
        (call("date_trunc", "week", DAY), 1_769_385_600_000_000), (call("to_timestamp", 1.5), 1_500_000),
        (call("date_bin", "7 min", lit(NOW, TIMESTAMP), lit(10**6, TIMESTAMP)), NOW - (NOW - 10**6) % 420_000_000),
        (call("to_json", "x"), '"x"'), (call("to_json", lit(NOW, TIMESTAMP)), '"2026-01-31T12:00:00.123456Z"'),
        (call("json_array_length", lit('[1,"x"]', JSON)), 2), (call("json_typeof", lit("-1", JSON)), "number"),
        (call("snowflake_id"), 7),
    ],
)  # fmt: skip
def test_functions(expression: Expression, value: Any) -> None:
    made = run(expression)
    assert made == value or (made != made and value != value)
    assert type(made) is type(value)
    assert str(made) == str(value)


def test_ids() -> None:
    v4, v7, ulid = (run(call(name)) for name in ("gen_random_uuid", "uuid_v7", "ulid"))
    assert (v4[14], v4[19] in "89ab", v7[14], v7[19] in "89ab") == ("4", True, "7", True)
    assert int(v7.replace("-", "")[:12], 16) == NOW // 1000
    assert len(ulid) == 26
    with pytest.raises(TopicsError, match="can't be used here"):
        compile_expression(call("now"), {})((), None, ())


def test_every_function_is_tried_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [each.name for each in FUNCTIONS.values() if f'"{each.name}"' not in source] == []


def test_unknown_functions_and_operators() -> None:
    for name, types in (
        ("nope", []),
        ("lower", [INTEGER]),
        ("now", [TEXT]),
        ("mod", [DOUBLE, DOUBLE]),
        ("abs", [TEXT]),
    ):
        with pytest.raises(TopicsError) as caught:
            result(name, types)
        assert caught.value.reason is Reason.FUNCTION_NOT_FOUND
        assert caught.value.detail is not None
        assert caught.value.detail["sqlstate"] == "42883"
    for symbol, types in (
        ("+", [TEXT, INTEGER]),
        ("=", [JSON, JSON]),
        ("%", [DOUBLE, INTEGER]),
        ("<", [TEXT, INTEGER]),
    ):
        with pytest.raises(TopicsError, match="there is no operator"):
            operator(symbol, *types)
    with pytest.raises(TopicsError, match="can't be matched"):
        result("coalesce", [TEXT, INTEGER])


def test_deep_and_long_expressions() -> None:
    deep: Expression = A
    for _ in range(198):
        deep = op(deep, "+", 1)
    assert run(deep, [1]) == 199
    for _ in range(3):
        deep = op(deep, "+", 1)
    assert refused(deep, [1]) == "54001"
    nested: Expression = op(A, "=", 1)
    for _ in range(197):
        nested = Unary("not", nested, BOOLEAN)
    assert compile_filter(nested, {1: 0})([2], None, ()) is True
    long: Expression = op(A, "=", 0)
    for number in range(1, 5000):
        long = op(long, "or", op(A, "=", number))
    assert [run(long, [n]) for n in (4999, 5000, None)] == [True, False, None]
    assert compile_filter(long, {1: 0})([4999], None, ()) is True
    cases = Case(tuple((op(A, "=", n), lit(n)) for n in range(500)), lit(-1), INTEGER)
    assert [run(cases, [n]) for n in (0, 499, 500)] == [0, 499, -1]
    assert refused(Case(cases.branches + cases.branches[:1], None, INTEGER), [1]) == "54001"
    assert refused(InList(A, (B,) * 501), [1, 1]) == "54001"
    with pytest.raises(TopicsError, match="101 arguments"):
        result("concat", [TEXT] * 101)
    many = InList(A, tuple(map(lit, range(20_000))))
    assert run(many, [19_999]) is True


@pytest.mark.parametrize(
    "around",
    [
        lambda node: call("abs", node),
        lambda node: call("coalesce", node, 1),
        lambda node: call("greatest", node, A),
        lambda node: op(1, "+", node),
        lambda node: Unary("-", node, INTEGER),
        lambda node: Cast(Cast(node, TEXT), INTEGER),
        lambda node: Case(((op(node, ">", 0), node_of(node)),), A, INTEGER),
        lambda node: Case(((InList(node, (A, lit(1))), lit(1)),), A, INTEGER),
        lambda node: Case(((IsTruth(Unary("not", IsNull(node), BOOLEAN), True), lit(1)),), A, INTEGER),
        lambda node: Case(((Like(Cast(node, TEXT), lit("1%")), lit(1)),), A, INTEGER),
        lambda node: Case(((op(op(node, "=", 1), "and", op(A, "=", 1)), lit(1)),), A, INTEGER),
    ],
)
def test_depth_of_every_kind(around: Callable[[Any], Expression]) -> None:
    """Expressions within the bound of depth compile and run, whatever their nodes are."""
    node: Expression = A
    made = 1
    while (further := around(node)) and depth_of(further) <= MAX_DEPTH:
        node, made = further, made + 1
    assert made > 40
    assert isinstance(run(node, [1]), int)
    with pytest.raises(TopicsError, match="deeper than 200"):
        run(around(around(node)), [1])


def node_of(node: Any) -> Expression:
    return A if node is A else lit(1)


def depth_of(node: Expression) -> int:
    deepest, stack = 0, [(node, 1)]
    while stack:
        each, depth = stack.pop()
        deepest = max(deepest, depth)
        stack += [(child, depth + 1) for child in children(each)]
    return deepest


@pytest.mark.parametrize(
    "hostile", ["'); import os #", '"""', "{0}", "r[0]", "\\", "__import__('os')", "k1", "\n", "%s", "\ud7ff"]
)
def test_constants_are_never_code(hostile: str) -> None:
    """Constants and names of a user reach the source of the lambda by name only."""
    texts = [lit(hostile), Column(1, TEXT), Parameter(1, TEXT), Cast(lit(hostile), TEXT), call("concat", hostile)]
    for node in texts:
        assert run(op(node, "=", hostile), [hostile], None, [hostile]) is True
        assert run(op(node, "||", hostile), [hostile], None, [hostile]) == hostile * 2
        assert run(InList(node, (lit(hostile),)), [hostile], None, [hostile]) is True
        assert run(JsonGet(lit('{"a":1}', JSON), node, TEXT), [hostile], None, [hostile]) is None
