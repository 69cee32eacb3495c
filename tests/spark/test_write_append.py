"""The tasks of a write against a real server: keys, repeats, refusals, breaks. No Spark session."""

import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types

from pyspark_topics import append
from pyspark_topics.write import Written, batch_writer
from pyspark_topics.write_check import MismatchError
from pyspark_topics.write_topics import ShortWindowError
from support.spark import Row, Server, put_topic
from support.spark import rows as stored_rows
from support.waiting import poll
from topics_client.connection import Connection
from topics_client.errors import (
    AuthError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    TopicsError,
    UnavailableError,
)
from topics_proto.v1 import topic_pb2
from topics_proto.v1 import topics_service_pb2 as pb

TYPES: Mapping[str, types.DataType] = {"partition": types.IntegerType()}
TEXTS = pa.array([json.dumps({"n": i, "text": "x" * (i % 50)}) for i in range(2000)])


class Job:
    """One write: its tasks run here, as often as a test wants."""

    def __init__(self, url: str, columns: Sequence[str] = ("data",), **options: str) -> None:
        schema = types.StructType()
        for name in columns:
            schema.add(name, TYPES.get(name, types.StringType()))
        given = {"url": url, "topic": "t", "maxRecordsPerAppend": "100", "retrySeconds": "30"} | options
        self.task = batch_writer(given, schema, False).task

    def run(self, *batches: Mapping[str, Any], task: int = 0, begun: float | None = None) -> Written:
        """One attempt of a task."""
        return self.task.run(iter([pa.record_batch(dict(each)) for each in batches]), "", task, begun)


NUMBERS = itertools.count()


@pytest.fixture
def topic() -> str:
    """A name of the test's own."""
    return f"t{next(NUMBERS)}"


def texts(found: Sequence[Row]) -> list[str]:
    return [row.data.decode() for row in found]


def test_a_repeat_appends_nothing(server: Server, rows: Callable[..., list[Row]], topic: str) -> None:
    job = Job(server.url, topic=topic)
    assert job.run({"data": TEXTS}) == Written(2000, 20, 0)
    assert job.run({"data": TEXTS}, task=1) == Written(2000, 20, 0)
    before = rows(topic)
    assert texts(before) == TEXTS.to_pylist() * 2, "in order"
    assert job.run({"data": TEXTS[:333]}, {"data": TEXTS[333:]}) == Written(2000, 20, 20)
    assert rows(topic) == before
    assert Job(server.url, topic=topic).run({"data": TEXTS}) == Written(2000, 20, 0), "another job"


def test_nothing_is_left_of_a_task_that_fails(server: Server, topic: str) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"data": TEXTS})
        raise OSError("the input broke")

    before = set(threading.enumerate())
    with pytest.raises(OSError, match="the input broke"):
        Job(server.url, topic=topic).task.run(broken(), "", 0, None)
    poll(lambda: set(threading.enumerate()) <= before, what="threads that ended")


def test_a_repeat_goes_on_where_the_first_attempt_ended(
    server: Server, rows: Callable[..., list[Row]], topic: str
) -> None:
    job = Job(server.url, topic=topic)

    def broken() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"data": TEXTS[:1250]})
        raise OSError("the input broke")

    with pytest.raises(OSError, match="the input broke"):
        job.task.run(broken(), "", 0, None)
    assert job.run({"data": TEXTS}).chunks == 20
    assert texts(rows(topic)) == TEXTS.to_pylist()


def test_two_attempts_at_the_same_time(server: Server, rows: Callable[..., list[Row]], topic: str) -> None:
    job = Job(server.url, topic=topic)
    with ThreadPoolExecutor(3) as pool:
        written = list(pool.map(lambda _: job.run({"data": TEXTS}), range(3)))
    assert sum(each.deduped for each in written) == 40
    assert sorted(texts(rows(topic))) == sorted(TEXTS.to_pylist())


def test_a_write_id_makes_a_job_repeatable(server: Server, rows: Callable[..., list[Row]], topic: str) -> None:
    for deduped in (0, 20):
        assert Job(server.url, topic=topic, writeId="load-7").run({"data": TEXTS}).deduped == deduped
    assert Job(server.url, topic=topic, writeId="load-8").run({"data": TEXTS}).deduped == 0
    assert len(rows(topic)) == 4000


