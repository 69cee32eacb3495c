"""The standard health service (grpc.health.v1)."""
# ruff: noqa: N802  # methods carry the names of the proto

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, Literal

import grpc
from grpc.aio import ServicerContext
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVICE_NAME: Final[str] = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

Context = ServicerContext[Any, Any]
Reply = health_pb2.HealthCheckResponse


class HealthServicer(health_pb2_grpc.HealthServicer):
    """One health for all the named services, NOT_SERVING at first.

    Not the servicer that comes with grpcio-health-checking: a watcher of that one holds up the stop of the server for
    the whole grace time, and one that does not read can block a change of status.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(services)
        self._serving = False
        self._closed = False
        self._changed = asyncio.Event()  # set once, then replaced

    def set_serving(self, serving: bool) -> None:
        """Change the health of every service and tell the watchers. Nothing happens after `close`."""
        if not self._closed:
            self._serving = serving
            self._notify()

    def close(self) -> None:
        """Say NOT_SERVING from now on and end every Watch with UNAVAILABLE. Idempotent."""
        self._serving = False
        self._closed = True
        self._notify()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """The health of one service; NOT_FOUND for an unknown name."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return Reply(status=self._status())

    async def List(self, request: object, context: Context) -> object:
        """The health of every service."""
        statuses = {name: Reply(status=self._status()) for name in self._services}
        return health_pb2.HealthListResponse(statuses=statuses)  # type: ignore[attr-defined]  # the stubs lag behind

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The health of one service now and after each change; SERVICE_UNKNOWN for an unknown name."""
        known = request.service in self._services
        sent = None
        while True:
            status = self._status() if known else Reply.SERVICE_UNKNOWN
            if status != sent:
                sent = status
                yield Reply(status=status)  # a slow reader misses statuses in between, never the last one
            elif self._closed:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
            else:
                await self._changed.wait()

    def _status(self) -> Literal[1, 2]:
        return Reply.SERVING if self._serving else Reply.NOT_SERVING

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
