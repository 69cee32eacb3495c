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
from topics_net.listener import Listener
from topics_service.api.access.auth import ANONYMOUS, UNRESTRICTED
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.budget import MemoryBudget
from topics_service.api.kafka import KafkaShards
from topics_service.api.topics import TopicsApi

log: Final = logging.getLogger("topics.kafka")

_SCRATCH_BYTES: Final = 64 << 10
_CHECK_SECONDS: Final = 1.0


class KafkaServer(Listener):
    """Serves the Kafka protocol on a bound TCP socket, which it owns from `start` on.

    Runs on the event loop that calls `start`, once, after the engine has recovered: an earlier client would learn that
    its topics do not exist. With `tls`, every connection is TLS.
    """

    TLS_SHUTDOWN_SECONDS = 1.0

    def __init__(
        self,
        context: ServerContext,
        sock: socket.socket,
        *,
        tls: ssl.SSLContext | None = None,
        handlers: Callable[[ServerContext], Mapping[int, Handler]] = all_handlers,
    ) -> None:
        settings = context.settings
        super().__init__(settings.max_connections, settings.send_seconds)
        self.context = context
        self._sock = sock
        self._tls = tls
        self._handlers = handlers(context)
        self.statistics = context.statistics
        self.budget = MemoryBudget(settings.frame_bytes, partial(setattr, self.statistics, "frame_bytes"))
        self.loop_budget = context.loop_budget
        self.unsent = 0
        self.log = context.log
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.idle_seconds = settings.idle_seconds
        self.first_request_seconds = settings.first_request_seconds
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Start to listen; return at once. Raises OSError if the socket can't listen."""

        def connection() -> Connection:
            return Connection(self, self._session)

        await self.listen(self._sock, connection, self._tls, log, self.first_request_seconds)

    async def stop(self, drain_seconds: float) -> None:
        """Accept no new connection or request, let running requests finish for `drain_seconds`, abort the rest."""
        if self._server is None:
            self._sock.close()
            return
        self.context.membership.close()  # otherwise held joins would last as long as the drain
        self.shut_down()
        try:
            async with asyncio.timeout(drain_seconds):
                await self.empty()
        except TimeoutError:
            if drain_seconds:
                log.warning(
                    "closing %s that did not finish within %g s",
                    counted(len(self.connections), "Kafka connection"),
                    drain_seconds,
                )
        finally:
            self.abort()
            if self._timer is not None:
                self._timer.cancel()
        async with asyncio.timeout(1.0):
            await self.empty()

    # -------------------------------------------- shared by the connections

    def opened(self, connection: Connection) -> bool:
        """Register the connection. Return False if there are too many."""
        if self.draining or self.is_full():
            return False
        self.enter(connection)
        if self._timer is None:
            self._timer = background.call_later(_CHECK_SECONDS, self._check)
        return True

    def enter(self, connection: object) -> None:
        super().enter(connection)
        self.statistics.connections = len(self.connections)

    def forget(self, connection: object) -> None:
        super().forget(connection)
        self.statistics.connections = len(self.connections)

    def refuse(self) -> None:
        self.statistics.closed["limit"] += 1
        self.log.warning("refusing a connection: TOPICS_KAFKA_MAX_CONNECTIONS is reached")

    def handshake_failed(self, peer: str, cause: str) -> None:
        self.statistics.closed["handshake"] += 1
        self.log.warning("closing the connection from %s: TLS handshake failed (%s)", peer, cause or "disconnected")

    def _session(self, connection: Connection) -> Session:
        authorizer = self.context.authorizer
        context = Context(
            server=self.context,
            peer=connection.peer,
            principal=UNRESTRICTED if authorizer.open else ANONYMOUS,
            authenticated=authorizer.open,
            epochs=self.context.epochs(),
        )
        return Session(context, self._handlers, self.budget, connection, self._is_congested)

    def _is_congested(self) -> bool:
        """Return whether unsent responses hold more memory than requests may."""
        return self.unsent > self.context.settings.frame_bytes

    def _check(self) -> None:
        """Check the deadlines of all connections. They share one timer, which stops without connections."""
        loop = asyncio.get_running_loop()
        now, short = loop.time(), self.budget.is_short
        for connection in [each for each in self.connections if isinstance(each, Connection)]:
            if short:
                connection.check_rate()
            if connection.deadline and now > connection.deadline:
                connection.expire()
        self._timer = background.call_later(_CHECK_SECONDS, self._check) if self.connections else None


def create_kafka(
    api: TopicsApi | KafkaShards,
    authorizer: Authorizer,
    settings: KafkaSettings,
    sock: socket.socket,
    *,
    host: str,
    port: int,
    leader_epoch: int = 0,
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
        leader_epoch=leader_epoch,
    )
    return KafkaServer(context, sock, tls=tls, handlers=handlers)


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """A context for TLS 1.2 or later, from a certificate chain and its key in PEM files. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key or None)
    return context
