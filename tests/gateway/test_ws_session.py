"""One socket driven message by message: what it reads, keeps and releases."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from topics_gateway.render import RenderCache
from topics_gateway.socket_frames import SocketFrames
from topics_gateway.socket_session import SocketSession
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.topics import TopicsApi
from topics_service.engine.engine import Engine
from topics_service.engine.model import AppendRequest, Batch, ConfigInput
from topics_service.engine.watch.frames import RecordsFrame


class Client:
    """The other end. While `reads` is not set, nothing can be sent to it."""

    def __init__(self) -> None:
        self.commands: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.reads = asyncio.Event()
        self.reads.set()
        self.got: list[dict[str, Any]] = []
        self.closed: dict[str, Any] | None = None
        self.broken = False

    def say(self, *commands: Any) -> None:
        for command in commands:
            text = command if isinstance(command, str) else json.dumps(command)
            self.commands.put_nowait({"type": "websocket.receive", "text": text.encode()})

    def leave(self) -> None:
        self.commands.put_nowait({"type": "websocket.disconnect", "code": 1000})

    async def receive(self) -> dict[str, Any]:
        return await self.commands.get()

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        if self.broken:
            raise ConnectionAbortedError
        if message["type"] == "websocket.close":
            self.closed = message
        else:
            self.got.append(json.loads(message["text"]))

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.001)

    def ops(self) -> list[str]:
        return [message["op"] for message in self.got]


@asynccontextmanager
async def session(api: TopicsApi) -> AsyncIterator[tuple[Client, "asyncio.Task[None]"]]:
    """A session that runs; at the end it is over, and nothing is left of it."""
    before = asyncio.all_tasks()
    client = Client()
    frames = SocketFrames(RenderCache(1 << 20))
    running = asyncio.create_task(
        SocketSession(api, api.limits, UNRESTRICTED, frames, client.receive, client.send, utf8=True).run()
    )
    yield client, running
    client.reads.set()
    client.leave()
    await asyncio.wait([running], timeout=10)
    if not running.cancelled():
        running.result()
    assert asyncio.all_tasks() - before == set()
    assert api.metrics.watch.streams == 0
    assert not api._waiting


async def append(api: TopicsApi, topic: str, *datas: bytes, **config: Any) -> None:
    request = AppendRequest(topic=topic, batch=Batch(datas=list(datas)), config=ConfigInput(**config))
    await api.append(request, principal=UNRESTRICTED)


async def test_one_frame_is_read_ahead_and_not_one_for_each_subscription(api: TopicsApi) -> None:
    for i in range(50):
        await append(api, f"t{i}", b"1", b"2")
    async with session(api) as (client, _):
        client.say(*({"op": "subscribe", "topic": f"t{i}"} for i in range(50)))
        await client.until(lambda: client.ops().count("subscribed") == 50 and client.ops().count("caught_up") == 50)
        client.reads.clear()
        frames = api.metrics.watch.frames
        for i in range(50):
            await append(api, f"t{i}", b"3")
        client.say({"op": "publish", "topic": "own", "records": [{"data": 1}]})
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert api.metrics.watch.frames == frames + 1
        assert (await api.get_topic("own")).head_seq == 1  # commands continue
        client.reads.set()
        await client.until(lambda: client.ops().count("record") == 100)


async def test_durable_writes_of_a_client_that_does_not_read_become_visible(api: TopicsApi) -> None:
    await append(api, "t", b"0", durability="fsync")
    async with session(api) as (client, _):
        client.say({"op": "ping"})
        await client.until(lambda: client.got)
        client.reads.clear()
        client.say({"op": "ping"}, *({"op": "publish", "topic": "t", "records": [{"data": i}]} for i in range(20)))
        async with asyncio.timeout(5):
            while (await api.get_topic("t")).head_seq < 21:
                await asyncio.sleep(0.001)
        assert client.ops() == ["pong"]


async def test_an_idle_socket_keeps_nothing(api: TopicsApi) -> None:
    async with session(api) as (client, _):
        client.say({"op": "subscribe", "topic": "t"})
        await append(api, "t", b"0")
        client.say({"op": "subscribe", "topic": "t"})
        await client.until(lambda: "caught_up" in client.ops())
        big = b"x" * 1_000_001
        client.say({"op": "publish", "topic": "t", "records": [{"data": big.decode()}]})
        client.say({"op": "ping", "request_id": big.decode()})
        await client.until(lambda: client.ops().count("caught_up") == 2 and client.ops()[-1] != "subscribed")
        await client.until(lambda: "pong" in client.ops())
        client.got.clear()
        for _ in range(10):
            await asyncio.sleep(0)
        kept = [task for task in asyncio.all_tasks() if _holds(task, 1_000_000)]
        assert not kept


def _holds(task: "asyncio.Task[Any]", size: int) -> bool:
    """Return True if a waiting coroutine has a large text, or a frame of records, among its locals."""
    awaiting: Any = task.get_coro()
    while awaiting is not None and hasattr(awaiting, "cr_frame"):
        for value in awaiting.cr_frame.f_locals.values() if awaiting.cr_frame is not None else ():
            large = isinstance(value, bytes | str) and len(value) >= size
            if large or isinstance(value, RecordsFrame) or (isinstance(value, dict) and "text" in value):
                return value is not None and awaiting.cr_code.co_name != "test_an_idle_socket_keeps_nothing"
        awaiting = awaiting.cr_await
    return False


async def test_no_records_before_subscribed(api: TopicsApi) -> None:
    await append(api, "t", b"1")
    async with session(api) as (client, _):
        client.reads.clear()
        client.say({"op": "subscribe", "topic": "t"})
        await asyncio.sleep(0.01)
        assert api.metrics.watch.streams == 1
        assert api.metrics.watch.frames == 0
        client.reads.set()
        await client.until(lambda: len(client.got) == 3)
        assert client.ops() == ["subscribed", "record", "caught_up"]


@pytest.mark.parametrize("reads", [True, False])
async def test_it_ends_at_any_moment(api: TopicsApi, engine: Engine, reads: bool) -> None:
    for i in range(5):
        await append(api, f"t{i}", b"1")
    commands: list[Any] = [
        {"op": "subscribe", "topics": {f"t{i}": {} for i in range(5)}},
        {"op": "subscribe", "topics": {"t1": {}, "absent": {}}, "lenient": True},
        {"op": "subscribe", "topics": {"absent": {}}, "lenient": True},
        {"op": "subscribe", "topics": {"t*": {}}},
        {"op": "unsubscribe", "topics": ["t2", "t3"]},
        {"op": "publish", "topic": "t4", "records": [{"data": 1}]},
    ]
    for count in range(len(commands) + 1):
        for how in ("leave", "break", "cancel"):
            async with session(api) as (client, running):
                if not reads:
                    client.reads.clear()
                client.say(*commands[:count])
                for _ in range(count * 3):
                    await asyncio.sleep(0)
                if how == "break":
                    client.broken = True
                    client.reads.set()
                    client.say({"op": "ping"})
                elif how == "cancel":
                    running.cancel()
    await append(api, "t1", b"2")
    for i in range(5):
        assert not engine.catalog.visible(f"t{i}").log._parked


async def test_drain(api: TopicsApi) -> None:
    await append(api, "t", b"1", durability="fsync")
    async with session(api) as (client, running):
        client.say({"op": "subscribe", "topic": "t"})
        await client.until(lambda: "caught_up" in client.ops())
        client.got.clear()
        client.say(*({"op": "publish", "request_id": i, "topic": "t", "records": [{"data": i}]} for i in range(5)))
        while client.commands.qsize():
            await asyncio.sleep(0)
        api.drain()
        await running
        acks = [message for message in client.got if message["op"] == "ack"]
        assert [message["request_id"] for message in acks] == list(range(5))
        assert client.got[-1]["code"] == "server_shutting_down"
        assert client.got[-1]["request_id"] is None
        assert client.closed == {"type": "websocket.close", "code": 1012, "reason": "the server is shutting down"}
    client = Client()
    frames = SocketFrames(RenderCache(1 << 20))
    await SocketSession(api, api.limits, UNRESTRICTED, frames, client.receive, client.send, utf8=True).run()
    assert client.ops() == ["error"]


async def test_a_bug_is_an_error_of_its_command(
    api: TopicsApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise LookupError("on purpose")

    async with session(api) as (client, _):
        monkeypatch.setattr(api, "submit", fail)
        client.say({"op": "publish", "request_id": 1, "topic": "t", "records": [{"data": 1}]}, {"op": "ping"})
        await client.until(lambda: len(client.got) == 2)
        assert (client.got[0]["code"], client.got[0]["request_id"]) == ("internal", 1)
        monkeypatch.undo()
        monkeypatch.setattr(api, "settle", fail)
        client.say({"op": "publish", "request_id": 2, "topic": "t", "records": [{"data": 1}]})
        await client.until(lambda: len(client.got) == 3)
        assert (client.got[2]["code"], client.got[2]["request_id"]) == ("internal", 2)
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 2
