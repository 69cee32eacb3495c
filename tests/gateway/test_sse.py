"""Streams of events in general: what opens, feeds and ends them, with a source that does what the test wants."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from topics_gateway.body_timeout import BodyTimeouts
from topics_gateway.request import ClientDisconnectedError, Request
from topics_gateway.response import EventStream
from topics_gateway.sse import error, event, heartbeat, query_token, require_event_stream, serve
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.watch.frames import ErrorFrame, HeartbeatFrame

Step = bytes | Exception | asyncio.Event


class Source:
    """Gives bytes, raises exceptions and waits for events, one after the other."""

    def __init__(self, *steps: Step, refuse: TopicsError | None = None) -> None:
        self.steps = list(steps)
        self.refuse = refuse
        self.asked = 0
        self.state = "new"
        self.waiting = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncIterator[bytes]]:
        if self.refuse is not None:
            raise self.refuse
        self.state = "open"
        try:
            yield self
        finally:
            self.state = "closed"

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        self.asked += 1
        while self.steps:
            step = self.steps.pop(0)
            if isinstance(step, bytes):
                return step
            if isinstance(step, Exception):
                raise step
            self.waiting.set()
            await step.wait()
        raise StopAsyncIteration


class Client:
    """The other side of one call."""

    def __init__(self, method: str = "GET", **headers: str) -> None:
        self.left = asyncio.Event()
        self.sent: list[Any] = []
        self.room = asyncio.Event()
        self.room.set()
        self.full_at = b"never"
        self._received = 0
        fields = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "http_version": "1.1", "headers": fields, "query_string": b""}
        self.request = Request(scope, self._receive, BodyTimeouts(60))

    async def _receive(self) -> Any:
        self._received += 1
        if self._received == 1:
            return {"type": "http.request", "body": b"a body", "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if message.get("body") == self.full_at:
            self.room.clear()
        await self.room.wait()

    def follow(self, source: Source, opening: bytes = b"") -> "asyncio.Task[int]":
        stream = EventStream(source.open(), lambda _: lambda frame: b"<%b>" % frame if frame else b"", opening)
        return asyncio.create_task(serve(stream, self.request, self.send))

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def complete(self) -> bool:
        return not self.sent[-1].get("more_body", False)


async def test_the_whole_stream() -> None:
    source, client = Source(b"one", b"", b"two"), Client()
    assert await client.follow(source, b"hello") == 200
    assert client.sent[0] == {
        "type": "http.response.start",
        "status": 200,
        "headers": (
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
            (b"connection", b"keep-alive"),
        ),
    }
    assert client.body == b"retry: 2000\n\nhello<one><two>"
    assert client.complete
    assert source.state == "closed"


async def test_retry_comes_before_the_source_is_asked() -> None:
    source, client = Source(asyncio.Event()), Client()
    task = client.follow(source)
    await source.waiting.wait()
    assert client.body == b"retry: 2000\n\n"
    client.left.set()
    with pytest.raises(ClientDisconnectedError):
        await task


async def test_a_source_that_does_not_open_is_a_refusal() -> None:
    client = Client()
    with pytest.raises(TopicsError):
        await client.follow(Source(refuse=TopicsError(Reason.THROTTLED, "full")))
    assert client.sent == []


async def test_a_source_that_fails_ends_the_stream_with_an_error_event() -> None:
    source, client = Source(b"one", TopicsError(Reason.INTERNAL, "damaged", {"topic": "t"})), Client()
    assert await client.follow(source) == 200
    assert client.body.endswith(b'<one>event: error\ndata: {"code":500,"error":"damaged"}\n\n')
    assert client.complete
    assert source.state == "closed"


async def test_a_bug_breaks_the_stream_off() -> None:
    source, client = Source(b"one", LookupError("on purpose")), Client()
    with pytest.raises(LookupError):
        await client.follow(source)
    assert not client.complete
    assert source.state == "closed"


async def test_head_opens_and_closes_and_takes_nothing() -> None:
    source, client = Source(b"one"), Client("HEAD")
    assert await client.follow(source) == 200
    assert (client.body, client.complete) == (b"", True)
    assert (source.state, source.asked) == ("closed", 0)


@pytest.mark.parametrize("how", ["leaves", "cancelled"])
@pytest.mark.parametrize("where", ["idle", "sending"])
async def test_the_source_is_closed_when_the_client_leaves(how: str, where: str) -> None:
    source, client = Source(b"one", asyncio.Event()), Client()
    client.full_at = b"<one>" if where == "sending" else b"never"
    task = client.follow(source)
    while client.room.is_set() and not source.waiting.is_set():
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    if how == "leaves":
        client.left.set()
        with pytest.raises(ClientDisconnectedError):
            await task
    else:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert source.state == "closed"


async def test_nothing_is_asked_for_while_there_is_no_room() -> None:
    source, client = Source(b"one", b"two"), Client()
    client.full_at = b"<one>"
    task = client.follow(source)
    while client.room.is_set():
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert source.asked == 1
    client.room.set()
    await task
    assert client.body.endswith(b"<one><two>")


async def test_nothing_is_asked_for_once_the_transport_has_dropped_a_part() -> None:
    """Asking says that what was before was handed over; and the client's leaving is heard of a moment later."""
    source, client = Source(b"one", b"two"), Client()
    client.full_at = b"<one>"
    task = client.follow(source)
    while client.room.is_set():
        await asyncio.sleep(0)
    client.request.scope["state"]["gone"] = True
    client.room.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert source.asked == 1
    client.left.set()
    with pytest.raises(ClientDisconnectedError):
        await task
    assert (source.state, source.asked) == ("closed", 1)


