"""The producer while the server is absent, killed, stopped or full: what is delivered is there once and in order."""

import signal
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from support.server import ServerProcess
from support.waiting import poll
from topics_client.address import Address
from topics_client.connection import Connection
from topics_client.decoding import records_of_columns
from topics_client.errors import UnavailableError
from topics_client.producer.api import Producer
from topics_client.producer.delivery import Delivery
from topics_client.retry import Retry
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1.topic_pb2 import TopicConfig

_QUICK = Retry(seconds=60, first_pause=0.02, longest_pause=0.2)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "first", same_ports=True) as process:
        yield process


def _again(server: ServerProcess, **env: object) -> ServerProcess:
    """The same server, on the same port and data, to be started once that one is gone."""
    port = server.grpc_target.rpartition(":")[2]
    work_dir = server.work_dir / "again"
    return ServerProcess(work_dir, data_dir=server.data_dir, env={"TOPICS_GRPC_PORT": port, **env})


def _connection(server: ServerProcess, *, timeout: float = 30.0, key: str | None = None) -> Connection:
    return Connection(Address.parse(server.grpc_target, key=key), timeout=timeout)


def _put(connection: Connection, topic: str, partitions: int = 0, **config: object) -> None:
    request = pb.PutTopicRequest(topic=topic, partition_count=partitions, config=TopicConfig(**config))  # type: ignore[arg-type]
    connection.unary(connection.topics.PutTopic, request)


def _log(connection: Connection, topic: str, partition: int = 0) -> dict[int, object]:
    """The values of a partition by seq."""
    with connection.stream(connection.topics.BulkDiff, pb.BulkDiffRequest(topic=topic, partition=partition)) as frames:
        records = [record for frame in frames for record in records_of_columns(topic, partition, frame.records)]
    return {record.seq: record.value for record in records}


def _check(log: dict[int, object], appended: Iterable[tuple[object, Delivery]]) -> None:
    """All were delivered, and nothing else is there."""
    assert [(delivery.result(0), value) for value, delivery in appended] == list(log.items())


def test_records_wait_for_a_server_that_is_not_there_yet(server: ServerProcess) -> None:
    server.kill()
    with _connection(server) as connection, Producer(connection, retry=_QUICK, linger_ms=0) as producer:
        early = [(i, producer.append("t", i)) for i in range(100)]
        poll(lambda: producer.statistics().repeats > 2, 20)
        with pytest.raises(
            TimeoutError, match=r"^100 records are not delivered after 0 s \(last failure: unavailable: "
        ):
            producer.flush(0)
        with _again(server):
            late = [(i, producer.append("t", i)) for i in range(100, 200)]
            producer.flush(30)
            _check(_log(connection, "t"), early + late)


def test_a_server_that_stays_away_is_named_in_time(server: ServerProcess) -> None:
    server.kill()
    retry = Retry(seconds=0.5, first_pause=0.1)
    with _connection(server) as connection:
        producer = Producer(connection, retry=retry, max_batch_records=1)
        deliveries = [producer.append("t", i) for i in range(3)]
        started = time.monotonic()
        error = deliveries[0].exception(20)
        assert time.monotonic() - started < 10
        assert isinstance(error, UnavailableError)
        assert (error.reason, error.detail["outcome"]) == ("unavailable", "not_stored")
        assert f"1 record for t, not stored: topics://{server.grpc_target}: no connection: " in error.message
        assert isinstance(deliveries[2].exception(20), UnavailableError)
        with pytest.raises(UnavailableError, match="no connection"):
            producer.close(10)  # the second was not retrieved


@pytest.mark.parametrize("maximum", [100, 10_000])
def test_nothing_is_lost_doubled_or_moved_by_kills(server: ServerProcess, maximum: int) -> None:
    places = [("a", 0), ("b", 0), ("b", 1)]
    with (
        _connection(server) as connection,
        Producer(connection, retry=_QUICK, linger_ms=1, max_batch_records=maximum) as producer,
    ):
        _put(connection, "b", partitions=2)
        appended: dict[tuple[str, int], list[tuple[int, Delivery]]] = {place: [] for place in places}

        def append() -> None:
            for i in range(50_000):
                topic, partition = place = places[i % 3]
                appended[place].append((i, producer.append(topic, i, partition=partition)))
                if i % 500 == 0:
                    time.sleep(0.01)  # so that it lasts over the kills

        appending = threading.Thread(target=append)
        appending.start()
        for number in range(3):
            delivered = producer.statistics().delivered
            poll(lambda minimum=delivered: producer.statistics().delivered > minimum + 4000, 20)  # type: ignore[misc]
            server.kill()
            repeats = producer.statistics().repeats
            poll(lambda minimum=repeats: producer.statistics().repeats > minimum, 20)  # type: ignore[misc]
            if number == 0:
                server = _again(server)
            server.start()
        appending.join(50)
        producer.flush(30)
        try:
            for (topic, partition), records in appended.items():
                _check(_log(connection, topic, partition), records)
            assert sum(map(len, appended.values())) == 50_000
            assert producer.statistics().failed == 0
        finally:
            server.kill()


