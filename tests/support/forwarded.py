"""An owner and a node that forwards to it, in the process of a test: real ports, a real engine, no cluster."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from starlette.types import ASGIApp

from topics_cluster.coordinator import Addresses
from topics_cluster.forward_grpc import GrpcForwarder
from topics_cluster.forward_http import ForwardingApp
from topics_cluster.forwarded import ForwardedCalls, ForwardedRequests
from topics_cluster.trust import Secret, Signer, Verifier
from topics_gateway.app import create_app
from topics_gateway.settings import GatewaySettings
from topics_gateway.transport import HttpServer
from topics_server.node.links import PeerTls
from topics_server.tls import HTTP_PROTOCOLS, Certificate
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.audit import AuditLog
from topics_service.api.grpc.handlers import OUR_METHODS, Handler
from topics_service.api.grpc.server import GrpcPort, create_calls
from topics_service.api.observers import Observers
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.storage.memory import MemoryStore

SECRET = Secret([b"a secret that the nodes of tests share"])


class Owner:
    """A node that serves. With `has_lost` it forwards instead, to an owner that never comes."""

    def __init__(
        self,
        authorizer: Authorizer | None = None,
        certificate: Certificate | None = None,
        *,
        is_cluster: bool = True,
    ) -> None:
        """With a certificate its ports have TLS, its host is localhost. Without `is_cluster` it is a single server."""
        self._host = "localhost" if certificate else "127.0.0.1"
        self.lines: list[dict[str, Any]] = []
        """The audit log."""
        audit = AuditLog(lambda line: self.lines.append(json.loads(line)))
        engine = Engine(MemoryStore(), SystemClock())
        self._commit = GroupCommit.for_engine(engine)
        self.api = TopicsApi(engine, self._commit, observers=Observers(audit.observe))
        calls = create_calls(self.api, authorizer=authorizer)
        self.http_verifier, self.grpc_verifier = Verifier(SECRET, ""), Verifier(SECRET, "")
        gateway = GatewaySettings()
        app = create_app(self.api, gateway, authorizer.cancelling() if authorizer else None, calls)
        self.has_lost = False
        self.front = Front(lambda: never())
        tls = certificate.context(HTTP_PROTOCOLS) if certificate else None
        either = ForwardedRequests(self._either(app), self.http_verifier, audit)
        self._http = HttpServer(either if is_cluster else app, bound(), tls=tls)
        credentials = certificate.grpc_credentials() if certificate else None
        self._grpc = GrpcPort(host="127.0.0.1", port=0, credentials=credentials)
        first = (ForwardedCalls(self.grpc_verifier, audit), _Lost(self)) if is_cluster else ()
        self._interceptors = (*first, *calls.interceptors)
        self._handlers = calls.handlers

    def _either(self, app: ASGIApp) -> ASGIApp:
        async def either(scope: Any, receive: Any, send: Any) -> None:
            await (self.front.http if self.has_lost else app)(scope, receive, send)

        return either

    async def start(self) -> None:
        """Listen."""
        await self._http.start()
        port = await self._grpc.start(self._interceptors, self._handlers)
        self.addresses = Addresses(http=f"{self._host}:{self._http.port}", grpc=f"{self._host}:{port}")
        self.http_verifier.audience, self.grpc_verifier.audience = self.addresses.http, self.addresses.grpc

    async def stop(self) -> None:
        """Die at once. Idempotent."""
        await self._http.stop(0)
        await self._grpc.stop(0)
        self._commit.stop()


class Front:
    """A node that forwards everything."""

    def __init__(
        self, owner: Callable[[], Any], *, tls: PeerTls | None = None, secret: Secret = SECRET, **options: Any
    ) -> None:
        """`tls` is used towards owners; `options` are those of ForwardingApp. `refusals` has the causes of each."""
        self.refusals: list[str] = []
        of_grpc: dict[str, Any] = {
            "hold_seconds": options.setdefault("hold_seconds", 10.0),
            "on_refused": options.setdefault("on_refused", self.refusals.append),
        }
        if tls is not None:
            options["tls"], of_grpc["credentials"] = tls.context, tls.credentials
        self.http = ForwardingApp(owner, Signer(secret), **options)
        self.grpc = GrpcForwarder(owner, Signer(secret), **of_grpc)
        self.calls = 0
        """Calls of gRPC so far."""
        self._server: HttpServer | None = None
        self._port: GrpcPort | None = None

    async def start(self) -> None:
        """Listen. `base` is then the URL of HTTP, `target` the address of gRPC."""
        self._server = HttpServer(self.http, bound())
        await self._server.start()
        self.base = f"http://127.0.0.1:{self._server.port}"
        self._port = GrpcPort(host="127.0.0.1", port=0)
        self.target = f"127.0.0.1:{await self._port.start((), [_Forwarded(self)])}"

    async def stop(self) -> None:
        """Stop. Nothing is left open at owners."""
        assert self._server is not None, "it runs"
        assert self._port is not None, "it runs"
        await self._server.stop(0)
        await self._port.stop(0)
        self.http.close()
        await self.grpc.close()


@asynccontextmanager
async def owning(
    authorizer: Authorizer | None = None, certificate: Certificate | None = None, *, is_cluster: bool = True
) -> AsyncIterator[Owner]:
    """An owner."""
    owner = Owner(authorizer, certificate, is_cluster=is_cluster)
    await owner.start()
    try:
        yield owner
    finally:
        await owner.stop()


@asynccontextmanager
async def fronting(owner: Callable[[], Any], **options: Any) -> AsyncIterator[Front]:
    """A node in front of what `owner` returns."""
    front = Front(owner, **options)
    await front.start()
    try:
        yield front
    finally:
        await front.stop()


async def never() -> Addresses:
    """Wait for an owner that never comes."""

    await asyncio.Event().wait()
    raise AssertionError("it waits without end")


def bound() -> socket.socket:
    """A socket on a free port of loopback."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.setblocking(False)
    return sock


class _Forwarded(grpc.GenericRpcHandler):
    def __init__(self, front: Front) -> None:
        self._front = front

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        self._front.calls += 1
        return self._front.grpc.handler(handler_call_details.method)


class _Lost(grpc.aio.ServerInterceptor):
    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if self._owner.has_lost and handler_call_details.method.startswith(OUR_METHODS):
            return self._owner.front.grpc.handler(handler_call_details.method)
        return await continuation(handler_call_details)
