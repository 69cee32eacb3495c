"""Forwarding of WebSockets to the owner of the shard, message by message."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator
from typing import Any, Final

from starlette.types import Message, Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, connect
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, WebSocketException

from topics_cluster.forwarded import http_subject
from topics_cluster.http_connection import HttpPool
from topics_cluster.owner_search import DISTRUSTED, NOT_OWNER, DistrustedError, OwnerSearch
from topics_cluster.trust import HEADER, Origin, Signer
from topics_net.dead_peers import watch_peer

_CLOSE_SECONDS: Final = 2.0
_MAX_HELD_BYTES: Final = 256 << 20  # of messages of all clients
_QUEUE: Final = 4  # messages of the owner that wait for the client
_GONE: Final = 1012  # service restart
_NOT_SENT: Final = frozenset((1005, 1006, 1015))  # codes that no frame may have
# Fields of the handshake, which each connection has of its own.
_OWN: Final = frozenset(
    (
        "connection",
        "content-length",
        "date",
        "host",
        "keep-alive",
        "sec-websocket-accept",
        "sec-websocket-extensions",
        "sec-websocket-key",
        "sec-websocket-protocol",
        "sec-websocket-version",
        "server",
        "transfer-encoding",
        "upgrade",
        HEADER,
    )
)


class SocketForwarder:
    """Forwards WebSockets, which count as connections of `pool`."""

    def __init__(
        self,
        pool: HttpPool,
        signer: Signer,
        tls: Callable[[], ssl.SSLContext | None],
        connect_seconds: float,
    ) -> None:
        self._pool = pool
        self._signer = signer
        self._tls = tls
        self._connect_seconds = connect_seconds
        self._held = _Held()
        self._open: dict[ClientConnection, str] = {}

    def leave(self, address: str) -> None:
        """End the connections to a node that is lost."""
        for upstream in [each for each, to in self._open.items() if to == address]:
            _abort(upstream)

    async def forward(self, scope: Scope, receive: Receive, send: Send, search: OwnerSearch, origin: Origin) -> None:
        """Serve one socket until one side ends it. Raises `not_ready` without an owner, DistrustedError, FullError."""
        self._pool.reserve()
        try:
            upstream = await self._connected(scope, send, search, origin)
            if upstream is None:
                return
            try:
                await self._relay(upstream, receive, send)
            finally:
                self._open.pop(upstream, None)
                await _end(upstream)
        finally:
            self._pool.free()

    async def _connected(
        self, scope: Scope, send: Send, search: OwnerSearch, origin: Origin
    ) -> ClientConnection | None:
        """The open connection to the owner; None if the owner refuses it, which the client then knows."""
        while True:
            address = (await search.next()).http
            if "gone" in scope["state"]:
                return None
            try:
                upstream = await self._connect(address, scope, origin)
            except InvalidStatus as error:
                response = error.response
                if DISTRUSTED in response.headers:
                    raise DistrustedError(response.headers[DISTRUSTED]) from error
                if NOT_OWNER in response.headers and not search.is_over:
                    continue
                headers = [*_fields(response.headers), (b"content-length", b"%d" % len(response.body or b""))]
                await send(
                    {"type": "websocket.http.response.start", "status": response.status_code, "headers": headers}
                )
                await send({"type": "websocket.http.response.body", "body": bytes(response.body or b"")})
                return None
            except (OSError, EOFError, InvalidHandshake):
                continue  # nothing but a handshake was sent
            self._open[upstream] = address
            return upstream

    async def _connect(self, address: str, scope: Scope, origin: Origin) -> ClientConnection:
        fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        own = dict(fields)
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        tls = self._tls()
        query = scope["query_string"]
        target = (scope["raw_path"] + b"?" + query if query else scope["raw_path"]).decode("latin-1")
        options: dict[str, Any] = {} if tls is None else {"ssl": tls, "server_hostname": host}
        headers = [(name, value) for name, value in fields if name not in _OWN]
        headers.append((HEADER, self._signer.sign(origin, address, http_subject(scope))))
        upstream = await connect(
            f"{'ws' if tls is None else 'wss'}://{own.get('host', address)}{target}",
            host=host,
            port=int(port),
            subprotocols=scope["subprotocols"] or None,
            additional_headers=headers,
            user_agent_header=None,
            compression=None,
            proxy=None,
            open_timeout=self._connect_seconds,
            close_timeout=_CLOSE_SECONDS,
            max_size=None,
            max_queue=_QUEUE,
            **options,
        )
        watch_peer(upstream.transport.get_extra_info("socket"))
        return upstream

    async def _relay(self, upstream: ClientConnection, receive: Receive, send: Send) -> None:
        """Accept the client's side, and pass messages on."""
        await receive()  # websocket.connect
        assert upstream.response is not None, "the handshake is over"
        with self._held.message() as grow:
            headers = _fields(upstream.response.headers)
            accept: Message = {"type": "websocket.accept", "headers": headers, "holds": grow}
            if upstream.subprotocol is not None:
                accept["subprotocol"] = upstream.subprotocol
            await send(accept)
            await _pass_on(upstream, receive, send)


