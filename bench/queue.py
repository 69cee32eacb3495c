"""Jobs end to end: produce in batches of 500, 50 workers claim 8 and ack them, against a Redis consumer group.

Python clients on both sides, in one process on the second core: redis-py (asyncio, hiredis) for Redis, plain HTTP/1.1
over asyncio streams for ours. Durability alike: `appendfsync everysec` against our `disk`.
"""

import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import redis.asyncio
import uvloop

from bench.table import Row
from bench.tools import data_of, redis_server
from support.http import Api
from support.server import ServerProcess

_WORKERS = 50
_CLAIM = 8
_BATCH = 500
_JOBS = 30_000
_BACKLOGS = (1_000, 100_000, 1_000_000)
_SLICE = 4_000


class Connection:
    """One keep-alive HTTP/1.1 connection with JSON in and out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> "Connection":
        """Connect to the server on this port."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def post(self, path: str, body: bytes) -> bytes:
        """The body of a successful reply. Raises RuntimeError for any other."""
        self._writer.write(
            b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
            % (path.encode(), len(body), body)
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        reply = await self._reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 20"):
            raise RuntimeError(reply.decode())
        return reply

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()


def run(directory: Path) -> list[Row]:
    """Every row of the queue."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        with ServerProcess(directory / "topics") as server:
            with Api(server.base) as api:
                for name in ("jobs", *(f"ready{n}" for n in _BACKLOGS)):
                    api.put(name, type="queue").raise_for_status()
            ours, shares = runner.run(_topics(server.http_port, _claim_then_ack))
            riding, _ = runner.run(_topics(server.http_port, _ack_in_claim))
            pushed, _ = runner.run(_topics(server.http_port))
            flat = [runner.run(_backlog(server.http_port, n)) for n in _BACKLOGS]
        (directory / "redis").mkdir()
        with redis_server(directory / "redis", "everysec") as port:
            peer = runner.run(_redis(port))
            piped = runner.run(_redis(port, piped=True))
    spread = statistics.pstdev(shares) / statistics.mean(shares)
    note = f"{_WORKERS} workers claim {_CLAIM} and ack, batches of {_BATCH} in"
    costs = ", ".join(f"{rate:,.0f}" for rate in flat)
    return [
        Row("queue: jobs end to end, pushed on /work", pushed, "jobs/s", "1.0x", peer, "jobs/s XREADGROUP + XACK",
            f"{_WORKERS} streams of {_CLAIM} jobs in flight; the worker acks what came"),
        Row("queue: jobs end to end, acks ride on the next claim", riding, "jobs/s", "1.0x", peer,
            "jobs/s XREADGROUP + XACK", f"{note}; Redis with both in one pipeline: {piped:,.0f} jobs/s"),
        Row("queue: jobs end to end, claim and ack apart", ours, "jobs/s", "1.0x", peer,
            "jobs/s XREADGROUP + XACK", note),
        Row("queue: spread of the workers' shares", spread, "", "0.3", note="standard deviation over mean"),
        Row("queue: claims and acks with 1e6 ready against 1e3", flat[-1] / flat[0], "x", "flat",
            note=f"jobs/s at 1e3, 1e5, 1e6 ready: {costs}"),
    ]  # fmt: skip


def _batches(count: int) -> list[bytes]:
    body = b'{"records":[%s]}' % b",".join(b'{"data":%s}' % data_of(i).encode() for i in range(_BATCH))
    return [body] * (count // _BATCH)


async def _topics(port: int, worker: "Worker | None" = None) -> tuple[float, list[int]]:
    """Jobs a second and how many each worker did; without `worker` they are pushed."""
    shares = [0] * _WORKERS
    left = _JOBS

    async def produce() -> None:
        connection = await Connection.open(port)
        for body in _batches(_JOBS):
            await connection.post("/v0/topics/jobs?return_seqs=false", body)
        connection.close()

    async def work(number: int) -> None:
        nonlocal left
        assert worker is not None
        connection = await Connection.open(port)
        async for done in worker(connection, "jobs", f"w{number}"):
            shares[number] += done
            left -= done
            if not left:
                break
            if not done:
                await asyncio.sleep(0.001)
        connection.close()

    async def take(number: int) -> None:
        nonlocal left
        connection = await Connection.open(port)
        node, path = f"p{number}", "/v0/topics/jobs/ack"
        stream, out = await asyncio.open_connection("127.0.0.1", port)
        out.write(f"GET /v0/topics/jobs/work?node={node}&max={_CLAIM} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        rest = b""
        while left:
            with contextlib.suppress(TimeoutError):  # the last ones may come to others
                async with asyncio.timeout(0.2):
                    *events, rest = (rest + await stream.read(1 << 16)).split(b"\n\n")
                    jobs = [json.loads(event.rpartition(b"\ndata: ")[2]) for event in events if b"event: job" in event]
                    if jobs:
                        seqs = json.dumps([job["$seq"] for job in jobs]).encode()
                        await connection.post(path, b'{"node":"%s","seqs":%s}' % (node.encode(), seqs))
                        left -= len(jobs)
        connection.close()
        out.close()

    rate = await _rate(produce, take if worker is None else work)
    return rate, shares


async def _claim_then_ack(connection: Connection, queue: str, node: str) -> AsyncIterator[int]:
    """Claim and ack in turns; how many jobs were finished each time."""
    claim = b'{"node":"%s","max":%d}' % (node.encode(), _CLAIM)
    while True:
        jobs = json.loads(await connection.post(f"/v0/topics/{queue}/claim", claim))["claimed"]
        if jobs:
            seqs = json.dumps([job["$seq"] for job in jobs]).encode()
            await connection.post(f"/v0/topics/{queue}/ack", b'{"node":"%s","seqs":%s}' % (node.encode(), seqs))
        yield len(jobs)


async def _ack_in_claim(connection: Connection, queue: str, node: str) -> AsyncIterator[int]:
    """Claims that ack the jobs of the claim before; how many jobs were finished each time."""
    done = b""
    while True:
        claim = b'{"node":"%s","max":%d%s}' % (node.encode(), _CLAIM, done)
        found = json.loads(await connection.post(f"/v0/topics/{queue}/claim", claim))
        seqs = [job["$seq"] for job in found["claimed"]]
        done = b',"ack":{"seqs":%s}' % json.dumps(seqs).encode() if seqs else b""
        yield found.get("acked", 0)


Worker = Callable[[Connection, str, str], AsyncIterator[int]]


async def _backlog(port: int, ready: int) -> float:
    """Jobs per second of one worker with the given number ready."""
    queue = f"ready{ready}"
    connection = await Connection.open(port)
    for body in _batches(ready):
        await connection.post(f"/v0/topics/{queue}?return_seqs=false", body)
    jobs = min(_SLICE, ready)
    begun, done = time.monotonic(), 0
    async for finished in _claim_then_ack(connection, queue, "w"):
        done += finished
        if done >= jobs:
            break
    connection.close()
    return done / (time.monotonic() - begun)


async def _redis(port: int, *, piped: bool = False) -> float:
    """Jobs a second; `piped` has each XACK in one pipeline with the next XREADGROUP."""
    left = _JOBS
    pool = [redis.asyncio.Redis(port=port, single_connection_client=True) for _ in range(_WORKERS + 1)]
    await pool[0].flushall()
    await pool[0].xgroup_create("s", "g", "0", mkstream=True)
    data = data_of(1).encode()

    async def produce() -> None:
        for _ in range(_JOBS // _BATCH):
            pipeline = pool[_WORKERS].pipeline(transaction=False)
            for _ in range(_BATCH):
                pipeline.xadd("s", {"d": data})
            await pipeline.execute()

    async def work(number: int) -> None:
        nonlocal left
        client = pool[number]
        while left:
            reply = await client.xreadgroup("g", f"w{number}", {"s": ">"}, count=_CLAIM)
            entries = [entry for _, found in reply for entry in found]
            if not entries:
                await asyncio.sleep(0.001)
                continue
            await client.xack("s", "g", *(name for name, _ in entries))
            left -= len(entries)

    async def work_piped(number: int) -> None:
        nonlocal left
        client, done = pool[number], list[bytes]()
        while left:
            pipeline = client.pipeline(transaction=False)
            if done:
                pipeline.xack("s", "g", *done)
            pipeline.xreadgroup("g", f"w{number}", {"s": ">"}, count=_CLAIM)
            reply = (await pipeline.execute())[-1]
            left -= len(done)
            done = [name for _, found in reply for name, _ in found]
            if not done:
                await asyncio.sleep(0.001)

    rate = await _rate(produce, work_piped if piped else work)
    for client in pool:
        await client.aclose()
    return rate


async def _rate(produce: Callable[[], Awaitable[None]], work: Callable[[int], Awaitable[None]]) -> float:
    begun = time.monotonic()
    await asyncio.gather(produce(), *(work(number) for number in range(_WORKERS)))
    return _JOBS / (time.monotonic() - begun)
