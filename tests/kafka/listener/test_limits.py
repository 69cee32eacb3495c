"""Limits of clients: memory of requests, time, connections; and shutdown. Servers in this process."""

import asyncio
import ssl
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.tls_proxy import certificate
from topics_kafka import listener
from topics_kafka.handlers import Context
from topics_kafka.listener import tls_context
from topics_kafka.protocol import ApiKey, Message
from topics_service.api.budget import MemoryBudget

from .conftest import Connect, Serve, keys
from .test_order import FETCH, PRODUCE, Work, settle, until

MIB = 1 << 20


class Waiter:
    """Waits for memory of the budget."""

    share = None

    def __init__(self) -> None:
        self.grants = 0

    def granted(self) -> None:
        self.grants += 1


def test_the_budget_serves_the_oldest_first() -> None:
    budget = MemoryBudget(100)
    first, second, third, fourth = (Waiter() for _ in range(4))
    assert budget.take(first, 90)
    assert budget.take(second, 90), "the oldest that waits may go beyond"
    assert not budget.take(third, 90)
    assert not budget.take(fourth, 5), "nobody overtakes"
    assert budget.used == 180
    budget.release(90)
    assert (third.grants, fourth.grants) == (0, 0)
    budget.complete(second)
    assert (third.grants, fourth.grants) == (1, 0), "the next one may go beyond"
    budget.release(90)
    assert (fourth.grants, budget.used) == (1, 95)


def test_the_budget_lets_one_request_grow_to_its_end() -> None:
    budget = MemoryBudget(100)
    holders = [Waiter() for _ in range(10)]
    assert all(budget.take(holder, 10) for holder in holders)
    assert budget.take(holders[0], 10)
    assert not any(budget.take(holder, 10) for holder in holders[1:])
    assert budget.take(holders[0], 70)
    budget.complete(holders[0])
    assert holders[1].grants == 1
    budget.leave(holders[1])
    budget.release(20)
    assert holders[2].grants == 1


async def _begun(client: Any, length: int, sent: int) -> None:
    client.writer.write(length.to_bytes(4, "big") + bytes(sent))
    await client.writer.drain()


async def test_to_announce_much_costs_nothing(serve: Serve, connect: Connect) -> None:
    server = await serve({ApiKey.PRODUCE: lambda *_: {"responses": []}}, frame_bytes=8 * MIB)
    for _ in range(50):
        await _begun(await connect(server), 100 * MIB, 100)
    await until(lambda: server.statistics.bytes_in == 50 * 104)
    assert server.budget.used == 50 * 16384
    client = await connect(server)
    client.send(ApiKey.PRODUCE, 7, 1, **PRODUCE)
    assert (await client.receive(ApiKey.PRODUCE, 7))[0] == 1


async def test_large_requests_wait_for_memory_and_all_arrive(serve: Serve, connect: Connect) -> None:
    lengths: list[int] = []

    def produce(context: Context, version: int, request: Message) -> Message:
        (topic,) = request["topic_data"]
        records = topic["partition_data"][0]["records"]
        lengths.append(len(records))
        assert bytes(records) == bytes([lengths[-1] % 251]) * lengths[-1]
        return {"responses": []}

    server = await serve({ApiKey.PRODUCE: produce}, frame_bytes=4 * MIB)
    maximum = 0

    async def send(number: int) -> None:
        client = await connect(server)
        size = 2 * MIB + number * 70_001
        data = [{"name": "t", "partition_data": [{"index": 0, "records": bytes([size % 251]) * size}]}]
        for correlation in range(3):
            client.send(ApiKey.PRODUCE, 7, correlation, acks=1, timeout=1, topic_data=data)
            await client.writer.drain()
        for correlation in range(3):
            assert (await client.receive(ApiKey.PRODUCE, 7))[0] == correlation

    async def watch() -> None:
        nonlocal maximum
        while True:
            maximum = max(maximum, server.budget.used)
            await asyncio.sleep(0)

    watcher = asyncio.create_task(watch())
    await asyncio.gather(*(send(number) for number in range(12)))
    watcher.cancel()
    assert len(lengths) == 36
    assert 2 * MIB < maximum <= 4 * MIB + 3 * MIB, "the budget, and one request more"
    assert server.budget.used == 0


