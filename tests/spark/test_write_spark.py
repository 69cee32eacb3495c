"""Writing data frames, batch and streaming, in Spark itself."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from pyspark_topics.inventory import find_topic
from support.spark import Row, Server, put_topic
from support.spark import rows as stored_rows
from support.waiting import poll
from topics_client.connection import Connection
from topics_client.errors import NotFoundError
from topics_proto.v1 import topics_service_pb2

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

KEY = "sekret-of-the-writer"


@pytest.fixture(autouse=True)
def _format(spark: "SparkSession") -> None:
    from pyspark_topics import register

    register(spark)


def write(frame: "DataFrame", server: Server, **options: str) -> None:
    frame.write.format("topics").options(url=server.url, apiKey=KEY, **options).mode("append").save()


def numbers(spark: "SparkSession", count: int, tasks: int = 2) -> "DataFrame":
    return spark.range(0, count, 1, tasks).selectExpr("to_json(struct(id)) AS data", "id")


def told(caught: "pytest.ExceptionInfo[PySparkException]", text: str) -> bool:
    assert KEY not in str(caught.value)
    return text in str(caught.value)


def test_columns_become_records(spark: "SparkSession", server: Server, rows: Callable[..., list[Row]]) -> None:
    frame = spark.sql("""
        SELECT '{"a": 1}' AS data, 'x' AS tag, 'n' AS node, map('k', 'v') AS meta, CAST(NULL AS STRING) AS kind
        UNION ALL SELECT 'plain', NULL, NULL, NULL, 'binary'
    """).coalesce(1)
    write(frame, server, topic="columns")
    assert [row[3:] for row in rows("columns")] == [
        ("n", "x", '{"k":"v"}', b'{"a": 1}', "json"),
        (None, None, None, b"plain", "binary"),
    ]


def test_binary_topics_and_partitions(spark: "SparkSession", server: Server, rows: Callable[..., list[Row]]) -> None:
    frame = numbers(spark, 1000, 4).selectExpr(
        "unhex(hex(id)) AS data", "concat('many-', id % 3) AS topic", "CAST(id % 2 AS INT) AS partition"
    )
    write(frame, server, dataKind="binary", partitions="2", maxRecordsPerAppend="30")
    found = {
        (f"many-{topic}", partition): sorted(int(row.data.hex(), 16) for row in rows(f"many-{topic}", partition))
        for topic in range(3)
        for partition in range(2)
    }
    assert found == {
        (f"many-{topic}", partition): [i for i in range(1000) if i % 3 == topic and i % 2 == partition]
        for topic in range(3)
        for partition in range(2)
    }


def test_an_empty_frame(spark: "SparkSession", server: Server, connection: Connection) -> None:
    """Its topic is created as any other: later reads find it."""
    write(numbers(spark, 0).select("data"), server, topic="empty", partitions="3")
    assert len(find_topic(connection, "empty").partitions) == 3
    write(numbers(spark, 2).where("id > 5").select("data"), server, topic="emptied")
    assert find_topic(connection, "emptied").partitions[0].head_seq == 0
    write(numbers(spark, 0).select("data"), server, topic="not-made", create="false")
    with pytest.raises(NotFoundError):
        find_topic(connection, "not-made")
    write(numbers(spark, 1, 4).select("data"), server, topic="nearly-empty")


def test_order_within_a_task(spark: "SparkSession", server: Server, rows: Callable[..., list[Row]]) -> None:
    write(numbers(spark, 50_000, 1).select("data"), server, topic="ordered", maxRecordsPerAppend="999")
    assert [json.loads(row.data)["id"] for row in rows("ordered")] == list(range(50_000))


def test_a_write_id_over_jobs(spark: "SparkSession", server: Server, rows: Callable[..., list[Row]]) -> None:
    frame = numbers(spark, 3000).select("data")
    for _ in range(2):
        write(frame, server, topic="once", writeId="load 1")
    assert len(rows("once")) == 3000
    write(frame, server, topic="once", writeId="load 2")
    assert len(rows("once")) == 6000
    with pytest.raises(PySparkException) as caught:
        write(numbers(spark, 3000).selectExpr("to_json(struct(-id)) AS data"), server, topic="once", writeId="load 1")
    assert told(caught, "of topic once, chunk 0 (1500 records): an earlier attempt stored seq ")
    assert len(rows("once")) == 6000


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        (["data", "id"], {"topic": "t"}, "column id: records have no such part"),
        (["id AS data"], {"topic": "t"}, "column data is string or binary, not bigint"),
        (["data"], {}, "neither a column topic nor the option topic"),
        (["data"], {"topic": "t", "topics": "u"}, "unknown option topics of a write"),
        (["nullif(data, data) AS data"], {"topic": "t"}, "data is null in"),
        (["data"], {"topic": "not/a/name"}, "not/a/name"),
    ],
)
def test_refusals(
    spark: "SparkSession", server: Server, columns: list[str], options: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        write(numbers(spark, 10).selectExpr(*columns), server, **options)
    assert told(caught, text)


def test_overwrite(spark: "SparkSession", server: Server) -> None:
    frame = numbers(spark, 10).select("data")
    with pytest.raises(PySparkException) as caught:
        frame.write.format("topics").options(url=server.url, apiKey=KEY, topic="t").mode("overwrite").save()
    assert told(caught, "a topic can be appended to, not overwritten")


# -------------------------------------------------------------- streaming


class Lines:
    """Files of lines as a stream, one file a batch."""

    def __init__(self, spark: "SparkSession", server: Server, place: Path) -> None:
        self.spark, self.server, self.place = spark, server, place
        (place / "in").mkdir()

    def add(self, number: int, lines: list[str]) -> None:
        whole = self.place / f"{number}.tmp"
        whole.write_text("\n".join(lines) + "\n")
        whole.rename(self.place / "in" / f"{number}.txt")

    def start(self, select: str = "value AS data", **options: str) -> "StreamingQuery":
        """A query that ends when everything there is has been written."""
        stream = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.place / "in"))
        return (
            stream.selectExpr(select, "'s' AS tag")
            .writeStream.format("topics")
            .options(url=self.server.url, apiKey=KEY, **options)
            .option("checkpointLocation", str(self.place / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    def run(self, select: str = "value AS data", **options: str) -> None:
        """Until everything there is has been written."""
        query = self.start(select, **options)
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()

    def forget_commit(self, batch: int) -> None:
        """As if Spark had died when the sink had everything and its own log of commits did not."""
        (self.place / "checkpoint" / "commits" / f"{batch}").unlink()
        (self.place / "checkpoint" / "commits" / f".{batch}.crc").unlink(missing_ok=True)


@pytest.fixture
def lines(spark: "SparkSession", server: Server, tmp_path: Path) -> Lines:
    return Lines(spark, server, tmp_path)


def part(number: int) -> list[str]:
    return [json.dumps({"file": number, "line": i}) for i in range(500)]


def test_a_stream_whose_batch_is_replayed(lines: Lines, rows: Callable[..., list[Row]]) -> None:
    for number in range(3):
        lines.add(number, part(number))
    lines.run(topic="replayed", maxRecordsPerAppend="70")
    before = rows("replayed")
    assert [row.data.decode() for row in before] == part(0) + part(1) + part(2)
    lines.forget_commit(2)
    lines.add(3, part(3))
    lines.run(topic="replayed", maxRecordsPerAppend="70")
    after = rows("replayed")
    assert after[:1500] == before
    assert [row.data.decode() for row in after[1500:]] == part(3)


def test_a_replay_with_other_rows(lines: Lines, rows: Callable[..., list[Row]]) -> None:
    lines.add(0, part(0))
    lines.run(topic="other-rows")
    before = rows("other-rows")
    lines.forget_commit(0)
    with pytest.raises(PySparkException) as caught:
        lines.run(select="reverse(value) AS data", topic="other-rows", dataKind="binary")
    assert told(
        caught, "partition 0 of topic other-rows, chunk 0 (500 records): an earlier attempt stored seq 1 to 500"
    )
    assert rows("other-rows") == before


def test_a_lost_checkpoint(lines: Lines, rows: Callable[..., list[Row]]) -> None:
    """It is a new query, which starts over; with a write id it is the same, and must have the same rows."""
    lines.add(0, part(0))
    for options, count in (({}, 500), ({}, 1000), ({"writeId": "w"}, 1500), ({"writeId": "w"}, 1500)):
        lines.run(topic="lost", **options)
        assert len(rows("lost")) == count
        shutil.rmtree(lines.place / "checkpoint")


def test_a_stream_into_a_topic_that_forgets_keys_soon(lines: Lines, connection: Connection) -> None:
    put_topic(connection, "forgetful")
    lines.add(0, part(0))
    with pytest.raises(PySparkException) as caught:
        lines.run(topic="forgetful")
    assert told(caught, "topic forgetful remembers idempotency keys for 2m, and this write needs 1h")
    lines.run(topic="forgetful", raiseWindow="true")


def test_a_server_that_is_killed_under_a_stream(
    spark: "SparkSession", tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = Server(tmp_path_factory.mktemp("first"), same_ports=True).start()
    env = {"TOPICS_GRPC_PORT": first.grpc_target.rpartition(":")[2]}
    lines = Lines(spark, first, tmp_path)
    for number in range(4):
        lines.add(number, part(number) * 8)
    query = lines.start(topic="t", maxRecordsPerAppend="50", maxInFlight="2")
    try:
        with first.connect() as connection:
            asked = topics_service_pb2.ListTopicsRequest()
            topics = connection.topics.ListTopics
            poll(lambda: [each for each in topics(asked).topics if each.head_seq > 4500] or not query.isActive, 60)
        first.kill()
        with Server(tmp_path_factory.mktemp("second"), data_dir=first.data_dir, env=env) as second:
            assert query.awaitTermination(120)
            with second.connect() as connection:
                found = [row.data.decode() for row in stored_rows(connection, "t")]
    finally:
        query.stop()
        first.kill()
    assert found == [line for number in range(4) for line in part(number) * 8]


def test_complete_mode(lines: Lines) -> None:
    lines.add(0, part(0))
    stream = lines.spark.readStream.text(str(lines.place / "in")).groupBy("value").count()
    writer = (
        stream.selectExpr("to_json(struct(*)) AS data")
        .writeStream.format("topics")
        .options(url=lines.server.url, topic="complete")
        .option("checkpointLocation", str(lines.place / "checkpoint"))
        .outputMode("complete")
        .trigger(availableNow=True)
    )
    with pytest.raises(PySparkException) as caught:
        writer.start().awaitTermination(60)
    assert told(caught, "a topic can be appended to, not overwritten")


def test_foreach_batch_with_a_write_id(lines: Lines, rows: Callable[..., list[Row]]) -> None:
    """The batch writer inside foreachBatch: the batch id as the write id makes it exact."""
    lines.add(0, part(0))

    def step(frame: "DataFrame", batch: int) -> None:
        write(frame.selectExpr("value AS data"), lines.server, topic="foreach", writeId=f"q/{batch}")

    def run() -> None:
        stream = lines.spark.readStream.text(str(lines.place / "in"))
        query = (
            stream.writeStream.foreachBatch(step)
            .option("checkpointLocation", str(lines.place / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    run()
    lines.forget_commit(0)
    run()
    assert [row.data.decode() for row in rows("foreach")] == part(0)
