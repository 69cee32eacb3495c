"""Offsets of a stream, from one to the next and what lies between them; no Spark, no server."""

import json

import pytest

from pyspark_topics.admission import Limits
from pyspark_topics.fetch import Gap, SeqRange
from pyspark_topics.heads import Heads, Life, Lives, literal_prefix
from pyspark_topics.inventory import PartitionInfo
from pyspark_topics.lag import behind, lag
from pyspark_topics.stream_offsets import CheckpointError, Position, from_json, to_json
from pyspark_topics.stream_plan import advance, between, carry


def life(topic_id: str, *partitions: tuple[int, int], record_bytes: int = 100) -> Life:
    """A life whose partitions have (earliest, head)."""
    return Life(
        topic_id,
        {
            i: PartitionInfo(i, head, earliest, head - earliest + 1, (head - earliest + 1) * record_bytes)
            for i, (earliest, head) in enumerate(partitions)
        },
    )


def position(topic_id: str, *seqs: int, begun: int = 0) -> Position:
    return Position(topic_id, dict(enumerate(seqs)), dict.fromkeys(range(len(seqs)), begun))


def all_subscribed(topic: str) -> bool:
    return True


# Offsets.


def test_offsets_have_one_text_whatever_the_order() -> None:
    one = to_json({"b": Position("top_b", {10: 1, 2: 5}, {2: 0, 10: 0}), "a": position("top_a", 7)})
    other = to_json({"a": position("top_a", 7), "b": Position("top_b", {2: 5, 10: 1}, {10: 0, 2: 0})})
    assert (
        json.dumps(one)
        == json.dumps(other)
        == (
            '{"a": {"id": "top_a", "seq": {"0": 7}, "from": {"0": 0}}, '
            '"b": {"id": "top_b", "seq": {"2": 5, "10": 1}, "from": {"2": 0, "10": 0}}}'
        )
    )
    assert json.dumps(to_json(from_json(json.loads(json.dumps(one))))) == json.dumps(one)


@pytest.mark.parametrize(
    "offset", [{"orders": 5}, {"orders": {"seq": {"0": 1}}}, {"orders": {"id": "x", "seq": {"a": 1}}}, [], {"o": None}]
)
def test_a_foreign_checkpoint_is_refused(offset: object) -> None:
    with pytest.raises(CheckpointError, match="not an offset of a stream of topics"):
        from_json(offset)  # type: ignore[arg-type]


# What becomes of the topics.


def test_new_topics_and_partitions_begin_at_the_earliest() -> None:
    at = {"old": position("top_o", 5, begun=3)}
    found, lost = carry(
        at, {"old": life("top_o", (1, 9), (4, 6)), "new": life("top_n", (11, 20))}, None, all_subscribed
    )
    assert not lost
    assert found == {"old": Position("top_o", {0: 5, 1: 3}, {0: 3, 1: 3}), "new": Position("top_n", {0: 10}, {0: 10})}


def test_a_topic_that_is_gone_is_left_out_and_told() -> None:
    found, [lost] = carry({"orders": position("top_1", 99, 5)}, {}, None, all_subscribed)
    assert not found
    assert str(lost) == (
        "topic orders (top_1) was deleted; the stream had read it up to seq 99 of partition 0, 5 of partition 1"
    )


def test_a_topic_that_is_not_subscribed_to_any_more_is_no_loss() -> None:
    assert carry({"orders": position("top_1", 99)}, {}, None, lambda topic: False) == ({}, [])


def test_a_topic_made_again_begins_anew() -> None:
    found, [lost] = carry({"orders": position("top_1", 99)}, {"orders": life("top_2", (3, 8))}, None, all_subscribed)
    assert found == {"orders": position("top_2", 2, begun=2)}
    assert str(lost) == (
        "topic orders was deleted and recreated: the stream had read top_1 up to seq 99 of partition 0,"
        " the topic is now top_2"
    )


def test_a_topic_that_has_gone_back_begins_anew() -> None:
    found, [lost] = carry({"orders": position("top_1", 99)}, {"orders": life("top_1", (1, 8))}, None, all_subscribed)
    assert found == {"orders": position("top_1", 0)}
    assert str(lost) == (
        "topic orders (top_1) has gone back: the stream had read partition 0 up to seq 99, its head is now 8"
    )


def test_with_a_target_what_is_new_waits() -> None:
    target = {"orders": life("top_1", (1, 9))}
    lives = {"orders": life("top_1", (1, 20), (1, 5)), "new": life("top_n", (1, 5))}
    found, _ = carry({"orders": position("top_1", 5)}, lives, target, all_subscribed)
    assert found == {"orders": position("top_1", 5)}
    assert advance(found, lives, target, Limits(), 0) == {"orders": position("top_1", 9)}


def test_with_a_target_a_new_life_ends_at_once() -> None:
    target = {"orders": life("top_1", (1, 9))}
    lives = {"orders": life("top_2", (1, 20))}
    found, _ = carry({"orders": position("top_1", 5)}, lives, target, all_subscribed)
    assert advance(found, lives, target, Limits(), 0) == {"orders": position("top_2", 0)}
    again, lost = carry(found, lives, target, all_subscribed)
    assert (again, lost) == (found, [])


# The next offset.


