"""Forwarding of HTTP and WebSocket requests to the owner of the shard."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from topics_cluster.calls import find_call
from topics_cluster.forward_websocket import SocketForwarder
from topics_cluster.forwarded import ForwardedClient, http_subject
from topics_cluster.http_connection import FullError, Head, HttpConnection, HttpPool, LostError
from topics_cluster.owner_search import (
    DISTRUSTED,
    HOLD_SECONDS,
    NOT_OWNER_BYTES,
    DistrustedError,
    OwnerSearch,
    OwnerSource,
    not_owner,
)
from topics_cluster.trust import HEADER_BYTES, Origin, Signer
from topics_gateway.errors import error_response
from topics_gateway.routes import RouteTable
from topics_gateway.sse import TOO_SLOW
from topics_gateway.transport import BrokenOffError
from topics_service.api.request_context import HEADER_BYTES as REQUEST_ID
from topics_service.api.request_context import RequestContext, begin
from topics_service.engine.errors import Reason, TopicsError, invalid

log: Final = logging.getLogger("topics.cluster")

_KEPT_BYTES: Final = 64 << 10  # of a request's body, to send it again
_FIRST_PART_SECONDS: Final = 1.0
_DISTRUSTED: Final = DISTRUSTED.encode()
_LAST_CHUNK: Final = b"0\r\n\r\n"
_HOP_BY_HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_PASSED_CONNECTION: Final = frozenset((b"close", b"keep-alive"))


class ForwardingApp:
    """An ASGI application that gives every request to the owner, and its answer to the client as it is.

    Bodies stream both ways, with at most 64 KiB of each in memory. A request that reaches no owner, or one that says
    that it owns nothing any more, is held for `hold_seconds`, then answered with `not_ready`. Once a request may have
    reached an owner it is only sent again if its call is declared idempotent or has an Idempotency-Key, and nothing of
    the answer was sent; else the connection of the client ends without an answer, as when a server dies.

    A forwarded request is not forwarded again. A request beyond `max_connections` is `throttled`.
    """

    def __init__(
        self,
        owner: OwnerSource,
        signer: Signer,
        *,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        max_connections: int = 20_000,
        hold_seconds: float = HOLD_SECONDS,
        connect_seconds: float = 1.0,
        idle_seconds: float = 20.0,
        on_refused: Callable[[str], None] = lambda _cause: None,
    ) -> None:
        """`tls` returns the context of each new connection. `idle_seconds` must be less than the time that the nodes
        give an idle connection, TOPICS_HEADER_TIMEOUT_SECONDS. `on_refused` gets the cause for which an owner refuses
        what this node forwards."""
        self._owner = owner
        self._signer = signer
        self._hold_seconds = hold_seconds
        self._pool = HttpPool(
            max_connections=max_connections, idle_seconds=idle_seconds, connect_seconds=connect_seconds, tls=tls
        )
        self._sockets = SocketForwarder(self._pool, signer, tls, connect_seconds)
        self._routes = RouteTable({})
        self._on_refused = on_refused

    @property
    def in_flight(self) -> int:
        """Requests that have a connection to an owner, WebSockets among them."""
        return self._pool.in_use

    def leave(self, address: str) -> None:
        """End what is under way at a node, host:port of its HTTP port, that is known to be lost."""
        self._pool.leave(address)
        self._sockets.leave(address)

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        context = begin(headers.get(REQUEST_ID), scope.get("client"), scope["type"])
        try:
            if isinstance(scope.get("client"), ForwardedClient):
                raise not_owner()
            origin = Origin(context.peer, context.text)
            search = OwnerSearch(self._owner, self._hold_seconds)
            if scope["type"] == "websocket":
                await self._sockets.forward(scope, receive, send, search, origin)
            else:
                await self._forward(_Body(scope, receive), send, search, origin)
        except FullError:
            error = TopicsError(Reason.THROTTLED, "the node forwards as many requests as it may")
            await refuse(error, context, scope, send)
        except TopicsError as error:
            if isinstance(error, DistrustedError):
                self._on_refused(error.cause)
            is_forwarded = isinstance(scope.get("client"), ForwardedClient)
            await refuse(error, context, scope, send, ((NOT_OWNER_BYTES, b"1"),) if is_forwarded else ())

    async def _forward(self, body: "_Body", send: Send, search: OwnerSearch, origin: Origin) -> None:
        scope = body.scope
        framing = await body.framing()
        while True:
            address = (await search.next()).http
            if "gone" in scope["state"]:
                return
            try:
                connection = await self._pool.take(address)
            except OSError:
                continue
            exchange = _Exchange(connection, body, send)
            try:
                connection.begin(scope["method"])
                signature = self._signer.sign(origin, address, http_subject(scope))
                await exchange.run(_head_of(scope, framing, signature))
                return
            except _NotOwnerError as refused:
                if search.is_over or not body.is_kept:
                    await exchange.answer(refused.head)
                    return
            except LostError as error:
                if exchange.is_answered or search.is_over or not (body.is_kept and self._is_repeatable(scope)):
                    log.info("%s %s: the owner at %s was lost: %s", scope["method"], scope["path"], address, error)
                    raise BrokenOffError from error
            finally:
                self._pool.give_back(connection)

    def _is_repeatable(self, scope: Scope) -> bool:
        """Return whether the request may be made twice."""
        if any(name == b"idempotency-key" for name, _ in scope["headers"]):
            return True
        call = find_call(self._routes.rpc_of(scope["method"], scope["raw_path"]))
        return call is not None and call.is_repeatable


class _NotOwnerError(Exception):
    """The node does not own the shard, and has done nothing."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head = head


