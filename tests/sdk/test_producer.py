"""The producer against a real server: storing, refusing, reporting, backpressure."""

import asyncio
import inspect
import socket
import sys
import threading
from collections.abc import Iterator

import pytest

from support.server import ServerProcess
from support.waiting import poll
from topics_client.address import Address
from topics_client.connection import Connection
from topics_client.decoding import records_of_columns
from topics_client.errors import (
    AuthError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    TopicsError,
    UnavailableError,
)
from topics_client.models import RawJson, Record
from topics_client.producer.api import AsyncProducer, Producer, ProducerOptions
from topics_client.producer.delivery import Delivery
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1.topic_pb2 import DISCARD_POLICY_REJECT, TopicConfig

_KEYS = "admin-key,reader:read,writer:write"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server"), env={"TOPICS_API_KEYS": _KEYS}) as process:
        yield process


@pytest.fixture
def connection(server: ServerProcess) -> Iterator[Connection]:
    with Connection(Address.parse(server.grpc_target, key="admin-key")) as connection:
        yield connection


@pytest.fixture
def producer(connection: Connection) -> Iterator[Producer]:
    with Producer(connection) as producer:
        yield producer


def _records(connection: Connection, topic: str, partition: int = 0) -> list[Record]:
    request = pb.BulkDiffRequest(topic=topic, partition=partition, include_tags=True, include_meta=True)
    with connection.stream(connection.topics.BulkDiff, request) as frames:
        return [record for frame in frames for record in records_of_columns(topic, partition, frame.records)]


def _put(connection: Connection, topic: str, partitions: int = 0, **config: object) -> None:
    request = pb.PutTopicRequest(topic=topic, partition_count=partitions, config=TopicConfig(**config))  # type: ignore[arg-type]
    connection.unary(connection.topics.PutTopic, request)


# ------------------------------------------------------------------ what is stored


def test_values_are_stored_as_they_are(producer: Producer, connection: Connection) -> None:
    values: list[object] = [{"a": [1, "ü"]}, None, "text", RawJson(b'{"b": 1.0e2}'), b"\x00\xff", bytearray(b"raw"), 1]
    deliveries = [producer.append("values", value) for value in values]
    assert [delivery.result(30) for delivery in deliveries] == list(range(1, 8))
    records = _records(connection, "values")
    assert [record.data for record in records] == [
        b'{"a":[1,"\xc3\xbc"]}', b"null", b'"text"', b'{"b": 1.0e2}', b"\x00\xff", b"raw", b"1",
    ]  # fmt: skip
    assert [record.binary for record in records] == [False] * 4 + [True] * 2 + [False]


def test_a_record_keeps_its_parts_beside_others_that_have_none(producer: Producer, connection: Connection) -> None:
    producer.append("parts", 1)
    producer.append("parts", 2, tag="t", node="n", meta={"h": "ü"})
    producer.append("parts", 3, tag="")
    producer.append("parts", b"4", meta={"k": 1})
    producer.flush(30)
    records = _records(connection, "parts")
    assert [(r.value, r.tag, r.node, r.meta) for r in records] == [
        (1, None, None, {}),
        (2, "t", "n", {"h": "ü"}),
        (3, "", None, {}),
        (b"4", None, None, {"k": 1}),
    ]


