"""The interceptor that counts and times whole calls, by RPC and status code, and reports them to an observer."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, Protocol

import grpc

from topics_service.api.grpc.handlers import OUR_METHODS, Context, Handler, wrap_handler
from topics_service.api.request_context import HEADER, begin_call
from topics_service.statistics import RequestStatistics

_OK: Final = grpc.StatusCode.OK
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class CallEnd(Protocol):
    """The end of a call; `received` and `sent` count the messages of a stream, and are 0 for a single one."""

    def __call__(self, context: Context, code: grpc.StatusCode, *, received: int = 0, sent: int = 0) -> None: ...


CallObserver = Callable[[str, Any, Context, bool], CallEnd | None]
"""Called with the RPC, its request, its context and whether it streams; returns None to ignore the call."""


class CallMeter(grpc.aio.ServerInterceptor):
    """Counts every call of a method that exists in topics.v1, and begins its request context; belongs in front of what
    sets the status.

    A stream counts when it ends, with its whole duration. Handlers that stream must be async generators.
    """

    def __init__(self, statistics: RequestStatistics, observer: CallObserver | None = None) -> None:
        self._statistics = statistics
        self._observer = observer

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
        wrap: Callable[..., Any] = self._stream if handler.response_streaming else self._unary
        return wrap_handler(handler, wrap, rpc)  # type: ignore[no-any-return]

    def _unary(self, inner: Callable[[Any, Context], Awaitable[Any]], rpc: str) -> Callable[[Any, Context], Any]:
        async def call(request: Any, context: Context) -> Any:
            began, code, end = self._begin(), _OK, None
            try:
                await _identify(context)
                if self._observer is not None:
                    end = self._observer(rpc, request, context, False)
                return await inner(request, context)
            except BaseException as error:
                code = _code(context, error)
                raise
            finally:
                if end is not None:
                    end(context, code)
                self._end(rpc, code, began)

        return call

    def _stream(
        self, inner: Callable[[Any, Context], AsyncGenerator[Any, None]], rpc: str
    ) -> Callable[[Any, Context], Any]:
        async def call(request: Any, context: Context) -> AsyncIterator[Any]:
            began, code, end = self._begin(), _OK, None
            received = sent = 0

            async def counted(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
                nonlocal received
                async for each in requests:
                    received += 1
                    yield each

            try:
                await _identify(context)
                if self._observer is not None:
                    end = self._observer(rpc, request, context, True)
                    if end is not None and hasattr(request, "__aiter__"):
                        request = counted(request)
                async with aclosing(inner(request, context)) as replies:
                    async for reply in replies:
                        sent += 1
                        yield reply
            except BaseException as error:
                code = _code(context, error)
                raise
            finally:
                if end is not None:
                    end(context, code, received=received, sent=sent)
                self._end(rpc, code, began)

        return call

    def _begin(self) -> float:
        self._statistics.in_flight += 1
        return time.perf_counter()

    def _end(self, rpc: str, code: grpc.StatusCode, began: float) -> None:
        self._statistics.in_flight -= 1
        self._statistics.observe(rpc, code.name, time.perf_counter() - began)


async def _identify(context: Context) -> None:
    """Give the call its id; a client that chose it gets it back in the initial metadata."""
    request = begin_call(context.invocation_metadata() or (), context)
    if request.given is not None:
        await context.send_initial_metadata(((HEADER, request.given),))


def _code(context: Context, error: BaseException) -> grpc.StatusCode:
    """The status that an abort has set; a cancellation is CANCELLED, another error without a status UNKNOWN."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return grpc.StatusCode.CANCELLED
    code: Any = context.code()  # an int, whatever the stubs say
    found = code if isinstance(code, grpc.StatusCode) else _CODES.get(code)
    return grpc.StatusCode.UNKNOWN if found is None or found is _OK else found