class _Body:
    """The body of a request, framed as it is sent; as much of it as may be sent again is kept."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.receive = receive
        self.is_complete = False
        """True once all of it has been read."""
        self.is_gone = False
        """True once the client is."""
        self.is_kept = True
        """False once a part was read that is not kept."""
        self.kept = b""
        self._is_chunked = False
        self._due: int | None = None  # bytes of the length that the client gives

    @property
    def is_awaited(self) -> bool:
        """True while the client waits for `100 Continue`."""
        awaits = self.scope["state"].get("awaits_100")
        return awaits is not None and bool(awaits())

    async def framing(self) -> bytes:
        """The field of the head that frames the body where the client gives no length; empty without a body."""
        fields = dict(self.scope["headers"])
        length = fields.get(b"content-length")
        if length is not None:
            self._due = int(length)
            if "body" in self.scope["state"]:  # it is small and has arrived
                await self.next()
            return b""
        if self.scope["http_version"] != "2":
            self._is_chunked = b"transfer-encoding" in fields
            self.is_complete = not self._is_chunked
        elif self.is_awaited:
            self._is_chunked = True
        else:  # only its end tells that there is none, and mostly it is here
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_PART_SECONDS):
                    await self.next()
            self._is_chunked = bool(self.kept) or not self.is_complete
            self.kept = _chunk(self.kept)
        return b"transfer-encoding: chunked\r\n" if self._is_chunked else b""

    async def next(self) -> bytes:
        """The next part, empty once the client is gone."""
        part = await self._received()
        while self._due == 0 and not (self.is_complete or self.is_gone):
            # The end of a stream of HTTP/2 may come on its own, and an answer before it would make the client fail.
            part += await self._received()
        if self._is_chunked:
            part = _chunk(part) + (_LAST_CHUNK if self.is_complete else b"")
        self.is_kept = self.is_kept and len(self.kept) + len(part) <= _KEPT_BYTES
        self.kept = self.kept + part if self.is_kept else b""
        return part

    async def _received(self) -> bytes:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            self.is_gone = True
            return b""
        self.is_complete = not message.get("more_body", False)
        part: bytes = message.get("body", b"")
        if self._due is not None:
            self._due -= len(part)
        return part


class _Exchange:
    """One attempt to have a request answered, over a connection."""

    def __init__(self, connection: HttpConnection, body: _Body, send: Send) -> None:
        self.is_answered = False
        """True once a part of the answer was sent."""
        self._connection = connection
        self._body = body
        self._send = send
        self._continues = asyncio.Event()

    async def run(self, head: bytes) -> None:
        """Send the request and its answer; return early if the client goes away. Raises LostError, _NotOwnerError."""
        waiter = asyncio.current_task()
        assert waiter is not None, "applications run in tasks"
        if not self._body.is_awaited:
            self._continues.set()
        await self._connection.send(head + self._body.kept)
        client = asyncio.create_task(self._follow_client(waiter))
        try:
            final = await self._final_head()
            fields = dict(final.headers)
            if _DISTRUSTED in fields:
                raise DistrustedError(fields[_DISTRUSTED].decode("latin-1"))
            if NOT_OWNER_BYTES in fields:
                raise _NotOwnerError(final)
            await self.answer(final)
        except asyncio.CancelledError:
            if not self._body.is_gone or waiter.uncancel():
                raise
        finally:
            client.cancel()
            await asyncio.wait((client,))
            if not self._body.is_complete:
                self._connection.close()

    async def answer(self, head: Head) -> None:
        """Send an answer whose head has arrived. Raises LostError."""
        self.is_answered = True
        is_http1 = self._body.scope["http_version"] != "2"
        headers = list(_passed(head.headers, lambda value: is_http1 and value.lower() in _PASSED_CONNECTION))
        if any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers):
            self._body.scope["state"]["timeout_event"] = TOO_SLOW
        await self._send({"type": "http.response.start", "status": head.status, "headers": headers})
        more = True
        while more:
            part, more = await self._connection.body()
            if part or not more:
                await self._send({"type": "http.response.body", "body": part, "more_body": more})

    async def _final_head(self) -> Head:
        while (head := await self._connection.head()).status < 200:
            if head.status == 100:
                self._continues.set()
        return head

    async def _follow_client(self, waiter: "asyncio.Task[Any]") -> None:
        """Send the rest of the body, and end the attempt if the client goes away."""
        await self._continues.wait()
        body = self._body
        with contextlib.suppress(LostError):  # there may be an answer all the same
            while not (body.is_complete or body.is_gone):
                await self._connection.send(await body.next())
        while not body.is_gone:
            body.is_gone = (await body.receive())["type"] == "http.disconnect"
        waiter.cancel()


def _head_of(scope: Scope, framing: bytes, signature: str) -> bytes:
    """The head of the request as it is sent on. Raises `invalid_request` for one that HTTP/1.1 can't express."""
    query = scope["query_string"]
    target = scope["raw_path"] + b"?" + query if query else scope["raw_path"]
    version = b"1.0" if scope["http_version"] == "1.0" else b"1.1"
    lines = [b"%b %b HTTP/%b" % (scope["method"].encode(), target, version)]
    awaits = scope["state"].get("awaits_100")
    for name, value in _passed(scope["headers"], lambda value: False):
        if name != HEADER_BYTES and (name != b"expect" or (awaits is not None and awaits())):
            lines.append(b"%b: %b" % (name, value))
    lines.append(b"%b: %b" % (HEADER_BYTES, signature.encode()))
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1 or b" " in target:
        raise invalid("the head of the request has characters that are not allowed")
    return b"%b\r\n%b\r\n" % (head, framing)


