"""The gateway with the real engine on a store in memory, called as an ASGI app."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import httpx
import pytest
from starlette.types import Message, Send

from topics_gateway import GatewaySettings, create_app
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.limits import Limits
from topics_service.storage.memory import MemoryStore

LIMITS = Limits(max_topics=150)


@pytest.fixture
async def engine() -> Engine:
    return Engine(MemoryStore(), SystemClock(), limits=LIMITS)


@pytest.fixture
async def api(engine: Engine) -> AsyncIterator[TopicsApi]:
    commit = GroupCommit.for_engine(engine)
    yield TopicsApi(engine, commit)
    commit.stop()


@pytest.fixture
def settings() -> GatewaySettings:
    return GatewaySettings(max_body_bytes=100_000, limits=LIMITS)


@pytest.fixture
async def client(api: TopicsApi, settings: GatewaySettings) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(api, settings))
    headers = {"accept-encoding": "identity"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        yield client


class Exchange:
    """One request driven message by message, for what an HTTP client can't do: stop in the middle, or leave."""

    def __init__(self, chunks: Iterable[bytes], *, complete: bool) -> None:
        self._chunks = list(chunks)
        self._complete = complete
        self.taken = 0
        self.waiting = asyncio.Event()  # the app waits for more than there is
        self.leave = asyncio.Event()
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        if self.taken < len(self._chunks):
            chunk = self._chunks[self.taken]
            self.taken += 1
            more = self.taken < len(self._chunks) or not self._complete
            return {"type": "http.request", "body": chunk, "more_body": more}
        self.waiting.set()
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])


@pytest.fixture
def drive(api: TopicsApi, settings: GatewaySettings) -> Callable[..., tuple[Exchange, Awaitable[None]]]:
    """Start a request: gives the exchange and the app's run, to be awaited. `send` stands in for the exchange's."""
    app = create_app(api, settings)

    def start(
        method: str,
        path: str,
        *chunks: bytes,
        complete: bool = True,
        headers: dict[str, str] | None = None,
        send: Send | None = None,
    ) -> tuple[Exchange, Awaitable[None]]:
        exchange = Exchange(chunks or (b"",), complete=complete)
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [
                (name.lower().encode(), value.encode())
                for name, value in {"host": "localhost", **(headers or {})}.items()
            ],
        }
        return exchange, app(scope, exchange.receive, send or exchange.send)

    return start
