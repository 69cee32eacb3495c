"""The server: one listening socket, two protocols, one graceful end."""

import asyncio
import importlib.util
import socket
import ssl
from collections.abc import Callable

from starlette.types import ASGIApp

from topics_gateway.transport.h2c import Http2Protocol
from topics_gateway.transport.http1 import Http1Protocol
from topics_gateway.transport.protocol_detection import ProtocolDetector
from topics_gateway.transport.registry import Limits, Registry, logger


def websocket_protocol() -> Callable[..., asyncio.Protocol] | None:
    """Return the WebSocket protocol; without the optional package `websockets` upgrades are ignored."""
    if importlib.util.find_spec("websockets") is None:
        return None
    from topics_gateway.transport.websocket import WebSocketProtocol

    return WebSocketProtocol


class HttpServer:
    """Serves an ASGI 3 application over HTTP/1.1, HTTP/2 with prior knowledge and WebSocket.

    `sock` is a bound TCP socket; the server owns it from `start` on and closes it. All work happens on the event
    loop that runs `start`; there are no threads, signal handlers, lifespan events or access log. Errors go to the
    logger `topics.http`, once each.

    With `tls`, every connection is TLS. By ALPN the context should offer h2 and http/1.1, for most clients ask for
    HTTP/2 in no other way.

    What the application may rely on, on both protocols: `receive` returns `http.disconnect` as soon as the client
    is gone or has reset the stream (unless it sent more body than the limits above and the application does not
    read it), and after the response is complete; `send` of a part that is not the last returns once there is room
    for the next, and drops everything once the client is gone, which `scope["state"]` then says with `gone`; an
    exception becomes 500 with the JSON error body if nothing was sent, otherwise a broken response (closed
    connection, RST_STREAM). Malformed and ambiguous heads (`header_validation`) never reach it; any method that is a
    token does. For a client that waits for `100 Continue`, which `receive` sends, `scope["state"]["awaits_100"]` is
    a call that says whether it still does; an answer without a `receive` closes an HTTP/1.1 connection then.
    """

    def __init__(
        self,
        app: ASGIApp,
        sock: socket.socket,
        limits: Limits = Limits(),  # noqa: B008  # it is frozen
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._app = app
        self._sock = sock
        self._tls = tls
        self._limits = limits
        self._registry: Registry | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The TCP port of the socket that was passed in; valid until `stop`."""
        return int(self._sock.getsockname()[1])

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._registry.connections) if self._registry is not None else 0

    @property
    def requests(self) -> int:
        """Running calls of the application."""
        return len(self._registry.tasks) if self._registry is not None else 0

    async def start(self) -> None:
        """Listen and serve, and return at once.

        Raises OSError if the socket can't listen, RuntimeError if called a second time.
        """
        if self._registry is not None:
            raise RuntimeError("a server starts once")
        registry = self._registry = Registry(self._limits, websocket_protocol())
        app = self._app

        def http1() -> asyncio.Protocol:
            return Http1Protocol(app, registry)

        def http2() -> asyncio.Protocol:
            return Http2Protocol(app, registry)

        def detector() -> asyncio.Protocol:
            return ProtocolDetector(registry, http1, http2)

        await registry.listen(self._sock, detector, self._tls, logger, self._limits.header_timeout)

    async def stop(self, drain_seconds: float = 10.0) -> None:
        """Stop accepting, close idle connections, let running requests finish for `drain_seconds`, close the rest.

        HTTP/2 clients get GOAWAY. The application has a second to end its WebSockets, then they are closed with code
        1012. After the limit the remaining tasks are cancelled. Returns when nothing is left. A second call waits for
        the first. Cancelling the call closes everything at once.
        """
        if self._registry is None:
            self._sock.close()
            return
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._registry.drain(drain_seconds))
        elif self._stopping.done():
            return
        await self._stopping
