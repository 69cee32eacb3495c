"""Long polls: the events that end them, their time, and cleanup."""

import asyncio
from typing import Any

import pytest
from data_support import Broker, batch, read_batches, read_records

from support.fake_time import in_fake_time, steps
from topics_kafka.handlers import fetch
from topics_kafka.protocol import ApiKey, ErrorCode


@pytest.fixture(autouse=True)
def long_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice ends by the wall clock, on a busy machine anywhere; tests of slices end theirs themselves."""
    monkeypatch.setattr(fetch, "SLICE_SECONDS", 60.0)


def broker_of(partitions: int = 3) -> Broker:
    broker = Broker()
    broker.put("t", partitions)
    return broker


def start(broker: Broker, body: dict[str, Any], version: int = 12) -> "asyncio.Future[Any]":
    answer = broker.start_call(ApiKey.FETCH, version, body)
    assert not isinstance(answer, dict), "it waits"
    return asyncio.ensure_future(answer)


def parked(broker: Broker, topic: str = "t") -> int:
    return sum(len(log._parked or ()) for log in broker.engine.catalog.topics[topic].logs)


def partitions(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return answer["responses"][0]["partitions"]


@in_fake_time
async def test_the_wait_is_over_in_time() -> None:
    broker, loop = broker_of(), asyncio.get_running_loop()
    began = loop.time()
    answer = await broker.call(ApiKey.FETCH, 12, broker.fetch_many([("t", i, 0) for i in range(3)], max_wait=700))
    assert loop.time() - began == pytest.approx(0.7)
    assert [(partition["high_watermark"], bytes(partition["records"])) for partition in partitions(answer)] == [
        (0, b"")
    ] * 3
    assert parked(broker) == 0


@in_fake_time
async def test_a_record_ends_it() -> None:
    broker, loop = broker_of(), asyncio.get_running_loop()
    waiting = start(broker, broker.fetch_many([("t", i, 0) for i in range(3)], max_wait=60_000))
    began = loop.time()
    await steps(3)
    assert not waiting.done()
    assert parked(broker) == 3
    await broker.produce(batch(b"a"), partition=1)
    answer = await waiting
    assert loop.time() == began, "at once"
    assert [partition["high_watermark"] for partition in partitions(answer)] == [0, 1, 0]
    encoded = broker.encoded(ApiKey.FETCH, 12, answer)
    assert [len(read_records(partition["records"])) for partition in partitions(encoded)] == [0, 1, 0]
    await steps(2)
    assert parked(broker) == 0


@in_fake_time
async def test_also_one_of_another_protocol() -> None:
    broker = broker_of()
    waiting = start(broker, broker.fetch_body(max_wait=60_000))
    broker.append(b"1")
    assert partitions(await waiting)[0]["high_watermark"] == 1


@in_fake_time
async def test_what_is_not_durable_yet_does_not() -> None:
    broker = Broker()
    broker.put("t", durability="fsync")
    broker.commit.eager = False
    waiting = start(broker, broker.fetch_body(max_wait=60_000))
    produced = asyncio.ensure_future(broker.start_call(ApiKey.PRODUCE, 12, broker.produce_body(batch(b"a"))))
    await steps(5)
    assert not waiting.done()
    broker.commit.sync()
    assert partitions(await waiting)[0]["high_watermark"] == 1
    await produced


@in_fake_time
async def test_it_waits_for_min_bytes() -> None:
    broker, loop = broker_of(), asyncio.get_running_loop()
    one = batch(b"x" * 1000)
    targets = [("t", 0, 0), ("t", 1, 0)]
    body = broker.fetch_many(targets, max_wait=5000, min_bytes=3 * len(one))
    waiting = start(broker, body)
    await broker.produce(one, partition=0)
    await steps(5)
    await broker.produce(one, partition=1)
    await steps(5)
    assert not waiting.done()
    await broker.produce(one, partition=0)
    answer = broker.encoded(ApiKey.FETCH, 12, await waiting)
    assert [len(partition["records"]) for partition in partitions(answer)] == [2 * len(one), len(one)]
    began = loop.time()
    body["topics"][0]["partitions"][0]["fetch_offset"] = 2
    answer = await broker.call(ApiKey.FETCH, 12, body)
    assert loop.time() - began == pytest.approx(5.0), "never enough: all that is there in the end"
    assert [len(partition["records"]) for partition in partitions(answer)] == [0, len(one)]


@in_fake_time
async def test_min_bytes_above_what_may_be_sent() -> None:
    broker = broker_of()
    sent = [batch(b"x" * 1000) for _ in range(4)]
    for records in sent:
        await broker.produce(records)
    for limits in ({"max_bytes": 2100}, {"partition_max": 2100}):
        answer = broker.start_call(ApiKey.FETCH, 12, broker.fetch_body(min_bytes=1 << 20, max_wait=5000, **limits))
        assert isinstance(answer, dict), "more than this can't come"


@in_fake_time
async def test_many_small_appends_are_counted_and_not_read_again() -> None:
    broker = broker_of()
    waiting = start(broker, broker.fetch_body(max_wait=60_000, min_bytes=50_000))
    reads, original = 0, broker.engine.batches.fetch

    def counted(request: Any) -> Any:
        nonlocal reads
        reply = original(request)
        reads += len(reply.parts)
        return reply

    broker.engine.batches.fetch = counted  # type: ignore[method-assign]
    sent = -(-50_000 // len(batch(b"x" * 50)))
    for _ in range(sent):
        assert not waiting.done(), "not before there is enough"
        await broker.produce(batch(b"x" * 50))
        await steps(2)
    for _ in range(100):  # on a busy machine its slices take more steps
        if not waiting.done():
            await steps(1)
    assert waiting.done()
    assert reads < 3 * sent
    answer = broker.encoded(ApiKey.FETCH, 12, waiting.result())
    assert len(read_records(partitions(answer)[0]["records"])) >= sent - 2


@in_fake_time
async def test_what_was_deleted_meanwhile_is_not_sent() -> None:
    broker = broker_of()
    waiting = start(broker, broker.fetch_body(max_wait=1000, min_bytes=5000))
    await broker.produce(batch(b"secret", b"public", keys=[b"s", b"p"]))
    await steps(3)
    broker.delete(tag=b"s")
    answer = broker.encoded(ApiKey.FETCH, 12, await waiting)
    assert [record.value for record in read_records(partitions(answer)[0]["records"])] == [b"public"]


@in_fake_time
async def test_errors_and_holes_are_told_at_once() -> None:
    broker = broker_of()
    await broker.produce(batch(b"a", keys=[b"k"]))
    broker.delete(tag=b"k")
    for targets in ([("t", 1, 0), ("t", 9, 0)], [("t", 1, 0), ("t", 1, 5)], [("t", 1, 0), ("t", 0, 0)], []):
        body = broker.fetch_many(targets, max_wait=60_000)
        assert isinstance(broker.start_call(ApiKey.FETCH, 12, body), dict), targets
    body = broker.fetch_many([("t", 1, 0)], max_wait=60_000, min_bytes=0)
    assert isinstance(broker.start_call(ApiKey.FETCH, 12, body), dict)
    assert parked(broker) == 0


@in_fake_time
async def test_a_hole_that_appears() -> None:
    """Records that are appended and deleted before the fetch reads."""
    broker = broker_of()
    waiting = start(broker, broker.fetch_body(max_wait=60_000))
    broker.append(b"1", tags=[b"k"])
    broker.delete(tag=b"k")
    answer = broker.encoded(ApiKey.FETCH, 12, await waiting)
    (control,) = read_batches(partitions(answer)[0]["records"])
    assert (control.is_control_batch, control.base_offset) == (True, 0)


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("again", [False, True])
def test_the_topic_is_deleted(version: int, again: bool) -> None:
    @in_fake_time
    async def run() -> None:
        broker = broker_of()
        waiting = start(broker, broker.fetch_many([("t", 0, 0)], version, max_wait=60_000), version)
        broker.engine.delete_topic("t")
        if again:
            broker.put("t")
        code = partitions(await waiting)[0]["error_code"]
        assert code == (ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    run()


@in_fake_time
async def test_a_client_that_leaves() -> None:
    broker = broker_of()
    waiting = start(broker, broker.fetch_many([("t", i, 0) for i in range(3)], max_wait=60_000))
    waiting.cancel()
    await steps(2)
    assert parked(broker) == 0
    assert not broker.api._waiting
    await broker.produce(batch(b"a"))
    await steps(3)


@in_fake_time
async def test_a_drain_ends_it() -> None:
    broker, loop = broker_of(), asyncio.get_running_loop()
    waiting = start(broker, broker.fetch_body(max_wait=60_000))
    began = loop.time()
    broker.api.drain()
    answer = await waiting
    assert loop.time() == began
    assert partitions(answer)[0]["error_code"] == 0
    assert not broker.api._waiting


@in_fake_time
async def test_news_between_the_slices_of_a_large_fetch() -> None:
    length, fetch.SLICE_SECONDS = fetch.SLICE_SECONDS, 0.0
    try:
        broker = broker_of(50)
        waiting = start(broker, broker.fetch_many([("t", i, 0) for i in range(50)], max_wait=60_000))
        await steps(20)
        await broker.produce(batch(b"a"), partition=0)  # partition 0 has been read already
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert partitions(await waiting)[0]["high_watermark"] == 1
        assert loop.time() == began
        assert parked(broker) == 0
    finally:
        fetch.SLICE_SECONDS = length


@in_fake_time
async def test_only_partitions_with_news_are_read() -> None:
    broker = broker_of(1000)
    length, fetch.SLICE_SECONDS = fetch.SLICE_SECONDS, 10.0
    try:
        waiting = start(broker, broker.fetch_many([("t", i, 0) for i in range(1000)], max_wait=60_000))
        asked: list[int] = []
        original = broker.engine.batches.fetch

        def seen(request: Any) -> Any:
            asked.append(request.partition)
            return original(request)

        broker.engine.batches.fetch = seen  # type: ignore[method-assign]
        await broker.produce(batch(b"a"), partition=77)
        await waiting
        assert asked == [77]
    finally:
        fetch.SLICE_SECONDS = length


@in_fake_time
async def test_too_much_to_wait_for_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "WAITING_WEIGHT", (256 << 20) // 250)
    broker = broker_of()

    def ask(times: int) -> Any:
        body = broker.fetch_body(max_wait=60_000)
        body["topics"][0]["partitions"] *= times
        return broker.start_call(ApiKey.FETCH, 12, body)

    waiting = ask(200)
    assert not isinstance(waiting, dict)
    assert broker.server.waiting == 200
    assert len(ask(101)["responses"][0]["partitions"]) == 101, "there is no memory for it to wait"
    few = ask(fetch.FEW)
    assert broker.server.waiting == 300, "but for that"
    waiting.cancel()
    await steps(2)
    assert broker.server.waiting == 100
    await broker.produce(batch(b"a"))
    assert len((await few)["responses"][0]["partitions"]) == 100
    assert (broker.server.waiting, parked(broker)) == (0, 0)
