"""Values of columns: what is taken, what is refused and with which SQLSTATE, and how they are shown."""

import random
import time
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables import datetimes
from topics_service.engine.tables.types import Kind, Type
from topics_service.engine.tables.values import coerce, coercer, from_text, to_json, to_text

BOOLEAN, SMALLINT, INTEGER, BIGINT = (Type(k) for k in (Kind.BOOLEAN, Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT))
REAL, DOUBLE, TEXT, BYTES, JSON = (Type(k) for k in (Kind.REAL, Kind.DOUBLE, Kind.TEXT, Kind.BYTES, Kind.JSON))
TIMESTAMP, DATE, TIME, UUID_ = (Type(k) for k in (Kind.TIMESTAMP, Kind.DATE, Kind.TIME, Kind.UUID))
MONEY = Type(Kind.DECIMAL, precision=10, scale=2)
WIDEST = Type(Kind.DECIMAL, precision=38, scale=10)
DECIMAL = Type(Kind.DECIMAL)
SHORT = Type(Kind.TEXT, length=3)
DAY = 86_400_000_000
NOON = 1_769_860_800_000_000  # 2026-01-31 12:00 UTC


def sqlstate(given: Any, sql_type: Type) -> str:
    with pytest.raises(TopicsError) as caught:
        coerce(given, sql_type, "column c")
    assert caught.value.reason is Reason.INVALID_VALUE
    assert caught.value.message.startswith("column c: ")
    assert len(caught.value.message) < 200
    assert caught.value.detail is not None
    return str(caught.value.detail["sqlstate"])


