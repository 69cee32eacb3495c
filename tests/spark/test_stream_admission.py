"""How a batch's limits are shared; no Spark, no server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_topics.admission import Backlog, Limits, admit, fill

_BACKLOGS = st.lists(
    st.builds(Backlog, st.sampled_from("abcd"), st.integers(0, 5000), st.integers(0, 900)), max_size=12
).map(lambda found: sorted(found, key=lambda each: each.topic))


@pytest.mark.parametrize(
    ("demands", "budget", "turn", "shares"),
    [
        ([], 5, 0, []),
        ([0, 0], 5, 0, [0, 0]),
        ([3, 4], 10, 0, [3, 4]),
        ([1_000_000, 3, 10], 100, 0, [87, 3, 10]),
        ([50, 50, 50], 100, 0, [34, 33, 33]),
        ([50, 50, 50], 100, 1, [33, 34, 33]),
        ([9, 9, 9], 1, 2, [0, 0, 1]),
        ([9, 0, 9], 1, 3, [0, 0, 1]),
    ],
)
def test_shares_of_a_budget(demands: list[int], budget: int, turn: int, shares: list[int]) -> None:
    assert fill(demands, budget, turn) == shares


def test_a_topic_of_many_partitions_gets_no_more_than_another() -> None:
    backlogs = [Backlog("wide", 1000, 10)] * 9 + [Backlog("narrow", 1000, 10)]
    shares = admit(backlogs, Limits(records=180))
    assert (sum(shares[:9]), shares[9]) == (90, 90)
    assert set(shares[:9]) == {10}


def test_a_large_backlog_holds_up_nobody() -> None:
    shares = admit([Backlog("flood", 10**9, 100), Backlog("small", 7, 100), Backlog("tiny", 1, 100)], Limits(1000))
    assert shares == [992, 7, 1]


def test_bytes_are_counted_by_the_mean_of_each_partition() -> None:
    assert admit([Backlog("large", 100, 1000), Backlog("small", 100_000, 10)], Limits(bytes=20_000)) == [10, 1000]


def test_a_record_larger_than_the_limit_still_comes() -> None:
    assert admit([Backlog("a", 5, 10_000), Backlog("b", 5, 10_000)], Limits(bytes=100), turn=1) == [0, 1]


def test_who_gets_what_is_left_goes_round() -> None:
    backlogs = [Backlog(topic, 1000, 100) for topic in "abcde"]
    got = [0] * 5
    for turn in range(50):
        got = [a + b for a, b in zip(got, admit(backlogs, Limits(records=3), turn), strict=True)]
    assert got == [30] * 5


@given(_BACKLOGS, st.integers(0, 3000), st.integers(0, 300_000), st.integers(0, 20))
def test_limits_hold_and_something_always_comes(backlogs: list[Backlog], records: int, size: int, turn: int) -> None:
    limits = Limits(records, size)
    shares = admit(backlogs, limits, turn)
    assert all(0 <= share <= each.records for share, each in zip(shares, backlogs, strict=True))
    assert not records or sum(shares) <= records
    taken = sum(share * max(each.record_bytes, 1) for share, each in zip(shares, backlogs, strict=True))
    assert not size or taken <= size or sum(shares) == 1
    assert sum(shares) > 0 or not any(each.records for each in backlogs)
    waiting = sum(each.records for each in backlogs)
    if not size:  # nothing of the limit is left unused
        assert sum(shares) == (min(records, waiting) if records else waiting)
