"""`data` as typed columns, without Spark and without a server."""

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_topics.ddl import arrow_schema
from pyspark_topics.parsing import Parser, parse

JSON, BINARY = 1, 2


def one(ddl: str, *records: bytes | None) -> tuple[list[Any], list[str | None]]:
    """The values of the single column of `ddl`, and the reasons."""
    schema = arrow_schema(ddl)
    arrays, reasons = parse(pa.array(records, pa.binary()), None, schema)
    assert [each.type for each in arrays] == [each.type for each in schema]
    for each in arrays:
        each.validate(full=True)
    return arrays[0].to_pylist(), reasons.to_pylist()


T9 = datetime(2026, 11, 28, 9, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", '"a\\u00e4\\ud83d\\ude00"', "aä😀"),
        ("bigint", "-9223372036854775808", -(2**63)),
        ("int", "2147483647", 2**31 - 1),
        ("smallint", "-32768", -32768),
        ("tinyint", "127", 127),
        ("double", "1", 1.0),
        ("double", "1e3", 1000.0),
        ("float", "1.5", 1.5),
        ("float", "3.4028235e38", float.fromhex("0x1.fffffep127")),
        ("boolean", "true", True),
        ("decimal(10,2)", "1.5", Decimal("1.50")),
        ("decimal(10,2)", '"12345678.90"', Decimal("12345678.90")),
        ("decimal(38,0)", "99999999999999999999999999999999999999", Decimal("9" * 38)),
        ("decimal(10,2)", "1." + 100 * "0", Decimal("1.00")),
        ("decimal(10,2)", '"1.5' + 1000 * "0" + '"', Decimal("1.50")),
        ("decimal(10,2)", "0e-999999999", Decimal("0.00")),
        ("array<decimal(3,1)>", "[1.5, 1.500, null]", [Decimal("1.5"), Decimal("1.5"), None]),
        ("timestamp", '"2026-11-28T09:00:00Z"', T9),
        ("timestamp", '"2026-11-28 10:00:00.5+01:00"', T9.replace(microsecond=500_000)),
        ("timestamp", '"2026-11-28T09:00:00"', T9),
        ("timestamp", '"2026-11-28T09:00:00.123456789Z"', T9.replace(microsecond=123_456)),
        ("timestamp", '"2026-11-28T09:00:00.123456789"', T9.replace(microsecond=123_456)),
        ("timestamp", '"2026-11-28"', T9.replace(hour=0)),
        ("timestamp", '"0001-01-01T00:00:00Z"', datetime(1, 1, 1, tzinfo=UTC)),
        ("timestamp", '"9999-12-31T23:59:59.9999999Z"', datetime.max.replace(tzinfo=UTC)),
        ("date", '"0001-01-01"', date.min),
        ("date", '"9999-12-31"', date.max),
        ("timestamp_ntz", '"2026-11-28T09:00:00.1234567"', datetime(2026, 11, 28, 9, 0, 0, 123_456)),  # noqa: DTZ001
        ("date", '"2026-11-28"', date(2026, 11, 28)),
        ("binary", '"YWI="', b"ab"),
        ("array<int>", "[1, null]", [1, None]),
        ("array<array<date>>", '[["2026-11-28"], null, []]', [[date(2026, 11, 28)], None, []]),
        ("struct<x: int, y: struct<z: string>>", '{"y": {"z": "q"}}', {"x": None, "y": {"z": "q"}}),
        ("array<struct<at: timestamp>>", '[{"at": "2026-11-28T09:00:00Z"}, null]', [{"at": T9}, None]),
        ("map<string,int>", '{"k": 1}', [("k", 1)]),
        ("map<string,struct<d: date>>", '{"k": {"d": "2026-11-28"}}', [("k", {"d": date(2026, 11, 28)})]),
    ],
)
def test_what_fits(kind: str, text: str, value: object) -> None:
    record = b'{"skipped": [{}], "v": %s}' % text.encode()
    # Alone, and together with missing values and other forms.
    assert one(f"v {kind}", record) == ([value], [None])
    assert one(f"v {kind}", b"{}", record, b'{"v":null}', record) == ([None, value, None, value], [None] * 4)


