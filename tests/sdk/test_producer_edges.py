"""The producer where its surroundings misbehave: interrupts anywhere, servers that lie, loops that are gone."""

import asyncio
import gc
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.complaints import collect_complaints
from support.fake_topics import FakeTopics, hang, lose, stored
from support.server import ServerProcess
from support.waiting import poll
from topics_client.address import Address
from topics_client.connection import Connection
from topics_client.decoding import records_of_columns
from topics_client.errors import TopicsError, UnavailableError
from topics_client.producer.api import AsyncProducer, Producer
from topics_client.producer.delivery import Delivery
from topics_client.retry import Retry
from topics_proto.v1 import topics_service_pb2 as pb

_QUICK = Retry(seconds=60, first_pause=0.02, longest_pause=0.1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture
def connection(server: ServerProcess) -> Iterator[Connection]:
    with Connection(Address.parse(server.grpc_target)) as connection:
        yield connection


def _log(connection: Connection, topic: str) -> dict[int, tuple[Any, str | None]]:
    request = pb.BulkDiffRequest(topic=topic, include_tags=True)
    with connection.stream(connection.topics.BulkDiff, request) as frames:
        records = [record for frame in frames for record in records_of_columns(topic, 0, frame.records)]
    return {record.seq: (record.value, record.tag) for record in records}


# ------------------------------------------------------------------ interrupts


@pytest.mark.parametrize("seed", range(3))
def test_interrupts_leave_it_whole(connection: Connection, seed: int) -> None:
    dice, appended, interrupts, is_inside = random.Random(seed), list[tuple[str, int, Delivery]](), 0, False

    def interrupt(*_: object) -> None:
        if is_inside:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    gc.disable()  # Hypothesis, if it has run here, is called back by it, and can't pass an interrupt on
    try:
        with Producer(connection, linger_ms=1, max_batch_records=7) as producer:
            ends, number = time.monotonic() + 1.5, 0
            while time.monotonic() < ends:
                number += 1
                topic = f"whole{seed}-{number % 3 if dice.random() < 0.99 else number}"
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-6, 2e-5))
                try:
                    is_inside = True
                    delivery = producer.append(topic, number, tag=str(number))
                    is_inside = False
                    appended.append((topic, number, delivery))
                except KeyboardInterrupt:
                    interrupts += 1
                finally:
                    is_inside = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            for _, _, delivery in appended:  # without a flush
                delivery.result(20)
            producer.flush(20)
            assert producer.statistics()[:3] == (0, 0, 0)
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, before)
    assert interrupts > 50
    for topic in {topic for topic, _, _ in appended}:
        log = _log(connection, topic)
        assert all(str(value) == tag for value, tag in log.values()), "each with its own tag"
        assert len(set(log.values())) == len(log)
        mine = [(delivery.result(), number) for each, number, delivery in appended if each == topic]
        assert mine == sorted(mine)
        assert all(log[seq] == (number, str(number)) for seq, number in mine)


def test_two_threads_may_close_it_and_the_impatient_one_wins() -> None:
    with (
        FakeTopics(lambda request, attempt, context: hang(context)) as fake,
        Connection(Address.parse(fake.target), timeout=5) as connection,
    ):
        producer = Producer(connection)
        delivery = producer.append("t", 1)
        failures = list[BaseException]()

        def close() -> None:
            try:
                producer.close()
            except BaseException as error:
                failures.append(error)

        patient = threading.Thread(target=close)
        patient.start()
        poll(lambda: producer._core._batches.closed)
        with pytest.raises(TimeoutError):
            producer.close(0.1)
        patient.join(10)
        assert not patient.is_alive()
        assert [type(error) for error in failures] == [UnavailableError]
        error = delivery.exception(0)
        assert error is not None
        assert (error.reason, error.detail["outcome"]) == ("closed", "unknown")
        producer.close()  # once more does nothing


# ------------------------------------------------------------------ memory


def test_nothing_is_kept_of_topics_that_are_done(connection: Connection) -> None:
    with Producer(connection, linger_ms=60_000, max_batch_records=2) as producer:
        batches = producer._core._batches
        for number in range(3000):
            producer.append(f"many-{number}", 1)
            producer.append("one", 1)
        assert len(batches._due) < 3 * 3000 + 1000, "those that did not linger to the end are dropped now and then"
        producer.flush(60)
        poll(lambda: producer._core._sender._wakes_at is None)
        assert (len(batches._lanes), len(batches._open), len(batches._parts), len(batches._due)) == (0, 0, 0, 0)
        assert producer.statistics()[:4] == (0, 0, 0, 6000)


async def test_who_gives_up_waiting_leaves_nothing() -> None:
    with (
        FakeTopics(lambda request, attempt, context: hang(context)) as fake,
        Connection(Address.parse(fake.target), timeout=5) as connection,
    ):
        producer = Producer(connection, max_buffered_bytes=100, block_seconds=0)
        producer.append("t", 1)
        for _ in range(100):
            with pytest.raises(UnavailableError, match="no room"):
                producer.append("t", 2)
            with pytest.raises(TimeoutError):
                producer.flush(0)
        face = AsyncProducer(connection, max_buffered_bytes=100)
        first = await face.append("t", 1)
        waiting = [asyncio.create_task(face.append("t", 2)) for _ in range(10)]
        awaiting = [asyncio.ensure_future(first) for _ in range(10)]
        await asyncio.sleep(0.01)
        for task in [*waiting, *awaiting]:
            task.cancel()
        await asyncio.gather(*waiting, *awaiting, return_exceptions=True)
        assert not first.done(), "who is cancelled cancels nobody else"
        assert not first._receipt._waiting
        for core in (producer._core, face._core):
            assert not core._sender._waiting_for_room
            assert not core._sender._waiting_for_end
            with pytest.raises(TimeoutError):
                core.close(0)


