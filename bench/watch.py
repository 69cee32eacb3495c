"""Live delivery: from a write to every watcher of a topic, against Redis XREAD BLOCK and NATS JetStream push.

The publisher and all watchers share one process on the second core, on raw sockets.
"""

import asyncio
import contextlib
import json
import resource
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import hiredis
import uvloop

from bench.followers import Follower, follow_nats, follow_redis, follow_sse, stamped
from bench.table import Row
from bench.tools import have, nats_server, redis_server
from support.http import Api
from support.server import ServerProcess

_COUNTS = {1: "1 ms", 10: "2 ms", 100: "10 ms", 1000: "80 ms"}
_RECORDS = 150
_GAP_SECONDS = 0.02
_THROUGHPUT_WATCHERS = 100
_THROUGHPUT_SECONDS = 4.0
_IDLE = 5000
_IDLE_SECONDS = 60.0

Publish = Callable[[list[bytes]], Awaitable[None]]


def run(directory: Path) -> list[Row]:
    """Every row of live delivery."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        with ServerProcess(directory / "topics") as server:
            ours = runner.run(_measure(lambda: _topics(server.base)))
        with ServerProcess(directory / "idle") as server:
            idle_bytes, missed = runner.run(_idle(server))
        (directory / "redis").mkdir()
        with redis_server(directory / "redis", "everysec") as port:
            redis = runner.run(_measure(lambda: _redis(port)))
        nats = None
        if have("nats-server"):
            with nats_server(directory / "nats") as port:
                nats = runner.run(_measure(lambda: _nats(port)))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    rows = []
    for count, bar in _COUNTS.items():
        note = f"every 20 ms; p99 {ours.p99[count]:.2f} ms"
        if nats is not None:
            note += f"; NATS JetStream p50 {nats.p50[count]:.2f} ms"
        rows.append(
            Row(f"write to deliver, {count} SSE watchers", ours.p50[count], "ms p50", bar, redis.p50[count],
                "ms p50 XREAD BLOCK", note)
        )  # fmt: skip
    note = "batches of 100" + ("" if nats is None else f"; NATS JetStream {nats.delivered:,.0f} rec/s")
    rows.append(
        Row(f"delivered to {_THROUGHPUT_WATCHERS} watchers in all", ours.delivered, "rec/s", "300 k", redis.delivered,
            "rec/s XREAD BLOCK", note)
    )  # fmt: skip
    rows.append(Row("memory of an idle SSE connection", idle_bytes / 1000, "KB", "60 KB", note=f"{_IDLE} of them"))
    rows.append(Row(f"heartbeats missed by {_IDLE} idle connections in {_IDLE_SECONDS:.0f} s", missed, "", "0"))
    return rows


class _Measured:
    def __init__(self) -> None:
        self.p50: dict[int, float] = {}
        self.p99: dict[int, float] = {}
        self.delivered = 0.0


Peer = contextlib.AbstractAsyncContextManager[tuple[Publish, Callable[[int, bool], Awaitable[Sequence[Follower]]]]]


async def _measure(connect: Callable[[], Peer]) -> _Measured:
    result = _Measured()
    for count in _COUNTS:
        async with connect() as (publish, follow):
            followers = await follow(count, True)
            for i in range(_RECORDS):
                begun = time.monotonic()
                await publish([stamped(i)])
                await asyncio.sleep(max(0.0, begun + _GAP_SECONDS - time.monotonic()))
            await _until(lambda: all(f.records == _RECORDS for f in followers))  # noqa: B023 - used at once
            ages = sorted(age for f in followers for age in f.ages or ())
            result.p50[count], result.p99[count] = statistics.median(ages), ages[int(len(ages) * 0.99)]
            for follower in followers:
                follower.close()
    async with connect() as (publish, follow):
        followers = await follow(_THROUGHPUT_WATCHERS, False)
        begun, i = time.monotonic(), 0
        while time.monotonic() < begun + _THROUGHPUT_SECONDS:
            await publish([stamped(i) for _ in range(100)])
            i += 1
        result.delivered = sum(f.records for f in followers) / (time.monotonic() - begun)
        for follower in followers:
            follower.close()
    return result


async def _idle(server: ServerProcess) -> tuple[float, int]:
    """Bytes of memory for each idle connection, and how many heartbeats did not come."""
    with Api(server.base) as api:
        topic = api.make()
        before = _resident(server.pid)
        followers = []
        for _ in range(_IDLE):
            reply = api.send("POST", "/v0/watch", {"topics": {topic: {"tail": True}}, "heartbeat_ms": 15000}).json()
            followers.append(await follow_sse(server.base, reply["stream_url"]))
        after = _resident(server.pid)
        counted = [f.heartbeats for f in followers]
        await asyncio.sleep(_IDLE_SECONDS)
        due = int(_IDLE_SECONDS // 15) - 1  # the phase of each is its own
        missed = sum(max(0, due - (f.heartbeats - n)) for f, n in zip(followers, counted, strict=True))
        for follower in followers:
            follower.close()
    return (after - before) / _IDLE, missed


@contextlib.asynccontextmanager
async def _topics(base: str) -> AsyncIterator[tuple[Publish, Callable[[int, bool], Awaitable[Sequence[Follower]]]]]:
    with Api(base) as api:
        topic = api.make("bench")
        port = int(base.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def publish(datas: list[bytes]) -> None:
            body = b'{"records":[%s]}' % b",".join(b'{"data":%s}' % data for data in datas)
            head = f"POST /v0/topics/{topic}?return_seqs=false HTTP/1.1\r\nhost: localhost\r\n"
            head += "content-type: application/json\r\n"
            writer.write(b"%scontent-length: %d\r\n\r\n%s" % (head.encode(), len(body), body))
            reply = await reader.readuntil(b"\r\n\r\n")
            length = int(reply.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)

        async def follow(count: int, ages: bool) -> Sequence[Follower]:
            urls = [
                api.send("POST", "/v0/watch", {"topics": {topic: {"tail": True}}, "limit": 1000}).json()["stream_url"]
                for _ in range(count)
            ]
            return [await follow_sse(base, url, ages=ages) for url in urls]

        yield publish, follow
        writer.close()


@contextlib.asynccontextmanager
async def _redis(port: int) -> AsyncIterator[tuple[Publish, Callable[[int, bool], Awaitable[Sequence[Follower]]]]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    last = b""

    async def publish(datas: list[bytes]) -> None:
        nonlocal last
        writer.write(b"".join(hiredis.pack_command(("XADD", "s", "*", "d", data)) for data in datas))
        for _ in datas:
            await reader.readline()
            last = (await reader.readline()).strip()

    async def follow(count: int, ages: bool) -> Sequence[Follower]:
        await publish([b"{}"])
        return [await follow_redis(port, last, ages=ages) for _ in range(count)]

    yield publish, follow
    writer.close()


@contextlib.asynccontextmanager
async def _nats(port: int) -> AsyncIterator[tuple[Publish, Callable[[int, bool], Awaitable[Sequence[Follower]]]]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB _ACK 1\r\n')

    async def call(subject: bytes, text: bytes) -> bytes:
        writer.write(b"PUB %s _ACK %d\r\n%s\r\n" % (subject, len(text), text))
        return await answer()

    async def answer() -> bytes:
        while True:
            line = await reader.readline()
            if line.startswith(b"MSG"):
                return await reader.readexactly(int(line.split()[-1]) + 2)
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")

    await call(b"$JS.API.STREAM.DELETE.s", b"")
    config = {"name": "s", "subjects": ["s"], "storage": "file", "retention": "limits"}
    created = await call(b"$JS.API.STREAM.CREATE.s", json.dumps(config).encode())
    assert b'"error"' not in created, created

    async def publish(datas: list[bytes]) -> None:
        for data in datas:
            writer.write(b"PUB s _ACK %d\r\n%s\r\n" % (len(data), data))
        for _ in datas:
            await answer()

    async def follow(count: int, ages: bool) -> Sequence[Follower]:
        return [await follow_nats(port, i, ages=ages) for i in range(count)]

    yield publish, follow
    writer.close()


async def _until(done: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError("some watcher missed a record")
        await asyncio.sleep(0.01)


def _resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024
