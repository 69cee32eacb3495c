"""Wrappers of calls: the audit log learns their protocol and peer, and Kafka connections end with their key."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import unquote

import grpc

from topics_kafka.handlers import Answer, Context, Handler, HandlerTable, ServerContext
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_kafka.registry import AUDIT_ACTIONS, error_codes
from topics_service.api.access.auth import ANONYMOUS
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.audit import ACTIONS, AuditLog, Call, current_call
from topics_service.api.grpc.guard import Handler as GrpcHandler

_APPENDS: Final = frozenset({"topics.v1.TopicsService.Append", "topics.v1.TopicsService.AppendStream"})
_DENIED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)

App = Callable[[Any, Any, Any], Awaitable[None]]
Make = Callable[[ServerContext], HandlerTable]


def audited_app(app: App, log: AuditLog) -> App:
    """Return the HTTP application, with each call known to the audit log."""

    async def call(scope: Any, receive: Any, send: Any) -> None:
        client = scope.get("client")
        peer = _place(*client) if client else "?"
        current_call.set(Call(log, "websocket" if scope["type"] == "websocket" else "http", peer))
        await app(scope, receive, send)

    return call


class AuditInterceptor(grpc.aio.ServerInterceptor):
    """Makes calls that may change something known to the audit log. Belongs around the guard."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[GrpcHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> GrpcHandler:
        """Wrap the handler of one call."""
        handler: Any = await continuation(handler_call_details)
        rpc = handler_call_details.method[1:].replace("/", ".")
        if handler is None or (rpc not in ACTIONS and rpc not in _APPENDS):
            return handler  # type: ignore[no-any-return]
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                self._unary(handler.unary_unary), handler.request_deserializer, handler.response_serializer
            )
        return handler._replace(stream_stream=self._stream(handler.stream_stream))  # type: ignore[no-any-return]

    def _unary(self, inner: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Any]:
        async def call(request: Any, context: Any) -> Any:
            current_call.set(Call(self._log, "grpc", _grpc_place(context.peer())))
            return await inner(request, context)

        return call

    def _stream(self, inner: Callable[[Any, Any], AsyncGenerator[Any, None]]) -> Callable[[Any, Any], Any]:
        async def call(requests: Any, context: Any) -> AsyncIterator[Any]:
            current_call.set(Call(self._log, "grpc", _grpc_place(context.peer())))
            async with aclosing(inner(requests, context)) as replies:
                async for reply in replies:
                    yield reply

        return call


def audited_kafka(make: Make, log: AuditLog) -> Make:
    """Return a factory of the same handlers, with each call known to the audit log.

    Refusals, and outcomes that only the response has (`AuditAction.each`), are read from the responses.
    """

    def told(api: ApiKey, handler: Handler) -> Handler:
        def handle(context: Context, version: int, request: Message) -> Answer:
            call = Call(log, "kafka", context.peer, context.principal)
            current_call.set(call)
            answer = handler(context, version, request)
            if api not in AUDIT_ACTIONS or answer is None:
                return answer
            if isinstance(answer, dict):
                _tell(call, api, request, answer)
                return answer
            return _then(answer, lambda response: _tell(call, api, request, response))

        return handle

    return lambda door: {api: told(ApiKey(api), handler) for api, handler in make(door).items()}


def while_good(make: Make, authorizer: Authorizer) -> Make:
    """Return a factory of the same handlers, which end a connection once its key is revoked.

    The next request is answered as an unauthorized one, and the connection is closed behind the answer. A waiting fetch
    is cancelled and its connection closed: later records are not for that key.
    """

    def guarded(api: int, handler: Handler) -> Handler:
        # Only a fetch: a task of its own would begin later than its turn, and calls of a group have an order.
        waits = api == ApiKey.FETCH and not authorizer.open

        def handle(context: Context, version: int, request: Message) -> Answer:
            if not authorizer.is_valid(context.principal):
                context.principal, context.closing = ANONYMOUS, True
            answer = handler(context, version, request)
            if not waits or answer is None or isinstance(answer, dict):
                return answer
            running = asyncio.ensure_future(answer)
            authorizer.cancel_on_revocation(context.principal, running)
            return running

        return handle

    return lambda door: {api: guarded(api, handler) for api, handler in make(door).items()}


async def _then(answer: Awaitable[Message | None], told: Callable[[Message], None]) -> Message | None:
    response = await answer
    if response is not None:
        told(response)
    return response


def _tell(call: Call, api: ApiKey, request: Message, response: Message) -> None:
    action, kind, each = AUDIT_ACTIONS[api]
    for name in _denied(response):
        target = {kind: name if name is not None else request.get("group_id")}
        call.log.write(action, target, call=call, outcome="refused", reason="forbidden")
    if each and response["error_code"] not in _DENIED:
        failed = next(error_codes(api, response), 0)
        call.log.write(
            action,
            {kind: request[f"{kind}_id"], each: [entry["name"] for entry in request[each]]},
            call=call,
            outcome="refused" if failed else "done",
            reason=ErrorCode(failed).name.lower() if failed else "",
        )


def _denied(response: Any) -> Iterator[str | None]:
    """The names of what the response says is not allowed to the caller; None where it gives none."""
    if isinstance(response, list):
        for each in response:
            yield from _denied(each)
    elif isinstance(response, dict):
        if response.get("error_code") in _DENIED:
            yield next((response[name] for name in ("name", "group_id", "resource_name") if response.get(name)), None)
            return
        for name, value in response.items():
            if isinstance(value, list):
                below = list(_denied(value))
                yield from [response["name"]] if "name" in response and below and name == "partitions" else below


def _place(host: str, port: object) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _grpc_place(peer: str) -> str:
    """Host and port of gRPC's `ipv4:host:port` or `ipv6:%5Bhost%5D:port`."""
    return unquote(peer.partition(":")[2]) or peer
