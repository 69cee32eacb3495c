"""Streaming queries over real sessions and servers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from pyspark_topics.lag import lag
from support.spark import Server, put_topic
from support.stream_queries import Stream
from support.waiting import poll
from topics_client.connection import Connection
from topics_proto.v1 import topics_service_pb2 as pb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fill = Callable[..., int]


def delete(connection: Connection, topic: str) -> None:
    connection.unary(connection.topics.DeleteTopic, pb.DeleteTopicRequest(topic=topic), repeatable=True)


def keys(topic: str, first: int, last: int, partition: int = 0) -> list[tuple[str, int, int]]:
    return [(topic, partition, seq) for seq in range(first, last + 1)]


def test_every_record_once_over_restarts_in_batches_within_the_limit(
    spark: "SparkSession", server: Server, fill: Fill, connection: Connection, tmp_path: Path
) -> None:
    put_topic(connection, "once", partitions=2)
    fill("once", 250)
    fill("once", 30, partition=1)
    stream = Stream(
        spark, server, tmp_path, subscribe="once", startingOffsets="earliest", maxRecordsPerTrigger=100, minPartitions=3
    )
    stream.run()
    assert [len(rows) for _, rows in stream.batches] == [100, 100, 80]
    stream.run()
    assert len(stream.batches) == 3
    fill("once", 120)
    stream.run()
    assert [len(rows) for _, rows in stream.batches[3:]] == [100, 20]
    assert [batch for batch, _ in stream.batches] == list(range(5))
    assert sorted(stream.keys) == [*keys("once", 1, 370), *keys("once", 1, 30, partition=1)]


def test_a_batch_that_failed_in_its_sink_comes_again_the_same(
    spark: "SparkSession", server: Server, fill: Fill, tmp_path: Path
) -> None:
    fill("replay", 100)
    stream = Stream(spark, server, tmp_path, subscribe="replay", startingOffsets="earliest", maxRecordsPerTrigger=40)
    stream.fails = lambda batch: batch == 1
    with pytest.raises(StreamingQueryException, match="batch 1 as told"):
        stream.run()
    fill("replay", 7)
    stream.fails = lambda batch: False
    stream.run()
    assert [batch for batch, _ in stream.batches] == [0, 1, 1, 2]
    assert stream.batches[2] == stream.batches[1]
    del stream.batches[2]
    assert stream.keys == keys("replay", 1, 107)


def test_a_first_batch_that_failed_comes_again_though_the_head_moved(
    spark: "SparkSession", server: Server, fill: Fill, tmp_path: Path
) -> None:
    fill("latest", 50)
    stream = Stream(spark, server, tmp_path, subscribe="latest")
    stream.fails = lambda batch: True
    query = stream.start(processingTime="50 milliseconds")
    assert "as told" in stream.failure(query)
    [(_, began)] = stream.batches  # empty: it began at the head
    assert began == []
    fill("latest", 10)
    stream.fails = lambda batch: False
    stream.run()
    assert stream.keys == keys("latest", 51, 60)


def test_live_records_come_soon_and_the_lag_is_told(
    spark: "SparkSession", server: Server, fill: Fill, tmp_path: Path
) -> None:
    fill("live", 5)
    stream = Stream(spark, server, tmp_path, subscribe="live", maxRecordsPerTrigger=20)
    query = stream.start(processingTime="100 milliseconds")
    try:
        poll(lambda: stream.batches, 30, "the first batch")
        for expected in (1, 2, 3):
            fill("live", 1)
            stream.wait(expected, query, 15)
        fill("live", 60)
        poll(lambda: any(lag(progress).get("live", 0) > 0 for progress in query.recentProgress), 20, "a lag")
        stream.wait(63, query)
        poll(lambda: lag(query.lastProgress) == {"live": 0}, 20, "no lag")
        progress = query.lastProgress
        assert progress is not None
        [source] = progress["sources"]
        assert json.loads(source["endOffset"])["live"]["seq"] == {"0": 68}
        assert json.loads(source["latestOffset"])["live"]["seq"] == {"0": 68}
    finally:
        query.stop()
    assert stream.keys == keys("live", 6, 68)
    assert max(len(rows) for _, rows in stream.batches) <= 20


def test_topics_and_partitions_that_appear_are_read_from_their_start(
    spark: "SparkSession", server: Server, fill: Fill, connection: Connection, tmp_path: Path
) -> None:
    fill("appear-a", 5)
    stream = Stream(spark, server, tmp_path, subscribePattern="appear-.*")
    query = stream.start(processingTime="50 milliseconds")
    try:
        poll(lambda: stream.batches, 30, "the first batch")
        fill("appear-b", 12)
        stream.wait(12, query)
        put_topic(connection, "appear-a", partitions=2)
        fill("appear-a", 4, partition=1)
        stream.wait(16, query)
    finally:
        query.stop()
    assert sorted(stream.keys) == [*keys("appear-a", 1, 4, partition=1), *keys("appear-b", 1, 12)]


def test_a_topic_made_again_fails_the_query_or_is_read_anew(
    spark: "SparkSession", server: Server, fill: Fill, connection: Connection, tmp_path: Path
) -> None:
    old = put_topic(connection, "remade")
    fill("remade", 5)
    stream = Stream(spark, server, tmp_path, subscribe="remade", startingOffsets="earliest", includeGaps="true")
    query = stream.start(processingTime="50 milliseconds")
    stream.wait(5, query)
    delete(connection, "remade")
    new = put_topic(connection, "remade")
    fill("remade", 3)
    text = stream.failure(query)
    # The topic may be seen gone before it is seen again.
    assert f"({old}) was deleted; the stream had read it up to seq 5" in text or (
        f"had read {old} up to seq 5 of partition 0, the topic is now {new}" in text
    )
    assert "failOnDataLoss=false" in text
    with pytest.raises(StreamingQueryException, match=f"the topic is now {new}"):
        stream.run()
    stream.options["failOnDataLoss"] = "false"
    stream.run()
    assert [(row["seq"], row["gap_to"], row["gap_reason"]) for row in stream.rows[5:]] == [
        (6, 5, "recreated"),
        (1, None, None),
        (2, None, None),
        (3, None, None),
    ]


def test_a_topic_that_vanishes_fails_the_query_or_is_left_out(
    spark: "SparkSession", server: Server, fill: Fill, connection: Connection, tmp_path: Path
) -> None:
    fill("vanish-a", 5)
    fill("vanish-b", 5)
    stream = Stream(spark, server, tmp_path, subscribePattern="vanish-.*", startingOffsets="earliest")
    stream.run()
    delete(connection, "vanish-a")
    with pytest.raises(StreamingQueryException, match=r"topic vanish-a \(top_\w+\) was deleted"):
        stream.run()
    stream.options["failOnDataLoss"] = "false"
    query = stream.start(processingTime="50 milliseconds")
    try:
        fill("vanish-b", 2)
        stream.wait(12, query)
        fill("vanish-a", 3)
        stream.wait(15, query)
    finally:
        query.stop()
    assert stream.keys[10:] == [*keys("vanish-b", 6, 7), *keys("vanish-a", 1, 3)]


def test_evicted_records_fail_the_query_or_are_told(
    spark: "SparkSession", server: Server, fill: Fill, connection: Connection, tmp_path: Path
) -> None:
    fill("evicted", 10)
    stream = Stream(spark, server, tmp_path, subscribe="evicted", startingOffsets="earliest", includeGaps="true")
    stream.run()
    fill("evicted", 20)
    put_topic(connection, "evicted", cap_records=5)
    with pytest.raises(StreamingQueryException, match=r"topic evicted: .*seq 11 to 25 are lost \(reason: cap\)"):
        stream.run()
    stream.options["failOnDataLoss"] = "false"
    stream.run()
    assert [(row["seq"], row["gap_to"], row["gap_reason"]) for row in stream.rows[10:]] == [
        (11, 25, "cap"),
        *((seq, None, None) for seq in range(26, 31)),
    ]


def test_a_topic_that_does_not_exist_fails_the_query_at_once(
    spark: "SparkSession", server: Server, tmp_path: Path
) -> None:
    stream = Stream(spark, server, tmp_path, subscribe="nowhere")
    with pytest.raises(StreamingQueryException, match='topic "nowhere" does not exist'):
        stream.run()


def test_the_server_restarts_under_a_query(spark: "SparkSession", tmp_path: Path) -> None:
    with Server(tmp_path / "1", same_ports=True) as first:
        port = first.grpc_target.rpartition(":")[2]
        from support.spark import fill

        with first.connect() as connection:
            fill(connection, "restart", 3000)
            stream = Stream(
                spark, first, tmp_path, subscribe="restart", startingOffsets="earliest", maxRecordsPerTrigger=500
            )
            query = stream.start(processingTime="0 seconds")
            try:
                stream.wait(500, query)
                first.kill()
                assert query.isActive
                with Server(tmp_path / "2", data_dir=first.data_dir, env={"TOPICS_GRPC_PORT": port}) as second:
                    with second.connect() as other:
                        fill(other, "restart", 200)
                    stream.wait(3200, query)
                    query.stop()
            finally:
                query.stop()
    assert stream.keys == keys("restart", 1, 3200)


def test_fields_of_data_as_columns(spark: "SparkSession", server: Server, fill: Fill, tmp_path: Path) -> None:
    fill("typed", 3)
    stream = Stream(
        spark, server, tmp_path, subscribe="typed", startingOffsets="earliest", dataSchema="id bigint, amount double"
    )
    stream.run()
    assert [(row["id"], row["amount"], row["_corrupt"]) for row in stream.rows] == [
        (0, 0.25, None),
        (1, 1.25, None),
        (2, 2.25, None),
    ]


def test_what_is_said_of_keys_in_plans(spark: "SparkSession") -> None:
    """Spark shows the options of a stream; docs/spark.md says how to keep the key out of what it shows."""

    def plan(**options: str) -> str:
        frame = spark.readStream.format("topics").options(subscribe="orders", **options).load()
        return str(frame._jdf.queryExecution().toString())

    assert "orders" in plan(url="topics://sekret@127.0.0.1:1")
    assert "sekret" not in plan(url="topics://sekret@127.0.0.1:1")
    assert "sekret" not in plan(**{"topics.url": "topics://sekret@127.0.0.1:1"})
    spark.conf.set("spark.sql.redaction.options.regex", "(?i)url|apikey")
    try:
        assert "sekret" not in plan(url="topics://127.0.0.1:1", apiKey="sekret")
    finally:
        spark.conf.unset("spark.sql.redaction.options.regex")
