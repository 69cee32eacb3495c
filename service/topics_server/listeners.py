"""The listeners of a server: HTTP, gRPC, Kafka and PostgreSQL on one API."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from starlette.types import ASGIApp

from topics_gateway.app import create_app
from topics_gateway.settings import GatewaySettings
from topics_gateway.transport import HttpServer, Limits
from topics_kafka.listener import KafkaServer, create_kafka
from topics_kafka.registry import all_handlers
from topics_postgres.listener import PostgresServer
from topics_server.errors import StartError
from topics_server.interceptors import KafkaAudit, Make, observed_kafka, while_good
from topics_server.notices import log, log_listening
from topics_server.ports import advertised_address, bracketed, explain, write_port_file
from topics_server.reload import Readers, Reload
from topics_server.resources import Resources
from topics_server.settings import Settings
from topics_server.tls import HTTP_PROTOCOLS
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.audit import AuditLog
from topics_service.api.checkpoints import CheckpointCalls
from topics_service.api.grpc.admin_servicer import BulkReader, BulkReaders
from topics_service.api.grpc.calls import Calls
from topics_service.api.grpc.guard import caller
from topics_service.api.grpc.server import GrpcPort, create_calls
from topics_service.api.interfaces import Topics
from topics_service.api.kafka import KafkaShards
from topics_service.api.sql.sessions import SessionParts
from topics_service.api.topics import TopicsApi
from topics_service.engine.errors import TopicsError

_MAX_MESSAGE_BYTES = (1 << 31) - 1  # gRPC's own limit


class ServedSessions(Protocol):
    """The parts of a server that PostgreSQL's listener leads to."""

    @property
    def api(self) -> Topics:
        """The calls."""
        ...

    @property
    def authorizer(self) -> Authorizer:
        """The credentials of callers."""
        ...

    def postgres(self) -> SessionParts:
        """The sessions of SQL."""
        ...


class Served(ServedSessions, Protocol):
    """Parts of a server that its listeners lead to; a Core has them."""

    @property
    def audit(self) -> AuditLog | None:
        """The audit log; None if there is none."""
        ...

    @property
    def checkpoints(self) -> CheckpointCalls | None:
        """The checkpoints; None if the server makes none."""
        ...

    async def kafka(self) -> TopicsApi | KafkaShards:
        """The calls of Kafka, once they can be served."""
        ...

    def drain(self) -> None:
        """Stop taking calls, and end the waits of those under way."""
        ...


def grpc_port(resources: Resources) -> GrpcPort:
    """The port of gRPC, not open yet."""
    settings, tls = resources.settings, resources.certificates.common
    return GrpcPort(
        host=settings.host,
        port=settings.grpc_port,
        max_message_bytes=min(settings.max_body_bytes + (1 << 20), _MAX_MESSAGE_BYTES),
        max_connections=settings.grpc_max_connections,
        credentials=tls.grpc_credentials() if tls else None,
        is_shared=resources.shares_ports,
    )


def gateway_settings(settings: Settings) -> GatewaySettings:
    """The settings of the HTTP gateway."""
    return GatewaySettings(
        max_body_bytes=settings.max_body_bytes,
        body_timeout_seconds=settings.body_timeout_seconds,
        render_cache_bytes=settings.memory.renderings // (2 if settings.kafka_port else 1),
        limits=settings.limits,
        hosts=settings.hosts,
        origins=settings.origins,
    )


def http_server(resources: Resources, app: ASGIApp) -> HttpServer:
    """The server of HTTP, not listening yet."""
    settings, tls = resources.settings, resources.certificates.common
    return HttpServer(
        app,
        resources.http_socket,
        Limits(
            header_timeout=settings.header_timeout_seconds,
            unread=settings.memory_bytes // 16,
            max_connections=settings.max_connections,
            ws_max_size=settings.max_body_bytes,
        ),
        tls=tls.context(HTTP_PROTOCOLS) if tls else None,
    )


def kafka_server(
    resources: Resources,
    served: Served,
    api: TopicsApi | KafkaShards,
    sock: socket.socket,
    *,
    node_id: int,
    leader_epoch: int = 0,
    wrap: Callable[[Make], Make] = lambda make: make,
) -> KafkaServer:
    """The server of Kafka on `sock`, not listening yet. `wrap` may wrap its handlers. Raises TopicsError."""
    tls = resources.certificates.kafka
    host, port = advertised_address(resources.settings, sock.getsockname()[1])
    wanted = (resources.traces.kafka, None if served.audit is None else KafkaAudit(served.audit))
    observers = [each for each in wanted if each is not None]
    return create_kafka(
        api,
        served.authorizer,
        replace(resources.settings.kafka, node_id=node_id),
        sock,
        host=host,
        port=port,
        leader_epoch=leader_epoch,
        tls=tls.context() if tls else None,
        handlers=wrap(observed_kafka(while_good(all_handlers, served.authorizer), *observers)),
    )


def announce(settings: Settings, http_port: int, grpc_port: int) -> None:
    """Write the ports of HTTP and gRPC to their files and to the log. Raises StartError."""
    host = bracketed(settings.host)
    write_port_file("TOPICS_PORT_FILE", settings.port_file, f"{host}:{http_port}")
    write_port_file("TOPICS_GRPC_PORT_FILE", settings.grpc_port_file, f"{host}:{grpc_port}")
    log_listening(settings, http_port, grpc_port)


