"""Requests that another node has forwarded, at the node that serves them: they count as those of their client."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Final, Self

import grpc
from starlette.types import ASGIApp, Receive, Scope, Send

from topics_cluster.owner_search import DISTRUSTED
from topics_cluster.trust import HEADER, HEADER_BYTES, ForgedError, Origin, Verifier
from topics_gateway.errors import error_response
from topics_gateway.response import Response
from topics_gateway.transport.connection_resources import ConnectionResources
from topics_service.api.audit import AuditLog
from topics_service.api.grpc.handlers import Context, Handler, wrap_handler
from topics_service.api.grpc.status import failure
from topics_service.api.request_context import HEADER_BYTES as REQUEST_ID
from topics_service.api.request_context import begin, begin_call
from topics_service.engine.errors import Reason, TopicsError

AUDIT_ACTION: Final = "request.forward"


class ForwardedClient(tuple[str, int]):
    """Host and port of the client of a forwarded request, in the place of those of the node that forwarded it."""

    request_id: str
    """The id that the request has at that node."""

    def __new__(cls, host: str, port: int, request_id: str) -> Self:
        client = super().__new__(cls, (host, port))
        client.request_id = request_id
        return client


class ForwardedRequests:
    """An ASGI application in front of another: a forwarded request appears as its client's, one forged is refused.

    The address of the client, and the limit of connections of its key, are those of its connection to the node that
    forwards. `scope["client"]` is a ForwardedClient then. Other requests pass as they are.
    """

    def __init__(self, app: ASGIApp, verifier: Verifier, audit: AuditLog | None = None) -> None:
        self._app = app
        self._verifier = verifier
        self._audit = audit
        self._connections: dict[tuple[str, int], _Connection] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = [value for name, value in scope["headers"] if name == HEADER_BYTES]
        if not given:
            await self._app(scope, receive, send)
            return
        subject = http_subject(scope)
        try:
            origin = self._verifier.verify(_only(given).decode("latin-1"), subject)
        except ForgedError as error:
            await self._refuse(scope, send, error)
            return
        client = _client_of(origin)
        headers = [field for field in scope["headers"] if field[0] != HEADER_BYTES]
        with self._connection(client) as resources:
            scope["state"]["connection_resources"] = resources
            await self._app({**scope, "client": client, "headers": headers}, receive, send)

    @contextmanager
    def _connection(self, client: ForwardedClient) -> Iterator[ConnectionResources]:
        """A client's connection counts while a request on it is here."""
        connection = self._connections.setdefault(client, _Connection())
        connection.requests += 1
        try:
            yield connection.resources
        finally:
            connection.requests -= 1
            if not connection.requests:
                del self._connections[client]
                connection.resources.close()

    async def _refuse(self, scope: Scope, send: Send, error: ForgedError) -> None:
        protocol = scope["type"]
        begin(dict(scope["headers"]).get(REQUEST_ID), scope.get("client"), protocol)
        note_forged(self._audit, error)
        kind = "http.response" if protocol == "http" else "websocket.http.response"
        response: Response = error_response(refusal(error), 0.0)
        headers = [
            (b"content-type", response.content_type),
            (b"content-length", b"%d" % len(response.body)),
            (b"connection", b"close"),
            (DISTRUSTED.encode(), str(error).encode()),
        ]
        await send({"type": f"{kind}.start", "status": response.status, "headers": headers})
        await send({"type": f"{kind}.body", "body": b"" if scope.get("method") == "HEAD" else response.body})


class _Connection:
    def __init__(self) -> None:
        self.resources = ConnectionResources()
        self.requests = 0


class ForwardedCalls(grpc.aio.ServerInterceptor):
    """The same for calls of gRPC; belongs in front of all other interceptors. Contexts are ForwardedContexts then."""

    def __init__(self, verifier: Verifier, audit: AuditLog | None = None) -> None:
        self._verifier = verifier
        self._audit = audit

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Wrap the handler of a forwarded call."""
        metadata = handler_call_details.invocation_metadata or ()
        given = [value for name, value in metadata if name == HEADER]
        if not given:
            return await continuation(handler_call_details)
        try:
            origin = self._verifier.verify(str(_only(given)), handler_call_details.method)
        except ForgedError as error:
            return self._refused(error)
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        wrap = _stream if handler.response_streaming else _unary
        return wrap_handler(handler, wrap, origin)  # type: ignore[no-any-return]

    def _refused(self, error: ForgedError) -> Handler:
        async def call(_: Any, context: Context) -> AsyncIterator[Any]:
            begin_call(context.invocation_metadata() or (), context)
            note_forged(self._audit, error)
            code, details, trailing = failure(refusal(error))
            await context.abort(code, details, (*trailing, (DISTRUSTED, str(error))))
            yield  # makes it an async generator

        return grpc.stream_stream_rpc_method_handler(call)


class ForwardedContext:
    """The context of a forwarded call: that of the call, but for the client's address."""

    def __init__(self, context: Context, origin: Origin) -> None:
        self._context = context
        self._origin = origin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    @property
    def request_id(self) -> str:
        """The id that the call has at the node that forwarded it."""
        return self._origin.request_id

    def peer(self) -> str:
        """The address of the client, as gRPC writes it."""
        client = self._origin.client
        return f"ipv6:{client}" if client.startswith("[") else f"ipv4:{client}"


def http_subject(scope: Scope) -> str:
    """Method and target of a request, as they are signed."""
    query = scope["query_string"]
    target: bytes = scope["raw_path"] + b"?" + query if query else scope["raw_path"]
    return f"{scope.get('method', 'GET')} {target.decode('latin-1')}"


def refusal(error: ForgedError) -> TopicsError:
    """The error of a request whose signature does not hold."""
    return TopicsError(Reason.UNAUTHORIZED, f"{HEADER} is refused: {error}")


def note_forged(audit: AuditLog | None, error: ForgedError) -> None:
    """Log that the current request is refused."""
    if audit is not None:
        audit.write(AUDIT_ACTION, {"cause": str(error)}, outcome="refused", reason=Reason.UNAUTHORIZED.code)


def _only(given: Sequence[Any]) -> Any:
    if len(given) > 1:
        raise ForgedError("there is more than one")
    return given[0]


def _client_of(origin: Origin) -> ForwardedClient:
    host, _, port = origin.client.rpartition(":")
    return ForwardedClient(host.strip("[]") or "?", int(port) if port.isdecimal() else 0, origin.request_id)


def _unary(inner: Callable[[Any, Any], Awaitable[Any]], origin: Origin) -> Callable[[Any, Context], Awaitable[Any]]:
    async def call(request: Any, context: Context) -> Any:
        return await inner(request, ForwardedContext(context, origin))

    return call


def _stream(inner: Callable[[Any, Any], Any], origin: Origin) -> Callable[[Any, Context], AsyncIterator[Any]]:
    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        async with aclosing(inner(request, ForwardedContext(context, origin))) as replies:
            async for reply in replies:
                yield reply

    return call
