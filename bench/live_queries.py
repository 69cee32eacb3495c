"""Live queries: the delivery of a change to 100 subscribers, over server-sent events; the snapshot of a large table."""

import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Final

import uvloop

from bench.analytics import held, of_loop
from bench.table import Row
from support.executor import Executor
from support.http import Api
from support.server import ServerProcess
from support.sql import Sql
from topics_server import collector
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.sql.live import LiveCaughtUp, LiveRequest
from topics_service.storage.rocks import RocksStore

_SUBSCRIBERS: Final = 100
_CHANGES: Final = 100
_PAUSE: Final = 0.05
_ROWS: Final = 200_000
_BODY: Final = json.dumps({"sql": "SELECT id, n FROM bench.t WHERE n >= 0"}).encode()


def run(directory: Path) -> list[Row]:
    """Every row of live queries."""
    with ServerProcess(directory / "live") as server, Api(server.base) as api:
        Sql(api).run("CREATE TABLE bench.t (id BIGINT PRIMARY KEY, n INT)")
        took = uvloop.run(_deliver(server.http_port))
    store = RocksStore(directory / "snapshot")
    try:
        pause = asyncio.run(_pause(store))
    finally:
        store.close()
    note = f"p99 {took[len(took) * 99 // 100] * 1e3:.1f} ms; from the request of the write to each subscriber"
    what = f"live query, {_SUBSCRIBERS} subscribers: delivery of a change, p50"
    return [Row(what, statistics.median(took) * 1e3, "ms", "10", note=note), pause]


async def _deliver(port: int) -> list[float]:
    """The times from a write to each subscriber, in order."""
    opened = [await _subscribed(port) for _ in range(_SUBSCRIBERS)]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    took: list[float] = []
    for number in range(_CHANGES):
        body = json.dumps({"sql": "INSERT INTO bench.t VALUES ($1, $2)", "params": [number, number]}).encode()
        started = time.perf_counter()

        async def received(each: asyncio.StreamReader, started: float = started) -> None:
            await each.readuntil(b"event: change\n")
            await each.readuntil(b"\n\n")
            took.append(time.perf_counter() - started)

        waiting = [asyncio.create_task(received(each)) for each, _ in opened]
        writer.write(_head(b"/api/sql", body) + body)
        await asyncio.gather(*waiting)
        length = (await reader.readuntil(b"\r\n\r\n")).lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        await asyncio.sleep(_PAUSE)
    return sorted(took)


async def _subscribed(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_head(b"/api/sql/subscribe", _BODY) + _BODY)
    await reader.readuntil(b"event: caught-up\n")
    await reader.readuntil(b"\n\n")
    return reader, writer  # it closes the connection when it is gone


def _head(path: bytes, body: bytes) -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (
        path,
        len(body),
    )


async def _pause(store: RocksStore) -> Row:
    collector.resume()  # as in a server
    async with Executor(timeout_seconds=300, store=store) as executor:
        await executor.run("CREATE TABLE large (id BIGINT PRIMARY KEY, n BIGINT)")
        for first in range(0, _ROWS, 10_000):
            rows = [[at, at * 7] for at in range(first, first + 10_000)]
            await executor.run("INSERT INTO large VALUES ($1, $2)", param_rows=rows)

        async def snapshot() -> None:
            request = LiveRequest(sql="SUBSCRIBE TO large")
            async for frame in executor.sql.live.follow(request, principal=UNRESTRICTED):
                if isinstance(frame, LiveCaughtUp):
                    break

        found = await held(snapshot)
    what = f"longest pause of the event loop: the snapshot of a live query, {_ROWS // 1000} k rows"
    return Row(what, found.longest * 1e3, "ms", "25", note=of_loop(found))
