"""What filters say about where to read, without Spark's JVM and without a server."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from pyspark_topics.fetch import Parts
from pyspark_topics.filters import Limits, Span, limits

SEQ, TS, TOPIC, TAG, PARTITION = ("seq",), ("ts",), ("topic",), ("tag",), ("partition",)
AT = datetime(2026, 11, 28, 9, 0, 0, 500, UTC)  # half a millisecond behind a whole one
MS = int(AT.timestamp() * 1000)
MOST = (1 << 63) - 1


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        (EqualTo(SEQ, 5), Span(5, 5)),
        (EqualNullSafe(SEQ, 5), Span(5, 5)),
        (EqualNullSafe(SEQ, None), Span()),
        (GreaterThan(SEQ, 5), Span(6)),
        (GreaterThanOrEqual(SEQ, 5), Span(5)),
        (LessThan(SEQ, 5), Span(0, 4)),
        (LessThanOrEqual(SEQ, 5), Span(0, 5)),
        (In(SEQ, (9, 3, 5)), Span(3, 9)),
        (Not(EqualTo(SEQ, 5)), Span()),
        (IsNotNull(SEQ), Span()),
        (IsNull(SEQ), Span()),
        (GreaterThan(SEQ, "5"), Span()),
        (GreaterThan(("seq", "x"), 5), Span()),
    ],
)
def test_numbers(each: Filter, expected: Span) -> None:
    assert limits([each]).seqs == expected


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        (EqualTo(TS, AT), Span(MS + 1, MS)),
        (EqualTo(TS, AT.replace(microsecond=0)), Span(MS, MS)),
        (GreaterThan(TS, AT), Span(MS + 1)),
        (GreaterThanOrEqual(TS, AT), Span(MS + 1)),
        (GreaterThan(TS, AT.replace(microsecond=0)), Span(MS + 1)),
        (GreaterThanOrEqual(TS, AT.replace(microsecond=0)), Span(MS)),
        (LessThan(TS, AT), Span(0, MS)),
        (LessThanOrEqual(TS, AT), Span(0, MS)),
        (LessThan(TS, AT.replace(microsecond=0)), Span(0, MS - 1)),
        (LessThanOrEqual(TS, AT.replace(microsecond=0)), Span(0, MS)),
        (In(TS, (AT, AT + timedelta(seconds=1))), Span(MS + 1, MS + 1000)),
        (GreaterThan(TS, "2026"), Span()),
    ],
)
def test_times_are_whole_milliseconds(each: Filter, expected: Span) -> None:
    found = limits([each])
    assert found.times == expected
    assert found.void == (expected.first > expected.last)


def test_texts() -> None:
    found = limits([In(TOPIC, ("a", "b")), StringStartsWith(TOPIC, "b"), EqualTo(PARTITION, 3)])
    assert [topic for topic in ("a", "b", "bc") if found.wants(topic)] == ["b"]
    assert found.partitions == Span(3, 3)
    assert limits([EqualTo(TOPIC, "a"), EqualTo(TOPIC, "b")]).topics == frozenset()
    assert limits([StringContains(TOPIC, "a"), Not(EqualTo(TAG, "x"))]) == Limits()
    assert limits([EqualTo(TAG, "a"), EqualTo(TAG, "b")]).void


ALL = Parts()


@pytest.mark.parametrize(
    ("filters", "asked", "expected"),
    [
        ([], ALL, (None, None)),
        ([EqualTo(TAG, "a")], ALL, ("a", None)),
        ([EqualTo(TAG, "")], ALL, ("", None)),
        ([In(TAG, ("a", "b"))], ALL, (None, None)),
        ([In(TAG, ("a", "b")), StringStartsWith(TAG, "b")], ALL, ("b", None)),
        ([StringStartsWith(TAG, "a"), StringStartsWith(TAG, "ab")], ALL, (None, "ab")),
        ([EqualTo(TAG, "a")], Parts(tag_eq="b"), None),
        ([EqualTo(TAG, "a")], Parts(tag_eq="a"), ("a", None)),
        ([EqualTo(TAG, "ab")], Parts(tag_prefix="a"), ("ab", None)),
        ([EqualTo(TAG, "b")], Parts(tag_prefix="a"), None),
        ([StringStartsWith(TAG, "abc")], Parts(tag_prefix="ab"), (None, "abc")),
        ([StringStartsWith(TAG, "a")], Parts(tag_prefix="ab"), (None, "ab")),
        ([StringStartsWith(TAG, "b")], Parts(tag_prefix="ab"), None),
        ([StringStartsWith(TAG, "a")], Parts(tag_eq="ab"), ("ab", None)),
        ([StringStartsWith(TAG, "b")], Parts(tag_eq="ab"), None),
    ],
)
def test_the_server_is_asked_for_one_tag_or_prefix(
    filters: list[Filter], asked: Parts, expected: tuple[str | None, str | None] | None
) -> None:
    found = limits(filters).narrow(asked)
    assert (None if found is None else (found.tag_eq, found.tag_prefix)) == expected
