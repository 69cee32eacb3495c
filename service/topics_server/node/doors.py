"""The doors of a node, which live as long as it does.

In a cluster with one shard each call is served here, or passed on to the owner as a whole. With several shards all
calls are served here, by an API that calls the owners of the shards: `serve` gives it to the doors.
"""

import asyncio
import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import grpc
from starlette.types import ASGIApp, Receive, Scope, Send

from topics_cluster.forward_connections import Splice, node_id
from topics_cluster.forward_grpc import GrpcForwarder
from topics_cluster.forward_http import ForwardingApp, refuse
from topics_cluster.owner_search import OwnerSource
from topics_kafka.handlers import Answer, Context, Handler, ServerContext
from topics_kafka.listener import KafkaServer
from topics_kafka.protocol import Message
from topics_postgres.listener import PostgresServer
from topics_server.errors import StartError
from topics_server.interceptors import Make
from topics_server.listeners import Served, announce_postgres, kafka_server, start_postgres
from topics_server.node import positions
from topics_server.node.gate import LostShardError
from topics_server.node.place import Place
from topics_server.node.reads import FollowerReads
from topics_server.node.shard_term import OwnedShard
from topics_server.node.term import SoleTerm, Term
from topics_server.resources import Resources
from topics_server.settings import Settings, default
from topics_service.api.grpc.calls import Calls
from topics_service.api.grpc.handlers import OUR_METHODS
from topics_service.api.grpc.handlers import Handler as GrpcHandler
from topics_service.api.kafka import KafkaShards
from topics_service.api.request_context import HEADER_BYTES, begin
from topics_service.api.sql.cancels import SessionCancels
from topics_service.api.sql.sessions import SessionParts
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.placement import SQL_SHARD
from topics_service.statistics import NodeStatistics
from topics_shards.sessions import RelayedSessions
from topics_shards.shards import LocalShards, Method, NotHereError, P, R

log: Final = logging.getLogger("topics.cluster")

_PROBES: Final = frozenset((b"/v0/health", b"/healthz", b"/v0/ready", b"/readyz", b"/v0/metrics"))
_OWN_CALLS: Final = frozenset(
    f"/topics.v1.AdminService/{name}" for name in ("GetCluster", "MoveShard", "DrainNode", "SetShardZone")
)
_PROBE_CALLS: Final = frozenset(f"/topics.v1.AdminService/{name}" for name in ("GetHealth", "GetReady", "GetMetrics"))
_DRAIN_SECONDS: Final = 0.2


def broker_id(settings: Settings) -> int:
    """The broker id of this node: the one of the settings, or else the one that its name gives."""
    is_default = settings.kafka_node_id == default("kafka_node_id")
    return node_id(settings.node_name) if is_default else settings.kafka.node_id


