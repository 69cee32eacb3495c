"""The reader of a stream against a server; Spark's part is played by hand, no JVM."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from pyspark_topics import heads, stream_spark41
from pyspark_topics.columns import DataLossError
from pyspark_topics.inventory import TopicInfo, find_topic
from pyspark_topics.offsets import OffsetError
from pyspark_topics.options import OptionError
from support.spark import Server, put_topic
from support.stream_reader import everything, read, reader, seqs, step, through_spark
from topics_client.connection import Connection
from topics_client.errors import InvalidRequestError, NotFoundError, UnavailableError
from topics_proto.v1 import topics_service_pb2 as pb

Fill = Callable[..., int]


@pytest.fixture(autouse=True)
def fresh_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look is a new one, unless a test says otherwise."""
    monkeypatch.setattr(heads, "FRESH", 0.0)
    monkeypatch.setattr(heads, "_SHARE", 0)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server that the test may stop."""
    with Server(tmp_path) as running:
        yield running


def delete(connection: Connection, topic: str) -> None:
    connection.unary(connection.topics.DeleteTopic, pb.DeleteTopicRequest(topic=topic), repeatable=True)


def trim(connection: Connection, topic: str, records: int) -> None:
    """Evict all but the last records."""
    put_topic(connection, topic, cap_records=records)


# Where a stream begins.


def test_it_begins_at_the_head_and_goes_on_from_there(server: Server, fill: Fill) -> None:
    fill("begin", 10)
    made = reader(server, subscribe="begin")
    start = made.initialOffset()
    assert seqs(start) == {"begin": {0: 10}}
    fill("begin", 5)
    assert made.initialOffset() == start
    assert seqs(step(made, start)) == {"begin": {0: 15}}
    made.stop()


def test_it_begins_where_the_options_say(server: Server, fill: Fill, connection: Connection) -> None:
    put_topic(connection, "two", partitions=2)
    fill("two", 10)
    fill("two", 6, partition=1)
    cases: list[tuple[dict[str, object], dict[int, int]]] = [
        ({"startingOffsets": "earliest"}, {0: 0, 1: 0}),
        ({"startingOffsets": '{"two": {"0": 4, "1": -1}}'}, {0: 4, 1: 6}),
        ({"startingTimestamp": 0}, {0: 0, 1: 0}),
        ({"startingTimestamp": int(time.time() * 1000) + 60_000}, {0: 10, 1: 6}),
    ]
    for options, expected in cases:
        made = reader(server, seconds=5.0, hold=0.0, **{"subscribe": "two"} | options)
        assert seqs(made.initialOffset()) == {"two": expected}
        made.stop()


def test_a_topic_that_does_not_exist_is_told_at_the_start(server: Server) -> None:
    made = reader(server, subscribe="absent", failOnDataLoss="false")
    with pytest.raises(NotFoundError, match="absent"):
        made.initialOffset()
    made.stop()


def test_offsets_beyond_the_head_are_told_at_the_start(server: Server, fill: Fill) -> None:
    fill("short", 3)
    made = reader(server, subscribe="short", startingOffsets='{"short": 4}')
    with pytest.raises(OffsetError, match="topic short has seqs up to 3"):
        made.initialOffset()
    made.stop()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "a", "maxRecordsPerTrigger": 0}, "maxRecordsPerTrigger"),
        ({"subscribe": "a", "maxBytesPerTrigger": "1k"}, "maxBytesPerTrigger"),
        ({"subscribe": "a", "endingOffsets": "latest"}, "endingOffsets"),
        ({"subscribe": "a", "subscribePattern": "b"}, "subscribe"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": 5}, "unknown option maxOffsetsPerTrigger"),
    ],
)
def test_wrong_options_are_told(server: Server, options: dict[str, object], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        reader(server, seconds=5.0, hold=0.0, **options)


def test_a_pattern_that_is_none_is_told(server: Server) -> None:
    made = reader(server, subscribePattern="orders-(")
    for ask in (made.initialOffset, lambda: step(made, {})):
        with pytest.raises(InvalidRequestError, match=r"not a regular expression: 'orders-\('"):
            ask()
    made.stop()


# From one offset to the next.


def test_nothing_new_gives_back_the_very_start(server: Server, fill: Fill) -> None:
    fill("still", 3)
    made = reader(server, subscribe="still")
    start = through_spark(made.initialOffset())
    assert made.latestOffset(start, ReadAllAvailable()) is start
    assert made.partitions(start, start) == []
    made.stop()


def test_limits_of_records_are_kept_and_shared(server: Server, fill: Fill) -> None:
    for topic, n in [("share-a", 1000), ("share-b", 5), ("share-c", 40)]:
        fill(topic, n)
    made = reader(server, subscribePattern="share-.*", startingOffsets="earliest", maxRecordsPerTrigger=60)
    assert made.getDefaultReadLimit() == ReadMaxRows(60)
    first = step(made, made.initialOffset())
    assert seqs(first) == {"share-a": {0: 28}, "share-b": {0: 5}, "share-c": {0: 27}}
    second = step(made, first)
    assert seqs(second) == {"share-a": {0: 75}, "share-b": {0: 5}, "share-c": {0: 40}}
    assert seqs(everything(made, second)) == {"share-a": {0: 1000}, "share-b": {0: 5}, "share-c": {0: 40}}
    made.stop()


def test_limits_of_bytes_are_kept(server: Server, fill: Fill) -> None:
    fill("bytes", 1000, data=b'"' + b"x" * 98 + b'"')
    made = reader(server, subscribe="bytes", startingOffsets="earliest", maxBytesPerTrigger=2500)
    assert made.getDefaultReadLimit() == ReadMaxBytes(2500)
    assert seqs(step(made, made.initialOffset())) == {"bytes": {0: 25}}
    both = reader(
        server, subscribe="bytes", startingOffsets="earliest", maxBytesPerTrigger=2500, maxRecordsPerTrigger=20
    )
    assert both.getDefaultReadLimit() == ReadMaxRows(20)
    assert seqs(step(both, both.initialOffset())) == {"bytes": {0: 20}}
    assert seqs(step(both, both.initialOffset(), ReadMaxRows(100))) == {"bytes": {0: 25}}
    assert seqs(everything(both, both.initialOffset())) == {"bytes": {0: 1000}}
    made.stop()
    both.stop()


def test_available_now_goes_to_the_heads_of_its_start_in_steps(server: Server, fill: Fill) -> None:
    fill("now-a", 25)
    made = reader(server, subscribePattern="now-.*", startingOffsets="earliest", maxRecordsPerTrigger=10)
    made.prepareForTriggerAvailableNow()
    at, ends = through_spark(made.initialOffset()), []
    fill("now-a", 100)
    fill("now-b", 100)
    for _ in range(10):
        to = step(made, at)
        if to == at:
            break
        ends.append(seqs(to))
        at = to
    assert ends == [{"now-a": {0: 10}}, {"now-a": {0: 20}}, {"now-a": {0: 25}}]
    assert made.reportLatestOffset() is not None
    assert seqs(made.reportLatestOffset() or {}) == {"now-a": {0: 125}, "now-b": {0: 100}}
    made.stop()


def test_the_question_waits_for_new_records_for_a_moment(
    server: Server, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "FRESH", 0.05)
    fill("poll", 1)
    made = reader(server, subscribe="poll", hold=0.3)
    looks = 0

    def counted(connection: Connection, topic: str) -> TopicInfo:
        nonlocal looks
        looks += 1
        if looks == 3:
            fill("poll", 1)
        return find_topic(connection, topic)

    monkeypatch.setattr("pyspark_topics.heads.find_topic", counted)
    start = through_spark(made.initialOffset())
    assert seqs(step(made, start)) == {"poll": {0: 2}}
    assert looks == 3
    began = time.monotonic()
    at = step(made, step(made, start))
    assert seqs(at) == {"poll": {0: 2}}
    assert time.monotonic() - began >= 0.3
    assert looks < 15
    made.stop()


def test_a_listing_of_many_pages(
    server: Server, fill: Fill, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "_PAGE", 2)
    put_topic(connection, "page-3", partitions=2)
    for i in range(1, 6):
        fill(f"page-{i}", i)
    made = reader(server, subscribePattern="page-[1-5]|pages", startingOffsets="earliest")
    end = step(made, made.initialOffset())
    assert seqs(end) == {f"page-{i}": {0: i} | ({1: 0} if i == 3 else {}) for i in range(1, 6)}
    made.stop()


def test_the_reader_for_spark_4_1_finds_out_where_the_query_is(server: Server, fill: Fill) -> None:
    fill("old-spark", 100)
    given = reader(server, subscribe="old-spark", startingOffsets="earliest", maxRecordsPerTrigger=40)._given
    made = stream_spark41.StreamReader(*given, hold=0.0)
    assert seqs(made.latestOffset()) == {"old-spark": {0: 40}}
    end = made.latestOffset()
    made.partitions(made.initialOffset(), end)
    assert seqs(made.latestOffset()) == {"old-spark": {0: 80}}
    made.stop()
    restarted = stream_spark41.StreamReader(*given, hold=0.0)
    assert restarted.partitions(end, end) == []  # what Spark does with the last offset of a checkpoint
    assert seqs(restarted.latestOffset()) == {"old-spark": {0: 80}}
    restarted.stop()


# What is read.


def test_every_record_once_in_as_many_tasks_as_asked_for(server: Server, fill: Fill, connection: Connection) -> None:
    put_topic(connection, "read", partitions=2)
    fill("read", 500, tag=lambda i: f"t{i % 3}")
    fill("read", 100, first=500, partition=1)
    made = reader(server, subscribe="read", startingOffsets="earliest", minPartitions=6)
    start = made.initialOffset()
    end = step(made, start)
    assert len(made.partitions(start, end)) >= 6
    rows = read(made, start, end)
    assert sorted((row["partition"], row["seq"]) for row in rows) == [
        *((0, seq) for seq in range(1, 501)),
        *((1, seq) for seq in range(1, 101)),
    ]
    assert read(made, end, end) == []
    made.stop()


def test_many_small_topics_share_tasks(server: Server, fill: Fill) -> None:
    for i in range(40):
        fill(f"many-{i:02}", 3)
    made = reader(server, subscribePattern="many-.*", startingOffsets="earliest", minPartitions=2)
    start = made.initialOffset()
    end = step(made, start)
    assert 2 <= len(made.partitions(start, end)) <= 4
    assert len(read(made, start, end)) == 120
    made.stop()


def test_another_process_plans_and_reads_the_same(server: Server, fill: Fill) -> None:
    fill("again", 300)
    first = reader(server, subscribe="again", startingOffsets="earliest", maxRecordsPerTrigger=120)
    start = first.initialOffset()
    middle = step(first, start)
    end = step(first, middle)
    rows = read(first, middle, end)
    fill("again", 200)
    second = reader(server, subscribe="again", startingOffsets="latest", minPartitions=7)
    assert [row["seq"] for row in rows] == list(range(121, 241))
    assert read(second, middle, end) == rows
    first.stop()
    second.stop()


def test_the_first_batch_is_the_same_though_its_start_is_told_anew(server: Server, fill: Fill) -> None:
    """Spark does not write down where a query began: a first batch that failed is planned from a later head."""
    fill("first", 50)
    made = reader(server, subscribe="first")
    start = made.initialOffset()
    fill("first", 10)
    end = step(made, start)
    assert [row["seq"] for row in read(made, start, end)] == list(range(51, 61))
    fill("first", 10)
    restarted = reader(server, subscribe="first")
    later = restarted.initialOffset()
    assert seqs(later) == {"first": {0: 70}}
    assert [row["seq"] for row in read(restarted, later, end)] == list(range(51, 61))
    assert [row["seq"] for row in read(restarted, end, step(restarted, end))] == list(range(61, 71))
    made.stop()
    restarted.stop()


# Topics that come and go.


def test_topics_and_partitions_that_appear_are_read_from_the_earliest(
    server: Server, fill: Fill, connection: Connection
) -> None:
    fill("come-a", 5)
    made = reader(server, subscribePattern="come-.*")
    start = made.initialOffset()
    fill("come-b", 20)
    trim(connection, "come-b", 8)
    put_topic(connection, "come-a", partitions=2)
    fill("come-a", 4, partition=1)
    end = step(made, start)
    assert seqs(end) == {"come-a": {0: 5, 1: 4}, "come-b": {0: 20}}
    found = [(row["topic"], row["partition"], row["seq"]) for row in read(made, start, end)]
    assert sorted(found) == [*(("come-a", 1, s) for s in range(1, 5)), *(("come-b", 0, s) for s in range(13, 21))]
    made.stop()


def test_a_topic_named_anew_is_read_from_the_earliest(server: Server, fill: Fill) -> None:
    fill("named-a", 5)
    fill("named-b", 7)
    made = reader(server, subscribe="named-a")
    start = step(made, made.initialOffset())
    made.stop()
    wider = reader(server, subscribe="named-a,named-b")
    end = step(wider, start)
    assert seqs(end) == {"named-a": {0: 5}, "named-b": {0: 7}}
    assert len(read(wider, start, end)) == 7
    wider.stop()
    narrower = reader(server, subscribe="named-b")
    assert seqs(step(narrower, end)) == {"named-b": {0: 7}}
    narrower.stop()
    strange = reader(server, subscribe="named-b,named-c")
    with pytest.raises(NotFoundError, match="topic named-c does not exist"):
        step(strange, end)
    strange.stop()


def test_a_topic_that_is_gone_fails_the_stream(server: Server, fill: Fill, connection: Connection) -> None:
    topic_id = put_topic(connection, "gone", partitions=2)
    fill("gone", 5)
    fill("gone", 3, partition=1)
    made = reader(server, subscribe="gone", startingOffsets="earliest")
    start = step(made, made.initialOffset())
    delete(connection, "gone")
    with pytest.raises(DataLossError) as failed:
        step(made, start)
    assert f"topic gone ({topic_id}) was deleted" in str(failed.value)
    assert "up to seq 5 of partition 0, 3 of partition 1" in str(failed.value)
    assert "failOnDataLoss=false" in str(failed.value)
    made.stop()


def test_a_topic_that_is_gone_is_left_out_and_comes_back_as_a_new_one(
    server: Server, fill: Fill, connection: Connection
) -> None:
    fill("back", 5)
    fill("stays", 5)
    made = reader(server, subscribe="back,stays", failOnDataLoss="false", includeGaps="true")
    start = made.initialOffset()
    delete(connection, "back")
    without = step(made, start)
    assert seqs(without) == {"stays": {0: 5}}
    assert read(made, start, without) == []
    assert step(made, without) == without
    fill("back", 3)
    fill("stays", 1)
    end = step(made, without)
    assert [(row["topic"], row["seq"], row["gap_reason"]) for row in read(made, without, end)] == [
        ("back", 1, None),
        ("back", 2, None),
        ("back", 3, None),
        ("stays", 6, None),
    ]
    made.stop()


def test_a_topic_made_again_fails_the_stream(server: Server, fill: Fill, connection: Connection) -> None:
    old = put_topic(connection, "anew")
    fill("anew", 5)
    made = reader(server, subscribe="anew", startingOffsets="earliest")
    start = step(made, made.initialOffset())
    delete(connection, "anew")
    new = put_topic(connection, "anew")
    fill("anew", 9)
    with pytest.raises(DataLossError) as failed:
        step(made, start)
    assert f"had read {old} up to seq 5 of partition 0, the topic is now {new}" in str(failed.value)
    made.stop()


@pytest.mark.parametrize("gaps", [True, False])
def test_a_topic_made_again_is_read_from_its_new_start(
    server: Server, fill: Fill, connection: Connection, gaps: bool
) -> None:
    topic = f"anew-{gaps}"
    fill(topic, 50)
    made = reader(
        server,
        subscribe=topic,
        startingOffsets="earliest",
        failOnDataLoss="false",
        includeGaps=str(gaps).lower(),
        maxRecordsPerTrigger=60,
    )
    start = step(made, made.initialOffset())
    delete(connection, topic)
    fill(topic, 90)
    middle = step(made, start)
    end = step(made, middle)
    rows = read(made, start, middle) + read(made, middle, end)
    assert [row["seq"] for row in rows if row.get("gap_reason") is None] == list(range(1, 91))
    if gaps:
        [gap] = [row for row in rows if row["gap_reason"] is not None]
        assert rows[0] == gap
        assert (gap["topic"], gap["partition"], gap["seq"], gap["gap_to"], gap["gap_reason"]) == (
            topic,
            0,
            51,
            50,
            "recreated",
        )
    made.stop()


def test_a_checkpoint_beyond_the_head_is_found(server: Server, fill: Fill) -> None:
    """As when the server was restored to an older state: the same topic, fewer records."""
    fill("rewound", 10)
    made = reader(server, subscribe="rewound", startingOffsets="earliest")
    start = step(made, made.initialOffset())
    start["rewound"]["seq"]["0"] = 25
    with pytest.raises(DataLossError, match=r"had read partition 0 up to seq 25, its head is now 10"):
        step(made, start)
    made.stop()
    lenient = reader(server, subscribe="rewound", failOnDataLoss="false", includeGaps="true")
    end = step(lenient, start)
    rows = read(lenient, start, end)
    assert [(row["seq"], row["gap_reason"]) for row in rows] == [(26, "recreated"), *((s, None) for s in range(1, 11))]
    assert step(lenient, end) == end
    lenient.stop()


def test_a_topic_made_again_between_the_plan_and_the_read(server: Server, fill: Fill, connection: Connection) -> None:
    fill("between", 10)
    made = reader(server, subscribe="between", startingOffsets="earliest")
    start = made.initialOffset()
    middle = step(made, start, ReadMaxRows(4))
    end = step(made, middle)
    delete(connection, "between")
    fill("between", 90)
    with pytest.raises(DataLossError, match=r"topic between, seq 5 to 10: lost from seq 5 on"):
        read(made, middle, end)
    made.stop()
    lenient = reader(server, subscribe="between", failOnDataLoss="false", includeGaps="true")
    [gap] = read(lenient, middle, end)
    assert (gap["seq"], gap["gap_to"], gap["gap_reason"]) == (5, 10, "recreated")
    lenient.stop()
    silent = reader(server, subscribe="between", failOnDataLoss="false")
    assert read(silent, middle, end) == []
    silent.stop()


@pytest.mark.parametrize(("middle", "expected"), [(2, [(3, None), (4, None), (5, 9)]), (6, [(7, 9)])])
def test_a_server_put_back_between_the_plan_and_the_read(
    server: Server, fill: Fill, middle: int, expected: list[tuple[int, int | None]]
) -> None:
    """The batch ends behind the head, and perhaps begins there."""
    topic = f"put-back-{middle}"
    fill(topic, 4)
    made = reader(server, subscribe=topic, startingOffsets="earliest")
    start, end = through_spark(made.initialOffset()), through_spark(made.initialOffset())
    made.stop()
    start[topic]["seq"], end[topic]["seq"] = {"0": middle}, {"0": 9}
    strict = reader(server, subscribe=topic)
    with pytest.raises(DataLossError, match=rf"topic {topic}, seq {middle + 1} to 9: lost .* restored to an older"):
        read(strict, start, end)
    strict.stop()
    lenient = reader(server, subscribe=topic, failOnDataLoss="false", includeGaps="true")
    assert [(row["seq"], row["gap_to"]) for row in read(lenient, start, end)] == expected
    lenient.stop()


# What retention took.


def test_evicted_ranges_fail_the_stream(server: Server, fill: Fill, connection: Connection) -> None:
    fill("evict", 30)
    made = reader(server, subscribe="evict", startingOffsets='{"evict": 5}')
    start = made.initialOffset()
    trim(connection, "evict", 10)
    end = step(made, start)
    assert seqs(end) == {"evict": {0: 30}}
    with pytest.raises(DataLossError, match=r"topic evict: .*seq 6 to 20 are lost \(reason: cap\)"):
        read(made, start, end)
    made.stop()


@pytest.mark.parametrize("gaps", [True, False])
def test_evicted_ranges_are_gap_rows_or_passed(server: Server, fill: Fill, connection: Connection, gaps: bool) -> None:
    topic = f"evict-{gaps}"
    fill(topic, 30)
    made = reader(
        server,
        subscribe=topic,
        startingOffsets=f'{{"{topic}": 5}}',
        failOnDataLoss="false",
        includeGaps=str(gaps).lower(),
        maxRecordsPerTrigger=4,
    )
    start = made.initialOffset()
    trim(connection, topic, 10)
    end = step(made, start)
    assert seqs(end) == {topic: {0: 24}}
    rows = read(made, start, end)
    if gaps:
        assert [(row["seq"], row["gap_to"], row["gap_reason"]) for row in rows] == [
            (6, 20, "cap"),
            *((seq, None, None) for seq in range(21, 25)),
        ]
    else:
        assert [row["seq"] for row in rows] == list(range(21, 25))
    made.stop()


def test_deleted_records_are_no_loss(server: Server, fill: Fill, connection: Connection) -> None:
    fill("deleted", 30)
    made = reader(server, subscribe="deleted", startingOffsets='{"deleted": 5}')
    start = made.initialOffset()
    connection.unary(
        connection.topics.DeleteRecords, pb.DeleteRecordsRequest(topic="deleted", before_seq=21), repeatable=True
    )
    end = step(made, start)
    assert [row["seq"] for row in read(made, start, end)] == list(range(21, 31))
    made.stop()


# The server.


def test_an_absent_server_is_waited_for_and_then_told(own_server: Server) -> None:
    with own_server.connect() as connection:
        put_topic(connection, "orders")
    made = reader(own_server, seconds=1.0, subscribe="orders")
    start = made.initialOffset()
    own_server.stop()
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="no answer for 1 s about new records") as failed:
        step(made, start)
    assert 0.2 < time.monotonic() - began < 10
    assert own_server.grpc_target in str(failed.value)
    made.stop()


def test_nothing_is_asked_before_it_is_needed(own_server: Server) -> None:
    own_server.stop()
    made = reader(own_server, subscribe="orders")
    assert made.reportLatestOffset() is None
    made.stop()