def test_records_are_stored_in_order_in_each_partition(connection: Connection) -> None:
    _put(connection, "ordered", partitions=2)
    with Producer(connection, max_batch_records=37, linger_ms=0) as producer:
        deliveries = [producer.append("ordered", i, partition=i % 2) for i in range(5000)]
    for partition in (0, 1):
        assert [r.value for r in _records(connection, "ordered", partition)] == list(range(partition, 5000, 2))
    assert [delivery.result() for delivery in deliveries] == [i // 2 + 1 for i in range(5000)]


def test_threads_share_it_and_each_keeps_its_order(producer: Producer, connection: Connection) -> None:
    def append(thread: int) -> None:
        for i in range(2000):
            producer.append("shared", [thread, i])

    threads = [threading.Thread(target=append, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    producer.flush(30)
    values = [record.value for record in _records(connection, "shared")]
    for number in range(4):
        assert [i for thread, i in values if thread == number] == list(range(2000))


def test_many_records_go_in_few_appends(connection: Connection) -> None:
    with Producer(connection, linger_ms=1000) as producer:
        for i in range(25_000):
            producer.append("many", i)
        producer.flush(30)
        statistics = producer.statistics()
    assert (statistics.delivered, statistics.failed, statistics.repeats) == (25_000, 0, 0)
    assert statistics.batches <= 10
    assert (statistics.buffered_records, statistics.buffered_bytes, statistics.in_flight) == (0, 0, 0)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("arguments", "reason", "says"),
    [
        ({"value": {1, 2}}, "invalid_request", "JSON"),
        ({"value": float("nan")}, "invalid_request", "JSON"),
        ({"value": "\ud800"}, "invalid_request", "JSON"),
        ({"value": 1, "meta": {"x": object()}}, "invalid_request", "JSON"),
        ({"value": 1, "tag": "x" * 257}, "invalid_request", "the tag has 257 bytes, and may have 256"),
        ({"value": 1, "node": "ü" * 65}, "invalid_request", "the node has 130 bytes, and may have 128"),
        ({"value": 1, "tag": "\ud800"}, "invalid_request", "UTF-8"),
        ({"value": 1, "meta": {"x": "y" * 16400}}, "invalid_request", "the meta has 16408 bytes"),
        ({"value": b"x" * ((1 << 20) + 1)}, "record_too_large", "1048577 bytes, and may have 1048576"),
        ({"value": b"x" * (1 << 20), "meta": {"a": 1}}, "record_too_large", "1048583 bytes"),
        ({"value": 1, "topic": "no/topic"}, "invalid_request", "'no/topic' is no topic's name"),
        ({"value": 1, "partition": -1}, "invalid_request", "partition"),
    ],
)
def test_what_no_topic_takes_is_refused_at_once(
    producer: Producer, arguments: dict[str, object], reason: str, says: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        producer.append(**{"topic": "refused", **arguments})  # type: ignore[arg-type]
    assert refused.value.reason == reason
    assert says in refused.value.message
    assert producer.statistics().buffered_bytes == 0


def test_the_largest_record_is_taken_and_so_is_the_largest_batch(connection: Connection) -> None:
    with Producer(connection, linger_ms=1000, max_batch_bytes=32 << 20, max_buffered_bytes=64 << 20) as producer:
        largest = [producer.append("largest", bytes(1 << 20)) for _ in range(33)]
        tiny = [producer.append("tiny", 1) for _ in range(10_001)]
        producer.flush(50)
        assert [delivery.result() for delivery in largest] == list(range(1, 34))
        assert tiny[-1].result() == 10_001
        assert producer.statistics().batches == 4


def test_only_the_bad_record_of_a_batch_fails(connection: Connection) -> None:
    with Producer(connection, linger_ms=100) as producer:
        values: list[object] = list(range(100))
        values[17] = RawJson(b"{no json")
        values[63] = RawJson(b"")
        deliveries = [producer.append("split", value, tag=str(i)) for i, value in enumerate(values)]
        errors = {i: error for i, d in enumerate(deliveries) if (error := d.exception(30)) is not None}
    assert list(errors) == [17, 63]
    assert (errors[17].reason, errors[17].detail["outcome"]) == ("invalid_request", "not_stored")
    assert "1 record for split, not stored: columns.data[0]" in errors[17].message
    good = [i for i in range(100) if i not in errors]
    records = _records(connection, "split")
    assert [(record.value, record.tag) for record in records] == [(i, str(i)) for i in good]
    assert [deliveries[i].result() for i in good] == list(range(1, 99))


def test_a_refused_batch_touches_no_other_topic(producer: Producer, connection: Connection) -> None:
    _put(connection, "full", cap_records=2, discard=DISCARD_POLICY_REJECT)
    deliveries = [producer.append("full", i) for i in range(2)]
    producer.flush(30)
    full, elsewhere, nowhere = (
        producer.append("full", 2),
        producer.append("free", 1),
        producer.append("free", 1, partition=3),
    )
    assert elsewhere.result(30) == 1
    assert [delivery.result() for delivery in deliveries] == [1, 2]
    error = full.exception(30)
    assert isinstance(error, ConflictError)
    assert (error.reason, error.detail["topic"], error.detail["cap_records"]) == ("topic_full", "full", "2")
    missing = nowhere.exception(30)
    assert isinstance(missing, NotFoundError)
    assert (missing.reason, missing.detail["partition"]) == ("partition_not_found", "3")


@pytest.mark.parametrize(("key", "reason"), [("wrong", "unauthorized"), ("reader", "forbidden")])
def test_a_key_that_may_not_write_fails_each_record(server: ServerProcess, key: str, reason: str) -> None:
    with Connection(Address.parse(server.grpc_target, key=key)) as other, Producer(other) as producer:
        errors = [producer.append("secret", i).exception(30) for i in range(3)]
    assert [type(error) for error in errors] == [AuthError] * 3
    assert [error.reason for error in errors if error] == [reason] * 3


def test_a_topic_can_be_deleted_in_between(producer: Producer, connection: Connection) -> None:
    assert producer.append("short-lived", 1).result(30) == 1
    connection.unary(connection.topics.DeleteTopic, pb.DeleteTopicRequest(topic="short-lived"))
    assert producer.append("short-lived", 2).result(30) == 1, "the first of a new topic"
    connection.unary(connection.topics.DeleteTopic, pb.DeleteTopicRequest(topic="short-lived"))
    _put(connection, "short-lived", auto_create=False)
    assert [record.value for record in _records(connection, "short-lived")] == []
    assert producer.append("short-lived", 3).result(30) == 1


# ------------------------------------------------------------------ reports


def test_flush_and_close_raise_the_failure_that_nobody_saw(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    producer = Producer(connection, linger_ms=0)
    producer.append("unseen", 1)
    producer.append("unseen", 1, partition=7)
    with pytest.raises(NotFoundError, match="1 record for unseen@7, not stored") as first:
        producer.flush(30)
    assert first.value.reason == "partition_not_found"
    producer.flush(30)  # once is enough
    assert isinstance(producer.append("unseen", 1, partition=7).exception(30), NotFoundError)
    told = list[Delivery]()
    producer.append("unseen", 1, partition=7).add_done_callback(told.append)
    producer.flush(30)
    assert [delivery.done() for delivery in told] == [True]
    producer.append("unseen", 1, partition=8)
    producer.append("unseen", 1, partition=9)
    with pytest.raises(NotFoundError) as raised:
        producer.close(30)
    assert raised.value.detail["partition"] == "8"
    assert (
        "batches that failed besides: 1, the last with partition_not_found: 1 record for unseen@9"
        in raised.value.__notes__[0]
    )
    logged = [record.getMessage() for record in caplog.records if record.name == "topics_client.producer"]
    assert len(logged) == 1, "more than one line in ten seconds is too many"
    assert "partition_not_found: 1 record for unseen@7, not stored" in logged[0]


def test_a_failure_that_somebody_waits_for_is_not_logged(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(connection, linger_ms=200) as producer:
        failed = producer.append("watched", 1, partition=7)
        failed.add_done_callback(lambda _: None)
        producer.flush(30)
        assert failed.exception(0)
    assert caplog.text == ""


def test_an_error_of_the_caller_is_not_hidden_by_one_of_the_producer(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    deliveries = list[Delivery]()

    def append() -> None:
        with Producer(connection) as producer:
            deliveries.append(producer.append("left", 1))
            producer.append("left", 1, partition=7)
            raise KeyError

    with pytest.raises(KeyError):
        append()
    assert deliveries[0].result(0) == 1, "leaving the block has delivered it"
    assert "closing a producer failed: partition_not_found" in caplog.text


def test_callbacks_come_in_order_and_may_fail(producer: Producer, caplog: pytest.LogCaptureFixture) -> None:
    seqs, threads = list[int](), set[str]()

    def told(delivery: Delivery) -> None:
        seqs.append(delivery.result())
        threads.add(threading.current_thread().name)
        if delivery.result() == 2:
            raise ValueError("a bug of the caller")
        if delivery.result() == 3:
            sys.exit("and another")

    for i in range(50):
        producer.append("called", i).add_done_callback(told)
    producer.flush(30)
    assert sorted(seqs) == seqs == list(range(1, 51))
    assert "topics-producer" in threads
    assert "a delivery callback failed" in caplog.text
    assert "a bug of the caller" in caplog.text
    assert "and another" in caplog.text


def test_a_callback_may_append_and_must_not_wait(producer: Producer, connection: Connection) -> None:
    done, refused = threading.Event(), list[str]()

    def told(delivery: Delivery) -> None:
        second = producer.append("chained", 2)
        for wait in (second.result, producer.flush, producer.close):
            try:
                wait()
            except RuntimeError as error:
                refused.append(str(error))
        done.set()

    producer.append("chained", 1).add_done_callback(told)
    assert done.wait(30)
    assert len(refused) == 3
    assert all("callback" in text for text in refused)
    producer.flush(30)
    assert [record.value for record in _records(connection, "chained")] == [1, 2]


# ------------------------------------------------------------------ what is held back


@pytest.fixture
def deaf() -> Iterator[Address]:
    """Where something accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield Address.parse(f"127.0.0.1:{listening.getsockname()[1]}")


def test_append_waits_for_room_and_not_for_ever(deaf: Address) -> None:
    with Connection(deaf) as connection:
        producer = Producer(connection, max_buffered_bytes=1000, block_seconds=0.05)
        taken = [producer.append("t", 1) for _ in range(10)]
        with pytest.raises(UnavailableError, match="no room") as full:
            producer.append("t", 1)
        assert (full.value.reason, full.value.detail) == ("buffer_full", {"buffered_bytes": "1010"})
        assert producer.statistics().buffered_records == 10
        with pytest.raises(TimeoutError, match=r"^10 records are not delivered after 0\.01 s"):
            producer.flush(0.01)
        with pytest.raises(TimeoutError, match=r"^10 records"):
            producer.close(0.01)
        errors = [delivery.exception(0) for delivery in taken]
        assert [error.reason for error in errors if error] == ["closed"] * 10
        with pytest.raises(RuntimeError, match="the producer is closed"):
            producer.append("t", 1)
        producer.close()


def test_append_goes_on_when_there_is_room_again(connection: Connection) -> None:
    with Producer(connection, max_buffered_bytes=2000, linger_ms=0) as producer:
        deliveries = [producer.append("narrow", i) for i in range(3000)]
        assert producer.statistics().buffered_bytes <= 2200
    assert [delivery.result() for delivery in deliveries] == list(range(1, 3001))


def test_who_waits_for_room_does_not_let_others_linger(connection: Connection) -> None:
    with Producer(connection, max_buffered_bytes=1000, linger_ms=3_600_000) as producer:
        deliveries = [producer.append("hurried", i) for i in range(30)]
    assert [delivery.result() for delivery in deliveries] == list(range(1, 31))


def test_closing_frees_who_waits_for_room(deaf: Address) -> None:
    refused = list[tuple[str, int]]()

    def append() -> None:
        try:
            producer.append("t", 2)
        except RuntimeError as error:
            refused.append((str(error), producer.statistics().buffered_records))

    with Connection(deaf) as connection:
        producer = Producer(connection, max_buffered_bytes=100)
        producer.append("t", 1)
        waiting = threading.Thread(target=append)
        waiting.start()
        poll(lambda: producer._core._sender._waiting_for_room, 20)
        with pytest.raises(TimeoutError):
            producer.close(1)
        waiting.join(20)
    assert refused == [("the producer is closed", 1)], "at once, while the others still have their time"


def test_a_closed_connection_fails_what_is_left(server: ServerProcess) -> None:
    connection = Connection(Address.parse(server.grpc_target, key="admin-key"))
    producer = Producer(connection, linger_ms=1000)
    delivery = producer.append("t", 1)
    connection.close()
    with pytest.raises(TopicsError, match="closed: 1 record for t, not stored"):
        producer.close(30)
    assert delivery.done()


def test_it_can_own_its_connection(server: ServerProcess) -> None:
    connection = Connection(Address.parse(server.grpc_target, key="admin-key"))
    with Producer(connection, owns_connection=True) as producer:
        producer.append("owned", 1)
    with pytest.raises(ValueError, match="closed"):
        connection.start(connection.topics.GetTopic, pb.GetTopicRequest(topic="owned"))


def test_a_bug_in_its_thread_leaves_nobody_waiting(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    producer = Producer(connection, linger_ms=1000)
    lingering = producer.append("t", 1)

    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(producer._core._batches, "take", fail)
    with pytest.raises(TopicsError, match="internal: 1 record for t, not stored: the producer's thread failed"):
        producer.flush(20)
    assert lingering.done()
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        producer.append("t", 2)
    producer.close(20)
    assert "ZeroDivisionError" in caplog.text


def test_what_is_passed_on_are_its_options() -> None:
    parameters = inspect.signature(Producer.__init__).parameters
    assert {*ProducerOptions.__annotations__} == {*parameters} - {"self", "connection", "codec", "owns_connection"}


# ------------------------------------------------------------------ with asyncio


async def test_the_same_with_asyncio(connection: Connection) -> None:
    async with AsyncProducer(connection, max_buffered_bytes=5000, linger_ms=0) as producer:
        deliveries = [await producer.append("async", i) for i in range(2000)]
        assert await deliveries[0] == 1
        await producer.flush(30)
        assert all(delivery.done() for delivery in deliveries)
        assert await asyncio.gather(*deliveries) == list(range(1, 2001))
        bad = await producer.append("async", RawJson(b"{"))
        with pytest.raises(InvalidRequestError):
            await bad
        assert producer.statistics().delivered == 2000
    with pytest.raises(RuntimeError, match="closed"):
        await producer.append("async", 1)


async def test_with_asyncio_waiting_blocks_no_loop(deaf: Address) -> None:
    with Connection(deaf) as connection:
        producer = AsyncProducer(connection, max_buffered_bytes=100, block_seconds=0.2)
        delivery = await producer.append("t", 1)
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.01)

        other = asyncio.create_task(turn())
        with pytest.raises(UnavailableError, match="no room"):
            await producer.append("t", 2)
        with pytest.raises(TimeoutError, match="1 record is not delivered"):
            await producer.flush(0.1)
        with pytest.raises(TimeoutError, match="1 record is"):
            await producer.close(0.1)
        other.cancel()
        assert turns > 5
        with pytest.raises(UnavailableError):
            await delivery