@pytest.mark.parametrize(
    ("given", "sql_type", "value"),
    [
        (True, BOOLEAN, True), ("t", BOOLEAN, True), (" OFF ", BOOLEAN, False), ("0", BOOLEAN, False),
        (5, BIGINT, 5), ("-5", INTEGER, -5), (" +7 ", SMALLINT, 7), (5.0, INTEGER, 5), (Decimal("3.00"), BIGINT, 3),
        (-(1 << 63), BIGINT, -(1 << 63)), ("0" * 500 + "1", BIGINT, 1),
        (1, DOUBLE, 1.0), ("1e3", DOUBLE, 1000.0), ("-Infinity", DOUBLE, float("-inf")), (".5", REAL, 0.5),
        (0.1, REAL, 0.10000000149011612), (1 << 63, DOUBLE, 2.0**63),
        ("1.005", MONEY, Decimal("1.01")), ("-1.005", MONEY, Decimal("-1.01")), (0.1, MONEY, Decimal("0.10")),
        (5, MONEY, Decimal("5.00")), ("-0.001", MONEY, Decimal("0.00")), ("1e-300", MONEY, Decimal("0.00")),
        ("99999999.994", MONEY, Decimal("99999999.99")), ("1.20", DECIMAL, Decimal("1.20")),
        ("0e500", DECIMAL, Decimal(0)),
        ("x", TEXT, "x"), ("", TEXT, ""), ("äöü", SHORT, "äöü"), ("abc  ", SHORT, "abc"),
        (b"\0x", BYTES, b"\0x"), ("AHg=", BYTES, b"\0x"), ("\\x0078", BYTES, b"\0x"), ("", BYTES, b""),
        ('{"a": [1, 2.50], "b" : 1}', JSON, '{"a":[1,2.50],"b":1}'), ({"a": None}, JSON, '{"a":null}'), (5, JSON, "5"),
        ('"x"', JSON, '"x"'), ([], JSON, "[]"), ('"\\\\u0000"', JSON, '"\\\\u0000"'),
        ("12345678901234567890123", JSON, "12345678901234567890123"),
        ("2026-01-31T12:00:00Z", TIMESTAMP, NOON), ("2026-01-31 12:00", TIMESTAMP, NOON),
        ("2026-01-31T14:00:00+02:00", TIMESTAMP, NOON), ("2026-01-31 06:30:00.0000015-0530", TIMESTAMP, NOON + 2),
        ("2026-01-31", TIMESTAMP, NOON - DAY // 2), ("1969-12-31T23:59:59.999999Z", TIMESTAMP, -1),
        (datetime(2026, 1, 31, 13, tzinfo=timezone(timedelta(hours=1))), TIMESTAMP, NOON),
        (date(1970, 1, 2), TIMESTAMP, DAY), ("1970-01-02", DATE, 1), ("1970-01-02 23:00:00+05", DATE, 1),
        ("00:00", TIME, 0), ("23:59:59.999999", TIME, DAY - 1),
        ("{0188E5B5-2e9c-7a6b-8a1c-0242ac120002}", UUID_, "0188e5b5-2e9c-7a6b-8a1c-0242ac120002"),
        ("0188e5b52e9c7a6b8a1c0242ac120002", UUID_, "0188e5b5-2e9c-7a6b-8a1c-0242ac120002"),
        (UUID(int=1), UUID_, "00000000-0000-0000-0000-000000000001"),
    ],
)  # fmt: skip
def test_what_is_taken(given: Any, sql_type: Type, value: Any) -> None:
    made = coerce(given, sql_type, "c")
    assert made == value
    assert type(made) is type(value)
    assert str(made) == str(value)  # the scale of a decimal
    assert coercer(sql_type, "c")(given) == value


@pytest.mark.parametrize(
    ("given", "sql_type", "state"),
    [
        ("maybe", BOOLEAN, "22P02"), (1, BOOLEAN, "22P02"), (True, BIGINT, "22P02"), (True, DOUBLE, "22P02"),
        ("no number", BIGINT, "22P02"), ("1_0", BIGINT, "22P02"), ("١", BIGINT, "22P02"), ("1.5", BIGINT, "22P02"),
        (5.5, BIGINT, "22P02"), (float("nan"), BIGINT, "22P02"), (float("inf"), BIGINT, "22003"), ([], BIGINT, "22P02"),
        (3_000_000_000, INTEGER, "22003"), (40_000, SMALLINT, "22003"), ("9223372036854775808", BIGINT, "22003"),
        ("9" * 5000, BIGINT, "22003"), (10**4000, BIGINT, "22003"), ("x" * 5000, BIGINT, "22P02"),
        ("1e400", DOUBLE, "22003"), ("1e-400", DOUBLE, "22003"), (10**400, DOUBLE, "22003"), (1e39, REAL, "22003"),
        ("1e-60", REAL, "22003"), ("0x10", DOUBLE, "22P02"), ("", DOUBLE, "22P02"), ({}, DOUBLE, "22P02"),
        ("100000000", MONEY, "22003"), ("99999999.995", MONEY, "22003"), ("NaN", MONEY, "22P02"),
        (float("inf"), MONEY, "22P02"), (Decimal("nan"), MONEY, "22P02"), ("1e999999999999", MONEY, "22003"),
        (10**4000, MONEY, "22003"), ("9" * 5000, MONEY, "22003"), ("1" + "0" * 28, WIDEST, "22003"),
        (10**38, DECIMAL, "22003"), ("1e99999999999999999999", DECIMAL, "22003"),
        ("abcd", SHORT, "22001"), ("a\0", TEXT, "22P02"), ("\ud800", TEXT, "22P02"), (5, TEXT, "22P02"),
        ("abc", BYTES, "22P02"), ("\\x0", BYTES, "22P02"), ("\\xzz", BYTES, "22P02"), ("äöüß", BYTES, "22P02"),
        ("{", JSON, "22P02"), ("NaN", JSON, "22P02"), ('"\\u0000"', JSON, "22P02"), ('"\\ud800"', JSON, "22P02"),
        ("[" * 101 + "]" * 101, JSON, "22P02"), ("[" * 100_000, JSON, "22P02"), ({"a": float("nan")}, JSON, "22P02"),
        ({"a\0": 1}, JSON, "22P02"), ({1: 1}, JSON, "22P02"), (b"{}", JSON, "22P02"),
        ("0000-01-01", TIMESTAMP, "22003"), ("2026-02-30", TIMESTAMP, "22003"), ("10000-01-01", TIMESTAMP, "22P02"),
        ("0001-01-01T00:00:00+01:00", TIMESTAMP, "22003"), ("9999-12-31T23:59:59.9999999Z", TIMESTAMP, "22003"),
        ("2026-01-31T25:00Z", TIMESTAMP, "22P02"), ("2026-01-31T12:00+99:00", TIMESTAMP, "22P02"),
        (1_700_000_000, TIMESTAMP, "22P02"), ("now", TIMESTAMP, "22P02"), ("2026-13-01", DATE, "22003"),
        ("24:00", TIME, "22P02"), ("23:59:59.9999999", TIME, "22P02"), ("12", TIME, "22P02"),
        ("{0188e5b52e9c7a6b8a1c0242ac120002", UUID_, "22P02"), ("0188e5b5", UUID_, "22P02"),
    ],
)  # fmt: skip
def test_what_is_refused(given: Any, sql_type: Type, state: str) -> None:
    assert sqlstate(given, sql_type) == state
    with pytest.raises(TopicsError):
        coercer(sql_type, "c")(given)


def test_values_that_take_long_are_refused_at_once() -> None:
    started = time.thread_time()
    for given_value in ("9" * 10_000_000, "1e" + "9" * 10_000_000, "[" * 10_000_000, "2" * 10_000_000):
        for sql_type in (BIGINT, DOUBLE, MONEY, JSON, TIMESTAMP, UUID_, BOOLEAN, TIME):
            sqlstate(given_value, sql_type)
    assert time.thread_time() - started < 5


def test_the_quick_way_of_a_timestamp_reads_what_the_general_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    whole = ("2026-01-31T12:00:00Z", "2026-01-31 12:00:00", "2026-01-31T12:00:00.123456", "2026-01-31T12:00:00.123456Z")
    texts = []
    for _ in range(3000):
        text = list(rng.choice(whole))
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(text))
            text[at : at + rng.randrange(2)] = rng.choices("0123456789-:.TZ +W", k=rng.randrange(2))
        texts.append("".join(text))

    def read() -> list[Any]:
        made: list[Any] = []
        for text in texts:
            try:
                made.append(coerce(text, TIMESTAMP, "c"))
            except TopicsError as error:
                made.append(error.detail)
        return made

    quick = read()
    monkeypatch.setattr(datetimes, "_USUAL_LENGTHS", frozenset())
    assert read() == quick
    assert 500 < sum(isinstance(each, int) for each in quick) < 2500