def test_an_answer_that_comes_too_late_doubles_nothing(server: ServerProcess) -> None:
    with _connection(server, timeout=0.3) as connection, Producer(connection, retry=_QUICK, linger_ms=0) as producer:
        producer.append("t", -1).result(30)
        for stop in range(3):
            server.signal(signal.SIGSTOP)
            deliveries = [(i, producer.append("t", i)) for i in range(stop * 100, stop * 100 + 100)]
            repeats = producer.statistics().repeats
            poll(lambda minimum=repeats: producer.statistics().repeats > minimum, 20)  # type: ignore[misc]
            server.signal(signal.SIGCONT)
            for _, delivery in deliveries:
                delivery.result(30)
        assert list(_log(connection, "t").values()) == list(range(-1, 300))


def test_what_the_topic_may_have_forgotten_is_not_sent_again(server: ServerProcess) -> None:
    with _connection(server, timeout=0.3) as connection:
        producer = Producer(connection, retry=_QUICK, linger_ms=0)
        _put(connection, "short", idempotency_window_ms=1500)
        server.signal(signal.SIGSTOP)
        lost = producer.append("short", 1)
        poll(lambda: producer.statistics().repeats, 20)
        behind = producer.append("short", 2)
        time.sleep(1.5)  # the window
        server.signal(signal.SIGCONT)
        error = lost.exception(30)
        assert error is not None
        assert (error.reason, error.detail["outcome"]) == ("outcome_unknown", "unknown")
        assert "idempotency_window_ms" in error.message
        assert behind.result(30)
        producer.close(30)
        values = list(_log(connection, "short").values())
        assert values in ([1, 2], [2])


def test_attempts_that_never_went_out_use_up_no_window(server: ServerProcess) -> None:
    with _connection(server) as connection, Producer(connection, retry=_QUICK, linger_ms=0) as producer:
        _put(connection, "short", idempotency_window_ms=1000)
        server.kill()
        with pytest.raises(UnavailableError):  # by now it knows that there is no connection
            connection.unary(connection.topics.GetTopic, pb.GetTopicRequest(topic="short"), repeatable=False)
        delivery = producer.append("short", 1)
        time.sleep(2)  # twice the window
        assert producer.statistics().repeats
        with _again(server):
            assert delivery.result(30) == 1
            assert list(_log(connection, "short").values()) == [1]


def test_a_key_that_may_only_write_is_enough(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, env={"TOPICS_API_KEYS": "admin-key,writer:write"}) as server:
        connection = _connection(server, timeout=0.3, key="writer")
        with Producer(connection, retry=_QUICK, linger_ms=0, owns_connection=True) as producer:
            producer.append("t", 0).result(30)
            server.signal(signal.SIGSTOP)
            delivery = producer.append("t", 1)
            poll(lambda: producer.statistics().repeats, 20)
            server.signal(signal.SIGCONT)
            delivery.result(30)
        with _connection(server, key="admin-key") as connection:
            assert list(_log(connection, "t").values()) == [0, 1]


def test_a_server_that_throttles_is_given_time(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path, env={"TOPICS_MAX_TOTAL_BYTES": 1000}) as server,
        _connection(server) as connection,
        Producer(connection, retry=_QUICK, linger_ms=0) as producer,
    ):
        producer.append("old", "x" * 900).result(30)
        values = [f"{i}{'x' * 200}" for i in range(4)]
        deliveries = [(value, producer.append("new", value)) for value in values]
        poll(lambda: producer.statistics().repeats, 20)
        with pytest.raises(TimeoutError, match="throttled"):
            producer.flush(0)
        connection.unary(connection.topics.DeleteTopic, pb.DeleteTopicRequest(topic="old"))
        producer.flush(30)
        _check(_log(connection, "new"), deliveries)


def test_a_topic_that_is_deleted_meanwhile_begins_anew(server: ServerProcess) -> None:
    with _connection(server) as connection, Producer(connection, linger_ms=0) as producer:
        deliveries, stop = list[Delivery](), threading.Event()

        def append() -> None:
            while not stop.is_set():
                deliveries.append(producer.append("t", len(deliveries)))
                time.sleep(0.0005)

        appending = threading.Thread(target=append)
        appending.start()
        for _ in range(5):
            delivered = producer.statistics().delivered
            poll(lambda minimum=delivered: producer.statistics().delivered > minimum + 20, 20)  # type: ignore[misc]
            connection.unary(connection.topics.DeleteTopic, pb.DeleteTopicRequest(topic="t"))
        stop.set()
        appending.join(20)
        producer.flush(30)
        seqs = [delivery.result(0) for delivery in deliveries]
        starts = [index for index, seq in enumerate(seqs) if seq == 1]
        assert len(starts) in (5, 6)
        for start, end in zip(starts, [*starts[1:], len(seqs)], strict=True):
            assert seqs[start:end] == list(range(1, end - start + 1)), "each life of the topic holds one run"
        assert list(_log(connection, "t").values()) == list(range(starts[-1], len(seqs)))
