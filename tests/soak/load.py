"""Clients of every kind on every protocol of one server, which connect, work, and disconnect properly or not."""

import asyncio
import contextlib
import itertools
import json
import random
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

import grpc
from protocols.test_watch_leaks import RECORDS, Crowd, fill

from support.http import Api, ok
from support.server import ServerProcess
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1 import topics_service_pb2_grpc

CLASSES = ("disk", "fsync", "memory", "ephemeral")
SESSION_SECONDS = 3.0  # one is made so often, and the server keeps each for five minutes
QUEUES = {
    "jobs-disk": {"lease_ms": 300, "max_deliveries": 4, "dead_letter": "jobs-dead"},
    "jobs-fsync": {"lease_ms": 300, "durability": "fsync", "leases_durable": True},
}
_IDEMPOTENCY_MS = 5000  # short, so that keys expire during the load


class RefusedError(Exception):
    """An answer that is no success: `status` and `text`."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status


class Connection:
    """One keep-alive HTTP/1.1 connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, port: int) -> AsyncIterator[Self]:
        """Connect, and at the end leave; one time in four with a reset, as a process that was killed does."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield cls(reader, writer)
        finally:
            if random.random() < 0.25:
                writer.get_extra_info("socket").setsockopt(1, 13, struct.pack("ii", 1, 0))  # SOL_SOCKET, SO_LINGER
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """The body of a success. Raises RefusedError for any other answer."""
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: [::]\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
        )
        self._writer.write(f"{head}\r\n\r\n".encode() + data)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        text = await self._reader.readexactly(int(lines.split("content-length:")[1].split("\r\n")[0]))
        status = int(lines.split()[1])
        if status >= 300:
            raise RefusedError(status, text.decode())
        found: dict[str, Any] = json.loads(text)
        return found


class Load:
    """Runs every kind of client until it is stopped. `counts` is what they did."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self.server = server
        self.counts: Counter[str] = Counter()
        self.over = False
        self._rng = random.Random(seed)
        self._numbers = itertools.count(1)
        with Api(server.base) as api:
            for durability in CLASSES:
                ok(
                    api.put(
                        f"log-{durability}",
                        durability=durability,
                        cap_records=5000,
                        idempotency_window_ms=_IDEMPOTENCY_MS,
                    ),
                    201,
                )
            for name, config in QUEUES.items():
                ok(api.put(name, type="queue", cap_records=5000, **config), 201)
            ok(api.put("jobs-dead", cap_records=1000), 201)
            ok(api.put("kafka", cap_records=5000, partition_count=4), 201)
            ok(api.put("crowd", cap_records=RECORDS), 201)
            ok(api.put("crowd-live", cap_records=100, ttl_ms=2000), 201)
            fill(api, "crowd", RECORDS)
            urls = [self._session(api) for _ in range(8)]
        self._crowd = Crowd(server, "crowd", urls)
        self._stub: Any = topics_service_pb2_grpc.TopicsServiceStub(self._crowd.channel)

    def _session(self, api: Api) -> str:
        body = {"topics": {"crowd": {}, "crowd-live": {}}}
        self.counts["sessions"] += 1
        return str(ok(api.send("POST", "/v0/watch", body))["stream_url"])

    async def run(self, seconds: float) -> None:
        """Everybody at once, for so long; returns when all of them have left."""
        kinds: list[Callable[[random.Random], Awaitable[None]]] = [
            *[self._write_http] * 4,
            *[self._write_grpc] * 2,
            self._read,
            self._read_columns,
            *[self._churn_topics] * 2,
            self._churn_routers,
            self._churn_groups,
            self._produce_jobs,
            *[self._work] * 3,
            self._make_sessions,
            *[self._visit(self._crowd.sse)] * 2,
            *[self._visit(self._crowd.ws)] * 2,
            *[self._visit(self._crowd.grpc)] * 2,
            self._never_read,
        ]
        end = time.monotonic() + seconds
        tasks = [
            asyncio.create_task(self._again(kind, random.Random(f"{self._rng.random()} {i}")))
            for i, kind in enumerate(kinds)
        ]
        try:
            while time.monotonic() < end and not any(task.done() for task in tasks):
                await asyncio.sleep(0.1)
        finally:
            self.over = True
            try:
                async with asyncio.timeout(60):
                    await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await self._crowd.close()

    async def _again(self, kind: Callable[[random.Random], Awaitable[None]], rng: random.Random) -> None:
        while not self.over:
            await kind(rng)

    def _visit(self, visit: Callable[[random.Random], Awaitable[None]]) -> Callable[[random.Random], Awaitable[None]]:
        async def come(rng: random.Random) -> None:
            await visit(rng)
            self.counts[f"{visit.__name__} visits"] += 1

        return come

    # --- records

    async def _write_http(self, rng: random.Random) -> None:
        async with Connection.open(self.server.http_port) as http:
            for _ in range(rng.randrange(1, 300)):
                count = rng.choice((1, 1, 10, 100))
                records = [
                    {"data": {"n": next(self._numbers), "pad": "x" * 80}, "tag": f"t{rng.randrange(50)}"}
                ] * count
                body: dict[str, Any] = {"records": records}
                if rng.random() < 0.3:
                    body["idempotency_key"] = f"key-{next(self._numbers)}"
                await http.call("POST", f"/v0/topics/log-{rng.choice(CLASSES)}", body)
                self.counts["records appended"] += count
                if rng.random() < 0.02:
                    await http.call("POST", "/v0/topics/log-disk/delete", {"match": f"t{rng.randrange(50)}"})
                if self.over:
                    return

    async def _write_grpc(self, rng: random.Random) -> None:
        count = rng.choice((1, 10, 50))
        request = pb.AppendRequest(topic=f"log-{rng.choice(CLASSES)}")
        for _ in range(count):
            request.records.add(data=b'{"n":%d}' % next(self._numbers), tag="g", node="soak")
        await self._stub.Append(request, timeout=30)
        self.counts["records appended"] += count

    async def _read(self, rng: random.Random) -> None:
        async with Connection.open(self.server.http_port) as http:
            for _ in range(rng.randrange(1, 50)):
                name = f"/v0/topics/log-{rng.choice(CLASSES)}/diff"
                head = (await http.call("POST", name, {"from_seq": 0, "limit": 1}))["head_seq"]
                body = {"from_seq": max(0, head - rng.randrange(1, 4000)), "limit": 200, "wait_ms": rng.choice((0, 50))}
                self.counts["records read"] += len((await http.call("POST", name, body))["records"])
                await asyncio.sleep(0.01)
                if self.over:
                    return

    async def _read_columns(self, rng: random.Random) -> None:
        """Bulk reads over gRPC, most of them cancelled on the way."""
        call = self._stub.BulkDiff(pb.BulkDiffRequest(topic="log-disk"))
        for _ in range(rng.choice((0, 1, 3, 100))):
            if await call.read() is grpc.aio.EOF:
                break
        call.cancel()
        self.counts["bulk reads"] += 1
        await asyncio.sleep(0.02)

    # --- what is made and taken away again

    async def _churn_topics(self, rng: random.Random) -> None:
        name = f"/v0/topics/short-{next(self._numbers)}"
        async with Connection.open(self.server.http_port) as http:
            config = {"durability": rng.choice(CLASSES), "partition_count": rng.choice((1, 1, 3)), "cap_records": 100}
            await http.call("PUT", name, config)
            for _ in range(rng.randrange(4)):
                records = [{"data": i, "tag": f"{i}"} for i in range(20)]
                await http.call("POST", name, {"records": records, "idempotency_key": f"{next(self._numbers)}"})
                await http.call("POST", f"{name}/diff", {"from_seq": 0})
            with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError):
                if rng.random() < 0.5:  # somebody waits for it when it goes
                    async with Connection.open(self.server.http_port) as waiting, asyncio.timeout(0.02):
                        await waiting.call("POST", f"{name}/diff", {"from_seq": 1000, "wait_ms": 500})
            await http.call("DELETE", name)
            self.counts["topics made and deleted"] += 1

    async def _churn_routers(self, rng: random.Random) -> None:
        number = next(self._numbers)
        router, dest = f"/v0/routers/r{number}", f"image-{number}"
        async with Connection.open(self.server.http_port) as http:
            await http.call("PUT", f"/v0/topics/{dest}", {"cap_records": 500})
            guarantee = rng.choice(("at_least_once", "exactly_once"))
            source = f"log-{rng.choice(CLASSES)}"
            await http.call("PUT", router, {"source": source, "dest": dest, "guarantee": guarantee, "backfill": True})
            await asyncio.sleep(rng.uniform(0, 0.5))
            await http.call("GET", router)
            await http.call("DELETE", router)
            await http.call("DELETE", f"/v0/topics/{dest}")
            self.counts["routers made and deleted"] += 1

    async def _churn_groups(self, rng: random.Random) -> None:
        group = f"/v0/groups/g{next(self._numbers)}"
        async with Connection.open(self.server.http_port) as http:
            for _ in range(rng.randrange(1, 5)):
                page = await http.call("POST", f"{group}/consume", {"topic": "log-disk", "limit": 50})
                await http.call("POST", f"{group}/commit", {"topic": "log-disk", "from_seq": page["next_from_seq"]})
            await http.call("DELETE", group)
            self.counts["groups made and deleted"] += 1
        await asyncio.sleep(0.05)

    # --- jobs

    async def _produce_jobs(self, rng: random.Random) -> None:
        async with Connection.open(self.server.http_port) as http:
            for _ in range(100):
                name = rng.choice(list(QUEUES))
                body: dict[str, Any] = {"records": [{"data": 1}] * rng.choice((1, 5))}
                if rng.random() < 0.1:
                    body["delay_ms"] = rng.randrange(1, 500)
                await http.call("POST", f"/v0/topics/{name}", body)
                await asyncio.sleep(0.005)
                if self.over:
                    return

    async def _work(self, rng: random.Random) -> None:
        """A worker that acks, gives back, or dies with what it holds."""
        name, node = f"/v0/topics/{rng.choice(list(QUEUES))}", f"w{next(self._numbers)}"
        if rng.random() < 0.2:
            await self._take_pushed(name, node, rng)
            return
        async with Connection.open(self.server.http_port) as http:
            for _ in range(rng.randrange(1, 30)):
                jobs = (await http.call("POST", f"{name}/claim", {"node": node, "max": 8}))["claimed"]
                if not jobs:
                    await asyncio.sleep(0.01)
                    continue
                if rng.random() < 0.05:
                    break  # it dies
                seqs, ids = [job["$seq"] for job in jobs], [job["lease_id"] for job in jobs]
                how = "nack" if rng.random() < 0.1 else "ack"
                await http.call("POST", f"{name}/{how}", {"node": node, "seqs": seqs, "lease_ids": ids})
                self.counts[f"jobs {how}ed"] += len(jobs)
                if self.over:
                    return
        self.counts["workers"] += 1

    async def _take_pushed(self, name: str, node: str, rng: random.Random) -> None:
        """Open `/work`, read for a while, and be gone without a word to what was pushed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.http_port)
        try:
            writer.write(f"GET {name}/work?node={node}&max=4 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rng.uniform(0, 0.3)):
                    while await reader.read(1 << 16):
                        pass
        finally:
            writer.close()
        self.counts["pushed workers"] += 1

    # --- watchers

    async def _make_sessions(self, rng: random.Random) -> None:
        with Api(self.server.base) as api:
            url = await asyncio.to_thread(self._session, api)
        self._crowd.urls[rng.randrange(len(self._crowd.urls))] = url
        for _ in range(int(SESSION_SECONDS * 10)):
            if self.over:
                return
            await asyncio.sleep(0.1)

    async def _never_read(self, _: random.Random) -> None:
        with Api(self.server.base) as api:
            await self._crowd.never_read(api, 5)
        self.counts["clients that never read"] += 15
        await asyncio.sleep(1)
