"""The server: one listening socket, two protocols, one graceful end."""

import asyncio
import importlib.util
import socket
import ssl
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp

from topics_gateway.transport.h2c import Http2Protocol
from topics_gateway.transport.http1 import Http1Protocol
from topics_gateway.transport.protocol_detection import ProtocolDetector
from topics_gateway.transport.registry import Limits, Registry, logger
from topics_net.tls_listener import TlsListener

_HANDSHAKE_SECONDS: Final = 15.0
_TLS_SHUTDOWN_TIMEOUT: Final = 2.0  # seconds to wait for the close_notify of the peer


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

    - `tls`: every connection is TLS. By ALPN the context should offer h2 and http/1.1, for most clients ask for
      HTTP/2 in no other way.
    - `drain_seconds`: how long `stop` lets running requests finish.
    - `max_header_bytes`: a larger request head is answered with 431 (HTTP/1.1) or ends the connection (HTTP/2).
    - `header_timeout` (seconds): a connection that has no running request and completes no request head for this
      long is closed. It is also the keep-alive limit. A stalled request body is not limited here: the application
      waits in `receive` and may set its own limit.
    - `max_streams`: running requests per HTTP/2 connection; more are refused with REFUSED_STREAM (safe to retry).
    - `stream_window`, `connection_window` (bytes): received body bytes that the application has not read yet, per
      HTTP/2 stream and connection; `unread` those of all connections together, beyond 64 KiB of each: then they are not
      read. On HTTP/1.1 reading stops at 64 KiB.
    - `send_timeout` (seconds): a response that goes on is ended when its client takes not one byte of it for this
      long (on HTTP/1.1 after `scope["state"]["timeout_event"]`, bytes that the application may leave there for it).
    - `max_connections`: further ones are closed at once, since each takes a file descriptor; 0 is unlimited.
    - `websockets` False ignores upgrades: the application sees a plain GET.
    - `ws_ping_interval`, `ws_ping_timeout` (seconds): a WebSocket client that says nothing for the first is pinged, and
      closed when it neither answers nor takes a byte for the second; None turns pings off.
    - `ws_max_size` (bytes): the largest WebSocket message, over all its fragments.
    - `backlog`: connections that the kernel may queue.

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
        *,
        tls: ssl.SSLContext | None = None,
        drain_seconds: float = 10.0,
        max_header_bytes: int = 65536,
        header_timeout: float = 60.0,
        max_streams: int = 256,
        stream_window: int = 1 << 20,
        connection_window: int = 16 << 20,
        unread: int = 64 << 20,
        send_timeout: float = 30.0,
        max_connections: int = 0,
        websockets: bool = True,
        ws_ping_interval: float | None = 20.0,
        ws_ping_timeout: float | None = 20.0,
        ws_max_size: int = 16 << 20,
        backlog: int = 2048,
    ) -> None:
        self._app = app
        self._sock = sock
        self._tls = tls
        self._drain_seconds = drain_seconds
        self._backlog = backlog
        self._limits = Limits(
            max_header_bytes=max_header_bytes,
            header_timeout=header_timeout,
            max_streams=max_streams,
            stream_window=stream_window,
            connection_window=connection_window,
            unread=unread,
            send_timeout=send_timeout,
            max_connections=max_connections,
            ws_max_size=ws_max_size,
            ws_ping_interval=ws_ping_interval,
            ws_ping_timeout=ws_ping_timeout,
        )
        self._websocket = websocket_protocol() if websockets else None
        self._registry: Registry | None = None
        self._server: asyncio.Server | TlsListener | None = None
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
        registry = self._registry = Registry(self._limits, self._websocket)
        app = self._app

        def http1() -> asyncio.Protocol:
            return Http1Protocol(app, registry)

        def http2() -> asyncio.Protocol:
            return Http2Protocol(app, registry)

        def sniffer() -> asyncio.Protocol:
            return ProtocolDetector(registry, http1, http2)

        if self._tls is None:
            self._server = await asyncio.get_running_loop().create_server(
                sniffer, sock=self._sock, backlog=self._backlog
            )
        else:
            self._server = TlsListener(
                registry,
                self._sock,
                sniffer,
                self._tls,
                logger,
                backlog=self._backlog,
                ssl_handshake_timeout=min(_HANDSHAKE_SECONDS, self._limits.header_timeout),
                ssl_shutdown_timeout=_TLS_SHUTDOWN_TIMEOUT,
            )

    async def stop(self, drain_seconds: float | None = None) -> None:
        """Stop accepting, close idle connections, let running requests finish for `drain_seconds`, close the rest.

        HTTP/2 clients get GOAWAY. The application has a second to end its WebSockets, then they are closed with code
        1012. After the limit the remaining tasks are cancelled. Returns when nothing is left. A second call waits for
        the first. Cancelling the call closes everything at once.
        """
        if self._registry is None or self._server is None:
            self._sock.close()
            return
        if self._stopping is None:
            self._server.close()
            seconds = self._drain_seconds if drain_seconds is None else drain_seconds
            self._stopping = asyncio.create_task(self._registry.drain(seconds))
        elif self._stopping.done():
            return
        await self._stopping
