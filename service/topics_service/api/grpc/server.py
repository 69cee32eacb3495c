"""The gRPC server: services, health and reflection."""

import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from topics_proto.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    group_service_pb2,
    group_service_pb2_grpc,
    queue_service_pb2,
    queue_service_pb2_grpc,
    router_service_pb2,
    router_service_pb2_grpc,
    sql_service_pb2,
    sql_service_pb2_grpc,
    topics_service_pb2,
    topics_service_pb2_grpc,
    watch_service_pb2,
)
from topics_proto.v1.topics_service_pb2 import BulkDiffRequest
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.bulk import BulkTopics
from topics_service.api.checkpoints import CheckpointCalls
from topics_service.api.cluster import ClusterApi
from topics_service.api.grpc import health
from topics_service.api.grpc.admin_servicer import AdminServicer, FindBulkReaders, Probed, no_bulk_readers
from topics_service.api.grpc.calls import Calls, Services
from topics_service.api.grpc.group_servicer import GroupServicer
from topics_service.api.grpc.guard import Guard
from topics_service.api.grpc.meter import CallMeter, CallObserver
from topics_service.api.grpc.options import filter_logs, server_options
from topics_service.api.grpc.queue_servicer import QueueServicer
from topics_service.api.grpc.router_servicer import RouterServicer
from topics_service.api.grpc.sql_servicer import SqlServicer
from topics_service.api.grpc.topics_servicer import TopicsServicer
from topics_service.api.grpc.watch_servicer import WatchServicer
from topics_service.api.interfaces import Topics
from topics_service.api.running import RunningCalls

log = logging.getLogger("topics.grpc")

DEFAULT_MAX_MESSAGE_BYTES: Final = (64 << 20) + (1 << 20)  # the HTTP body limit, and slack for the framing of rows

SERVICE_NAMES: Final = tuple(
    module.DESCRIPTOR.services_by_name[name].full_name
    for module, name in (
        (topics_service_pb2, "TopicsService"),
        (watch_service_pb2, "WatchService"),
        (queue_service_pb2, "QueueService"),
        (router_service_pb2, "RouterService"),
        (group_service_pb2, "GroupService"),
        (sql_service_pb2, "SqlService"),
        (admin_service_pb2, "AdminService"),
    )
)


class GrpcPort:
    """One TCP port of gRPC with health and reflection, in the clear without `credentials`.

    Lives on the event loop that calls `start`; starts once. Beyond `max_connections` (0: no limit) further ones are
    closed at once. The health of every service is NOT_SERVING until `set_serving(True)`. Other processes can listen on
    a port that `is_shared`.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        credentials: grpc.ServerCredentials | None = None,
        max_connections: int = 0,
        is_shared: bool = False,
    ) -> None:
        self._host = host
        self._port = port
        self._is_shared = is_shared
        self._credentials = credentials
        self._options = server_options(max_message_bytes, max_connections, is_shared=is_shared)
        self._health = health.HealthServicer(("", *SERVICE_NAMES))
        self._server: grpc.aio.Server | None = None

    async def start(
        self, interceptors: Sequence[grpc.aio.ServerInterceptor], handlers: Sequence[grpc.GenericRpcHandler]
    ) -> int:
        """Bind, accept calls and return the port, which matters when it was 0. Raises OSError when it is taken, and for
        an address that is none of this machine."""
        server = grpc.aio.server(interceptors=tuple(interceptors), options=self._options)
        server.add_generic_rpc_handlers(tuple(handlers))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((*SERVICE_NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        host = f"[{self._host}]" if ":" in self._host else self._host
        address = f"{host}:{self._port}"
        if not self._is_shared:
            _check(self._host, self._port)
        try:
            if self._credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen on {address}: {error}") from None
        filter_logs()
        await server.start()
        self._server = server
        return port

    async def stop(self, grace_seconds: float) -> None:
        """Take no new calls, let those under way finish for `grace_seconds`, then cancel them. Idempotent."""
        if self._server is None:
            return
        self._health.close()
        await self._server.stop(grace_seconds)

    def set_serving(self, serving: bool) -> None:
        """Set the health of every service, and of the server as a whole (the empty name)."""
        self._health.set_serving(serving)


def create_calls(
    api: Topics,
    *,
    authorizer: Authorizer | None = None,
    bulk_readers: FindBulkReaders = no_bulk_readers,
    checkpoints: CheckpointCalls | None = None,
    cluster: ClusterApi | None = None,
    observer: CallObserver | None = None,
    running: RunningCalls | None = None,
    bulk_topics: Callable[[BulkDiffRequest], BulkTopics] | None = None,
) -> Calls:
    """The services on `api`, behind the interceptors that count, observe and authorize each call.

    Authentication is disabled without `authorizer`. `bulk_readers` are the answer of ListBulkReaders; `observer`
    observes every call, `running` can break them off, and `bulk_topics` is that of TopicsServicer.
    """
    made = Services()
    services: Any = made
    topics_service_pb2_grpc.add_TopicsServiceServicer_to_server(TopicsServicer(api, bulk_topics), services)
    queue_service_pb2_grpc.add_QueueServiceServicer_to_server(QueueServicer(api), services)
    router_service_pb2_grpc.add_RouterServiceServicer_to_server(RouterServicer(api), services)
    group_service_pb2_grpc.add_GroupServiceServicer_to_server(GroupServicer(api), services)
    admin = AdminServicer(api, bulk_readers, checkpoints, cluster)
    admin_service_pb2_grpc.add_AdminServiceServicer_to_server(admin, services)
    if api.sql is not None:
        sql_service_pb2_grpc.add_SqlServiceServicer_to_server(SqlServicer(api.sql), services)
    WatchServicer(api).register(services)
    guard = Guard(authorizer or Authorizer(), api.metrics.refusals, api.observers, running)
    return Calls(made, (CallMeter(api.metrics.grpc, observer), guard))


def create_admin_calls(
    api: Probed, *, authorizer: Authorizer, cluster: ClusterApi, observer: CallObserver | None = None
) -> Calls:
    """The AdminService alone, for a node of a cluster."""
    services: Any = Services()
    admin_service_pb2_grpc.add_AdminServiceServicer_to_server(AdminServicer(api, cluster=cluster), services)
    guard = Guard(authorizer, api.metrics.refusals, api.observers)
    return Calls(services, (CallMeter(api.metrics.grpc, observer), guard))


class GrpcServer:
    """Serves `api` on one TCP port; see GrpcPort and `create_calls` for the parameters."""

    def __init__(
        self,
        api: Topics,
        *,
        host: str,
        port: int,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        authorizer: Authorizer | None = None,
        bulk_readers: FindBulkReaders = no_bulk_readers,
        checkpoints: CheckpointCalls | None = None,
        credentials: grpc.ServerCredentials | None = None,
        observer: CallObserver | None = None,
        max_connections: int = 0,
    ) -> None:
        self._port = GrpcPort(
            host=host,
            port=port,
            max_message_bytes=max_message_bytes,
            credentials=credentials,
            max_connections=max_connections,
        )
        self.calls = create_calls(
            api, authorizer=authorizer, bulk_readers=bulk_readers, checkpoints=checkpoints, observer=observer
        )
        """The same services, for another way to call them."""
        self.set_serving = self._port.set_serving
        self.stop = self._port.stop

    async def start(self) -> int:
        """See GrpcPort."""
        return await self._port.start(self.calls.interceptors, self.calls.handlers)


def _check(host: str, port: int) -> None:
    """Raise the system's error for an address: gRPC hides it, and writes lines to stderr."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, proto) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
