"""What the tests of the Spark connector and of the lakehouse share: a session, a server, records and the truth."""

import atexit
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from support.missing import without
from support.server import ServerProcess
from topics_client.address import Address
from topics_client.connection import Connection
from topics_proto.v1 import record_pb2, topic_pb2, topics_service_pb2

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Value = str | bytes | None
Values = Value | Callable[[int], Value] | Sequence[Value]
"""One value for every record, a function of the record's number (from 0), or the values themselves."""

_BATCH = 5000
_PAGE_BYTES = 8 << 20
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options that halve the CPU time of a JVM that lives for seconds."""
_LOG4J = """rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n%ex
"""


class Row(NamedTuple):
    """A record as the gRPC API gives it."""

    partition: int
    seq: int
    ts: datetime
    node: str | None
    tag: str | None
    meta: str | None
    data: bytes
    kind: str
    """`json` or `binary`."""


class Server(ServerProcess):
    """A `topics serve` process with the URL that clients take."""

    @property
    def url(self) -> str:
        """`topics://127.0.0.1:PORT`."""
        return f"topics://{self.grpc_target}"

    def connect(self, key: str | None = None) -> Connection:
        """A new connection to it."""
        return Connection(Address.parse(self.url, key=key))


def default_data(i: int) -> bytes:
    """About 150 bytes of JSON: `id`, `kind` (7 kinds), `amount`, `text`."""
    return b'{"id":%d,"kind":"k%d","amount":%d.25,"text":"%s"}' % (i, i % 7, i % 1000, b"lorem ipsum " * 8)


def put_topic(connection: Connection, topic: str, *, partitions: int = 0, **config: object) -> str:
    """Create or configure a topic, config by the fields of TopicConfig; returns its id."""
    request = topics_service_pb2.PutTopicRequest(
        topic=topic,
        partition_count=partitions,
        config=topic_pb2.TopicConfig(**config),  # type: ignore[arg-type]
    )
    connection.unary(connection.topics.PutTopic, request, repeatable=True)
    asked = topics_service_pb2.GetTopicRequest(topic=topic)
    return connection.unary(connection.topics.GetTopic, asked, repeatable=True).state.topic_id


def fill(
    connection: Connection,
    topic: str,
    n: int,
    *,
    first: int = 0,
    tag: Values = None,
    node: Values = None,
    meta: Values = None,
    data: Values = default_data,
    kind: str = "json",
    partition: int = 0,
) -> int:
    """Append the records numbered first … first + n - 1 as columns; returns the last seq."""
    last = 0
    for begin in range(first, first + n, _BATCH):
        numbers = range(begin, min(begin + _BATCH, first + n))
        columns = record_pb2.ColumnBatch(
            data=[_bytes(value) or b"" for value in _each(data, numbers, first)],
            kind=record_pb2.RecordKind.Value(f"RECORD_KIND_{kind.upper()}"),
        )
        for name, values in (("tag", tag), ("node", node), ("meta", meta)):
            if values is None:
                continue
            column: record_pb2.Column = getattr(columns, name)
            column.SetInParent()
            if isinstance(values, str | bytes):
                column.shared = _bytes(values) or b""
                continue
            for index, value in enumerate(_each(values, numbers, first)):
                column.value.append(_bytes(value) or b"")
                if value is None:
                    column.absent.append(index)
        request = topics_service_pb2.AppendRequest(
            topic=topic, columns=columns, partition=partition, disable_backpressure=True, return_seqs=False
        )
        last = connection.unary(connection.topics.Append, request, repeatable=False).last_seq
    return last


def rows(connection: Connection, topic: str, partition: int | None = None) -> list[Row]:
    """Every live record through Diff, by partition and seq: the truth that readers are compared with."""
    if partition is None:
        asked = topics_service_pb2.GetTopicRequest(topic=topic, touch=False)
        state = connection.unary(connection.topics.GetTopic, asked, repeatable=True).state
        return [row for each in range(max(1, state.partition_count)) for row in _rows(connection, topic, each)]
    return list(_rows(connection, topic, partition))


def _rows(connection: Connection, topic: str, partition: int) -> Iterator[Row]:
    request = topics_service_pb2.DiffRequest(
        topic=topic, partition=partition, limit=1000, include_tags=True, max_batch_bytes=_PAGE_BYTES
    )
    while True:
        page = connection.unary(connection.topics.Diff, request, repeatable=True)
        for record in page.records:
            yield Row(
                partition,
                record.seq,
                datetime.fromtimestamp(record.ts_ms / 1000, UTC),
                record.node if record.HasField("node") else None,
                record.tag if record.HasField("tag") else None,
                record.meta.decode() or None,
                record.data,
                "binary" if record.kind == record_pb2.RECORD_KIND_BINARY else "json",
            )
        if page.caught_up:
            return
        request.from_seq = page.next_from_seq


def _each(values: Values, numbers: range, first: int) -> Iterator[Value]:
    for i in numbers:
        if values is None or isinstance(values, str | bytes):
            yield values
        else:
            yield values(i) if callable(values) else values[i - first]


def _bytes(value: Value) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def need_java() -> Path:
    """A Java for Spark. Without one the test is skipped; with TOPICS_ALL_CLIENTS=1 (CI) it fails."""
    from pyspark_topics.java import JavaMissingError, ensure_java

    try:
        return ensure_java()
    except JavaMissingError as error:
        without(str(error))


def environment() -> None:
    """Set the variables that Spark reads: this interpreter and path for its workers, the loopback address, the
    options of the driver's JVM. For the sessions of this process and of the programs that it starts."""
    root = Path(__file__).parents[2]
    paths = [str(root / "tests"), str(root / "spark_connector"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(os.pathsep.join(paths).split(os.pathsep)))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_SUBMIT_OPTS"] = QUICK_START


def session() -> "SparkSession":
    """The session of this process: two cores, bounded memory, no UI, errors alone in the log. Made at the first call,
    and stopped with the process."""
    from pyspark.sql import SparkSession

    need_java()
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    environment()
    directory = tempfile.TemporaryDirectory(prefix="topics-spark-", ignore_cleanup_errors=True)
    log4j = Path(directory.name, "log4j2.properties")
    log4j.write_text(_LOG4J)
    made = (
        SparkSession.builder.master("local[2]")
        .appName("topics-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log4j.as_uri()}")
        .config("spark.local.dir", directory.name)
        .config("spark.sql.warehouse.dir", f"{directory.name}/warehouse")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )

    def end() -> None:
        made.stop()
        directory.cleanup()

    atexit.register(end)
    return made
