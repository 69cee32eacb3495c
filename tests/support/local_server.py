"""The whole server in the test's own event loop, on real sockets and a real store, with a clock that the test moves."""

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from topics_gateway import GatewaySettings, create_app
from topics_gateway.transport import HttpServer
from topics_service.api.commit import GroupCommit
from topics_service.api.grpc.server import GrpcServer
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import Clock
from topics_service.engine.engine import Engine
from topics_service.engine.transaction import Transaction
from topics_service.storage.rocks import RocksStore

_UPKEEP_SECONDS = 0.005


class LocalServer:
    """Both doors. Its fsyncs take a random time, and it remembers what each record waits for."""

    def __init__(self, engine: Engine, api: TopicsApi, http_port: int, grpc_target: str) -> None:
        self.engine = engine
        self.api = api
        self.http_port = http_port
        self.grpc_target = grpc_target
        self.overload_ms = 0
        """While it is not 0, watchers are paced as under overload."""
        api.watches._dispatcher._overload_ms = lambda: self.overload_ms
        self._tickets: dict[tuple[str, int], int] = {}
        self._append = engine.append
        engine.append = self._noted  # type: ignore[method-assign]

    def _noted(self, request: Any) -> Any:
        reply, ticket = self._append(request)
        for seq in range(reply.first_seq, reply.last_seq + 1):
            self._tickets[request.topic, seq] = self.engine.writer.written
        return reply, ticket

    def is_durable(self, topic: str, seq: int) -> bool:
        """Whether an fsync has covered the newest record with this seq."""
        return self._tickets[topic, seq] <= self.engine.writer.synced

    async def burn(self, topic: str, count: int) -> None:
        """Let seqs of the topic be lost at its source, as a router does that has fallen behind."""
        found = self.engine.catalog.topics[topic]
        now = self.engine._clock.now_ms()
        with Transaction(self.engine.writer) as tx:
            found.log.burn(tx, found.log.begin(found.config, now), count, found.config)
            ticket = tx.commit()
        if ticket:
            await self.api._commit.wait(ticket)


@contextlib.asynccontextmanager
async def serving(path: Path, clock: Clock, rng: random.Random) -> AsyncIterator[LocalServer]:
    """A server that is ended with the block."""
    store = RocksStore(path, block_cache_bytes=1 << 20, write_buffer_bytes=8 << 20)
    engine = Engine(store, clock, cache_bytes=20_000, boot_id="boot")

    def sync() -> None:
        time.sleep(rng.choice((0, 0, 0.001, 0.004)))
        store.sync()

    commit = GroupCommit(sync, lambda: engine.writer.written, engine.synced, engine.sync_failed)
    engine.writer.request_sync = commit.want
    api = TopicsApi(engine, commit)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    http = HttpServer(create_app(api, GatewaySettings(render_cache_bytes=20_000)), listener)
    grpc = GrpcServer(api, host="127.0.0.1", port=0)
    upkeep = asyncio.create_task(_upkeep(engine))
    try:
        port = await grpc.start()
        await http.start()
        grpc.set_serving(True)
        yield LocalServer(engine, api, http.port, f"127.0.0.1:{port}")
        assert not upkeep.done(), upkeep
    finally:
        api.drain()
        await asyncio.gather(http.stop(1), grpc.stop(1))
        upkeep.cancel()
        await asyncio.wait((upkeep,))
        await asyncio.to_thread(commit.stop)
        engine.close()
        store.close()
        listener.close()


async def _upkeep(engine: Engine) -> None:
    while True:
        more = engine.upkeep()
        engine.sweep()
        await asyncio.sleep(0 if more else _UPKEEP_SECONDS)