COLUMNS = ("data", "tag", "node", "meta", "kind")
ROW = {
    "data": ["1", "2"],
    "tag": ["a", None],
    "node": [None, "n"],
    "meta": ['{"k": 1}', None],
    "kind": ["json", "binary"],
}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"data": ["2", "1"]}, "with another data at seq 1"),
        ({"data": ["1", "3"]}, "with another data at seq 2"),
        ({"tag": ["a", "b"]}, "with another tag at seq 2"),
        ({"node": ["m", "n"]}, "with another node at seq 1"),
        ({"meta": ['{"k": 2}', None]}, "with another meta at seq 1"),
        ({"meta": ['{"k": true}', None]}, "with another meta at seq 1"),
        ({"kind": ["json", "json"]}, "with another kind at seq 2"),
        ({name: values[:1] for name, values in ROW.items()}, "with 2 records"),
    ],
)
def test_a_repeat_with_other_rows_is_refused(
    server: Server, rows: Callable[..., list[Row]], topic: str, change: dict[str, Any], text: str
) -> None:
    job = Job(server.url, COLUMNS, topic=topic)
    job.run(ROW)
    before = rows(topic)
    with pytest.raises(MismatchError) as caught:
        job.run(ROW | change)
    assert f"partition 0 of topic {topic}, chunk 0" in str(caught.value)
    assert "an earlier attempt stored seq 1 to 2 there" in str(caught.value)
    assert text in str(caught.value)
    assert "sort the data frame" in str(caught.value)
    assert rows(topic) == before


def test_what_the_server_may_spell_differently_is_no_mismatch(
    server: Server, rows: Callable[..., list[Row]], topic: str
) -> None:
    job = Job(server.url, COLUMNS, topic=topic)
    columns = ROW | {"data": [' {"a" : 1}\n', " x "], "meta": [' {"b" : 1, "a" : "\\u00e9"} ', "{}"]}
    assert job.run(columns).deduped == 0
    assert job.run(columns).deduped == 1
    assert [row.data for row in rows(topic)][1] == b" x "
    digits = {"data": ["1"], "meta": ['{"n": %s} ' % ("9" * 5000)]}
    job = Job(server.url, ("data", "meta"), topic=topic)
    assert [job.run(digits).deduped for _ in range(2)] == [0, 1]


def test_nothing_is_appended_behind_a_chunk_that_is_refused(
    server: Server, rows: Callable[..., list[Row]], topic: str
) -> None:
    job = Job(server.url, topic=topic)
    job.run({"data": TEXTS[:300]})
    before = rows(topic)
    with pytest.raises(MismatchError, match="chunk 2 "):
        job.run({"data": pa.concat_arrays([TEXTS[:200], TEXTS[300:]])})
    assert rows(topic) == before


def test_records_that_are_gone_are_not_compared(server: Server, connection: Connection, topic: str) -> None:
    job = Job(server.url, topic=topic)
    job.run({"data": TEXTS})
    delete = pb.DeleteRecordsRequest(topic=topic, before_seq=501)
    connection.unary(connection.topics.DeleteRecords, delete, repeatable=True)
    put_topic(connection, topic, cap_records=500, idempotency_window_ms=86_400_000)
    assert job.run({"data": TEXTS}).deduped == 20
    with pytest.raises(MismatchError):
        job.run({"data": TEXTS.take(pa.array(range(1999, -1, -1)))})


def test_a_topic_that_was_made_again_is_written_again(
    server: Server, connection: Connection, rows: Callable[..., list[Row]], topic: str
) -> None:
    job = Job(server.url, topic=topic)
    job.run({"data": TEXTS})
    connection.unary(connection.topics.DeleteTopic, pb.DeleteTopicRequest(topic=topic), repeatable=True)
    assert job.run({"data": TEXTS}) == Written(2000, 20, 0)
    assert len(rows(topic)) == 2000