def test_null_and_values_without_a_type() -> None:
    assert coerce(None, BIGINT, "c") is None
    assert [coerce(v, None, "$1") for v in (1, 1.5, "x", True, None)] == [1, 1.5, "x", True, None]
    assert coerce({"a": 1}, None, "$1") == '{"a":1}'
    assert coerce(1 << 64, None, "$1") == Decimal(1 << 64)
    with pytest.raises(TopicsError, match="complex"):
        coerce(1j, None, "$1")


def test_hexadecimal_alone_is_bytes_in_sql() -> None:
    assert from_text("\\xff", BYTES, "c") == b"\xff"
    with pytest.raises(TopicsError):
        from_text("AHg=", BYTES, "c")


@pytest.mark.parametrize(
    ("value", "sql_type", "shown", "text"),
    [
        (1 << 62, BIGINT, 1 << 62, str(1 << 62)), (True, BOOLEAN, True, "true"), (None, JSON, None, None),
        (Decimal("1.50"), MONEY, "1.50", "1.50"), (Decimal("1E-10"), WIDEST, "0.0000000001", "0.0000000001"),
        (b"\0x", BYTES, "AHg=", "\\x0078"), ('{"a":[1]}', JSON, {"a": [1]}, '{"a":[1]}'),
        (NOON, TIMESTAMP, "2026-01-31T12:00:00Z", "2026-01-31 12:00:00"),
        (NOON + 500_000, TIMESTAMP, "2026-01-31T12:00:00.5Z", "2026-01-31 12:00:00.5"),
        (-719_162, DATE, "0001-01-01", "0001-01-01"), (61_000_001, TIME, "00:01:01.000001", "00:01:01.000001"),
        (0.10000000149011612, REAL, 0.1, "0.1"), (float("nan"), REAL, "NaN", "NaN"), (1e6, REAL, 1e6, "1e+06"),
        (2.0**-149, REAL, 1e-45, "1e-45"),
        (1.0, DOUBLE, 1.0, "1"), (1e15, DOUBLE, 1e15, "1e+15"),
        (123456789012345.6, DOUBLE, 123456789012345.6, "123456789012345.6"),
        (0.0001, DOUBLE, 0.0001, "0.0001"), (0.00001, DOUBLE, 0.00001, "1e-05"), (-0.0, DOUBLE, -0.0, "-0"),
        (float("-inf"), DOUBLE, "-Infinity", "-Infinity"), (1.5e300, DOUBLE, 1.5e300, "1.5e+300"),
    ],
)  # fmt: skip
def test_how_they_are_shown(value: Any, sql_type: Type, shown: Any, text: str | None) -> None:
    assert to_json(value, sql_type) == shown
    orjson.dumps(to_json(value, sql_type))
    assert to_text(value, sql_type) == text


