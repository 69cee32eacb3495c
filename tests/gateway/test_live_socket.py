"""Live queries on a WebSocket whose tables are elsewhere: they end alone, and each says so."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from topics_gateway.live_events import ChangeCache
from topics_gateway.live_socket import LiveSocket
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.observers import NO_OBSERVERS
from topics_service.api.sql.live import LiveCaughtUp, LiveFrame, LiveOpened, LiveRequest
from topics_service.engine.errors import Reason, TopicsError


class _Live:
    """One query ends with an error, others go on."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def follow(self, request: LiveRequest, **_: Any) -> AsyncGenerator[LiveFrame, None]:
        yield LiveOpened(())
        if request.sql == "ends":
            raise self._error
        yield LiveCaughtUp("p-1")
        await asyncio.Event().wait()


class _Api(SimpleNamespace):
    """The parts of a server that a socket needs."""

    def __init__(self) -> None:
        super().__init__(draining=False, observers=NO_OBSERVERS, metrics=SimpleNamespace(refusals={}))

    @contextmanager
    def notify_on_drain(self, _ended: asyncio.Event) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TopicsError(Reason.SHUTTING_DOWN, "the shard leaves"), "shutting_down"),
        (TopicsError(Reason.NOT_READY, "the node is gone"), "not_ready"),
        (RuntimeError("a bug"), "internal"),
    ],
)
async def test_a_query_that_ends_says_so_and_the_others_stay(error: Exception, code: str) -> None:
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    outgoing: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    socket: Any = LiveSocket(
        _Api(),
        _Live(error),
        UNRESTRICTED,
        ChangeCache(),
        incoming.get,
        outgoing.put,
        utf8=True,  # type: ignore[arg-type]
    )

    def send(**command: Any) -> None:
        incoming.put_nowait({"type": "websocket.receive", "text": json.dumps(command)})

    async def frame() -> Any:
        return json.loads((await outgoing.get())["text"])

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(socket.run())
        send(op="subscribe", request_id=1, sql="stays")
        assert await frame() == {"type": "caught-up", "request_id": 1, "position": "p-1"}
        send(op="subscribe", request_id=2, sql="ends")
        found = await frame()
        assert (found["type"], found["request_id"], found["code"]) == ("error", 2, code)
        send(op="unsubscribe", request_id=1)
        assert await frame() == {"type": "unsubscribed", "request_id": 1}
        incoming.put_nowait({"type": "websocket.disconnect"})