def test_one_that_nobody_holds_delivers_all_the_same(connection: Connection) -> None:
    delivery = Producer(connection).append("dropped", 1)
    gc.collect()
    assert delivery.result(20) == 1


# ------------------------------------------------------------------ asyncio


def test_a_delivery_can_be_awaited_in_several_loops_one_of_which_is_gone(connection: Connection) -> None:
    go = threading.Event()

    async def append(producer: AsyncProducer) -> Delivery:
        delivery = await producer.append("loops", 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(delivery)), 0.01)
        return delivery  # a task still waits when its loop ends

    async def wait(delivery: Delivery) -> int:
        go.set()
        return await delivery

    producer = AsyncProducer(connection, linger_ms=60_000)
    delivery = asyncio.run(append(producer))
    seqs = list[int]()
    others = [threading.Thread(target=lambda: seqs.append(asyncio.run(wait(delivery)))) for _ in range(2)]
    for thread in others:
        thread.start()
    go.wait(10)

    asyncio.run(producer.flush(20))
    for thread in others:
        thread.join(20)
    assert seqs == [1, 1]
    asyncio.run(producer.close(20))


async def test_in_debug_mode_nothing_is_complained_about(connection: Connection) -> None:
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 60  # a busy machine is no complaint
    complaints = collect_complaints(loop)
    async with AsyncProducer(connection, max_buffered_bytes=2000, linger_ms=0) as producer:
        seqs = await asyncio.gather(*[await producer.append("debug", i) for i in range(500)])
    assert seqs == list(range(1, 501))
    gc.collect()
    assert not complaints


# ------------------------------------------------------------------ servers that lie, or whose topics change


def test_an_answer_about_other_records_is_no_delivery() -> None:
    def lie(request: pb.AppendRequest, attempt: int, context: Any) -> pb.AppendResponse:
        if attempt > 1:
            return stored(request, 7)
        return pb.AppendResponse(first_seq=5, last_seq=5, head_seq=5, count=1, deduped=True)

    with (
        FakeTopics(lie) as fake,
        Connection(Address.parse(fake.target), timeout=5) as connection,
        Producer(connection) as producer,
    ):
        deliveries = [producer.append("t", i) for i in range(2)]
        for delivery in deliveries:
            error = delivery.exception(10)
            assert error is not None
            assert (error.reason, error.detail["outcome"]) == ("internal", "unknown")
            assert "the server acknowledged 1 records instead of 2" in error.message
        assert producer.append("t", 3).result(10) == 7


def test_the_window_is_asked_for_before_each_repeat() -> None:
    """A missing topic may have been created since, by any client, with any window."""
    with (
        FakeTopics(lambda request, attempt, context: lose(context), [None, 100]) as fake,
        Connection(Address.parse(fake.target), timeout=5) as connection,
        Producer(connection, retry=_QUICK) as producer,
    ):
        error = producer.append("t", 1).exception(20)
        assert error is not None
        assert (error.reason, error.detail["outcome"]) == ("outcome_unknown", "unknown")
        assert "(idempotency_window_ms, 0.1 s)" in error.message
        assert [request.idempotency_key for request in fake.attempts] == [fake.attempts[0].idempotency_key] * 2


@pytest.mark.parametrize(("window", "attempts"), [(100, 1), (120_000, 3)])
def test_a_lost_write_is_made_again_only_within_the_window(window: int, attempts: int) -> None:
    def third(request: pb.AppendRequest, attempt: int, context: Any) -> pb.AppendResponse:
        return stored(request, 1) if attempt == 3 else lose(context)

    with (
        FakeTopics(third, [window] * 2) as fake,
        Connection(Address.parse(fake.target), timeout=5) as connection,
        Producer(connection, retry=_QUICK) as producer,
    ):
        error = producer.append("t", 1).exception(20)
        assert (error is None) == (attempts == 3)
        assert len(fake.attempts) == attempts


def test_one_partition_that_never_gets_through_does_not_hold_up_others() -> None:
    def choosy(request: pb.AppendRequest, attempt: int, context: Any) -> pb.AppendResponse:
        return lose(context) if request.topic == "stuck" else stored(request, 1)

    with (
        FakeTopics(choosy, [120_000] * 10_000) as fake,
        Connection(Address.parse(fake.target), timeout=5) as connection,
    ):
        producer = Producer(connection, retry=_QUICK, max_in_flight=1, linger_ms=0)
        stuck = producer.append("stuck", 1)
        for number in range(300):
            assert producer.append(f"t{number % 7}", number).result(10) == 1
        assert not stuck.done()
        assert producer.statistics().repeats > 1
        with pytest.raises(TimeoutError, match="1 record is not delivered"):
            producer.close(0.1)
        with pytest.raises(TopicsError, match="maybe stored"):
            stuck.result(0)
