"""Spark programs that test_write_faults.py starts as processes of their own: `write_faults_jobs.py NAME URL DIRECTORY`.

They run with tasks that may fail three times, and some are killed in the middle.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from support.spark import environment, need_java

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage
    from pyspark.sql.types import StructType

ROWS = 20_000
FILES = 6
LINES = 4000


def session(directory: Path) -> "SparkSession":
    """Tasks are tried four times."""
    need_java()
    environment()
    from pyspark.sql import SparkSession

    from pyspark_topics import register

    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(directory / "spark"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
        .getOrCreate()
    )
    register(spark)
    return spark


def once(directory: Path, name: str) -> bool:
    """True for the first process that asks."""
    try:
        (directory / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


T = TypeVar("T")


def failing(rows: Iterable[T], directory: Path, name: str, fail: Callable[[], None], at: int) -> Iterator[T]:
    """The rows of a task; the one of partition 1 fails once, when it has come to row, or batch, number `at`."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    for number, row in enumerate(rows):
        if number == at and context.partitionId() == 1 and once(directory, name):
            fail()
        yield row


def broken() -> None:
    """An error of the user's code."""
    raise RuntimeError("once")


def killed() -> None:
    """The worker process is gone."""
    os.kill(os.getpid(), signal.SIGKILL)


def tasks(url: str, directory: Path) -> None:
    """Three writes, each with a task that fails once in the middle: user code raises, its process is killed, or that of
    the writer is."""
    from pyspark_topics.source import DefaultSource
    from pyspark_topics.write import BatchWriter

    class KilledWriter(BatchWriter):
        def write(self, iterator: "Iterator[pa.RecordBatch]") -> "WriterCommitMessage":
            return super().write(failing(iterator, directory, "writer", killed, 6))

    class KilledSource(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "killed"

        def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
            made = super().writer(schema, overwrite)
            made.__class__ = KilledWriter
            return made

    spark = session(directory)
    spark.dataSource.register(KilledSource)
    frame = spark.range(0, ROWS, 1, 2).selectExpr("to_json(struct(id)) AS data")
    options = {"url": url, "maxRecordsPerAppend": "500", "maxInFlight": "4"}
    for topic, fail in (("broken", broken), ("killed", killed)):
        rows = frame.rdd.mapPartitions(lambda rows, topic=topic, fail=fail: failing(rows, directory, topic, fail, 6000))
        made = spark.createDataFrame(rows, frame.schema)
        made.write.format("topics").options(topic=topic, **options).mode("append").save()
    frame.write.format("killed").options(topic="writer", **options).mode("append").save()
    spark.stop()


def stream(url: str, directory: Path) -> None:
    """A streaming query over files, one a batch, until all are written."""
    spark = session(directory)
    query = (
        spark.readStream.option("maxFilesPerTrigger", 1)
        .text(str(directory / "in"))
        .repartition(2)
        .selectExpr("value AS data")
        .writeStream.format("topics")
        .options(url=url, topic="stream", maxRecordsPerAppend="100", maxInFlight="2")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    {"tasks": tasks, "stream": stream}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