async def test_a_client_that_leaves_gives_its_memory_back(serve: Serve, connect: Connect) -> None:
    work = Work({"responses": []})
    server = await serve({ApiKey.PRODUCE: work}, frame_bytes=MIB)
    hogs = [await connect(server) for _ in range(4)]
    for hog in hogs:
        hog.writer.write((3 * MIB).to_bytes(4, "big") + bytes(2 * MIB))
    await until(lambda: server.budget.used > MIB)
    client = await connect(server)
    client.send(ApiKey.PRODUCE, 7, 1, **PRODUCE)
    await settle()
    assert not work.started, "there is no memory for it"
    for hog in hogs:
        hog.writer.transport.abort()
    await until(lambda: work.started)
    work.release(0)
    assert (await client.receive(ApiKey.PRODUCE, 7))[0] == 1
    await until(lambda: server.budget.used == 0)


async def test_who_holds_memory_and_crawls_is_cut_when_others_need_it(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_CHECK_SECONDS", 0.02)
    work = Work({"responses": []})
    server = await serve({ApiKey.PRODUCE: work}, frame_bytes=MIB)
    hogs = [await connect(server) for _ in range(2)]
    for hog in hogs:
        hog.writer.write((3 * MIB).to_bytes(4, "big") + bytes(2 * MIB))
    await until(lambda: server.budget.used > MIB)
    client = await connect(server)
    client.send(ApiKey.PRODUCE, 7, 1, **PRODUCE)
    await until(lambda: work.started)
    assert server.statistics.closed["slow"] >= 1
    work.release(0)
    assert (await client.receive(ApiKey.PRODUCE, 7))[0] == 1


async def test_connections_are_bounded(serve: Serve, connect: Connect) -> None:
    server = await serve({ApiKey.PRODUCE: lambda *_: {"responses": []}}, max_connections=3)
    clients = [await connect(server) for _ in range(3)]
    await until(lambda: server.statistics.connections == 3)
    assert await (await connect(server)).ended()
    assert server.statistics.closed == Counter({"limit": 1})
    clients[0].writer.close()
    await until(lambda: server.statistics.connections == 2)
    client = await connect(server)
    client.send(ApiKey.PRODUCE, 7, 1, **PRODUCE)
    assert (await client.receive(ApiKey.PRODUCE, 7))[0] == 1


async def test_who_sends_nothing_is_closed(serve: Serve, connect: Connect) -> None:
    work = Work({"responses": []})
    server = await serve({ApiKey.PRODUCE: work}, first_request_seconds=1, idle_seconds=2)
    silent, begun, late, busy = [await connect(server) for _ in range(4)]
    await _begun(begun, 1000, 50)
    for client in (late, busy):
        client.send(ApiKey.PRODUCE, 7, 1, **PRODUCE)
    await until(lambda: len(work.started) == 2)
    work.release(0)
    await late.receive(ApiKey.PRODUCE, 7)
    assert await silent.ended()
    assert await begun.ended()
    assert await late.ended()
    assert server.statistics.closed == Counter({"idle": 2, "slow": 1})
    work.release(1)
    assert (await busy.receive(ApiKey.PRODUCE, 7))[0] == 1, "who waits for an answer is not idle"


async def test_authentication_must_not_take_long(serve: Serve, connect: Connect) -> None:
    server = await serve({}, keys=keys("secret"), first_request_seconds=1.5, idle_seconds=100)
    client = await connect(server)
    for number in range(3):
        client.send(ApiKey.SASL_HANDSHAKE, 1, number, mechanism="PLAIN")
        await client.receive(ApiKey.SASL_HANDSHAKE, 1)
    assert await client.ended()
    assert server.statistics.closed == Counter({"idle": 1})


async def test_who_does_not_read_is_not_served_and_then_cut(serve: Serve, connect: Connect) -> None:
    answers = 0

    def fetch(context: Context, version: int, request: Message) -> Message:
        nonlocal answers
        answers += 1
        partition = {"partition_index": 0, "records": bytes(4 * MIB)}
        return {"responses": [{"topic": "t", "partitions": [partition]}]}

    server = await serve({ApiKey.FETCH: fetch}, send_seconds=0.6)
    client, other = await connect(server), await connect(server)
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    for number in range(20):
        client.send(ApiKey.FETCH, 4, number, **FETCH)
    await until(lambda: answers)
    await settle()
    assert answers <= 3, "what is not read is not made"
    await until(lambda: server.statistics.closed["slow"] == 1)
    other.send(ApiKey.FETCH, 4, 77, **FETCH)
    assert (await other.receive(ApiKey.FETCH, 4))[0] == 77


async def test_who_does_not_read_over_tls_is_cut_as_well(serve: Serve, connect: Connect, tmp_path: Path) -> None:
    answers, lengths = 0, []

    def fetch(context: Context, version: int, request: Message) -> Message:
        nonlocal answers
        answers += 1
        return {"responses": [{"topic": "t", "partitions": [{"partition_index": 0, "records": bytes(4 * MIB)}]}]}

    def produce(context: Context, version: int, request: Message) -> Message:
        lengths.append(len(request["topic_data"][0]["partition_data"][0]["records"]))
        return {"responses": []}

    cert, key = certificate(tmp_path)
    server = await serve(
        {ApiKey.FETCH: fetch, ApiKey.PRODUCE: produce}, send_seconds=0.6, tls=tls_context(str(cert), str(key))
    )
    trust = ssl.create_default_context(cafile=str(cert))
    client, other = await connect(server, trust), await connect(server, trust)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    for number in range(20):
        client.send(ApiKey.FETCH, 4, number, **FETCH)
    await until(lambda: server.statistics.closed["slow"] == 1)
    assert answers <= 3, "what is not read is not made"
    data = [{"name": "t", "partition_data": [{"index": 0, "records": bytes(5 * MIB)}]}]
    other.send(ApiKey.PRODUCE, 7, 7, acks=1, timeout=1, topic_data=data)
    assert (await other.receive(ApiKey.PRODUCE, 7))[0] == 7
    assert lengths == [5 * MIB]
    assert server.budget.used == 0


async def test_fetches_wait_while_responses_fill_the_memory(serve: Serve, connect: Connect) -> None:
    def fetch(context: Context, version: int, request: Message) -> Message:
        partition = {"partition_index": 0, "records": bytes(16 * MIB)}
        return {"responses": [{"topic": "t", "partitions": [partition]}]}

    server = await serve(
        {ApiKey.FETCH: fetch, ApiKey.PRODUCE: lambda *_: {"responses": []}}, send_seconds=2, frame_bytes=4 * MIB
    )
    client, other = await connect(server), await connect(server)
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    client.send(ApiKey.FETCH, 4, 1, **FETCH)
    await until(lambda: server.unsent > 4 * MIB)
    other.send(ApiKey.FETCH, 4, 2, **FETCH)
    await settle()
    assert server.statistics.requests.in_flight == 0
    third = await connect(server)
    third.send(ApiKey.PRODUCE, 7, 3, **PRODUCE)
    assert (await third.receive(ApiKey.PRODUCE, 7))[0] == 3, "what is small goes on"
    await until(lambda: server.statistics.closed["slow"] == 1)
    assert (await other.receive(ApiKey.FETCH, 4))[0] == 2
    await until(lambda: server.unsent == 0)


async def test_only_produce_may_be_large(serve: Serve, connect: Connect) -> None:
    server = await serve({ApiKey.FETCH: lambda *_: {}, ApiKey.PRODUCE: lambda *_: {"responses": []}})
    client, other = await connect(server), await connect(server)
    data = [{"name": "t", "partition_data": [{"index": 0, "records": bytes(17 * MIB)}]}]
    client.send(ApiKey.PRODUCE, 7, 1, acks=1, timeout=1, topic_data=data)
    assert (await client.receive(ApiKey.PRODUCE, 7))[0] == 1
    frame = b"\0\x01\0\x04" + bytes(17 * MIB)
    other.writer.write(len(frame).to_bytes(4, "big") + frame)
    assert await other.ended()
    assert server.statistics.closed == Counter({"length": 1})
    assert server.budget.used == 0


async def test_who_reads_slowly_gets_everything(serve: Serve, connect: Connect) -> None:
    record = bytes(range(256)) * 4096

    def fetch(context: Context, version: int, request: Message) -> Message:
        return {"responses": [{"topic": "t", "partitions": [{"partition_index": 0, "records": [record, record]}]}]}

    server = await serve({ApiKey.FETCH: fetch}, send_seconds=3)
    client = await connect(server)
    for number in range(20):
        client.send(ApiKey.FETCH, 4, number, **FETCH)
    for number in range(20):
        correlation, body = await client.receive(ApiKey.FETCH, 4)
        assert correlation == number
        assert bytes(body["responses"][0]["partitions"][0]["records"]) == record * 2
        await asyncio.sleep(0.01)
    assert not server.statistics.closed


async def test_many_small_requests_in_one_read_do_not_hold_the_loop(serve: Serve, connect: Connect) -> None:
    def fetch(context: Context, version: int, request: Message) -> Message:
        end = time.thread_time() + 0.001
        while time.thread_time() < end:
            pass
        return {"responses": []}

    server = await serve({ApiKey.FETCH: fetch})
    client = await connect(server)
    for number in range(300):
        client.send(ApiKey.FETCH, 4, number, **FETCH)
    longest, last = 0.0, time.thread_time()  # not the wall clock: others may have the processor meanwhile

    async def watch() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last = max(longest, now - last), now

    watcher = asyncio.create_task(watch())
    for number in range(300):
        assert (await client.receive(ApiKey.FETCH, 4))[0] == number
    watcher.cancel()
    assert longest < 0.15, "300 ms of work in slices"


async def test_a_stop_finishes_what_runs_and_takes_nothing_new(serve: Serve, connect: Connect) -> None:
    work = Work({"responses": []})
    server = await serve({ApiKey.PRODUCE: work})
    idle, busy = await connect(server), await connect(server)
    await until(lambda: server.statistics.connections == 2)
    busy.send(ApiKey.PRODUCE, 7, 1, **PRODUCE)
    busy.send(ApiKey.PRODUCE, 7, 2, **PRODUCE)
    await until(lambda: len(work.started) == 2)
    stopping = asyncio.create_task(server.stop(10))
    assert await idle.ended()
    busy.send(ApiKey.PRODUCE, 7, 3, **PRODUCE)
    await settle()
    assert len(work.started) == 2
    with pytest.raises(OSError, match="Connect call failed"):
        await connect(server)
    work.release(0, 1)
    assert [(await busy.receive(ApiKey.PRODUCE, 7))[0] for _ in range(2)] == [1, 2]
    assert await busy.ended()
    await stopping


async def test_a_stop_cuts_what_takes_too_long(serve: Serve, connect: Connect) -> None:
    work = Work()
    server = await serve({ApiKey.PRODUCE: work})
    client = await connect(server)
    client.send(ApiKey.PRODUCE, 7, 1, **PRODUCE)
    await until(lambda: work.started)
    await server.stop(0.05)
    await until(lambda: work.cancelled == 1)
    assert await client.ended()
    assert server.statistics.connections == 0
