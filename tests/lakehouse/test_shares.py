"""What one round takes of topics that are behind, and in what pieces."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_topics.inventory import PartitionInfo, TopicInfo
from topics_lakehouse.shares import Lag, lags, share, split

_MANY = 10**6
_SHAPE = st.tuples(st.integers(0, _MANY), st.integers(1, _MANY), st.integers(1, 2 * _MANY))


def _lag(position: int, head: int, *, earliest: int = 1, topic: str = "a", weight: float = 1.0) -> Lag:
    return Lag(topic, "top_a", 0, position, head, earliest, weight)


def _pieces(lag: Lag, last: int, *, task_records: int = 10**9, parallelism: int = 1) -> list[tuple[int, int]]:
    ranges = split([(lag, last)], task_records=task_records, parallelism=parallelism)
    return [(each.first, each.last) for each in ranges]


def test_only_partitions_that_are_behind_count() -> None:
    partitions = (PartitionInfo(0, 10, 1, 10, 1000), PartitionInfo(1, 10, 1, 10, 1000), PartitionInfo(2, 0, 1, 0, 0))
    info = TopicInfo("a", "top_a", partitions, "disk", 0)
    assert [(each.partition, each.position) for each in lags(info, {0: 10, 1: 4})] == [(1, 4)]
    assert [(each.partition, each.head) for each in lags(info, {}, {0: 3})] == [(0, 3)]


def test_large_records_weigh_more() -> None:
    info = TopicInfo("a", "top_a", (PartitionInfo(0, 10, 1, 10, 10 << 20),), "disk", 0)
    (lag,) = lags(info, {})
    assert lag.weight == 1024
    assert share([lag], 5000) == [(lag, 4)]


def test_everyone_gets_the_same_and_what_others_leave() -> None:
    small, large, larger = _lag(0, 10), _lag(0, 1000, topic="b"), _lag(500, 5000, topic="c")
    assert share([larger, large, small], 410) == [(small, 10), (large, 200), (larger, 700)]
    assert share([large], 5000) == [(large, 1000)]


def test_everyone_gets_on() -> None:
    assert [last for _, last in share([_lag(0, 9), _lag(5, 9, topic="b")], 1)] == [6, 1]


def test_what_is_gone_costs_nothing() -> None:
    lag = _lag(0, 1_000_000, earliest=999_001)
    assert share([lag], 500) == [(lag, 999_500)]
    assert _pieces(lag, 999_500) == [(1, 999_500)]
    gone = _lag(5, 100, earliest=101)
    assert share([gone], 500) == [(gone, 100)]
    assert _pieces(gone, 100) == [(6, 100)]


def test_pieces_for_every_core_where_it_is_worth_it() -> None:
    assert _pieces(_lag(0, 100), 100, parallelism=4) == [(1, 100)]
    assert _pieces(_lag(0, 100_000), 100_000, parallelism=2) == [(1, 50_000), (50_001, 100_000)]
    assert len(_pieces(_lag(0, 100_000), 100_000, task_records=10_000)) == 10


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, _MANY), st.integers(1, _MANY), st.integers(1, 2 * _MANY)), min_size=1, max_size=5
    ),
    st.integers(1, _MANY),
    st.integers(5_000, _MANY),
    st.integers(1, 16),
)
def test_pieces_are_the_range_without_a_hole(
    shapes: list[tuple[int, int, int]], budget: int, task_records: int, parallelism: int
) -> None:
    behind = [
        _lag(position, position + more, earliest=min(earliest, position + more + 1), topic=f"t{i}")
        for i, (position, more, earliest) in enumerate(shapes)
    ]
    chosen = share(behind, budget)
    ranges = list(split(chosen, task_records=task_records, parallelism=parallelism))
    for lag, last in chosen:
        assert lag.position < last <= lag.head
        mine = [each for each in ranges if each.topic == lag.topic]
        assert mine[0].first == lag.position + 1
        assert mine[-1].last == last
        assert all(one.last + 1 == other.first for one, other in pairwise(mine))
        assert all(each.first <= each.last for each in mine)