def announce_kafka(settings: Settings, port: int) -> None:
    """Write the port of Kafka to its file and to the log. Raises StartError."""
    host = bracketed(settings.host)
    advertised_host, advertised_port = advertised_address(settings, port)
    write_port_file("TOPICS_KAFKA_PORT_FILE", settings.kafka_port_file, f"{host}:{port}")
    log.info("Kafka listener on %s:%d, advertised as %s:%d", host, port, advertised_host, advertised_port)


def announce_postgres(settings: Settings, port: int) -> None:
    """Write the port of PostgreSQL to its file and to the log. Raises StartError."""
    host = bracketed(settings.host)
    write_port_file("TOPICS_PG_PORT_FILE", settings.pg_port_file, f"{host}:{port}")
    log.info("PostgreSQL listener on %s:%d", host, port)


async def start_grpc(port: GrpcPort, settings: Settings, calls: Calls) -> int:
    """Listen for gRPC and return the port. Raises StartError."""
    try:
        return await port.start(calls.interceptors, calls.handlers)
    except OSError as error:
        where = f"{settings.host}:{settings.grpc_port}"
        raise StartError(f"can't listen on {where} for gRPC: {explain(error, 'TOPICS_GRPC_PORT')}") from error


async def start_postgres(resources: Resources, served: ServedSessions, sock: socket.socket) -> PostgresServer:
    """Listen for PostgreSQL on `sock`. Raises StartError."""
    tls, metrics, parts = resources.certificates.common, served.api.metrics, served.postgres()
    server = PostgresServer(
        parts.sessions,
        served.authorizer,
        resources.settings.postgres,
        metrics.postgres,
        metrics.refusals,
        sock,
        tls=tls.context() if tls else None,
        cancels=parts.cancels,
    )
    parts.own_cancels.here = server.cancel
    try:
        await server.start()
    except OSError as error:
        raise StartError(f"PostgreSQL: {error}") from error
    return server


class Listeners:
    """Accepts connections from `start`, those of Kafka from `start_kafka`, until `stop`. The ports are 0 before.

    They are announced unless other processes share them: then it is for the one that has started all of them.
    """

    def __init__(self, resources: Resources, served: Served, readers: Readers) -> None:
        self._resources = resources
        self._readers = readers
        self._served = served
        self._settings = settings = resources.settings
        self.http_port = self.grpc_port = self.kafka_port = self.pg_port = 0
        self.grpc = grpc_port(resources)
        self._calls = create_calls(
            served.api,
            authorizer=served.authorizer,
            bulk_readers=self._bulk_readers,
            checkpoints=served.checkpoints,
            observer=resources.traces.grpc,
        )
        app = create_app(served.api, gateway_settings(settings), served.authorizer.cancelling(), self._calls)
        self._http = http_server(resources, resources.traces.app(app))
        self._kafka: KafkaServer | None = None
        self._postgres: PostgresServer | None = None

    def _bulk_readers(self, topic: str, partition: int) -> BulkReaders:
        """The bulk readers that know the caller: those of CREATE USER are known to the server only."""
        is_stored = self._served.authorizer.users.is_stored(caller())
        return BulkReaders() if is_stored else BulkReaders([BulkReader(*each) for each in self._readers.addresses()])

    def reload(self) -> Reload:
        """The work of a SIGHUP: keys, users, certificates and the audit log are read, or opened, again."""
        served, resources = self._served, self._resources
        return Reload(
            self._settings,
            served.authorizer,
            served.api.watches.remove_sessions,
            resources.certificates,
            self._readers,
            audit_file=resources.audit_file,
            audit_log=served.audit,
        )

    async def start(self) -> None:
        """Listen for HTTP and gRPC, and announce the ports. Raises StartError."""
        self.grpc_port = await start_grpc(self.grpc, self._settings, self._calls)
        await self._http.start()
        self.http_port = self._http.port
        if not self._resources.shares_ports:
            announce(self._settings, self.http_port, self.grpc_port)

    async def start_kafka(self) -> None:
        """Listen for Kafka if it has a port, and announce it. Raises StartError."""
        sock = self._resources.kafka_socket
        if sock is None:
            return
        port = sock.getsockname()[1]
        try:
            api = await self._served.kafka()
            node_id = self._settings.kafka.node_id
            self._kafka = kafka_server(self._resources, self._served, api, sock, node_id=node_id)
            await self._kafka.start()
        except (OSError, TopicsError) as error:
            raise StartError(f"Kafka: {error}") from error
        self.kafka_port = port
        if not self._resources.shares_ports:
            announce_kafka(self._settings, port)

    async def start_postgres(self) -> None:
        """Listen for PostgreSQL if it has a port, and announce it. Raises StartError."""
        sock = self._resources.pg_socket
        if sock is None:
            return
        self._postgres = await start_postgres(self._resources, self._served, sock)
        self.pg_port = sock.getsockname()[1]
        if not self._resources.shares_ports:
            announce_postgres(self._settings, self.pg_port)

    async def stop(self) -> None:
        """Refuse new calls, drain the running ones for up to `drain_seconds`, and close all connections."""
        self.grpc.set_serving(False)
        self._served.drain()
        seconds = self._settings.drain_seconds
        stops = [self._http.stop(seconds), self.grpc.stop(seconds)]
        if self._kafka is not None:
            stops.append(self._kafka.stop(seconds))
        if self._postgres is not None:
            stops.append(self._postgres.stop(seconds))
        await asyncio.gather(*stops)