def test_without_limits_it_is_the_heads() -> None:
    lives = {"a": life("top_a", (1, 9), (1, 4)), "b": life("top_b", (1, 7))}
    at = {"a": position("top_a", 3, 4), "b": position("top_b", 0)}
    assert advance(at, lives, None, Limits(), 0) == {"a": position("top_a", 9, 4), "b": position("top_b", 7)}


def test_what_retention_took_costs_nothing() -> None:
    lives = {"a": life("top_a", (1001, 2000))}
    assert advance({"a": position("top_a", 5)}, lives, None, Limits(records=10), 0) == {"a": position("top_a", 1010)}


def test_an_empty_topic_whose_records_are_gone_is_passed() -> None:
    lives = {"a": life("top_a", (21, 20))}
    assert advance({"a": position("top_a", 5)}, lives, None, Limits(records=10), 0) == {"a": position("top_a", 20)}


def test_never_back_by_an_old_answer() -> None:
    lives = {"a": life("top_a", (1, 4))}
    at = {"a": position("top_a", 9)}
    assert advance(at, lives, None, Limits(), 0) == at
    assert advance(at, lives, {"a": life("top_a", (1, 2))}, Limits(), 0) == at


def test_steps_with_limits_come_to_the_heads_and_stay() -> None:
    lives: Lives = {"a": life("top_a", (1, 1000)), "b": life("top_b", (1, 30), (1, 0)), "c": life("top_c", (1, 3))}
    at = {topic: position(each.topic_id, *([0] * len(each.partitions))) for topic, each in lives.items()}
    steps = 0
    for turn in range(200):
        to = advance(at, lives, lives, Limits(records=25), turn)
        taken = [to[t].seq[p] - seq for t, each in at.items() for p, seq in each.seq.items()]
        assert min(taken) >= 0
        assert sum(taken) <= 25
        if to == at:
            break
        at, steps = to, steps + 1
    assert steps == -(-1033 // 25)
    assert at == {"a": position("top_a", 1000), "b": position("top_b", 30, 0), "c": position("top_c", 3)}


# The ranges to read.


def test_ranges_between_two_offsets() -> None:
    start = {"a": position("top_a", 5, 9), "b": position("top_b", 1), "gone": position("top_g", 4)}
    end = {"b": position("top_b", 1), "a": position("top_a", 8, 9)}
    assert between(start, end) == ([SeqRange("a", "top_a", 0, 6, 8)], [])


def test_what_is_new_is_read_from_where_it_began() -> None:
    start = {"a": position("top_a", 5)}
    end = {"a": Position("top_a", {0: 5, 1: 30}, {0: 0, 1: 20}), "n": position("top_n", 12, begun=10)}
    assert between(start, end) == ([SeqRange("a", "top_a", 1, 21, 30), SeqRange("n", "top_n", 0, 11, 12)], [])


def test_a_new_life_is_read_from_where_it_began_behind_a_gap() -> None:
    ranges, gaps = between({"a": position("top_1", 99, 7)}, {"a": position("top_2", 8, begun=2)})
    assert ranges == [SeqRange("a", "top_2", 0, 3, 8)]
    assert gaps == [Gap("a", 0, 100, 99, "recreated", 0), Gap("a", 1, 8, 7, "recreated", 0)]


def test_a_partition_that_has_gone_back_is_read_anew_behind_a_gap() -> None:
    ranges, gaps = between({"a": position("top_1", 99)}, {"a": position("top_1", 8)})
    assert ranges == [SeqRange("a", "top_1", 0, 1, 8)]
    assert gaps == [Gap("a", 0, 100, 99, "recreated", 0)]


# Lag.


def test_lag_of_a_progress() -> None:
    end = {"a": position("top_a", 5, 9), "b": position("top_b", 50)}
    latest = {"a": Position("top_a", {0: 8, 1: 9}), "b": Position("top_c", {0: 7}), "new": Position("top_n", {0: 2})}
    assert behind(end, latest) == {"a": 3, "b": 7, "new": 2}
    source = {"endOffset": json.dumps(to_json(end)), "latestOffset": to_json(latest)}
    other = {"endOffset": "17", "latestOffset": "19"}
    assert lag({"sources": [source, other]}) == {"a": 3, "b": 7, "new": 2}
    assert lag({"sources": [{"endOffset": None, "latestOffset": None}]}) == {}
    assert lag(None) == {}


# Patterns.


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("orders", "orders"),
        ("orders-.*", "orders-"),
        ("orders?", "order"),
        ("ab*", "a"),
        ("ab{2}", "a"),
        ("ab+", "ab"),
        ("a|b", ""),
        (".*", ""),
        ("(x)y", ""),
        (r"a\.b", "a"),
        ("a.b", "a"),
        ("a[bc]", "a"),
        ("", ""),
    ],
)
def test_what_a_pattern_begins_with(pattern: str, prefix: str) -> None:
    assert literal_prefix(pattern) == prefix


def test_subscribed_means_the_whole_name() -> None:
    heads = Heads(None, (), "orders-.*")  # type: ignore[arg-type]  # asks nobody
    assert heads.subscribed("orders-1")
    assert not heads.subscribed("my-orders-1")
    assert Heads(None, ("a",), "").subscribed("a")  # type: ignore[arg-type]
