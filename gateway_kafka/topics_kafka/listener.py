"""The Kafka server: a listening socket and its connections."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from topics_client.units import counted
from topics_kafka.connection import Connection
from topics_kafka.handlers import Context, Handler, ServerContext
from topics_kafka.registry import APIS, all_handlers
from topics_kafka.session import Session
from topics_kafka.settings import KafkaSettings
from topics_net import background
from topics_net.send_timeout import SendTimeouts
from topics_net.tls_listener import Handshake, TlsListener
from topics_service.api.access.auth import ANONYMOUS, UNRESTRICTED
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.budget import MemoryBudget
from topics_service.api.topics import TopicsApi

log: Final = logging.getLogger("topics.kafka")

_SCRATCH_BYTES: Final = 64 << 10
_CHECK_SECONDS: Final = 1.0
_HANDSHAKE_SECONDS: Final = 15.0
_TLS_SHUTDOWN_SECONDS: Final = 1.0  # wait for the peer's TLS close_notify


class KafkaServer:
    """Serves the Kafka protocol on a bound TCP socket, which it owns from `start` on.

    Runs on the event loop that calls `start`, once, after the engine has recovered: an earlier client would learn that
    its topics do not exist. With `tls`, every connection is TLS.
    """

    def __init__(
        self,
        context: ServerContext,
        sock: socket.socket,
        *,
        tls: ssl.SSLContext | None = None,
        handlers: Callable[[ServerContext], Mapping[int, Handler]] = all_handlers,
    ) -> None:
        self.context = context
        self._sock = sock
        self._tls = tls
        self._handlers = handlers(context)
        settings = context.settings
        self.statistics = context.statistics
        self.budget = MemoryBudget(settings.frame_bytes, partial(setattr, self.statistics, "frame_bytes"))
        self.loop_budget = context.loop_budget
        self.unsent = 0
        self.send_timeouts = SendTimeouts(settings.send_seconds)
        self.log = context.log
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.idle_seconds = settings.idle_seconds
        self.first_request_seconds = settings.first_request_seconds
        self._connections: set[Connection] = set()
        self._handshakes: set[Handshake] = set()
        self._server: asyncio.Server | TlsListener | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._draining = False
        self._emptied = asyncio.Event()

    async def start(self, backlog: int = 2048) -> None:
        """Start to listen; return at once. Raises OSError if the socket can't listen."""

        def connection() -> Connection:
            return Connection(self, self._session)

        if self._tls is None:
            self._server = await asyncio.get_running_loop().create_server(connection, sock=self._sock, backlog=backlog)
        else:
            self._server = TlsListener(
                self,
                self._sock,
                connection,
                self._tls,
                log,
                backlog=backlog,
                ssl_handshake_timeout=min(_HANDSHAKE_SECONDS, self.first_request_seconds),
                ssl_shutdown_timeout=_TLS_SHUTDOWN_SECONDS,
            )

    async def stop(self, drain_seconds: float) -> None:
        """Accept no new connection or request, let running requests finish for `drain_seconds`, abort the rest."""
        if self._server is None:
            self._sock.close()
            return
        self._server.close()
        self._draining = self.send_timeouts.draining = True
        self._emptied.clear()
        self.context.membership.close()  # otherwise held joins would last as long as the drain
        for each in self._open():
            each.shutdown()
        try:
            if self._open():
                async with asyncio.timeout(drain_seconds):
                    await self._emptied.wait()
        except TimeoutError:
            log.warning(
                "closing %s that did not finish within %g s",
                counted(len(self._open()), "Kafka connection"),
                drain_seconds,
            )
        finally:
            for each in self._open():
                each.abort()
            if self._timer is not None:
                self._timer.cancel()
        if self._open():
            async with asyncio.timeout(1.0):
                await self._emptied.wait()

    # -------------------------------------------- shared by the connections

    def is_full(self) -> bool:
        """Return whether the maximum number of connections is open, including those in their TLS handshake."""
        max_connections = self.context.settings.max_connections
        return bool(max_connections) and len(self._connections) + len(self._handshakes) >= max_connections

    def opened(self, connection: Connection) -> bool:
        """Register the connection. Return False if there are too many."""
        if self._draining or self.is_full():
            return False
        self._connections.add(connection)
        self._count()
        if self._timer is None:
            self._timer = background.call_later(_CHECK_SECONDS, self._check)
        return True

    def closed(self, connection: Connection) -> None:
        """Unregister the connection, or one that was refused."""
        self._connections.discard(connection)
        self._count()

    def enter(self, handshake: Handshake) -> None:
        """Register a connection that begins its TLS handshake."""
        self._handshakes.add(handshake)
        self._count()

    def forget(self, handshake: Handshake) -> None:
        """Unregister a handshake that has succeeded or failed."""
        self._handshakes.discard(handshake)
        self._count()

    def refuse(self) -> None:
        """Count and log a connection that is refused: there are too many."""
        self.statistics.closed["limit"] += 1
        self.log.warning("refusing a connection: TOPICS_KAFKA_MAX_CONNECTIONS is reached")

    def handshake_failed(self, peer: str, cause: str) -> None:
        """Count and log a failed TLS handshake."""
        self.statistics.closed["handshake"] += 1
        self.log.warning("closing the connection from %s: TLS handshake failed (%s)", peer, cause or "disconnected")

    def _open(self) -> list[Connection | Handshake]:
        return [*self._connections, *self._handshakes]

    def _count(self) -> None:
        self.statistics.connections = len(self._connections) + len(self._handshakes)
        if not self.statistics.connections:
            self._emptied.set()

    def _session(self, connection: Connection) -> Session:
        authorizer = self.context.authorizer
        context = Context(
            server=self.context,
            peer=connection.peer,
            principal=UNRESTRICTED if authorizer.open else ANONYMOUS,
            authenticated=authorizer.open,
        )
        return Session(context, self._handlers, self.budget, connection, self._is_congested)

    def _is_congested(self) -> bool:
        """Return whether unsent responses hold more memory than requests may."""
        return self.unsent > self.context.settings.frame_bytes

    def _check(self) -> None:
        """Check the deadlines of all connections. They share one timer, which stops without connections."""
        loop = asyncio.get_running_loop()
        now, short = loop.time(), self.budget.is_short
        for connection in list(self._connections):
            if short:
                connection.check_rate()
            if connection.deadline and now > connection.deadline:
                connection.expire()
        self._timer = background.call_later(_CHECK_SECONDS, self._check) if self._connections else None


def create_kafka(
    api: TopicsApi,
    authorizer: Authorizer,
    settings: KafkaSettings,
    sock: socket.socket,
    *,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    handlers: Callable[[ServerContext], Mapping[int, Handler]] = all_handlers,
) -> KafkaServer:
    """Create the server, after recovery, advertised as `host` and `port`. Raises TopicsError.

    Its statistics are part of the metrics of `api`.
    """
    context = ServerContext(
        apis=APIS,
        api=api,
        authorizer=authorizer,
        settings=settings,
        statistics=api.metrics.kafka,
        cluster_id=api.cluster_id(),
        host=host,
        port=port,
    )
    return KafkaServer(context, sock, tls=tls, handlers=handlers)


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """A context for TLS 1.2 or later, from a certificate chain and its key in PEM files. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key or None)
    return context
