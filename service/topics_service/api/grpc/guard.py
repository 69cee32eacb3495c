"""The interceptor that every call passes: what handlers raise becomes the status that the client is promised."""

import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from topics_service.api.grpc.status import failure
from topics_service.engine.errors import Reason, TopicsError, invalid

log = logging.getLogger("topics.grpc")

OUR_METHODS: Final = "/topics.v1."

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"  # generic in the stubs only
Context = grpc.aio.ServicerContext[Any, Any]


class _Undecodable:
    """Stands for a request that is not the message it should be, until a handler can tell the client."""

    def __init__(self, error: DecodeError) -> None:
        self.error = error


class ErrorGuard(grpc.aio.ServerInterceptor):
    """Turns TopicsError into its status and any other exception into INTERNAL, logged once and not shown.

    A request that does not parse is INVALID_ARGUMENT. A method that the servicer left as generated is UNIMPLEMENTED
    without a log entry. Cancellation passes through: a swallowed one leaks the call. Only services in topics.v1 are
    touched, and handlers must be coroutine functions or async generators.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Wrap the handler of one call."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith(OUR_METHODS):
            return handler
        return _guarded(handler, method)


def _guarded(handler: "grpc.RpcMethodHandler[Any, Any]", method: str) -> "grpc.RpcMethodHandler[Any, Any]":
    inner: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    wrap: Callable[[Any, str], Any]
    if handler.response_streaming:
        make = (
            grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
        )
        wrap = _stream if inspect.isasyncgenfunction(inner) else _unbuilt_stream
    else:
        make = (
            grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        )
        wrap = _unary if inspect.iscoroutinefunction(inner) else _unbuilt_unary
    parse = handler.request_deserializer
    if parse is not None and not handler.request_streaming:
        parse = _parse(parse)
    return make(wrap(inner, method), parse, handler.response_serializer)


def _parse(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def parsed(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError as error:
            return _Undecodable(error)

    return parsed


def _unary(inner: Callable[[Any, Context], Awaitable[Any]], method: str) -> Callable[[Any, Context], Awaitable[Any]]:
    async def call(request: Any, context: Context) -> Any:
        try:
            _check(request)
            return await inner(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _abort(context, method, error)

    return call


def _stream(inner: Callable[[Any, Context], AsyncGenerator[Any, None]], method: str) -> Callable[[Any, Context], Any]:
    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            _check(request)
            async with aclosing(inner(request, context)) as replies:
                async for reply in replies:
                    yield reply
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _abort(context, method, error)

    return call


def _unbuilt_unary(_: object, method: str) -> Callable[[Any, Context], Awaitable[Any]]:
    async def call(_: Any, context: Context) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{method} is not built yet")

    return call


def _unbuilt_stream(_: object, method: str) -> Callable[[Any, Context], Any]:
    async def call(_: Any, context: Context) -> AsyncIterator[Any]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{method} is not built yet")
        yield  # makes it an async generator

    return call


def _check(request: object) -> None:
    if isinstance(request, _Undecodable):
        raise invalid(f"the request is not a valid message: {request.error}")


async def _abort(context: Context, method: str, error: Exception) -> NoReturn:
    if not isinstance(error, TopicsError):
        log.error("%s failed", method, exc_info=error)
        error = TopicsError(Reason.INTERNAL, "internal error")
    await context.abort(*failure(error))
