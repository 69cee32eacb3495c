"""The gRPC door's calls as spans, by OpenTelemetry's conventions for RPC servers."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import grpc
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from topics_server.tracing.http import NAMES, PACKAGE, UNTRACED
from topics_server.tracing.spans import CallSpan, Spans, named
from topics_service.api.access.authorizer import rule_of
from topics_service.api.grpc.guard import OUR_METHODS
from topics_service.api.grpc.guard import Handler as GrpcHandler

_KINDS: Final = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
# The conventions' list of what is the server's fault.
_OURS: Final = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})


class TraceInterceptor(grpc.aio.ServerInterceptor):
    """Makes a span of every call of topics.v1, of a stream as a whole; belongs around the guard."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[GrpcHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> GrpcHandler:
        """Wrap the handler of one call."""
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        rpc = method.removeprefix(OUR_METHODS).replace("/", ".")
        if handler is None or not method.startswith(OUR_METHODS) or rpc in UNTRACED:
            return handler  # type: ignore[no-any-return]
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                self._unary(handler.unary_unary, rpc), handler.request_deserializer, handler.response_serializer
            )
        kind = _KINDS[2 * handler.request_streaming + handler.response_streaming]
        wrap: Callable[..., Any] = self._stream if handler.response_streaming else self._unary
        return handler._replace(**{kind: wrap(getattr(handler, kind), rpc)})  # type: ignore[no-any-return]

    def _begin(self, rpc: str, request: Any, context: Any, *, children: bool) -> CallSpan | None:
        service, _, method = rpc.partition(".")
        attributes: dict[str, str | int | bool] = {
            "rpc.system": "grpc",
            "rpc.service": PACKAGE + service,
            "rpc.method": method,
        }
        field = rule_of(PACKAGE + rpc).field
        if field in NAMES and (name := getattr(request, field, "")):
            attributes[NAMES[field]] = named(name)
        headers = {
            key: value
            for key, value in context.invocation_metadata() or ()
            if key in ("traceparent", "tracestate") and isinstance(value, str)
        }
        return self._spans.begin(f"{PACKAGE}{service}/{method}", attributes, headers=headers, children=children)

    def _unary(self, inner: Callable[[Any, Any], Awaitable[Any]], rpc: str) -> Callable[[Any, Any], Any]:
        async def call(request: Any, context: Any) -> Any:
            span = self._begin(rpc, request, context, children=True)
            if span is None:
                return await inner(request, context)
            code = grpc.StatusCode.OK
            try:
                return await inner(request, context)
            except BaseException as error:
                code = _code(context, error)
                raise
            finally:
                _end(span, context, code)

        return call

    def _stream(self, inner: Callable[[Any, Any], AsyncGenerator[Any, None]], rpc: str) -> Callable[[Any, Any], Any]:
        async def call(request: Any, context: Any) -> AsyncIterator[Any]:
            span = self._begin(rpc, request, context, children=False)
            code, sent, taken = grpc.StatusCode.OK, 0, 0

            async def counted(requests: Any) -> AsyncIterator[Any]:
                nonlocal taken
                async for each in requests:
                    taken += 1
                    yield each

            if span is not None and hasattr(request, "__aiter__"):
                request = counted(request)
            try:
                async with aclosing(inner(request, context)) as replies:
                    async for reply in replies:
                        sent += 1
                        yield reply
            except BaseException as error:
                code = _code(context, error)
                raise
            finally:
                if span is not None:
                    if taken or sent:
                        span.span.set_attributes({"topics.stream.received": taken, "topics.stream.sent": sent})
                    _end(span, context, code)

        return call


def _end(span: CallSpan, context: Any, code: grpc.StatusCode) -> None:
    span.span.set_attribute("rpc.grpc.status_code", code.value[0])
    if code is grpc.StatusCode.CANCELLED:
        span.span.set_attribute("topics.gone", True)
    elif code is not grpc.StatusCode.OK:
        span.fail(_reason(context) or code.name, ours=code.name in _OURS)
    span.end()


def _code(context: Any, error: BaseException) -> grpc.StatusCode:
    """The status that an abort has set; a cancellation is CANCELLED, another error without a status UNKNOWN."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return grpc.StatusCode.CANCELLED
    code = context.code()
    found = code if isinstance(code, grpc.StatusCode) else _CODES.get(code)
    return grpc.StatusCode.UNKNOWN if found is None or found is grpc.StatusCode.OK else found


def _reason(context: Any) -> str:
    """The stable code that the status tells in its details; "" without."""
    for key, value in context.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info):
                    return str(info.reason).lower()
    return ""