def test_rows_go_to_many_topics_and_partitions(server: Server, rows: Callable[..., list[Row]], topic: str) -> None:
    job = Job(server.url, ("data", "topic", "partition"), topic="", partitions="3")
    names = [f"{topic}-{i % 2}" for i in range(2000)]
    places = [None if i % 7 == 0 else i % 3 for i in range(2000)]
    batch = {"data": TEXTS, "topic": names, "partition": pa.array(places, pa.int32())}
    first = job.run(batch)
    assert (first.records, first.deduped) == (2000, 0)
    assert job.run(batch).deduped == first.chunks
    for name in set(names):
        for partition in range(3):
            wanted = [
                text
                for text, to, place in zip(TEXTS.to_pylist(), names, places, strict=True)
                if (to, place or 0) == (name, partition)
            ]
            assert texts(rows(name, partition)) == wanted


# -------------------------------------------------------------- refusals


def test_data_that_is_not_json(server: Server, rows: Callable[..., list[Row]], topic: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"partition 0 of topic {topic}, chunk 0.*dataKind=binary"):
        Job(server.url, topic=topic).run({"data": ["1", "nope"]})
    with pytest.raises(InvalidRequestError, match=r"tag is longer than 256 bytes$"):
        Job(server.url, ("data", "tag"), topic=topic).run({"data": ["1"], "tag": ["x" * 257]})
    Job(server.url, topic=topic, dataKind="binary").run({"data": ["1", "nope", ""]})
    assert [(row.data, row.kind) for row in rows(topic)] == [(b"1", "binary"), (b"nope", "binary"), (b"", "binary")]


def test_a_record_that_is_too_large(server: Server, topic: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"record_too_large: partition 0 of topic {topic}, chunk 0"):
        Job(server.url, topic=topic).run({"data": [json.dumps("x" * (1 << 20))]})


def test_a_topic_that_is_not_to_be_created(server: Server, topic: str) -> None:
    with pytest.raises(NotFoundError, match=rf"{topic}.*option create is false"):
        Job(server.url, topic=topic, create="false").run({"data": ["1"]})


