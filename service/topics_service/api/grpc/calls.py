"""Calls of the gRPC services that come by another way than gRPC's own port, through the same interceptors."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, NoReturn

import grpc

from topics_service.api.grpc.handlers import Handler

Metadata = tuple[tuple[str, str], ...]
Trailing = tuple[tuple[str, str | bytes], ...]


class Services:
    """Collects handlers of services, in the place of a server."""

    def __init__(self) -> None:
        self.handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Add a service, as `grpc.aio.Server` does."""
        self.handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Do nothing, as `grpc.aio.Server`: the generic handlers of the service have these methods too."""


class _Details(grpc.HandlerCallDetails):
    def __init__(self, method: str, metadata: Metadata) -> None:
        self.method = method
        self.invocation_metadata = metadata


class CallContext:
    """Call context as handlers and interceptors use it; holds the final status of the call."""

    def __init__(self, metadata: Metadata, peer: str) -> None:
        """`peer` is an address as gRPC writes it, `ipv4:127.0.0.1:50000`."""
        self.details = ""
        self._metadata = metadata
        self._peer = peer
        self._code: grpc.StatusCode = grpc.StatusCode.OK
        self._trailing: Trailing = ()

    def invocation_metadata(self) -> Metadata:
        """The metadata of the request."""
        return self._metadata

    def trailing_metadata(self) -> Trailing:
        """Return the trailing metadata."""
        return self._trailing

    def set_trailing_metadata(self, trailing_metadata: Trailing) -> None:
        """Set the trailing metadata of a call that succeeds."""
        self._trailing = trailing_metadata

    def peer(self) -> str:
        """The address of the client."""
        return self._peer

    def code(self) -> grpc.StatusCode:
        """The status; OK until the call was aborted."""
        return self._code

    async def send_initial_metadata(self, metadata: object) -> None:
        """Do nothing: the gateway sends its headers itself."""

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Trailing = ()) -> NoReturn:
        """End the call with a status."""
        self.end(code, details, trailing_metadata)
        raise grpc.aio.AbortError

    def end(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Trailing = ()) -> None:
        """Set the status that the call has ended with."""
        self._code, self.details, self._trailing = code, details, trailing_metadata


class Calls:
    """Finds methods of `services`, each behind the `interceptors`, the first of which sees a call first."""

    def __init__(self, services: Services, interceptors: Sequence[grpc.aio.ServerInterceptor]) -> None:
        self.handlers = services.handlers
        self.interceptors = tuple(interceptors)

    def streams(self, method: str) -> bool | None:
        """Return whether the answer of `/service/Method` is a stream.

        None if there is no such method, or one whose request is a stream, which is not served here.
        """
        handler = self._find(_Details(method, ()))
        return None if handler is None or handler.request_streaming else bool(handler.response_streaming)

    async def open(self, method: str, context: CallContext) -> "OpenCall":
        """Let a call through the interceptors, for which its request need not have arrived.

        `method` must be one for which `streams` is not None. The call holds the memory until it has been answered, or
        until the task ends.
        """
        return OpenCall(await self.find(_Details(method, context.invocation_metadata())), context)

    async def find(self, details: grpc.HandlerCallDetails, at: int = 0) -> Handler:
        """Find the handler of one call, as it stands behind the interceptors from number `at` on; None if there is
        none."""
        if at == len(self.interceptors):
            return self._find(details)

        async def continuation(following: grpc.HandlerCallDetails) -> Handler:
            return await self.find(details, at + 1)

        interceptor: Any = self.interceptors[at]
        handler: Handler = await interceptor.intercept_service(continuation, details)
        return handler

    def _find(self, details: grpc.HandlerCallDetails) -> Handler:
        return next((found for each in self.handlers if (found := each.service(details)) is not None), None)


class OpenCall:
    """A call that waits for its request."""

    def __init__(self, handler: Any, context: CallContext) -> None:
        self._handler = handler
        self._context = context

    async def answers(self, request: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the messages that answer the serialized request, serialized too; the context then has the status."""
        handler, context = self._handler, self._context
        try:
            if handler.response_streaming:
                # A refusal, or a password that is checked first, makes any call a stream both ways.
                inner = handler.unary_stream or handler.stream_stream
                given = _only(request) if handler.request_streaming else _parsed(handler, request)
                async with aclosing(inner(given, context)) as messages:
                    async for message in messages:
                        yield _serialized(handler, message)
            else:
                yield _serialized(handler, await handler.unary_unary(_parsed(handler, request), context))
        except grpc.aio.AbortError:
            return


async def _only(request: bytes) -> AsyncGenerator[bytes, None]:
    yield request


def _parsed(handler: Any, request: bytes) -> Any:
    return request if handler.request_deserializer is None else handler.request_deserializer(request)


def _serialized(handler: Any, message: Any) -> bytes:
    made: bytes = message if handler.response_serializer is None else handler.response_serializer(message)
    return made
