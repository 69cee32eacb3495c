"""Positions in the shard's log, as requests and answers carry them in the header or metadata `x-topics-position`.

An answer has one that contains everything which the call has written and seen. A read that brings one may be answered
by any node whose rows reach to it. As text it is `EPOCH-TICKET`; `0` is before everything.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any, Final, NoReturn

import grpc
from starlette.types import Message, Scope, Send

from topics_server.node.peers import Standpoint
from topics_service.api.grpc.handlers import Context, Handler, wrap_handler
from topics_service.api.grpc.status import failure
from topics_service.api.request_context import POSITION
from topics_service.engine.errors import TopicsError, invalid

POSITION_BYTES: Final = POSITION.encode()

_TEXT: Final = re.compile(r"0|([0-9]{1,19})-([0-9]{1,19})", re.ASCII)

Position = Callable[[], Standpoint]
"""Returns the position that contains everything which a call of this node has written or seen by now."""


def decode(text: str) -> Standpoint:
    """The position of a request. Raises `invalid_request`."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise invalid(f"{POSITION} must be 0, or EPOCH-TICKET as an answer had it")
    epoch, ticket = found.groups(default="0")
    return Standpoint(epoch=int(epoch), ticket=int(ticket))


def encode(position: Standpoint) -> str:
    """The position as text."""
    return f"{position.epoch}-{position.ticket}"


def of_request(scope: Scope) -> Standpoint | None:
    """The position in an HTTP request; None without one. Raises `invalid_request`."""
    given = [value for name, value in scope["headers"] if name == POSITION_BYTES]
    return decode(b",".join(given).decode("latin-1")) if given else None


def of_call(metadata: Iterable[tuple[str, str | bytes]]) -> Standpoint | None:
    """The position in the metadata of a call; None without one. Raises `invalid_request`."""
    given = [str(value) for name, value in metadata if name == POSITION]
    return decode(",".join(given)) if given else None


def stating(send: Send, position: Position) -> Send:
    """Send HTTP answers with the position as of their beginning."""

    async def stated(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (POSITION_BYTES, encode(position()).encode())]
        await send(message)

    return stated


class StatingContext:
    """The context of a gRPC call whose trailing metadata, also that of an error, has the position as of its end."""

    def __init__(self, context: Context, position: Position | None = None) -> None:
        self.inner = context
        self.position = position
        """None leaves the metadata to the node that answers the call."""
        self._given: tuple[tuple[str, str | bytes], ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return () if self.position is None else ((POSITION, encode(self.position())),)

    def set_trailing_metadata(self, trailing_metadata: tuple[tuple[str, str | bytes], ...]) -> None:
        """See ServicerContext."""
        self._given = trailing_metadata
        self.inner.set_trailing_metadata(trailing_metadata)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: tuple[tuple[str, str | bytes], ...] = ()
    ) -> NoReturn:
        """See ServicerContext."""
        await self.inner.abort(code, details, (*trailing_metadata, *self._metadata))
        raise AssertionError("abort does not return")

    def end(self) -> None:
        """Note that the call has succeeded."""
        if self.position is not None:
            self.inner.set_trailing_metadata((*self._given, *self._metadata))


def stating_handler(handler: Handler, position: Position | None = None) -> Handler:
    """The handler of a call that states its position; contexts are StatingContexts. It refuses one with a malformed
    position."""
    if handler is None:
        return None
    return wrap_handler(handler, _stream if handler.response_streaming else _unary, position)  # type: ignore[no-any-return]


def _unary(
    inner: Callable[[Any, Any], Awaitable[Any]], position: Position | None
) -> Callable[[Any, Context], Awaitable[Any]]:
    async def call(request: Any, context: Context) -> Any:
        stated = await _stated(context, position)
        reply = await inner(request, stated)
        stated.end()
        return reply

    return call


def _stream(
    inner: Callable[[Any, Any], Any], position: Position | None
) -> Callable[[Any, Context], AsyncIterator[Any]]:
    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        stated = await _stated(context, position)
        async with aclosing(inner(request, stated)) as replies:
            async for reply in replies:
                yield reply
        stated.end()

    return call


async def _stated(context: Context, position: Position | None) -> StatingContext:
    try:
        of_call(context.invocation_metadata() or ())
    except TopicsError as error:
        await context.abort(*failure(error))
    return StatingContext(context, position)
