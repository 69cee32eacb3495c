"""Keys: ordered as their values, read back as they were, and prefixes of each other where their values are."""

import math
from decimal import Decimal
from functools import cmp_to_key
from typing import Any

import pytest
from engine.test_table_values import TYPES, VALUES
from hypothesis import given
from hypothesis import strategies as st

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables import keycode
from topics_service.engine.tables.types import Kind, Type

KINDS = [kind for kind in Kind if kind is not Kind.JSON]
UNBOUNDED = Type(Kind.DECIMAL)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=9, min_value=-(10**20), max_value=10**20)


def values_of(sql_type: Type) -> st.SearchStrategy[Any]:
    if sql_type == UNBOUNDED:
        return DECIMALS
    drawn = VALUES[sql_type.kind]
    if sql_type.kind is Kind.TEXT:
        drawn = st.text(st.sampled_from("\0\1aäÿ\uffff\U0001f600")) | drawn
    if sql_type.kind is Kind.BYTES:
        drawn = st.lists(st.sampled_from([0, 1, 2, 254, 255]), max_size=6).map(bytes) | drawn
    return drawn | st.just(math.nan) if sql_type.kind in (Kind.REAL, Kind.DOUBLE) else drawn


KEY_TYPES = [*(TYPES[kind] for kind in KINDS), UNBOUNDED]
TUPLES = st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=4).flatmap(
    lambda types: st.tuples(
        st.just(types),
        *(st.tuples(*(st.none() | values_of(each) for each in types)) for _ in range(2)),
    )
)


def compare_values(a: Any, b: Any) -> int:
    if a is None or b is None:
        return (a is not None) - (b is not None)
    if a != a or b != b:
        return (a != a) - (b != b)
    return (a > b) - (a < b)


def compare(a: tuple[Any, ...], b: tuple[Any, ...]) -> int:
    return next((c for x, y in zip(a, b, strict=True) if (c := compare_values(x, y))), 0)


@pytest.mark.parametrize("sql_type", KEY_TYPES, ids=lambda each: each.name)
@given(data=st.data())
def test_order_of_one_value(sql_type: Type, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(st.none() | values_of(sql_type), min_size=2, max_size=8))
    by_value = sorted(drawn, key=cmp_to_key(compare_values))
    by_key = sorted(drawn, key=lambda value: keycode.encode([value], [sql_type]))
    assert [compare_values(a, b) for a, b in zip(by_value, by_key, strict=True)] == [0] * len(drawn)


@given(TUPLES)
def test_order_of_tuples(drawn: tuple[list[Type], tuple[Any, ...], tuple[Any, ...]]) -> None:
    types, a, b = drawn
    key_a, key_b = keycode.encode(a, types), keycode.encode(b, types)
    assert (key_a > key_b) - (key_a < key_b) == compare(a, b)


@given(TUPLES)
def test_keys_are_read_back_and_prefixes_are_prefixes(
    drawn: tuple[list[Type], tuple[Any, ...], tuple[Any, ...]],
) -> None:
    types, values, _ = drawn
    key = keycode.encode(values, types)
    again = keycode.decode(key, types)
    assert compare(values, tuple(again)) == 0
    assert [type(value) for value in again] == [type(value) for value in values]
    for size in range(len(types)):
        prefix = keycode.encode(values[:size], types[:size])
        assert key.startswith(prefix)
        assert keycode.decode_prefix(b"xx" + key, types[:size], 2)[1] == len(prefix) + 2


@given(st.lists(st.sampled_from(KEY_TYPES), max_size=3), st.binary(max_size=60))
def test_damaged_keys_are_refused_in_one_way(types: list[Type], key: bytes) -> None:
    refused = False
    values: list[Any] = []
    try:
        values = keycode.decode(key, types)
    except keycode.CorruptKeyError:
        refused = True
    assert refused or len(values) == len(types)


def test_widths_share_their_keys() -> None:
    assert len({keycode.encode([7], [TYPES[kind]]) for kind in (Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT)}) == 1
    assert keycode.encode([0.5], [TYPES[Kind.REAL]]) == keycode.encode([0.5], [TYPES[Kind.DOUBLE]])
    assert keycode.encode([-0.0], [TYPES[Kind.DOUBLE]]) == keycode.encode([0.0], [TYPES[Kind.DOUBLE]])
    assert keycode.encode([Decimal("1.50")], [UNBOUNDED]) == keycode.encode([Decimal("1.5")], [UNBOUNDED])


def test_a_key_has_a_bound() -> None:
    longest = keycode.MAX_KEY_BYTES - 3
    assert len(keycode.encode(["x" * longest], [TYPES[Kind.TEXT]])) == keycode.MAX_KEY_BYTES
    for values in (["x" * (longest + 1)], ["x" * longest, None]):
        with pytest.raises(TopicsError, match="at most 8192") as caught:
            keycode.encode(values, [TYPES[Kind.TEXT]] * len(values))
        assert caught.value.reason is Reason.RECORD_TOO_LARGE


def test_documents_have_no_order() -> None:
    with pytest.raises(TopicsError, match="JSON has no order"):
        keycode.encode(["{}"], [TYPES[Kind.JSON]])
