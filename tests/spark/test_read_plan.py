"""Splitting ranges into tasks, without Spark and without a server."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_topics.fetch import SeqRange
from pyspark_topics.plan import Extent, split

MILLION = 1_000_000


def extent(topic: str, first: int, last: int, *, earliest: int = 0, record_bytes: int = 0) -> Extent:
    return Extent(SeqRange(topic, "top_" + topic, 0, first, last), earliest, record_bytes)


def lengths(tasks: list[tuple[SeqRange, ...]]) -> list[int]:
    return [sum(each.last - each.first + 1 for each in task) for task in tasks]


def test_nothing_is_no_task() -> None:
    assert split([], max_records=MILLION) == []


@pytest.mark.parametrize(
    ("records", "cores", "min_tasks", "max_records", "expected"),
    [
        (100, 2, 0, MILLION, [100]),
        (25_000, 2, 0, MILLION, [8333, 8333, 8334]),
        (100_000, 2, 0, MILLION, [25_000] * 4),
        (5 * MILLION, 2, 0, 500_000, [500_000] * 10),
        (5 * MILLION, 64, 0, 500_000, [39_062] * 64 + [39_063] * 64),
        (100, 2, 4, MILLION, [25] * 4),
        (3, 2, 10, MILLION, [1, 1, 1]),
        (100, 2, 0, 40, [33, 33, 34]),
        (50 * MILLION, 2, 0, 1, [10_000] * 5000),
    ],
)
def test_one_topic_is_split_evenly(
    records: int, cores: int, min_tasks: int, max_records: int, expected: list[int]
) -> None:
    tasks = split([extent("a", 1, records)], min_tasks=min_tasks, max_records=max_records, cores=cores)
    assert sorted(lengths(tasks)) == expected
    assert all(len(task) == 1 for task in tasks)


def test_large_records_make_more_tasks() -> None:
    tasks = split([extent("a", 1, 1000, record_bytes=1 << 20)], max_records=MILLION, cores=2)
    assert lengths(tasks) == [250] * 4
    assert lengths(split([extent("a", 1, 100, record_bytes=1 << 10)], max_records=MILLION, cores=2)) == [100]


def test_what_is_gone_is_read_with_the_first_piece() -> None:
    tasks = split([extent("a", 1, 1_100_000, earliest=1_000_001)], max_records=MILLION, cores=2)
    assert [(task[0].first, task[0].last) for task in tasks] == [
        (1, 1_025_000),
        (1_025_001, 1_050_000),
        (1_050_001, 1_075_000),
        (1_075_001, 1_100_000),
    ]
    [[gone]] = split([extent("a", 1, 500, earliest=MILLION)], max_records=MILLION, cores=2)
    assert (gone.first, gone.last) == (1, 500)


def test_partitions_stay_apart_until_there_are_too_many() -> None:
    few = [extent(f"t{i}", 1, 10) for i in range(4)]
    assert [len(task) for task in split(few, max_records=MILLION, cores=2)] == [1] * 4
    many = [extent(f"t{i}", 1, 10) for i in range(1000)]
    tasks = split(many, max_records=MILLION, cores=2)
    assert [len(task) for task in tasks] == [100] * 10
    assert [each.topic for task in tasks for each in task] == [f"t{i}" for i in range(1000)]


EXTENTS = st.lists(
    st.tuples(st.integers(1, 10**7), st.integers(0, 10**6), st.integers(0, 10**7), st.integers(0, 1 << 21)), max_size=30
)


@given(EXTENTS, st.integers(0, 50), st.integers(1, 10**6), st.integers(1, 16))
def test_tasks_cover_everything_once(
    sizes: list[tuple[int, int, int, int]], min_tasks: int, max_records: int, cores: int
) -> None:
    found = [
        extent(f"t{i:02}", first, first + more, earliest=earliest, record_bytes=record_bytes)
        for i, (first, more, earliest, record_bytes) in enumerate(sizes)
    ]
    tasks = split(found, min_tasks=min_tasks, max_records=max_records, cores=cores)
    ranges = [each for task in tasks for each in task]
    total = sum(each.size for each in found)
    assert len(tasks) <= 5000 + len(found)
    assert len(tasks) >= min(min_tasks, total)
    for each in found:
        mine = [part for part in ranges if part.topic == each.wanted.topic]
        assert (mine[0].first, mine[-1].last) == (each.wanted.first, each.wanted.last)
        assert all(one.last + 1 == other.first for one, other in pairwise(mine))
        assert all(part.first <= part.last for part in mine)