def test_jobs_that_create_the_same_topic_with_other_partitions(server: Server, topic: str) -> None:
    """The second finds the existing topic, as if it had come later."""
    jobs = [Job(server.url, topic=topic, partitions=str(1 + number % 4)) for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        assert [written.records for written in pool.map(lambda job: job.run({"data": ["1"]}), jobs)] == [1] * 16


def test_a_partition_that_is_not_there(server: Server, topic: str) -> None:
    with pytest.raises(NotFoundError, match=f"partition 2 of topic {topic}: the topic has 2, numbered from 0"):
        Job(server.url, topic=topic, partition="2", partitions="2").run({"data": ["1"]})


def test_a_reason_of_a_newer_server(server: Server, monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    def newer(self: append._Stream) -> pb.AppendAck:
        return pb.AppendAck(request_id=1, error=pb.AppendError(reason=999, message="of tomorrow"))  # type: ignore[arg-type]

    monkeypatch.setattr(append._Stream, "ack", newer)
    with pytest.raises(TopicsError, match=f"internal: partition 0 of topic {topic}, chunk 0 .*of tomorrow"):
        Job(server.url, topic=topic).run({"data": ["1"]})


def test_a_full_topic(server: Server, connection: Connection, topic: str) -> None:
    config = {"cap_records": 250, "discard": topic_pb2.DISCARD_POLICY_REJECT, "idempotency_window_ms": 86_400_000}
    put_topic(connection, topic, **config)
    with pytest.raises(ConflictError, match=rf"topic_full: partition 0 of topic {topic}, chunk 2"):
        Job(server.url, topic=topic).run({"data": TEXTS})


def test_keys(tmp_path: Path) -> None:
    keys = "full,writer:read+write,reader:read"
    with Server(tmp_path, env={"TOPICS_API_KEYS": keys}) as server:
        with server.connect("full") as admin:
            put_topic(admin, "t", idempotency_window_ms=86_400_000)
        assert Job(server.url, apiKey="writer", create="false").run({"data": ["1"]}).records == 1
        for key, options in (("reader", {}), ("writer", {"topic": "new"}), ("wrong", {})):
            with pytest.raises(AuthError) as caught:
                Job(server.url, apiKey=key, **options).run({"data": ["1"]})
            assert key not in str(caught.value).replace("scope", "")


def test_no_server() -> None:
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:9"):
        Job("topics://127.0.0.1:9", retrySeconds="1").run({"data": ["1"]})


# -------------------------------------------------------------- how long keys last


def window(connection: Connection, topic: str) -> int:
    asked = pb.GetTopicRequest(topic=topic)
    return connection.unary(connection.topics.GetTopic, asked, repeatable=True).state.config.idempotency_window_ms


def test_windows_of_topics(server: Server, connection: Connection, topic: str) -> None:
    day = 86_400_000
    Job(server.url, topic=topic).run({"data": ["1"]})
    assert window(connection, topic) == 7 * day
    put_topic(connection, topic, ttl_ms=day)
    assert window(connection, topic) == 120_000
    assert Job(server.url, topic=topic).run({"data": ["1"]}).records == 1, "task retries come soon"
    with pytest.raises(
        ShortWindowError, match=f"topic {topic} remembers idempotency keys for 2m, and.* needs 1h.*raise"
    ):
        Job(server.url, topic=topic, writeId="w").run({"data": ["1"]})
    with pytest.raises(ShortWindowError, match=r"for 2m, and.* needs 4m"):
        Job(server.url, topic=topic, retrySeconds="120").run({"data": ["1"]})
    with pytest.raises(ShortWindowError, match=r"for 2m, and.* needs 3h"):
        Job(server.url, topic=topic, idempotencyWindow="3h").run({"data": ["1"]})
    Job(server.url, topic=topic, writeId="w", idempotencyWindow="2m").run({"data": ["1"]})
    Job(server.url, topic=topic, writeId="w", raiseWindow="true", idempotencyWindow="2d").run({"data": ["1"]})
    asked = pb.GetTopicRequest(topic=topic)
    config = connection.unary(connection.topics.GetTopic, asked, repeatable=True).state.config
    assert (config.idempotency_window_ms, config.ttl_ms) == (2 * day, day), "and nothing else changed"


def test_a_repeat_that_comes_too_late_is_refused(
    server: Server, connection: Connection, rows: Callable[..., list[Row]], topic: str
) -> None:
    put_topic(connection, topic)
    job = Job(server.url, topic=topic)
    job.run({"data": TEXTS})
    with pytest.raises(ShortWindowError, match=f"topic {topic}: .* for 2m only, and .*this task retries one"):
        job.run({"data": TEXTS}, begun=1.0)
    assert len(rows(topic)) == 2000


# -------------------------------------------------------------- breaks and throttling


def batches(until: threading.Event, wanted: threading.Event, at: int) -> Iterator[pa.RecordBatch]:
    """TEXTS in small batches; at number `at` it says so and waits."""
    for number, start in enumerate(range(0, 2000, 50)):
        if number == at:
            wanted.set()
            assert until.wait(60)
        yield pa.record_batch({"data": TEXTS[start : start + 50]})


def test_a_server_that_is_killed_in_the_middle(tmp_path: Path) -> None:
    first = Server(tmp_path / "1", same_ports=True).start()
    port = first.grpc_target.rpartition(":")[2]
    job, half, go_on = Job(first.url), threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            writing = pool.submit(job.task.run, batches(go_on, half, 20), "", 0, None)
            assert half.wait(30)
        finally:
            first.kill()
            go_on.set()
        with Server(tmp_path / "2", data_dir=first.data_dir, env={"TOPICS_GRPC_PORT": port}) as second:
            assert writing.result(60).records == 2000
            with second.connect() as connection:
                assert texts(stored_rows(connection, "t")) == TEXTS.to_pylist()


@pytest.mark.parametrize("heard", [True, False])
def test_a_server_that_is_away_for_longer_than_keys_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: bool
) -> None:
    """The input of a task stalls, the server dies and is back when the keys are forgotten: acks that had come count,
    and what may be stored without one is not sent again."""

    def deaf(self: append._Stream, responses: Iterator[pb.AppendStreamResponse], end: Exception) -> None:
        with pytest.raises(UnavailableError) as caught:
            for _ in responses:
                pass
        self._acks.put(caught.value)

    if not heard:
        monkeypatch.setattr(append._Stream, "_read", deaf)
    first = Server(tmp_path / "1", same_ports=True).start()
    port = first.grpc_target.rpartition(":")[2]
    with first.connect() as connection:
        put_topic(connection, "t", idempotency_window_ms=2000)
    job, sent, go_on = Job(first.url, retrySeconds="1"), threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            writing = pool.submit(job.task.run, batches(go_on, sent, 20 if heard else 2), "", 0, None)
            assert sent.wait(30)
            count = 1000 if heard else 100
            with first.connect() as connection:
                poll(lambda: len(stored_rows(connection, "t")) == count, 30)
            late = time.monotonic() + 2.1
            first.kill()
            with Server(tmp_path / "2", data_dir=first.data_dir, env={"TOPICS_GRPC_PORT": port}) as second:
                poll(lambda: time.monotonic() > late, 20)
                go_on.set()
                if heard:
                    assert writing.result(60) == Written(2000, 20, 0)
                else:
                    with pytest.raises(ShortWindowError, match=r"partition 0 of topic t: .*whose answer was lost"):
                        writing.result(60)
                with second.connect() as connection:
                    assert texts(stored_rows(connection, "t")) == TEXTS[: 2000 if heard else 100].to_pylist()
        finally:
            first.kill()
            go_on.set()


def test_a_server_that_is_stopped_in_the_middle(tmp_path: Path) -> None:
    first = Server(tmp_path / "1", same_ports=True).start()
    port = first.grpc_target.rpartition(":")[2]
    job, half, go_on = Job(first.url), threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            writing = pool.submit(job.task.run, batches(go_on, half, 20), "", 0, None)
            assert half.wait(30)
            first.stop()
        finally:
            first.kill()
            go_on.set()
        with Server(tmp_path / "2", data_dir=first.data_dir, env={"TOPICS_GRPC_PORT": port}) as second:
            assert writing.result(60).records == 2000
            with second.connect() as connection:
                assert texts(stored_rows(connection, "t")) == TEXTS.to_pylist()


@pytest.mark.parametrize("in_flight", ["1", "16"])
def test_throttling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_flight: str) -> None:
    """Memory for ephemeral topics is full until another one of them is deleted."""
    throttled = threading.Event()

    class Patience(append.Patience):
        def waited(self, error: UnavailableError) -> bool:
            assert error.reason == "throttled"
            assert error.retry_after_ms
            throttled.set()
            return super().waited(error)

    monkeypatch.setattr(append, "Patience", Patience)
    noise = random.Random(1)
    large = pa.array([json.dumps(noise.randbytes(2500).hex() + str(i)) for i in range(600)])  # does not compress
    with Server(tmp_path, env={"TOPICS_MEMORY_BYTES": 16 << 20}) as server, server.connect() as connection:
        job = Job(server.url, durability="ephemeral", maxRecordsPerAppend="20", maxInFlight=in_flight)
        other = Job(server.url, topic="other", durability="ephemeral")
        other.run({"data": large})
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(job.run, {"data": pa.concat_arrays([large, large[:300]])})
            poll(lambda: throttled.is_set() or writing.done(), 30)
            assert not writing.done()
            connection.unary(connection.topics.DeleteTopic, pb.DeleteTopicRequest(topic="other"), repeatable=True)
            assert writing.result(60).records == 900
        found = texts(stored_rows(connection, "t"))
        wanted = [*large.to_pylist(), *large[:300].to_pylist()]
        assert sorted(found) == sorted(wanted)
        assert found == wanted or in_flight != "1"


def test_throttling_for_too_long(tmp_path: Path) -> None:
    with Server(tmp_path / "1", same_ports=True) as first, first.connect() as connection:
        put_topic(connection, "t", idempotency_window_ms=86_400_000)
        first.stop()
    env = {"TOPICS_MIN_FREE_BYTES": 1 << 60}
    refused = pytest.raises(UnavailableError, match=r"throttled: partition 0 of topic t, chunk 0.*disk is nearly full")
    with Server(tmp_path / "2", data_dir=first.data_dir, env=env) as server, refused:
        Job(server.url, retrySeconds="2").run({"data": TEXTS})
