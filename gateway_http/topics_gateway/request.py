"""The HTTP request that handlers receive."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope

from topics_gateway.body_timeout import BodyTimeouts
from topics_gateway.response import EventStream, Response
from topics_service.api.access.auth import ANONYMOUS
from topics_service.api.access.quota import Held
from topics_service.api.budget import MemoryBudget
from topics_service.api.memory_wait import wait_for
from topics_service.engine.errors import invalid

T = TypeVar("T")

_MAX_PARAMETERS: Final = 1000

ON_ROUTED: Final = "topics.on_routed"
"""In a request's scope: a callable that receives its Request as soon as the route is known."""


class ClientDisconnectedError(Exception):
    """The client closed the connection before it received its answer."""


class PassedOnError(Exception):
    """The request is to be answered by another server: nothing of an answer was sent, and it counts there."""


class Request:
    """The parts of an ASGI request that handlers look at.

    `name` is the variable segment of the path, percent-decoded, or empty. `headers` has lower-case names; the values of
    a repeated header are joined by commas (the transport refuses repetition where one value is allowed). `gone` is set
    once the client has disconnected, `stalled` once its body has paused for longer than `body_timeouts` allows.
    `principal` is the caller; `held` is what the body counts against the limits of its key and of `memory`, which all
    requests share. `error` is the code of a refusal.
    """

    __slots__ = (
        "body_ended",
        "body_timeouts",
        "error",
        "gone",
        "headers",
        "held",
        "memory",
        "name",
        "principal",
        "receive",
        "rpc",
        "scope",
        "stalled",
        "started",
    )

    def __init__(self, scope: Scope, receive: Receive, body_timeouts: BodyTimeouts) -> None:
        self.started = time.perf_counter()
        self.scope = scope
        self.receive = receive
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        if len(self.headers) != len(scope["headers"]):
            self.headers = _joined(scope["headers"])
        self.name = ""
        self.rpc = ""
        self.principal = ANONYMOUS
        self.error = ""
        self.held: Held | None = None
        self.memory: MemoryBudget | None = None
        self.body_ended = False
        self.body_timeouts = body_timeouts
        self.gone = False
        self.stalled = False

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since the request arrived, as `performance.server_total_ms` shows them."""
        return ms_since(self.started)

    def query(self) -> dict[str, str]:
        """The query parameters; of a repeated key the last value counts."""
        raw = self.scope["query_string"]
        if raw.count(b"&") >= _MAX_PARAMETERS:
            raise invalid(f"the query has more than {_MAX_PARAMETERS} parameters")
        return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True)) if raw else {}

    async def chunk(self) -> bytes:
        """Return the next piece of the request body; `body_ended` is set with the last one.

        Raises `invalid_request` when it does not come in time (then `stalled` is set).
        """
        whole: bytes | None = self.scope["state"].pop("body", None) if "state" in self.scope else None
        if whole is not None:
            self.body_ended = True
            return whole
        wait = self.body_timeouts.enter()
        try:
            message = await self.receive()
        except asyncio.CancelledError:
            if wait.stalled and wait.task.uncancel() == 0:
                self.stalled = True
                raise invalid(f"the request body did not arrive within {self.body_timeouts.seconds:g} s") from None
            raise
        finally:
            self.body_timeouts.cancel(wait)
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        self.body_ended = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk

    async def hold(self, nbytes: int) -> None:
        """Wait until the body may hold `nbytes` of memory (`memory_wait`). Raises `throttled`.

        Nothing is read until then, so the client waits as well.
        """
        held = self.held
        if held is None:
            held = self.held = Held(None, self.memory)
        room = asyncio.Event()
        if not held.ask(nbytes, room.set):
            await wait_for(room, held)

    async def unless_gone(self, work: Awaitable[T]) -> T:
        """The outcome of `work`, which is cancelled as soon as the client goes away. Only after the body was read."""
        waiter = asyncio.current_task()
        assert waiter is not None, "handlers run in tasks"
        watchers: list[asyncio.Task[None]] = []
        # Most work is done at once: a watcher is started only when the loop gets to run meanwhile.
        start = asyncio.get_running_loop().call_soon(
            lambda: watchers.append(asyncio.create_task(self._cancel_when_gone(waiter)))
        )
        try:
            return await work
        except asyncio.CancelledError:
            if self.gone and waiter.uncancel() == 0:  # else it was cancelled from elsewhere as well
                raise ClientDisconnectedError from None
            raise
        finally:
            start.cancel()
            for watcher in watchers:
                watcher.cancel()
                await asyncio.wait((watcher,))

    async def _cancel_when_gone(self, waiter: asyncio.Task[Any]) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        waiter.cancel()


def _joined(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    return {name: b", ".join(several) for name, several in values.items()}


def ms_since(started: float) -> float:
    """Milliseconds since `started` on time.perf_counter, to the microsecond."""
    return round((time.perf_counter() - started) * 1e3, 3)


Handler = Callable[[Request], Awaitable[Response | EventStream]]


def flag(query: dict[str, str], name: str, default: bool) -> bool:
    """A boolean query parameter; anything but true, 1, false and 0 means the default."""
    return {"true": True, "1": True, "false": False, "0": False}.get(query.get(name, ""), default)
