"""Streaming queries of tests: a sink that remembers what it got, and when it is to fail."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.spark import Server
from support.waiting import poll

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SECONDS = 60.0
Key = tuple[str, int, int]
"""topic, partition, seq."""


class SinkFailedError(Exception):
    """The error of a sink that is meant to fail."""


class Stream:
    """A query of a topic, or many, from a checkpoint of its own; it can be started again and again."""

    def __init__(self, spark: "SparkSession", server: Server, directory: Path, **options: object) -> None:
        self._spark = spark
        self._checkpoint = str(directory / "checkpoint")
        self.options = {"url": server.url} | {name: str(value) for name, value in options.items()}
        self.batches: list[tuple[int, list[dict[str, Any]]]] = []
        """Number and rows of each batch that the sink got, in the order of its calls."""
        self.seen: dict[Key, float] = {}
        """When each record came first."""
        self.fails: Callable[[int], bool] = lambda batch: False
        """Whether the sink fails after it has taken a batch, by its number."""

    @property
    def frame(self) -> "DataFrame":
        """The frame that is streamed."""
        return self._spark.readStream.format("topics").options(**self.options).load()

    def start(self, **trigger: Any) -> "StreamingQuery":
        """Run it with a trigger; by default as fast as it goes."""
        writer = self.frame.writeStream.option("checkpointLocation", self._checkpoint).foreachBatch(self._take)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def run(self) -> "StreamingQuery":
        """Run it with Trigger.AvailableNow to its end; raises what it failed with."""
        query = self.start(availableNow=True)
        try:
            assert query.awaitTermination(int(SECONDS)), "the query did not end"
        finally:
            query.stop()
        return query

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of all batches in the order they came."""
        return [row for _, rows in self.batches for row in rows]

    @property
    def keys(self) -> list[Key]:
        """The records of all batches, in order; gap rows left out."""
        return [_key(row) for row in self.rows if row.get("gap_reason") is None]

    def wait(self, count: int, query: "StreamingQuery", seconds: float = SECONDS) -> None:
        """Wait for the given number of rows."""

        def come() -> bool:
            failed = query.exception()
            if failed is not None:
                raise failed
            return len(self.rows) >= count

        poll(come, seconds, f"{count} rows, not {len(self.rows)}")

    def failure(self, query: "StreamingQuery", seconds: float = SECONDS) -> str:
        """What the query fails with."""
        poll(lambda: not query.isActive, seconds, "the query fails")
        failed = query.exception()
        assert failed is not None
        return str(failed)

    def _take(self, frame: "DataFrame", batch: int) -> None:
        rows = [row.asDict() for row in frame.collect()]
        now = time.time()
        self.batches.append((batch, rows))
        for row in rows:
            self.seen.setdefault(_key(row), now)
        if self.fails(batch):
            raise SinkFailedError(f"batch {batch} as told")


def _key(row: dict[str, Any]) -> Key:
    return row["topic"], row["partition"], row["seq"]
