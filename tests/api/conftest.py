"""A gRPC server on an ephemeral port in front of an api that says what the test wants."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from topics_service.api.grpc.server import GrpcServer
from topics_service.api.metrics.collector import Metrics
from topics_service.api.observers import NO_OBSERVERS
from topics_service.api.scheduling.commit import CommitStatistics
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.limits import Limits
from topics_service.engine.model import DiffReply, DiffRequest, ReadyState
from topics_service.storage.memory import MemoryStore


class FakeApi:
    """Answers each method with `replies[method]`: an exception is raised, a function called, else it is the reply.

    A Diff with `wait_ms` waits without end; `parked` and `left` tell when it began and ended.
    """

    def __init__(self) -> None:
        self.replies: dict[str, Any] = {}
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.state = ReadyState(ready=True, reason="", topics=7, replay_progress=1.0)
        self.parked = asyncio.Event()
        self.left = asyncio.Event()
        self.limits = Limits()
        self.metrics = Metrics(Engine(MemoryStore(), SystemClock()), CommitStatistics())
        self.observers = NO_OBSERVERS

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def method(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            reply = self.replies[name]
            if isinstance(reply, BaseException):
                raise reply
            return reply(*args, **kwargs) if callable(reply) else reply

        return method

    async def diff(self, request: DiffRequest) -> DiffReply:
        if request.wait_ms:
            self.parked.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.left.set()
        reply = self.replies["diff"]
        if isinstance(reply, BaseException):
            raise reply
        assert isinstance(reply, DiffReply)
        return reply

    def shortage(self) -> None:
        """See TopicsApi."""

    def ready(self) -> ReadyState:
        return self.state


@pytest.fixture
async def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
async def server(api: FakeApi) -> AsyncIterator[GrpcServer]:
    server = GrpcServer(api, host="127.0.0.1", port=0, max_message_bytes=1 << 20)
    yield server
    await server.stop(0)


@pytest.fixture
async def channel(server: GrpcServer) -> AsyncIterator[grpc.aio.Channel]:
    port = await server.start()
    server.set_serving(True)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
