"""Two nodes with one shard each in the process of a test: real ports, real engines, calls between them, no cluster."""

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import grpc

from topics_service.api.access.authorizer import Authorizer
from topics_service.api.grpc.handlers import OUR_METHODS, Handler
from topics_service.api.grpc.server import GrpcPort, create_calls
from topics_service.api.metrics.collector import Metrics
from topics_service.api.observers import NO_OBSERVERS
from topics_service.api.scheduling.commit import CommitStatistics, GroupCommit
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.placement import Place, home_of
from topics_service.storage.memory import MemoryStore
from topics_shards.health import LocalHealth
from topics_shards.locating import Located
from topics_shards.remote import RemoteShards, remote_methods
from topics_shards.shards import Shard
from topics_shards.topics import ShardedTopics
from topics_shards.wire.client import Channel
from topics_shards.wire.server import ShardServer, unix

_PATIENCE_SECONDS: Final = 0.3
_NAMES: Final = [f"t{number}" for number in range(40)]

AT_FIRST: Final = [name for name in _NAMES if home_of(name, 2) == 0]
"""Topics whose partition 0 is at the first node to begin with."""
AT_SECOND: Final = [name for name in _NAMES if home_of(name, 2) == 1]

T = TypeVar("T")


class Node(grpc.aio.ServerInterceptor):
    """A node; `calls` counts those of clients, by RPC."""

    def __init__(self, shard: int, engine: Engine, apis: list[TopicsApi], socket: Path, other: Path) -> None:
        self.calls: Counter[str] = Counter()
        self.local = {shard: Shard(apis[shard])}
        self.owners: dict[int, Channel] = {}
        self.socket = socket
        self._other = other
        self._engine = engine
        self._apis = apis
        self.target = ""
        self.refusal: grpc.StatusCode | None = None
        """The status that every call of a client ends with, for those that want none."""

    async def start(self, authorizer: Authorizer | None = None, credentials: Any = None) -> None:
        """Listen; `target` is then the address of its gRPC port."""
        methods = remote_methods()
        self.wire = ShardServer(self.local, methods, str(self.socket))
        await self.wire.listen(self.socket)
        self.channel = Channel(unix(self._other), str(self._other), str(self.socket))
        self.owners |= {shard: self.channel for shard in range(2) if shard not in self.local}
        shards = RemoteShards(2, self.local, self.owners, methods, _PATIENCE_SECONDS)
        for shard in self.local:
            self._apis[shard].parts.connect(shards)
        engine = self._engine
        metrics = Metrics(engine, CommitStatistics())
        api = ShardedTopics(Located(shards), engine.limits, metrics, NO_OBSERVERS, LocalHealth(self._apis))
        calls = create_calls(api, authorizer=authorizer)
        self.port = GrpcPort(host="127.0.0.1", port=0, credentials=credentials)
        number = await self.port.start((self, *calls.interceptors), calls.handlers)
        self.target = f"{'localhost' if credentials else '127.0.0.1'}:{number}"

    async def stop(self) -> None:
        """Die at once. Idempotent."""
        await self.port.stop(0)
        self.channel.close()
        await self.wire.drain(0)
        await self.wire.close()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Count a call."""
        method = handler_call_details.method
        if not method.startswith(OUR_METHODS):
            return await continuation(handler_call_details)
        self.calls[method.rpartition("/")[2]] += 1
        refusal = self.refusal
        if refusal is None:
            return await continuation(handler_call_details)

        async def refuse(_: Any, context: Any) -> Any:
            await context.abort(refusal, "as the test wants")
            yield

        return grpc.stream_stream_rpc_method_handler(refuse)


class TwoNodes:
    """Both nodes, on an event loop of their own."""

    def __init__(self, authorizer: Authorizer | None = None, credentials: Any = None) -> None:
        self._directory = TemporaryDirectory(prefix="nodes-")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.run(self._start(authorizer, credentials))

    async def _start(self, authorizer: Authorizer | None, credentials: Any) -> None:
        engines = [Engine(MemoryStore(), SystemClock(), place=Place(shard, 2)) for shard in range(2)]
        self._commits = [GroupCommit.for_engine(engine) for engine in engines]
        self._apis = [TopicsApi(engine, commit) for engine, commit in zip(engines, self._commits, strict=True)]
        sockets = [Path(self._directory.name) / name for name in ("first", "second")]
        self.first = Node(0, engines[0], self._apis, *sockets)
        self.second = Node(1, engines[1], self._apis, *reversed(sockets))
        for node in (self.first, self.second):
            await node.start(authorizer, credentials)
        self.first.channel.address, self.second.channel.address = self.second.target, self.first.target

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the nodes' loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def move(self, shard: int, giver: Node, taker: Node) -> None:
        """Move a shard to the other node."""

        async def moved() -> None:
            taker.owners.pop(shard, None)
            taker.local[shard] = giver.local.pop(shard)
            giver.owners[shard] = giver.channel

        self.run(moved())

    def kill_second(self) -> None:
        """Let the second node die; the first takes over."""
        self.move(1, self.second, self.first)
        self.run(self.second.stop())

    def close(self) -> None:
        """Stop everything."""
        for node in (self.first, self.second):
            self.run(node.stop())
        for commit in self._commits:
            self._loop.call_soon_threadsafe(commit.stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._directory.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
