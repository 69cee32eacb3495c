"""Thousands of watchers that come and break off at any point, or never read: afterwards the server is as it was before.

Gauges must be back exactly. `MORE_FILES` and `MORE_BYTES` are for what comes and goes with the work and not with the
number of visits: files of RocksDB, and what the allocator keeps. A stream that stays weighs some 20 KB, so one in two
of the short test would show, and one in fifteen of the long one.
"""

import asyncio
import contextlib
import json
import os
import random
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any

import grpc
import pytest
from protocols.test_watch_connections import descriptors, resident

from support.http import Api, ok
from support.server import ServerProcess
from support.ws import TEXT, frame, upgrade
from topics_proto.v1 import watch_service_pb2 as pb
from topics_proto.v1 import watch_service_pb2_grpc

WARM_UP, VISITS, SILENT = 300, 900, 20
SOAK_VISITS = 10_000
AT_ONCE = 24
RECORDS = 400  # of 1 KB, to break off in the middle of
MORE_FILES = 6
MORE_BYTES = 12 << 20
SECONDS = 30.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))

Visit = Callable[[random.Random], Awaitable[None]]


class Crowd:
    """Clients of one server."""

    def __init__(self, server: ServerProcess, topic: str, urls: list[str]) -> None:
        self.server = server
        self.topic = topic
        self.urls = urls
        self.channel = grpc.aio.insecure_channel(server.grpc_target, [("grpc.use_local_subchannel_pool", 1)])
        self.stub: Any = watch_service_pb2_grpc.WatchServiceStub(self.channel)

    async def sse(self, rng: random.Random) -> None:
        """Break off in the request, before the answer, at its head, in the backlog or behind it."""
        sock = await self._connect(self.server.http_port)
        place = "Last-Event-ID: e30\r\n" if rng.random() < 0.5 else ""
        await self._visit(
            sock, rng, f"GET {rng.choice(self.urls)} HTTP/1.1\r\nHost: localhost\r\n{place}\r\n".encode(), []
        )

    async def ws(self, rng: random.Random) -> None:
        """Break off in the upgrade, after it, after a command or some, in the backlog or behind it."""
        sock = await self._connect(self.server.http_port)
        commands = [
            {"op": "subscribe", "topic": self.topic, "limit": rng.choice((1, 50, 1000))},
            {"op": "publish", "topic": f"{self.topic}-live", "records": [{"data": 1}]},
            {"op": "unsubscribe", "topic": self.topic},
            {"op": "subscribe", "topics": {f"{self.topic}*": {"tail": True}}},
        ]
        frames = [frame(TEXT, json.dumps(command).encode()) for command in commands[: rng.randint(0, len(commands))]]
        await self._visit(sock, rng, upgrade("/v0/ws", {}), frames)

    async def grpc(self, rng: random.Random) -> None:
        """Cancel before the answer, after some frames or behind the backlog; or break a connection of one's own."""
        if rng.random() < 0.15:
            _, _, port = self.server.grpc_target.rpartition(":")
            await self._visit(await self._connect(int(port)), rng, PREFACE, [])
            return
        start = pb.WatchTopic(tail=rng.random() < 0.3)
        topics = {self.topic: start} if rng.random() < 0.7 else {f"{self.topic}*": start}
        subscription = pb.WatchSubscription(topics=topics, limit=rng.choice((1, 50, 1000)))
        if rng.random() < 0.7:
            call = self.stub.Watch(pb.WatchRequest(subscription=subscription))
        else:
            wid = rng.choice(self.urls).rpartition("/")[2]
            call = self.stub.OpenWatch(pb.OpenWatchRequest(wid=wid, cursor={self.topic: 0}))
        for _ in range(rng.choice((0, 0, 1, 2, 5, 20))):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    assert await call.read() is not grpc.aio.EOF
                    continue
            break  # it was cancelled by that
        for _ in range(rng.choice((0, 1, 5))):
            await asyncio.sleep(0)
        call.cancel()

    async def _connect(self, port: int) -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        if random.random() < 0.3:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return sock

    async def _visit(self, sock: socket.socket, rng: random.Random, head: bytes, more: list[bytes]) -> None:
        loop = asyncio.get_running_loop()
        with sock, contextlib.suppress(ConnectionError, TimeoutError):
            if rng.random() < 0.1:
                await loop.sock_sendall(sock, head[: rng.randrange(len(head))])
            else:
                await loop.sock_sendall(sock, head)
                async with asyncio.timeout(0.2):
                    for each in [b"", *more]:
                        await loop.sock_sendall(sock, each)
                        for _ in range(rng.choice((0, 0, 1, 3, 20))):
                            if not await loop.sock_recv(sock, 1 << 16):
                                break
            match rng.choice(("close", "reset", "half")):
                case "reset":
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                case "half":
                    sock.shutdown(socket.SHUT_WR)
                    async with asyncio.timeout(rng.choice((0, 0.01, SECONDS))):
                        while await loop.sock_recv(sock, 1 << 16):
                            pass

    async def come_and_go(self, visit: Visit, count: int, seed: object) -> None:
        """The given number of visits, some concurrently."""
        left = iter(range(count))

        async def one_after_the_other() -> None:
            for i in left:
                await visit(random.Random(f"{seed} {i}"))

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(one_after_the_other())

    async def never_read(self, api: Api, count: int, protocols: Collection[str] = ("sse", "ws", "grpc")) -> None:
        """Clients that read nothing while much is written, several on each protocol; then they go."""
        loop = asyncio.get_running_loop()
        held: list[socket.socket] = []
        calls = []
        for i in range(count):
            if "sse" in protocols:
                held.append(await self._connect(self.server.http_port))
                head = f"GET {self.urls[i % len(self.urls)]} HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: e30\r\n\r\n"
                await loop.sock_sendall(held[-1], head.encode())
            if "ws" in protocols:
                held.append(await self._connect(self.server.http_port))
                command = frame(TEXT, json.dumps({"op": "subscribe", "topic": self.topic}).encode())
                await loop.sock_sendall(held[-1], upgrade("/v0/ws", {}) + command)
            if "grpc" in protocols:
                subscription = pb.WatchSubscription(topics={self.topic: pb.WatchTopic()})
                calls.append(self.stub.Watch(pb.WatchRequest(subscription=subscription)))
        for _ in range(10):
            await asyncio.to_thread(fill, api, self.topic, 100)
        for sock in held:
            sock.close()
        for call in calls:
            call.cancel()

    async def close(self) -> None:
        await self.channel.close()