@pytest.mark.parametrize(
    ("kind", "text", "left"),
    [
        ("string", "1", None),
        ("string", "{}", None),
        ("bigint", '"1"', None),
        ("bigint", "1.5", None),
        ("bigint", "9223372036854775808", None),
        ("bigint", "true", None),
        ("int", "2147483648", None),
        ("smallint", "-32769", None),
        ("double", '"1"', None),
        ("double", "1e400", None),
        ("float", "1e39", None),
        ("boolean", "0", None),
        ("decimal(10,2)", "1.005", None),
        ("decimal(10,2)", "123456789", None),
        ("decimal(10,2)", '"NaN"', None),
        ("decimal(10,2)", '"1e1000000"', None),
        ("decimal(10,2)", "1e-77", None),
        ("decimal(10,2)", "1e-999999999", None),
        ("decimal(10,2)", '"1e-99999999999999999"', None),
        ("decimal(10,2)", "0." + 1000 * "0" + "1", None),
        ("array<decimal(10,2)>", "[1, 1e-77]", [Decimal("1.00"), None]),
        ("map<string,decimal(10,2)>", '{"x": 1e-77}', [("x", None)]),
        ("timestamp", "1700000000000", None),
        ("timestamp", '"28.11.2026"', None),
        ("timestamp", '"2026-02-30T00:00:00Z"', None),
        ("timestamp", '"0000-12-31T23:59:59Z"', None),
        ("timestamp", '"9999-12-31T23:59:59-01:00"', None),
        ("timestamp_ntz", '"0000-01-01T00:00:00"', None),
        ("date", '"0000-01-01"', None),
        ("timestamp_ntz", '"2026-11-28T09:00:00Z"', None),
        ("date", '"2026-11-28T09:00:00Z"', None),
        ("binary", '"?"', None),
        ("array<int>", "{}", None),
        ("array<int>", "[1.5]", [None]),
        ("array<struct<at: timestamp>>", '[{"at": "x"}]', [{"at": None}]),
        ("struct<x: int>", "[]", None),
        ("map<string,date>", '{"k": "x"}', [("k", None)]),
    ],
)
def test_what_does_not_fit_is_told_and_null_and_the_rest_is_kept(kind: str, text: str, left: object) -> None:
    schema = arrow_schema(f"id bigint, v {kind}, w struct<z: string>")
    records = [b'{"id": 1}', b'{"id": 2, "v": %s, "w": {"z": "q"}}' % text.encode(), b'{"id": 3}']
    arrays, reasons = parse(pa.array(records, pa.binary()), None, schema)
    assert arrays[0].to_pylist() == [1, 2, 3]
    assert arrays[1].to_pylist() == [None, left, None]
    assert arrays[2].to_pylist() == [None, {"z": "q"}, None]
    for each in arrays:
        each.validate(full=True)
    first, told, last = reasons.to_pylist()
    assert (first, last) == (None, None)
    assert len(told) <= 200
    assert " - at `$.v" in told
    assert told.startswith("Expected `")
    assert "truncated" not in told


@pytest.mark.parametrize(
    ("kind", "text", "left", "told"),
    [
        ("bigint", '"one"', None, 'Expected `bigint`, got `"one"` - at `$.v`'),
        ("timestamp", '"28.11.2026"', None, 'Expected `timestamp`, got `"28.11.2026"` - at `$.v`'),
        ("decimal(10,2)", "1.005", None, "Expected `decimal(10, 2)`, got `1.005` - at `$.v`"),
        ("tinyint", "300", None, "Expected `tinyint`, got `300` - at `$.v`"),
        ("array<int>", '[1, "x", 3]', [1, None, 3], 'Expected `int`, got `"x"` - at `$.v[1]`'),
        (
            "struct<a: int, b: struct<c: date, d: int>>",
            '{"a": "x", "b": {"c": "y", "d": 4}}',
            {"a": None, "b": {"c": None, "d": 4}},
            'Expected `int`, got `"x"` - at `$.v.a`; Expected `date`, got `"y"` - at `$.v.b.c`',
        ),
        (
            "array<struct<sku: string, n: int>>",
            '[{"sku": "a", "n": "2"}, 7, {"sku": "b", "n": 3}]',
            [{"sku": "a", "n": None}, None, {"sku": "b", "n": 3}],
            'Expected `int`, got `"2"` - at `$.v[0].n`; Expected `struct<sku: string, n: int>`, got `7` - at `$.v[1]`',
        ),
        (
            "map<string,date>",
            '{"k": 1, "l": "2026-11-28"}',
            [("k", None), ("l", date(2026, 11, 28))],
            "Expected `date`, got `1` - at `$.v.k`",
        ),
        ("string", "1" * 100, None, f"Expected `string`, got `{'1' * 60}…` - at `$.v`"),
    ],
)
def test_a_reason_names_the_type_as_declared_the_value_and_the_place(
    kind: str, text: str, left: object, told: str
) -> None:
    assert one(f"v {kind}", b'{"v": %s}' % text.encode()) == ([left], [told])


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b'{"id":1}{"id":2}', "malformed"),
        (b'{"id":1},{"id":2}', "malformed"),
        (b"\xff\xfe", "malformed"),
        (b'{"id":1,"s":"\xff"}', "UTF-8"),
        (b'{"id":1,"s":"\\ud800"}', "lone surrogate"),
        (b'{"id":1,"s":"\\\\\\udc00x"}', "lone surrogate"),
        (b"[1]", "object"),
        (b"7", "object"),
        (b"null", "object"),
        (b'{"id":1,"deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deep"),
        (None, "no data"),
    ],
)
def test_what_is_no_object(record: bytes | None, words: str) -> None:
    ids, reasons = one("id bigint, s string", b'{"id":1}', record, b'{ "id"\n:\t3 }\n')
    assert ids == [1, None, 3]
    assert reasons[0] is reasons[2] is None
    assert words in (reasons[1] or "")