class HttpDoor:
    """The ASGI application of a node."""

    def __init__(
        self,
        place: Place,
        forwarder: ForwardingApp,
        probes: ASGIApp,
        reads: FollowerReads,
        statistics: NodeStatistics,
    ) -> None:
        """`probes` answers the probes while the shard is not served here."""
        self._place = place
        self._forwarder = forwarder
        self._probes = probes
        self._reads = reads
        self._statistics = statistics
        self._app: ASGIApp | None = None

    def serve(self, app: ASGIApp) -> None:
        """Serve everything by an application from now on."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is not None:
            await self._app({**scope}, receive, send)  # the connection keeps its scope, in which Starlette puts the app
            return
        try:
            wanted = positions.of_request(scope)
        except TopicsError as error:
            request = begin(dict(scope["headers"]).get(HEADER_BYTES), scope.get("client"), scope["type"])
            await refuse(error, request, scope, send)
            return
        term = self._place.term
        if term is None and not _is_probe(scope):
            rest = await self._reads.answer(wanted, scope, receive, send)
            if rest is None:
                return
            receive, term = rest, await self._place.arrived()
        if term is not None and (term.gate.is_open or await _is_owner(term)):
            await _sole(term).serve(scope, receive, positions.stating(send, term.position))
        elif _is_probe(scope):
            await self._probes(scope, receive, send)
        else:
            self._statistics.forwarded["http"] += 1
            await self._forwarder(scope, receive, send)


class GrpcDoor(grpc.aio.ServerInterceptor):
    """The only interceptor of a node, but for that of forwarded calls: those of the services lie behind it."""

    def __init__(
        self, place: Place, forwarder: GrpcForwarder, own: Calls, reads: FollowerReads, statistics: NodeStatistics
    ) -> None:
        """`own` are calls that the node answers in every role."""
        self._place = place
        self._reads = reads
        self._forwarder = forwarder
        self._own = own
        self._statistics = statistics
        self._calls: Calls | None = None

    def serve(self, calls: Calls) -> None:
        """Serve everything but the node's own calls by these from now on."""
        self._calls = calls

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[GrpcHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> GrpcHandler:
        """Find the handler of one call."""
        method = handler_call_details.method
        if not method.startswith(OUR_METHODS):
            return await continuation(handler_call_details)
        if self._calls is not None:
            return await (self._own if method in _OWN_CALLS else self._calls).find(handler_call_details)
        term = self._place.term
        if method in _OWN_CALLS or (term is None and method in _PROBE_CALLS):
            return await self._own.find(handler_call_details)
        if term is None:
            local = await self._reads.find(handler_call_details)
            if local is not None:
                return local
            term = await self._place.arrived()
        if term is not None and (term.gate.is_open or await _is_owner(term)):
            return positions.stating_handler(await _sole(term).calls.find(handler_call_details), term.position)
        self._statistics.forwarded["grpc"] += 1
        return self._forwarder.handler(method)


class SplicedDoor(ABC):
    """A port whose connections are served where the owner is, and passed on elsewhere.

    Its socket is bound all the time: clients wait while no server accepts from it.
    """

    def __init__(
        self, resources: Resources, sock: socket.socket | None, splice: Callable[[socket.socket], Splice]
    ) -> None:
        """`splice` makes what passes connections on; without a socket there is no port."""
        self._resources = resources
        self._sock = sock
        self._splice = splice
        self._server: KafkaServer | PostgresServer | None = None
        self._passing: Splice | None = None

    @property
    def port(self) -> int:
        """The port; 0 if there is none."""
        return 0 if self._sock is None else int(self._sock.getsockname()[1])

    async def serve(self, term: Term) -> None:
        """Serve connections here from now on; those that were passed on end. Raises TopicsError, OSError."""
        if self._sock is not None:
            await self._pause()
            self._server = await self._serve(term, self._sock.dup())

    @abstractmethod
    async def _serve(self, term: Term, sock: socket.socket) -> KafkaServer | PostgresServer:
        """Start a server on a socket that belongs to it then. Raises TopicsError, OSError."""

    async def pass_on(self, seconds: float = _DRAIN_SECONDS) -> None:
        """Pass connections on from now on; those that were served here end, after what takes no longer."""
        if self._sock is None or self._passing is not None:
            return
        await self._pause(seconds)
        self._passing = self._splice(self._sock.dup())
        await self._passing.start()

    async def close(self, seconds: float) -> None:
        """Accept no more connections, and close those that are left after `seconds`."""
        await self._pause(seconds)
        if self._sock is not None:
            self._sock.close()

    async def _pause(self, seconds: float = _DRAIN_SECONDS) -> None:
        server, self._server = self._server, None
        passing, self._passing = self._passing, None
        if server is not None:
            await server.stop(seconds)
        if passing is not None:
            await passing.stop()


class KafkaDoor(SplicedDoor):
    """The Kafka port of a node."""

    def __init__(self, resources: Resources, owner: OwnerSource) -> None:
        """`owner` finds the owner of the only shard."""
        most = resources.settings.kafka_max_connections

        def splice(sock: socket.socket) -> Splice:
            return Splice(sock, owner, lambda found: found.kafka, "TOPICS_KAFKA_MAX_CONNECTIONS", max_connections=most)

        super().__init__(resources, resources.kafka_socket, splice)
        self._node_id = broker_id(resources.settings)

    async def _serve(self, term: Term, sock: socket.socket) -> KafkaServer:
        server = kafka_server(
            self._resources,
            term.core,
            term.core.api,
            sock,
            node_id=self._node_id,
            leader_epoch=term.ownership.epoch,
            wrap=_gated(term),
        )
        await server.start()
        return server

    async def serve_shards(self, served: Served, api: KafkaShards) -> None:
        """Serve Kafka here for good, on all shards. Raises TopicsError, OSError."""
        if self._sock is not None:
            await self._pause()
            self._server = kafka_server(self._resources, served, api, self._sock.dup(), node_id=self._node_id)
            await self._server.start()


class PostgresDoor(SplicedDoor):
    """The PostgreSQL port of a node. With several shards it is served here all the time."""

    def __init__(self, resources: Resources, owner: OwnerSource) -> None:
        """`owner` finds the owner of the only shard."""
        most = resources.settings.pg_max_connections

        def splice(sock: socket.socket) -> Splice:
            return Splice(sock, owner, lambda found: found.postgres, "TOPICS_PG_MAX_CONNECTIONS", max_connections=most)

        super().__init__(resources, resources.pg_socket, splice)

    def announce(self) -> None:
        """Write the port to its file and to the log. Raises StartError."""
        if self.port:
            announce_postgres(self._resources.settings, self.port)

    async def _serve(self, term: Term, sock: socket.socket) -> PostgresServer:
        try:
            return await start_postgres(self._resources, _SoleSessions(term, self._resources.settings), sock)
        except StartError as error:
            raise OSError(str(error)) from error

    async def serve_shards(self, served: Served) -> None:
        """Serve it here for good, on all shards. Raises StartError."""
        if self._sock is not None:
            self._server = await start_postgres(self._resources, served, self._sock.dup())


class SplicedDoors:
    """See Connections."""

    def __init__(self, *doors: SplicedDoor) -> None:
        self._doors = doors

    async def serve(self, term: Term) -> None:
        """See SplicedDoor."""
        for door in self._doors:
            await door.serve(term)

    async def pass_on(self, seconds: float = _DRAIN_SECONDS) -> None:
        """See SplicedDoor."""
        await asyncio.gather(*(door.pass_on(seconds) for door in self._doors))


class _SoleShards(LocalShards):
    """The only shard of a cluster, as long as it is owned here."""

    async def call(self, shard: int, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See Shards."""
        try:
            return await super().call(shard, method, *args, **kwargs)
        except NotHereError:
            raise TopicsError(Reason.NOT_READY, "the shard has left the node") from None


class _SoleSessions:
    """Sessions at the owner of the only shard: their calls run while it is certain that this is the owner."""

    def __init__(self, term: Term, settings: Settings) -> None:
        self.api = term.core.api
        self.authorizer = term.core.authorizer
        self._shards = _SoleShards({SQL_SHARD: OwnedShard(term.core, term.gate, term.running, term.lose)})
        self._timeout_seconds = settings.sql_statement_timeout

    def postgres(self) -> SessionParts:
        """See `listeners.Served`."""
        lost = self.api.metrics.postgres.lost
        return SessionParts(RelayedSessions(self._shards, self._timeout_seconds, lost), SessionCancels())


def _sole(term: Term) -> SoleTerm:
    """The ownership of the only shard."""
    assert isinstance(term, SoleTerm), "with several shards calls run on an API of their own"
    return term


def _is_probe(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["raw_path"] in _PROBES


def _gated(term: Term) -> Callable[[Make], Make]:
    """Let requests of Kafka wait until it is sure that the shard is owned; if it is not, their connections end."""

    def wrap(make: Make) -> Make:
        def gated(handler: Handler) -> Handler:
            def handle(context: Context, version: int, request: Message) -> Answer:
                if term.gate.is_open:
                    return handler(context, version, request)
                return _after_look(handler, context, version, request)

            return handle

        async def _after_look(handler: Handler, context: Context, version: int, request: Message) -> Message | None:
            if not await _is_owner(term):
                context.closing = True
                return None
            answer = handler(context, version, request)
            return answer if answer is None or isinstance(answer, dict) else await answer

        def made(server: ServerContext) -> Mapping[int, Handler]:
            return {api: gated(handler) for api, handler in make(server).items()}

        return made

    return wrap


async def _is_owner(term: Term) -> bool:
    """Look into the log. Return False, with the shard noted as lost, if another node owns it; also if that is not
    certain: the request then finds no owner."""
    try:
        await term.gate.look()
    except LostShardError as error:
        term.lose(error)
    except TopicsError as error:
        log.warning("%s", error.message)
    else:
        return True
    return False
