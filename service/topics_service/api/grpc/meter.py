"""The interceptor that counts calls and times them, by RPC and status code."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc

from topics_service.api.grpc.guard import OUR_METHODS, Context, Handler
from topics_service.api.request_ids import HEADER, begin_call
from topics_service.statistics import RequestStatistics

_OK = grpc.StatusCode.OK.name
_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class CallMeter(grpc.aio.ServerInterceptor):
    """Counts every call of a method that exists in topics.v1, and gives it its id; belongs in front of what sets the
    status.

    A stream counts when it ends, with its whole duration. Handlers that stream must be async generators.
    """

    def __init__(self, statistics: RequestStatistics) -> None:
        self._statistics = statistics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Wrap the handler of one call."""
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith(OUR_METHODS):
            return handler  # type: ignore[no-any-return]
        rpc = method.removeprefix(OUR_METHODS).replace("/", ".")
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                self._unary(handler.unary_unary, rpc), handler.request_deserializer, handler.response_serializer
            )
        kind = _KINDS[2 * handler.request_streaming + handler.response_streaming]
        wrap: Callable[..., Any] = self._stream if handler.response_streaming else self._unary
        return handler._replace(**{kind: wrap(getattr(handler, kind), rpc)})  # type: ignore[no-any-return]

    def _unary(self, inner: Callable[[Any, Context], Awaitable[Any]], rpc: str) -> Callable[[Any, Context], Any]:
        async def call(request: Any, context: Context) -> Any:
            began, code = self._begin(), _OK
            try:
                await _identify(context)
                return await inner(request, context)
            except BaseException as error:
                code = _code(context, error)
                raise
            finally:
                self._end(rpc, code, began)

        return call

    def _stream(
        self, inner: Callable[[Any, Context], AsyncGenerator[Any, None]], rpc: str
    ) -> Callable[[Any, Context], Any]:
        async def call(request: Any, context: Context) -> AsyncIterator[Any]:
            began, code = self._begin(), _OK
            try:
                await _identify(context)
                async with aclosing(inner(request, context)) as replies:
                    async for reply in replies:
                        yield reply
            except BaseException as error:
                code = _code(context, error)
                raise
            finally:
                self._end(rpc, code, began)

        return call

    def _begin(self) -> float:
        self._statistics.in_flight += 1
        return time.perf_counter()

    def _end(self, rpc: str, code: str, began: float) -> None:
        self._statistics.in_flight -= 1
        self._statistics.observe(rpc, code, time.perf_counter() - began)


async def _identify(context: Context) -> None:
    """Give the call its id; a client that chose it gets it back in the initial metadata."""
    request = begin_call(context.invocation_metadata() or ())
    if request.given is not None:
        await context.send_initial_metadata(((HEADER, request.given),))


def _code(context: Context, error: BaseException) -> str:
    """The status that an abort has set; a cancellation is CANCELLED, another error without a status UNKNOWN."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return grpc.StatusCode.CANCELLED.name
    number: Any = context.code()  # an int, whatever the stubs say
    for code in grpc.StatusCode:
        if code is not grpc.StatusCode.OK and number in (code, code.value[0]):
            return code.name
    return grpc.StatusCode.UNKNOWN.name
