"""The whole server in the test's own event loop, on real sockets and a real store, with a clock that the test moves."""

import contextlib
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from topics_server.server import Server
from topics_server.settings import Settings
from topics_service.engine.clock import Clock
from topics_service.engine.transaction import Transaction
from topics_service.storage.rocks import RocksStore

_MEMORY_BYTES = 800_000  # caches that hold a few blocks


class _SlowStore(RocksStore):
    """A store whose fsyncs take a random time."""

    rng = random.Random(0)

    def sync(self) -> None:
        time.sleep(self.rng.choice((0, 0, 0.001, 0.004)))
        super().sync()


class LocalServer:
    """A server that remembers which fsync each record waits for."""

    def __init__(self, server: Server) -> None:
        self.engine = server.engine
        self.api = server.api
        self.http_port = server.http_port
        self.grpc_target = f"127.0.0.1:{server.grpc_port}"
        self.overload_ms = 0
        """While it is not 0, watchers are paced as under overload."""
        self.api.watches._dispatcher._overload_ms = lambda: self.overload_ms
        self._tickets: dict[tuple[str, int], int] = {}
        self._append = self.engine.append
        self.engine.append = self._noted  # type: ignore[method-assign]

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
            found.log.skip_seqs(tx, found.log.begin(found.config, now), count, found.config)
            ticket = tx.commit()
        if ticket:
            await self.api._commit.wait(ticket)


@contextlib.asynccontextmanager
async def serving(path: Path, clock: Clock, rng: random.Random) -> AsyncIterator[LocalServer]:
    """A server that is ended with the block."""
    store = _SlowStore(path, block_cache_bytes=1 << 20, write_buffer_bytes=8 << 20)
    store.rng = rng
    settings = Settings(data_dir=str(path), port=0, grpc_port=0, memory_bytes=_MEMORY_BYTES, drain_seconds=1)
    async with Server(settings, clock=clock, store=store) as server:
        yield LocalServer(server)