async def test_the_transport_is_given_a_timeout_event() -> None:
    client = Client()
    await client.follow(Source())
    assert client.request.scope["state"]["timeout_event"].startswith(b'event: error\ndata: {"code":408,')


# ------------------------------------------------------------------------- the parts


def test_events() -> None:
    assert event(b"job", b'{"a":1}', b"7") == b'id: 7\nevent: job\ndata: {"a":1}\n\n'
    assert event(b"x", b"[1,\r\n2,\n3]") == b"event: x\ndata: [1,  2, 3]\n\n"
    assert heartbeat(HeartbeatFrame(ts=1748467205000)) == b": hb 1748467205000\n\n"


def test_error_events() -> None:
    paced = ErrorFrame(reason=Reason.THROTTLED, code=429, message="slow", retry_after_ms=1500, topics=("b", "a"))
    assert error(paced) == (
        b'event: error\ndata: {"code":429,"error":"slow","retry_after_ms":1500,"topics":["b","a"]}\n\n'
    )
    gone = ErrorFrame(reason=Reason.NOT_A_QUEUE, code=409, message="gone")
    assert error(gone, topic="t") == b'event: error\ndata: {"code":409,"error":"gone","topic":"t"}\n\n'


@pytest.mark.parametrize(
    ("query", "token"),
    [
        (b"", None),
        (b"x=1", None),
        (b"token", b""),
        (b"token=", b""),
        (b"token=a&token=b", b"a"),
        (b"x&token=a%2Bb+c%20d", b"a+b c d"),
        (b"%74oken=x", b"x"),
        (b"token=%zz%4", b"%zz%4"),
        (b"token=a=b", b"a=b"),
        (b"tok%65n=%ff", b"\xff"),
        (b"tokens=x&Token=y", None),
    ],
)
def test_query_token(query: bytes, token: bytes | None) -> None:
    assert query_token(query) == token


@pytest.mark.parametrize(
    ("accept", "passes"),
    [(None, True), ("", True), ("*/*", True), ("text/event-stream", True), ("a/b, TEXT/EVENT-STREAM;q=0.1", True),
     ("application/json", False), ("text/*", False), ("x", False)],
)  # fmt: skip
async def test_accept(accept: str | None, passes: bool) -> None:
    request = Client(**({} if accept is None else {"accept": accept})).request
    check: Callable[[Request], None] = require_event_stream
    if passes:
        check(request)
    else:
        with pytest.raises(TopicsError) as refusal:
            check(request)
        assert refusal.value.reason is Reason.NOT_ACCEPTABLE