MICROS = st.datetimes(timezones=st.just(UTC)).map(lambda t: coerce(t, TIMESTAMP, "c"))
_TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.BOOLEAN: st.booleans(),
    Kind.SMALLINT: st.integers(-(1 << 15), (1 << 15) - 1),
    Kind.INTEGER: st.integers(-(1 << 31), (1 << 31) - 1),
    Kind.BIGINT: st.integers(-(1 << 63), (1 << 63) - 1),
    Kind.REAL: st.floats(width=32, allow_nan=False),
    Kind.DOUBLE: st.floats(allow_nan=False),
    Kind.DECIMAL: st.decimals(-(10**8) + 1, 10**8 - 1, places=2).map(lambda d: d + 0),
    Kind.TEXT: _TEXTS,
    Kind.BYTES: st.binary(),
    Kind.JSON: st.recursive(
        st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | _TEXTS,
        lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner),
    ).map(lambda value: orjson.dumps(value).decode()),
    Kind.TIMESTAMP: MICROS,
    Kind.DATE: st.integers(-719_162, 2_932_896),
    Kind.TIME: st.integers(0, DAY - 1),
    Kind.UUID: st.uuids().map(str),
}
TYPES = {kind: Type(kind, precision=10, scale=2) if kind is Kind.DECIMAL else Type(kind) for kind in Kind}


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
@given(data=st.data())
def test_text_and_json_are_read_back(kind: Kind, data: st.DataObject) -> None:
    value, sql_type = data.draw(VALUES[kind]), TYPES[kind]
    text = to_text(value, sql_type)
    assert text is not None
    assert from_text(text, sql_type, "c") == value
    shown = orjson.loads(orjson.dumps(to_json(value, sql_type)))
    if kind is Kind.JSON and (shown is None or isinstance(shown, str)):
        return  # NULL, and text that would be read as a document
    assert coerce(shown, sql_type, "c") == value


@given(st.sampled_from(list(TYPES.values())), st.text() | st.binary() | st.floats() | st.integers() | st.decimals())
def test_anything_else_is_refused_in_one_way(sql_type: Type, given_value: Any) -> None:
    refused: TopicsError | None = None
    value = None
    try:
        value = coerce(given_value, sql_type, "c")
    except TopicsError as error:
        refused = error
    if refused is None:
        assert value != value or coerce(to_text(value, sql_type), sql_type, "c") == value
        return
    assert refused.reason is Reason.INVALID_VALUE
    assert refused.detail is not None
    assert refused.detail["sqlstate"] in ("22P02", "22003", "22001")
