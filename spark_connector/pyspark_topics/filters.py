"""Pushdown of query filters into the range to read.

Each limit lets through every record that its filter does, and maybe more: Spark applies all filters again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from pyspark_topics.fetch import Parts
from pyspark_topics.offsets import ceil_ms, floor_ms

_MAX_INT64: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers from `first` to `last`, both inclusive."""

    first: int = 0
    last: int = _MAX_INT64

    def __and__(self, other: "Span") -> "Span":
        return Span(max(self.first, other.first), min(self.last, other.last))

    def __contains__(self, number: int) -> bool:
        return self.first <= number <= self.last


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the records that a query can match."""

    seqs: Span = Span()
    partitions: Span = Span()
    times: Span = Span()  # ms since the Unix epoch; times before it do not occur
    topics: frozenset[str] | None = None  # None: any
    topic_prefix: str = ""
    tags: frozenset[str] | None = None  # None: any, and none
    tag_prefix: str | None = None  # None: any, and none

    def wants(self, topic: str) -> bool:
        """Return True if records of the topic can match."""
        return (self.topics is None or topic in self.topics) and topic.startswith(self.topic_prefix)

    @property
    def bounded_above(self) -> bool:
        """True if there is an upper bound of time."""
        return self.times.last < _MAX_INT64

    @property
    def void(self) -> bool:
        """True if no record can match."""
        return (
            any(span.first > span.last for span in (self.seqs, self.partitions, self.times)) or self.tags == frozenset()
        )

    def narrow(self, parts: Parts) -> Parts | None:
        """The request options for these tags only; None if no record can have them.

        The server takes one tag or one prefix: the narrower is chosen.
        """
        if self.tags is not None:
            tags = {tag for tag in self.tags if _fits(tag, parts.tag_eq, parts.tag_prefix)}
            tags = {tag for tag in tags if tag.startswith(self.tag_prefix or "")}
            if not tags:
                return None
            return replace(parts, tag_eq=tags.pop(), tag_prefix=None) if len(tags) == 1 else parts
        if self.tag_prefix is None:
            return parts
        if parts.tag_eq is not None:
            return parts if parts.tag_eq.startswith(self.tag_prefix) else None
        given = parts.tag_prefix or ""
        if self.tag_prefix.startswith(given):
            return replace(parts, tag_prefix=self.tag_prefix)
        return parts if given.startswith(self.tag_prefix) else None


def _fits(tag: str, eq: str | None, prefix: str | None) -> bool:
    return (eq is None or tag == eq) and tag.startswith(prefix or "")


def limits(filters: Iterable[Filter]) -> Limits:
    """Combine all filters. Unsupported filters are ignored."""
    found = Limits()
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        value = getattr(each, "value", None)
        if path == ("seq",):
            found = replace(found, seqs=found.seqs & _span(each, value))
        elif path == ("partition",):
            found = replace(found, partitions=found.partitions & _span(each, value))
        elif path == ("ts",):
            found = replace(found, times=found.times & _time_span(each, value))
        elif path == ("topic",):
            names, prefix = _texts(each, value)
            longest = max(found.topic_prefix, prefix or "", key=len)
            found = replace(found, topics=_both(found.topics, names), topic_prefix=longest)
        elif path == ("tag",):
            names, prefix = _texts(each, value)
            given = found.tag_prefix if prefix is None else max(found.tag_prefix or "", prefix, key=len)
            found = replace(found, tags=_both(found.tags, names), tag_prefix=given)
    return found


def _both(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _texts(each: Filter, value: Any) -> tuple[frozenset[str] | None, str | None]:
    """The texts that the filter allows, None for any, or a prefix that it asks for."""
    if isinstance(each, EqualTo | EqualNullSafe) and isinstance(value, str):
        return frozenset((value,)), None
    if isinstance(each, In):
        return frozenset(text for text in value if isinstance(text, str)), None
    if isinstance(each, StringStartsWith):
        return None, value
    return None, None


def _span(each: Filter, value: Any) -> Span:
    if isinstance(each, In):
        numbers = [number for number in value if isinstance(number, int)]
        return Span(min(numbers), max(numbers)) if numbers else Span(0, -1)
    if not isinstance(value, int):
        return Span()
    if isinstance(each, EqualTo | EqualNullSafe):
        return Span(value, value)
    if isinstance(each, GreaterThan | GreaterThanOrEqual):
        return Span(first=value + isinstance(each, GreaterThan))
    if isinstance(each, LessThan | LessThanOrEqual):
        return Span(last=value - isinstance(each, LessThan))
    return Span()


def _time_span(each: Filter, value: Any) -> Span:
    """Records have whole milliseconds, the filter may have micros."""
    if isinstance(each, In):
        times = [time for time in value if isinstance(time, datetime)]
        return Span(ceil_ms(min(times)), floor_ms(max(times))) if times else Span(0, -1)
    if not isinstance(value, datetime):
        return Span()
    if isinstance(each, EqualTo | EqualNullSafe):
        return Span(ceil_ms(value), floor_ms(value))
    if isinstance(each, GreaterThanOrEqual):
        return Span(first=ceil_ms(value))
    if isinstance(each, GreaterThan):
        return Span(first=floor_ms(value) + 1)
    if isinstance(each, LessThanOrEqual):
        return Span(last=floor_ms(value))
    if isinstance(each, LessThan):
        return Span(last=ceil_ms(value) - 1)
    return Span()
