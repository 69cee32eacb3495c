"""Requests of one connection: order, concurrency and cancellation, with handlers that the tests control."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from topics_kafka.handlers import Context
from topics_kafka.protocol import ApiKey, Message
from topics_kafka.session import MAX_PIPELINED
from topics_net.loop_budget import BUDGET_SECONDS

from .conftest import Connect, Serve, keys

PRODUCE = {"acks": -1, "timeout": 1000, "topic_data": []}
FETCH = {"max_wait": 0, "min_bytes": 0, "topics": []}


class Work:
    """A handler whose answers a test releases. Records the started requests."""

    def __init__(self, answer: Message | None = None) -> None:
        self.answer: Message | None = {} if answer is None else answer
        self.started: list[asyncio.Future[Message | None]] = []
        self.cancelled = 0

    def __call__(self, context: Context, version: int, request: Message) -> Awaitable[Message | None]:
        future: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        self.started.append(future)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: "asyncio.Future[Message | None]") -> None:
        self.cancelled += future.cancelled()

    def release(self, *places: int) -> None:
        for place in places:
            self.started[place].set_result(self.answer)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


async def settle() -> None:
    """Let the event loop run, so that errors can show."""
    for _ in range(20):
        await asyncio.sleep(0.001)


async def test_produces_overlap_and_are_answered_in_order(serve: Serve, connect: Connect) -> None:
    work = Work({"responses": []})
    client = await connect(await serve({ApiKey.PRODUCE: work}))
    for number in range(5):
        client.send(ApiKey.PRODUCE, 7, number, **PRODUCE)
    await until(lambda: len(work.started) == 5)
    work.release(4, 2, 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.frame()
    work.release(0)
    assert [(await client.receive(ApiKey.PRODUCE, 7))[0] for _ in range(3)] == [0, 1, 2]
    work.release(3)
    assert [(await client.receive(ApiKey.PRODUCE, 7))[0] for _ in range(2)] == [3, 4]


async def test_anything_else_waits_its_turn(serve: Serve, connect: Connect) -> None:
    produce, fetch = Work({"responses": []}), Work({"responses": []})
    client = await connect(await serve({ApiKey.PRODUCE: produce, ApiKey.FETCH: fetch}))
    client.send(ApiKey.PRODUCE, 7, 1, **PRODUCE)
    client.send(ApiKey.FETCH, 4, 2, **FETCH)
    client.send(ApiKey.FETCH, 4, 3, **FETCH)
    client.send(ApiKey.PRODUCE, 7, 4, **PRODUCE)
    await until(lambda: len(produce.started) == 1)
    await settle()
    assert not fetch.started, "a fetch behind a produce sees what it wrote"
    produce.release(0)
    await until(lambda: len(fetch.started) == 1)
    await settle()
    assert (len(fetch.started), len(produce.started)) == (1, 1)
    fetch.release(0)
    await until(lambda: len(fetch.started) == 2)
    fetch.release(1)
    await until(lambda: len(produce.started) == 2)
    produce.release(1)
    kinds = (ApiKey.PRODUCE, 7), (ApiKey.FETCH, 4), (ApiKey.FETCH, 4), (ApiKey.PRODUCE, 7)
    assert [(await client.receive(*kind))[0] for kind in kinds] == [1, 2, 3, 4]


async def test_pipelined_produces_are_bounded(serve: Serve, connect: Connect) -> None:
    work = Work({"responses": []})
    server = await serve({ApiKey.PRODUCE: work})
    client = await connect(server)
    for number in range(MAX_PIPELINED + 10):
        client.send(ApiKey.PRODUCE, 7, number, **PRODUCE)
    await until(lambda: len(work.started) == MAX_PIPELINED)
    await settle()
    assert len(work.started) == MAX_PIPELINED
    work.release(0)
    await until(lambda: len(work.started) == MAX_PIPELINED + 1)
    work.release(*range(1, MAX_PIPELINED + 1))
    await until(lambda: len(work.started) == MAX_PIPELINED + 10)
    work.release(*range(MAX_PIPELINED + 1, MAX_PIPELINED + 10))
    found = [(await client.receive(ApiKey.PRODUCE, 7))[0] for _ in range(MAX_PIPELINED + 10)]
    assert found == list(range(MAX_PIPELINED + 10))
    assert (server.budget.used, server.statistics.requests.in_flight) == (0, 0)


async def test_pipelined_bytes_are_bounded(serve: Serve, connect: Connect) -> None:
    work = Work({"responses": []})
    client = await connect(await serve({ApiKey.PRODUCE: work}))
    data = [{"name": "t", "partition_data": [{"index": 0, "records": bytes(6 << 20)}]}]
    for number in range(5):
        client.send(ApiKey.PRODUCE, 7, number, acks=-1, timeout=1000, topic_data=data)
    await until(lambda: len(work.started) == 3)
    await settle()
    assert len(work.started) == 3, "18 MiB are more than 16"
    work.release(0, 1, 2)
    await until(lambda: len(work.started) == 5)
    work.release(3, 4)
    assert [(await client.receive(ApiKey.PRODUCE, 7))[0] for _ in range(5)] == [0, 1, 2, 3, 4]


async def test_no_answer_is_no_answer(serve: Serve, connect: Connect) -> None:
    asked = []

    def produce(context: Context, version: int, request: Message) -> Message | None:
        asked.append(request["acks"])
        return None if request["acks"] == 0 else {"responses": []}

    server = await serve({ApiKey.PRODUCE: produce})
    client = await connect(server)
    for number, acks in enumerate((0, 0, 1, 0, -1)):
        client.send(ApiKey.PRODUCE, 7, number, acks=acks, timeout=1000, topic_data=[])
    assert [(await client.receive(ApiKey.PRODUCE, 7))[0] for _ in range(2)] == [2, 4]
    assert asked == [0, 0, 1, 0, -1]
    finished = server.statistics.requests.finished
    assert {outcome: histogram.count for (_, outcome), histogram in finished.items()} == {"silent": 3, "answered": 2}


async def test_a_client_that_leaves_cancels_what_it_waits_for(serve: Serve, connect: Connect) -> None:
    work = Work()
    gone = []

    def produce(context: Context, version: int, request: Message) -> Awaitable[Message | None]:
        context.on_gone.append(lambda: gone.append(context.client_id))
        return work(context, version, request)

    server = await serve({ApiKey.PRODUCE: produce})
    client = await connect(server)
    client.send(ApiKey.PRODUCE, 7, 1, **PRODUCE)
    client.send(ApiKey.PRODUCE, 7, 2, **PRODUCE)
    await until(lambda: len(work.started) == 2)
    client.writer.transport.abort()
    await until(lambda: work.cancelled == 2)
    await until(lambda: server.statistics.connections == 0)
    assert gone == ["client", "client"]
    assert (server.budget.used, server.statistics.requests.in_flight) == (0, 0)


@pytest.mark.parametrize("late", [False, True])
async def test_a_bug_in_a_handler_ends_the_connection_and_no_other(
    late: bool, serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail_late() -> Message:
        await asyncio.sleep(0)
        raise ZeroDivisionError("a bug")

    def fetch(context: Context, version: int, request: Message) -> Any:
        if late:
            return fail_late()
        raise ZeroDivisionError("a bug")

    server = await serve({ApiKey.FETCH: fetch, ApiKey.PRODUCE: lambda *_: {"responses": []}})
    client, other = await connect(server), await connect(server)
    client.send(ApiKey.FETCH, 4, 1, **FETCH)
    assert await client.ended()
    assert "a bug" in caplog.text
    assert server.statistics.closed == Counter({"failed": 1})
    other.send(ApiKey.PRODUCE, 7, 2, **PRODUCE)
    assert (await other.receive(ApiKey.PRODUCE, 7))[0] == 2
    assert (server.budget.used, server.statistics.requests.in_flight) == (0, 0)


async def test_an_answer_that_cannot_be_written_ends_the_connection(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    server = await serve({ApiKey.FETCH: lambda *_: {"responses": "nonsense"}})
    client = await connect(server)
    client.send(ApiKey.FETCH, 4, 1, **FETCH)
    assert await client.ended()
    assert "could not encode" in caplog.text


async def test_a_handler_can_close_behind_its_answer(serve: Serve, connect: Connect) -> None:
    def produce(context: Context, version: int, request: Message) -> Message | None:
        context.closing = True
        return {"responses": []} if request["acks"] else None

    server = await serve({ApiKey.PRODUCE: produce})
    client = await connect(server)
    client.send(ApiKey.PRODUCE, 7, 1, **PRODUCE)
    client.send(ApiKey.PRODUCE, 7, 2, **PRODUCE)
    assert (await client.receive(ApiKey.PRODUCE, 7))[0] == 1
    assert await client.reader.read() == b""
    silent = await connect(server)
    silent.send(ApiKey.PRODUCE, 7, 1, acks=0, timeout=1000, topic_data=[])
    assert await silent.reader.read() == b""


async def test_a_key_without_a_free_slot_waits_for_one(serve: Serve, connect: Connect) -> None:
    work = Work({"responses": []})
    server = await serve({ApiKey.PRODUCE: work}, keys=keys("secret"), max_inflight=1)
    clients = [await connect(server) for _ in range(2)]
    for client in clients:
        assert await client.log_in("secret") == 0
        client.send(ApiKey.PRODUCE, 7, 9, **PRODUCE)
    await until(lambda: len(work.started) == 1)
    await settle()
    assert len(work.started) == 1
    work.release(0)
    await until(lambda: len(work.started) == 2)
    work.release(1)
    for client in clients:
        assert (await client.receive(ApiKey.PRODUCE, 7))[0] == 9


async def test_a_produce_that_is_not_appended_yet_holds_the_next_one(serve: Serve, connect: Connect) -> None:
    class Slow(Work):
        def __call__(self, context: Context, version: int, request: Message) -> Awaitable[Message | None]:
            context.appending = not self.started
            self.context = context
            return super().__call__(context, version, request)

    work = Slow({"responses": []})
    client = await connect(await serve({ApiKey.PRODUCE: work}))
    for number in range(4):
        client.send(ApiKey.PRODUCE, 7, number, **PRODUCE)
    await until(lambda: work.started)
    await settle()
    assert len(work.started) == 1
    work.context.appending = False
    work.release(0)
    await until(lambda: len(work.started) == 4)
    work.release(1, 2, 3)
    assert [(await client.receive(ApiKey.PRODUCE, 7))[0] for _ in range(4)] == [0, 1, 2, 3]


async def test_all_connections_together_leave_the_loop_its_turns(serve: Serve, connect: Connect) -> None:
    running = 0
    maximum = 0

    def slow(context: Context, version: int, request: Message) -> Message:
        nonlocal running, maximum
        running += 1
        maximum = max(maximum, running)
        time.sleep(BUDGET_SECONDS)
        return {"responses": []}

    def turn() -> None:
        nonlocal running
        running = 0
        loop.call_soon(turn)

    server = await serve({ApiKey.PRODUCE: slow})
    clients = [await connect(server) for _ in range(8)]
    loop = asyncio.get_running_loop()
    loop.call_soon(turn)
    large = [{"name": "x" * 100, "partition_data": []}] * 1000  # larger than one read
    for number in range(3):
        for client in clients:
            client.send(ApiKey.PRODUCE, 7, number, **(PRODUCE | {"topic_data": large if number == 1 else []}))
    for client in clients:
        assert [(await client.receive(ApiKey.PRODUCE, 7))[0] for _ in range(3)] == [0, 1, 2]
    assert maximum <= 2, "one ends this turn, and one begins the next"
    assert server.budget.used == 0


async def test_a_connection_that_ends_in_line_leaves_nothing(serve: Serve, connect: Connect) -> None:
    started = 0

    def slow(context: Context, version: int, request: Message) -> Message:
        nonlocal started
        started += 1
        time.sleep(BUDGET_SECONDS)
        return {"responses": []}

    server = await serve({ApiKey.PRODUCE: slow})
    clients = [await connect(server) for _ in range(20)]
    large = [{"name": "x" * 100, "partition_data": []}] * 1000
    for client in clients:
        client.send(ApiKey.PRODUCE, 7, 1, **(PRODUCE | {"topic_data": large}))
    await until(lambda: started >= 2)
    for client in clients:
        client.writer.transport.abort()
    await until(lambda: server.statistics.connections == 0)
    await settle()
    assert server.budget.used == 0


NO_ANSWER = PRODUCE | {"acks": 0}


class Appending(Work):
    """A slow Produce; one at a time."""

    def __call__(self, context: Context, version: int, request: Message) -> Awaitable[Message | None]:
        context.appending = True
        future = super().__call__(context, version, request)

        def end(_: object) -> None:
            context.appending = False

        asyncio.ensure_future(future).add_done_callback(end)
        return future


async def test_who_wants_no_answer_may_leave_before_it_is_written(serve: Serve, connect: Connect) -> None:
    work = Appending()
    server = await serve({ApiKey.PRODUCE: work})
    client = await connect(server)
    for number in range(3):
        client.send(ApiKey.PRODUCE, 7, number, **NO_ANSWER)
    client.writer.close()
    for place in range(3):
        await until(lambda: len(work.started) == place + 1)  # noqa: B023  # awaited here
        await settle()
        work.started[place].set_result(None)
    await until(lambda: server.statistics.connections == 0)
    assert work.cancelled == 0
    assert (server.budget.used, server.statistics.requests.in_flight) == (0, 0)


async def test_what_is_being_appended_survives_its_connection(serve: Serve, connect: Connect) -> None:
    work = Appending()
    server = await serve({ApiKey.PRODUCE: work})
    client = await connect(server)
    client.send(ApiKey.PRODUCE, 7, 1, **NO_ANSWER)
    await until(lambda: work.started)
    for connection in list(server.connections):
        connection.abort()
    assert await client.ended()
    await until(lambda: server.statistics.connections == 0)
    assert work.cancelled == 0
    assert server.budget.used > 0, "it holds its memory"
    work.started[0].set_result(None)
    await settle()
    assert (server.budget.used, server.statistics.requests.in_flight) == (0, 0)


async def test_who_leaves_while_its_key_has_no_slot(serve: Serve, connect: Connect) -> None:
    work, written = Work({"responses": []}), 0

    def produce(context: Context, version: int, request: Message) -> Awaitable[Message | None] | None:
        nonlocal written
        if not work.started:
            return work(context, version, request)
        written += 1
        return None

    server = await serve({ApiKey.PRODUCE: produce}, keys=keys("secret"), max_inflight=1)
    first, second = [await connect(server) for _ in range(2)]
    for client in (first, second):
        assert await client.log_in("secret") == 0
        client.send(ApiKey.PRODUCE, 7, 9, **NO_ANSWER)
        await until(lambda: work.started)
    second.writer.close()
    await settle()
    assert (written, server.statistics.connections) == (0, 2)
    work.started[0].set_result(None)
    await until(lambda: server.statistics.connections == 1)
    assert written == 1
    assert server.budget.used == 0