def test_binary_records_are_told() -> None:
    data = pa.array([b'{"id":1}', b'{"id":2}', b'{"id":3}'], pa.binary())
    [ids], reasons = parse(data, pa.array([JSON, BINARY, JSON], pa.int8()), arrow_schema("id bigint"))
    assert ids.to_pylist() == [1, None, 3]
    assert reasons.to_pylist() == [None, "a binary record", None]


def test_the_last_of_two_members_of_a_name_counts() -> None:
    assert one("id bigint", b'{"id":1,"id":2}') == ([2], [None])


def test_names_need_not_be_identifiers() -> None:
    schema = arrow_schema("`a b` int, `$x` int, class int, f0 int, `ä.ö` int, __init__ int")
    arrays, _ = parse(pa.array([b'{"a b":1,"$x":2,"class":3,"f0":4,"\xc3\xa4.\xc3\xb6":5,"__init__":6}']), None, schema)
    assert [each.to_pylist() for each in arrays] == [[1], [2], [3], [4], [5], [6]]


def test_no_rows_and_slices() -> None:
    schema = arrow_schema("id bigint, items array<struct<d: date>>")
    arrays, reasons = parse(pa.array([], pa.binary()), pa.array([], pa.int8()), schema)
    assert [len(each) for each in (*arrays, reasons)] == [0, 0, 0]
    assert [each.type for each in arrays] == [each.type for each in schema]
    data = pa.array([b"?", b'{"id":1}', b'{"id":2}', b"?"], pa.binary())[1:3]
    arrays, reasons = parse(data, pa.array([BINARY, JSON, JSON, BINARY], pa.int8())[1:3], schema)
    assert (arrays[0].to_pylist(), reasons.to_pylist()) == ([1, 2], [None, None])


def test_a_parser_can_be_pickled() -> None:
    parser = pickle.loads(pickle.dumps(Parser(arrow_schema("id bigint"))))
    assert parser.parse(pa.array([b'{"id":1}']), None)[0][0].to_pylist() == [1]


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([pa.field("a", pa.int64(), nullable=False)]),
        pa.schema([pa.field("a", pa.duration("s"))]),
        pa.schema([pa.field("a", pa.timestamp("ns"))]),
        pa.schema([pa.field("a", pa.map_(pa.int32(), pa.int32()))]),
        pa.schema([pa.field("a", pa.struct([pa.field("b", pa.int64(), nullable=False)]))]),
        pa.schema([pa.field("a", pa.int64()), pa.field("a", pa.int64())]),
    ],
)
def test_types_that_can_not_be_read_are_refused(schema: pa.Schema) -> None:
    with pytest.raises(ValueError, match="a"):
        Parser(schema)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "x", "2026-11-28", "2026-11-28T09:00:00", "2026-11-28T09:00:00.123456789Z", "1.25", "YQ=="]),
    st.lists(st.integers(0, 3), max_size=2),
    st.fixed_dictionaries({}, optional={"x": st.integers(0, 3), "y": st.just("2026-11-28")}),
)
MEMBERS = st.dictionaries(st.sampled_from("abcdefgh"), VALUES)
TEXTS = st.one_of(MEMBERS.map(lambda members: json.dumps(members).encode()), st.binary(max_size=8))


@settings(max_examples=200, deadline=None)
@given(st.lists(TEXTS, max_size=12))
def test_a_record_does_not_depend_on_its_neighbours(records: list[bytes]) -> None:
    schema = arrow_schema(
        "a int, b timestamp, c decimal(6,2), d array<int>, e struct<x: int, y: date>, f double, g string, h date"
    )
    together, reasons = parse(pa.array(records, pa.binary()), None, schema)
    rows = list(zip(*(each.to_pylist() for each in together), reasons.to_pylist(), strict=True))
    for record, row in zip(records, rows, strict=True):
        alone, reason = parse(pa.array([record], pa.binary()), None, schema)
        assert row == (*(each[0].as_py() for each in alone), reason[0].as_py())
        for column, value in zip(schema, row, strict=False):  # nor a field on others, if it is JSON at all
            ([single],), _ = parse(pa.array([record], pa.binary()), None, pa.schema([column]))
            assert value == single.as_py()
