"""Spark and the lakehouse on three nodes with eight shards: any node is asked, and one is killed in the middle."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from cluster.conftest import etcd, s3
from pyspark.sql import types
from spark.test_read_table_events import change, check_events

from pyspark_topics.write import TaskWrite
from pyspark_topics.write_columns import Layout
from pyspark_topics.write_options import WriteOptions
from support.etcd import Etcd
from support.lake_runs import LocalRunner, follow, settings
from support.lake_truth import Lake
from support.s3 import S3
from support.spark import Row, Server, fill, put_topic, rows
from support.spark_read import Read
from support.spark_shards import SHARDS, ShardedCluster
from support.stream_reader import read, reader, step
from support.waiting import poll
from topics_client.address import Address
from topics_client.connection import Connection
from topics_lakehouse.files import FileTask, TaskResult
from topics_lakehouse.pipeline import Pipeline
from topics_proto.v1 import topic_pb2
from topics_service.engine.placement import shard_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["etcd", "s3"]

PARTITIONS = 6
RECORDS = 1000
"""Of each partition."""

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def cluster(s3: S3, etcd: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardedCluster]:
    folder = tmp_path_factory.mktemp("shards")
    with ShardedCluster(folder, etcd.address, s3.bucket(), s3.environment, shards=SHARDS) as running:
        running.wait_until_shared()
        yield running


@pytest.fixture(scope="module")
def connection(cluster: ShardedCluster) -> Iterator[Connection]:
    with cluster.connect() as made:
        yield made


@pytest.fixture(scope="module")
def source(connection: Connection) -> list[Row]:
    """The topic that is read, in several shards."""
    put_topic(connection, "source", partitions=PARTITIONS, durability=topic_pb2.DURABILITY_FSYNC)
    assert len({shard_of("source", each, SHARDS) for each in range(PARTITIONS)}) >= 4
    for each in range(PARTITIONS):
        fill(connection, "source", RECORDS, first=each * RECORDS, partition=each, tag=lambda i: f"t{i % 5}")
    return rows(connection, "source")


@pytest.fixture
def frame(spark: "SparkSession", cluster: ShardedCluster, source: list[Row]) -> "DataFrame":
    from pyspark_topics import register

    register(spark)
    return spark.read.format("topics").option("url", cluster.url).option("subscribe", "source").load()


def keys(records: Sequence[Row]) -> Counter[tuple[str | None, bytes]]:
    return Counter((row.tag, row.data) for row in records)


def test_each_node_gives_the_whole_topic(
    spark: "SparkSession", cluster: ShardedCluster, source: list[Row], frame: "DataFrame"
) -> None:
    for node in cluster.nodes:
        reading = spark.read.format("topics").option("url", f"topics://{node.grpc_target}")
        found = reading.option("subscribePattern", "sour.*").option("startingTimestamp", "0").load()
        read = found.select("partition", "seq", "tag", "data").orderBy("partition", "seq").collect()
        assert [(*row[:3], bytes(row[3])) for row in read] == [
            (row.partition, row.seq, row.tag, row.data) for row in source
        ]


def test_each_node_gives_the_changes_of_a_table(cluster: ShardedCluster) -> None:
    change(cluster.url)
    for node in cluster.nodes:
        check_events(f"topics://{node.grpc_target}")


def test_batches_of_a_stream_are_written_once_while_a_node_dies(
    cluster: ShardedCluster, source: list[Row], connection: Connection
) -> None:
    """The calls of Spark, made by hand; each batch runs twice, as after a lost executor."""
    made = reader(cluster, seconds=60, subscribe="source", startingOffsets="earliest", maxRecordsPerTrigger=1500)
    to = {"url": cluster.url, "topic": "copied", "partitions": str(PARTITIONS), "durability": "fsync"}
    options = WriteOptions.parse(to | {"maxRecordsPerAppend": "50", "writeId": "copy"})
    columns = types.StructType().add("partition", types.IntegerType()).add("tag", types.StringType())
    task = TaskWrite(options, Layout.parse(columns.add("data", types.BinaryType()), options), "s/copy", True)
    schema = pa.schema([("partition", pa.int32()), ("tag", pa.string()), ("data", pa.binary())])
    victim = cluster[cluster.owners[shard_of("source", 1, SHARDS)]]

    def killing(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches[:5]
        victim.kill()
        yield from batches[5:]

    at, number = made.initialOffset(), 0
    while (end := step(made, at)) != at:
        batches = pa.Table.from_pylist(read(made, at, end), schema).to_batches(100)
        task.run(killing(batches) if number == 1 else iter(batches), f"/{number}", 0, None)
        task.run(iter(batches), f"/{number}", 0, None)
        at, number = end, number + 1
    assert number == PARTITIONS * RECORDS // 1500
    copied = rows(connection, "copied")
    assert Counter((row.partition, row.data) for row in copied) == Counter((row.partition, row.data) for row in source)
    assert not victim.alive()
    victim.start()


@pytest.mark.soak
def test_stream_to_a_topic_while_a_node_dies(
    spark: "SparkSession",
    cluster: ShardedCluster,
    source: list[Row],
    frame: "DataFrame",
    connection: Connection,
    tmp_path: Path,
) -> None:
    reading = spark.readStream.format("topics").option("url", cluster.url).option("subscribe", "source")
    reading.option("startingOffsets", "earliest").option("maxRecordsPerTrigger", "600")
    sink = reading.load().select("partition", "tag", "data").writeStream.format("topics").option("url", cluster.url)
    sink.option("topic", "copy").option("partitions", PARTITIONS).option("maxRecordsPerAppend", "50").option(
        "durability", "fsync"
    )
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        poll(lambda: query.lastProgress is not None or query.exception() is not None, 90, "the first batch")
        cluster[cluster.owners[shard_of("source", 1, SHARDS)]].kill()
        query.processAllAvailable()
    finally:
        query.stop()
    assert keys(rows(connection, "copy")) == keys(source)
    assert len({row.partition for row in rows(connection, "copy")}) == PARTITIONS
    cluster.start(node for node in cluster.nodes if not node.alive())


class _Killing(LocalRunner):
    """Kills a node before the second job of a pipeline."""

    def __init__(self, cluster: ShardedCluster, shard: int) -> None:
        self._cluster = cluster
        self._shard = shard
        self.jobs = 0

    def __call__(self, address: Address, tasks: Sequence[FileTask]) -> list[TaskResult]:
        self.jobs += 1
        if self.jobs == 2:
            self._cluster[self._cluster.owners[self._shard]].kill()
        return super().__call__(address, tasks)


def test_table_equals_topic_while_a_node_dies(
    cluster: ShardedCluster, source: list[Row], connection: Connection, tmp_path: Path
) -> None:
    cluster.wait_until_shared()
    config = settings(cluster, tmp_path, "source", max_records_per_round=2000)  # type: ignore[arg-type]
    runner = _Killing(cluster, shard_of("source", 4, SHARDS))
    pipeline = Pipeline(config, runner)
    try:
        assert pipeline.once(), pipeline.statuses
    finally:
        pipeline.close()
    assert runner.jobs > 2
    lake = Lake(config)
    assert lake.records("source") == source
    assert lake.gaps("source") == []
    cluster.start(node for node in cluster.nodes if not node.alive())


def test_processes_give_and_keep_the_whole_topic(tmp_path: Path) -> None:
    with Server(tmp_path / "server", env={"TOPICS_PROCESSES": 2}) as server, server.connect() as connection:
        put_topic(connection, "source", partitions=PARTITIONS)
        for each in range(PARTITIONS):
            fill(connection, "source", RECORDS, partition=each)
        whole = rows(connection, "source")
        found = Read({"url": server.url, "subscribe": "source"}).rows()
        assert [(row["partition"], row["seq"], row["data"]) for row in found] == [
            (row.partition, row.seq, row.data) for row in whole
        ]
        config = settings(server, tmp_path / "lake", "source")
        follow(config)
        assert Lake(config).records("source") == whole
        change(server.url)
        check_events(server.url)