def _passed(
    headers: Iterable[tuple[bytes, bytes]], passes_connection: Callable[[bytes], bool]
) -> Iterator[tuple[bytes, bytes]]:
    """The fields that are for the other end (RFC 9110, 7.6.1), and `connection` where it says no more than it may."""
    fields = list(headers)
    nominated = {
        token.strip().lower() for name, value in fields if name == b"connection" for token in value.split(b",")
    }
    for name, value in fields:
        if name == b"connection":
            if passes_connection(value):
                yield name, value
        elif name not in _HOP_BY_HOP and name not in nominated:
            yield name, value


def _chunk(part: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(part), part) if part else b""


async def refuse(
    error: TopicsError,
    context: RequestContext,
    scope: Scope,
    send: Send,
    fields: tuple[tuple[bytes, bytes], ...] = (),
) -> None:
    """Answer a request with an error and these further header fields."""
    response = error_response(error, 0.0)
    headers = [
        (b"content-type", response.content_type),
        *response.headers,
        (b"content-length", b"%d" % len(response.body)),
        *fields,
    ]
    if context.given is not None:
        headers.append((REQUEST_ID, context.given.encode()))
    kind = "http.response" if scope["type"] == "http" else "websocket.http.response"
    await send({"type": f"{kind}.start", "status": response.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": b"" if scope.get("method") == "HEAD" else response.body})