class _Held:
    """Bytes of large messages of clients that are not complete or not sent on."""

    def __init__(self) -> None:
        self._nbytes = 0

    @contextlib.contextmanager
    def message(self) -> Iterator[Callable[[int], bool]]:
        """A function that sets how many bytes the message of one client holds; False if there is no room for them."""
        held = 0

        def grow(nbytes: int) -> bool:
            nonlocal held
            if nbytes > held and self._nbytes + nbytes - held > _MAX_HELD_BYTES:
                return False
            self._nbytes += nbytes - held
            held = nbytes
            return True

        try:
            yield grow
        finally:
            self._nbytes -= held


async def _pass_on(upstream: ClientConnection, receive: Receive, send: Send) -> None:
    """Pass messages on until one side has ended, and its code to the other."""
    to_owner = asyncio.create_task(_to_owner(upstream, receive))
    to_client = asyncio.create_task(_to_client(upstream, send))
    tasks = (to_owner, to_client)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    if to_client.done() and not to_client.cancelled() and to_client.exception() is None:
        code = upstream.close_code
        reason = upstream.close_reason or ""
        if code in _NOT_SENT or code is None:
            code, reason = (1000, "") if code == 1005 else (_GONE, "the owner of the shard was lost")
        with contextlib.suppress(ConnectionError):
            await send({"type": "websocket.close", "code": code, "reason": reason})
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def _to_owner(upstream: ClientConnection, receive: Receive) -> None:
    """Pass on what the client sends, and its end."""
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            code = message.get("code", 1005)
            if code in _NOT_SENT:
                code = 1001 if code == 1006 else 1000
            with contextlib.suppress(WebSocketException):
                await upstream.close(code, message.get("reason") or "")
            return
        try:
            text = message.get("text")
            await upstream.send(message["bytes"] if text is None else text)
        except ConnectionClosed:
            await asyncio.Event().wait()  # the other task knows with which code


async def _to_client(upstream: ClientConnection, send: Send) -> None:
    """Pass on what the owner sends, until it ends."""
    with contextlib.suppress(ConnectionError):  # the client is gone, which the other task learns
        try:
            while True:
                data = await upstream.recv()
                kind = "text" if isinstance(data, str) else "bytes"
                await send({"type": "websocket.send", kind: data})
        except ConnectionClosed:
            return
    await asyncio.Event().wait()


async def _end(upstream: ClientConnection) -> None:
    with contextlib.suppress(WebSocketException, OSError):
        await upstream.close()
    _abort(upstream)


def _abort(upstream: ClientConnection) -> None:
    if not upstream.transport.is_closing():
        upstream.transport.abort()


def _fields(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The fields of an answer that are for the client."""
    return [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in headers.raw_items()
        if name.lower() not in _OWN
    ]
