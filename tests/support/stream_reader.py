"""A stream's reader without Spark: what Spark would call, called by hand."""

import json
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from pyspark_topics.source import DefaultSource
from pyspark_topics.stream_spark42 import StreamReader
from support.spark import Server
from topics_client.retry import Retry

Json = dict[str, Any]


def reader(server: Server, *, seconds: float = 5.0, hold: float = 0.0, **options: object) -> StreamReader:
    """The reader for these options; `seconds` is its patience with a server that does not answer."""
    given = {name: str(value) for name, value in options.items()} | {"url": server.url}
    schema = DefaultSource(given).schema()
    return StreamReader(given, schema, retry=Retry(seconds=seconds), hold=hold)


def through_spark(offset: Json) -> Json:
    """An offset as Spark gives it back."""
    read: Json = json.loads(json.dumps(offset))
    return read


def step(made: StreamReader, start: Json, limit: ReadLimit | None = None) -> Json:
    """The next offset, by default with the reader's own limit."""
    return through_spark(made.latestOffset(through_spark(start), limit or made.getDefaultReadLimit()))


def everything(made: StreamReader, start: Json) -> Json:
    """The next offset without a limit."""
    return step(made, start, ReadAllAvailable())


def seqs(offset: Json) -> dict[str, dict[int, int]]:
    """The positions of an offset."""
    return {topic: {int(p): seq for p, seq in at["seq"].items()} for topic, at in offset.items()}


def read(made: StreamReader, start: Json, end: Json) -> list[dict[str, Any]]:
    """The rows between two offsets, each task read by a copy of the reader as in a worker."""
    import pickle

    rows: list[dict[str, Any]] = []
    for task in made.partitions(through_spark(start), through_spark(end)):
        copy: StreamReader = pickle.loads(pickle.dumps(made))
        for batch in copy.read(pickle.loads(pickle.dumps(task))):
            rows += batch.to_pylist()
    return rows