def fill(api: Api, topic: str, count: int) -> None:
    ok(api.write(topic, [{"data": "x" * 1000}] * count), 200, 201)


def gauges(api: Api) -> dict[str, float]:
    """The resources that the server reports."""
    found = {}
    for line in api.client.get("/v0/metrics").text.splitlines():
        name, _, value = line.partition(" ")
        if name in ("topics_sse_connections", "topics_watch_sessions", "topics_watch_streams"):
            found[name] = float(value)
    return found


async def measure(server: ServerProcess, protocols: dict[str, int], warm_up: int, silent: int) -> dict[str, int]:
    """Let them come and go, and compare; gives the bytes of memory that each protocol's visits have added."""
    added = {}
    with Api(server.base) as api:
        topic = api.make("crowd", cap_records=RECORDS)
        fill(api, topic, RECORDS)
        ok(api.put(f"{topic}-live", cap_records=100), 201)
        body = {"topics": {topic: {}, f"{topic}-live": {}}}
        urls = [ok(api.send("POST", "/v0/watch", body))["stream_url"] for _ in range(8)]
        crowd = Crowd(server, topic, urls)
        rest = {"topics_sse_connections": 0.0, "topics_watch_sessions": 8.0, "topics_watch_streams": 0.0}

        async def empty() -> tuple[int, int]:
            """Descriptors and memory, once everybody has left."""
            end = time.monotonic() + SECONDS
            while (found := gauges(api)) != rest:
                assert time.monotonic() < end, found
                await asyncio.sleep(0.05)
            return descriptors(server), resident(server)

        visits: dict[str, Visit] = {"sse": crowd.sse, "ws": crowd.ws, "grpc": crowd.grpc}
        try:
            for _ in range(3):
                await crowd.never_read(api, silent)
            for protocol in protocols:
                await crowd.come_and_go(visits[protocol], warm_up, f"warm up {protocol}")
            files, highest = await empty()  # what the allocator gave back in between, it may take again

            async def growth(who: str, come: Callable[[], Awaitable[None]]) -> int:
                """The growth of a round, of four at most: a leak grows in each of them, the allocator does not."""
                nonlocal highest
                for _ in range(4):
                    highest = before = max(highest, (await empty())[1])
                    await come()
                    _, after = await empty()
                    highest = max(highest, after)
                    print(f"{who}: RSS {before >> 10} KB before, {after >> 10} KB after")
                    if after - before < MORE_BYTES:
                        break
                return after - before

            async def silence() -> None:
                for _ in range(3):
                    await crowd.never_read(api, silent)

            for protocol, count in protocols.items():
                added[protocol] = await growth(protocol, partial(crowd.come_and_go, visits[protocol], count, protocol))
            added["silent"] = await growth("clients that never read", silence)
            end = time.monotonic() + SECONDS
            while descriptors(server) > files + MORE_FILES:
                assert time.monotonic() < end, (files, descriptors(server))
                await asyncio.sleep(0.05)
        finally:
            await crowd.close()
    return added


@pytest.mark.timeout(120)
async def test_visits_that_break_off_leave_nothing(start: Callable[..., ServerProcess]) -> None:
    server = start(TOPICS_MEMORY_BYTES=32 << 20)  # so that its caches are soon full
    added = await measure(server, dict.fromkeys(("sse", "ws", "grpc"), VISITS), WARM_UP, SILENT)
    assert all(each < MORE_BYTES for each in added.values()), added


@pytest.mark.soak
@pytest.mark.skipif("TOPICS_SOAK_SECONDS" not in os.environ, reason="a soak: set TOPICS_SOAK_SECONDS")
@pytest.mark.timeout(0)
async def test_ten_thousand_visits_at_each_protocol_leave_nothing(start: Callable[..., ServerProcess]) -> None:
    server = start(TOPICS_MEMORY_BYTES=32 << 20)  # so that its caches are soon full
    added = await measure(server, dict.fromkeys(("sse", "ws", "grpc"), SOAK_VISITS), 2000, SILENT)
    print({protocol: f"{each >> 10} KB" for protocol, each in added.items()})
    assert all(each < MORE_BYTES for each in added.values()), added
