"""The interceptor that every call passes: first the gate, then errors become the status that the client is promised."""

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, aclosing, nullcontext
from contextvars import ContextVar
from typing import Any, Final, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from topics_service.api.access import Gate, authorize, rule_of
from topics_service.api.auth import Principal
from topics_service.api.grpc.status import failure
from topics_service.api.patience import wait_for
from topics_service.api.quota import SMALL_BYTES, Held, Usage, count_refusal
from topics_service.engine.errors import Reason, TopicsError, invalid

log = logging.getLogger("topics.grpc")

OUR_METHODS: Final = "/topics.v1."

Refusals = Counter[tuple[str, str]]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"  # generic in the stubs only
Context = grpc.aio.ServicerContext[Any, Any]

# The call has its status, or its client left while it got one: nothing more can be sent.
_OVER: Final = (grpc.aio.AbortError, grpc.aio.InternalError)

# A large message takes its size as it came, as a message and as columns.
_DECODED: Final = 3

_caller: ContextVar[Principal] = ContextVar("caller")


def caller() -> Principal:
    """Who makes the call that is being handled. Only for handlers behind the guard."""
    return _caller.get()


class _Way:
    """One call's way in, past no gate."""

    def __init__(self, method: str, refusals: Refusals) -> None:
        self.method = method
        self.refusals = refusals

    def slot(self) -> AbstractContextManager[None]:
        """What the call passes while it runs."""
        return nullcontext()

    def check(self, request: Any) -> None:
        """Raise `invalid_request` for a request that is no message."""
        _check(request)

    def parsed(self, data: bytes, parse: Callable[[bytes], Any]) -> Any:
        """Return what stands for the newest message, which is `data`, in place of the one before."""
        return _parsed(data, parse)

    def leave(self) -> None:
        """The call is over. Idempotent."""


class _Pass(_Way):
    """One call's way through the gate. It counts from here on, before its message has arrived: that may never come."""

    def __init__(
        self, gate: Gate, method: str, metadata: Iterable[tuple[str, str | bytes]], refusals: Refusals
    ) -> None:
        """Raises `invalid_request` for two keys, `unauthorized`, and `throttled` when its key has too many calls."""
        super().__init__(method, refusals)
        self._gate = gate
        self._rpc = method[1:].replace("/", ".")
        given = [value for name, value in metadata if name == "authorization"]
        if len(given) > 1:  # a proxy in front may go by the other one
            raise invalid("more than one authorization in the metadata")
        authorization = given[0] if given else None
        if isinstance(authorization, str):
            authorization = authorization.encode()
        self._principal = gate.identify(self._rpc, authorization)
        self._usage: Usage | None = None
        self._held = Held(None, gate.quotas.memory, _DECODED)
        if self._principal.key_id:
            usage = gate.quotas.of(self._principal.key_id)
            if rule_of(self._rpc).slot:
                usage.take_request()
                self._usage = usage
            self._held = Held(usage, gate.quotas.memory, _DECODED)
            task = asyncio.current_task()
            assert task is not None, "each call has its task"
            task.add_done_callback(self._end)  # a client that leaves before its message has come calls no handler

    def slot(self) -> AbstractContextManager[None]:
        return self._gate.while_known(self._principal)

    def parsed(self, data: bytes, parse: Callable[[bytes], Any]) -> Any:
        self._held.release()
        return _parsed(data, parse) if len(data) <= SMALL_BYTES else _Large(data, parse, self._held)

    def leave(self) -> None:
        usage, self._usage = self._usage, None
        if usage is not None:
            usage.in_flight -= 1
        self._held.release()

    def _end(self, _: object) -> None:
        self.leave()

    def check(self, request: Any) -> None:
        """Raise `forbidden` unless the call may be made, and `invalid_request` for a request that is no message."""
        field = rule_of(self._rpc).field
        authorize(self._principal, self._rpc, getattr(request, field, "") if field else "")
        _check(request)
        _caller.set(self._principal)


class _Undecodable:
    """Stands for a request that is not the message it should be, until a handler can tell the client."""

    def __init__(self, error: DecodeError) -> None:
        self.error = error


class _Large:
    """Stands for a message that is decoded only once there is memory for that, until a handler takes it.

    It has the message's fields as soon as that is decoded. What is `taken` is not kept here: gRPC holds this object,
    and the message's bytes, until the call is over.
    """

    def __init__(self, data: bytes, parse: Callable[[bytes], Any], held: Held) -> None:
        self._held = held
        self._data = data
        self._parse = parse
        self._room = asyncio.Event()
        self._message: Any = None
        self._error: TopicsError | None = None
        try:
            if held.ask(len(data), self._room.set):
                self._decode()
            elif held.is_crowded:
                held.give_up()
        except TopicsError as error:
            self._error, self._data = error, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)

    async def taken(self) -> Any:
        """The message. Waits for memory. Raises `throttled`."""
        if self._error is not None:
            raise self._error
        if self._message is None:
            await wait_for(self._room, self._held)
            self._decode()
        message, self._message = self._message, None
        return message

    def _decode(self) -> None:
        self._message = _parsed(self._data, self._parse)
        self._data = b""


class Guard(grpc.aio.ServerInterceptor):
    """Lets a call through the gate, or refuses it; what handlers raise becomes a status.

    TopicsError has its own, any other exception is INTERNAL, logged once and not shown. A request that does not parse
    is INVALID_ARGUMENT. A method that the servicer left as generated is UNIMPLEMENTED without a log entry. Cancellation
    passes through: a swallowed one leaks the call. Health and reflection, which are not in topics.v1, have no gate to
    pass. Handlers must be coroutine functions or async generators; what they answer may be serialized already.
    """

    def __init__(self, gate: Gate, refusals: Refusals | None = None) -> None:
        """`refusals` are counted there: those for a limit of a key."""
        self._gate = gate
        self._refusals: Refusals = Counter() if refusals is None else refusals

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Wrap the handler of one call."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return None  # no such method: UNIMPLEMENTED for everyone, since reflection tells as much
        if not method.startswith(OUR_METHODS):
            return _guarded(handler, _Way(method, self._refusals))
        try:
            way = _Pass(self._gate, method, handler_call_details.invocation_metadata or (), self._refusals)
        except TopicsError as error:
            return _refused(_Way(method, self._refusals), error)
        return _guarded(handler, way)


def _refused(way: _Way, error: TopicsError) -> "grpc.RpcMethodHandler[Any, Any]":
    """Ends a call of any kind without reading its request, which may be large."""

    async def call(_: Any, context: Context) -> AsyncIterator[Any]:
        await _abort(context, way, error)
        yield  # makes it an async generator

    return grpc.stream_stream_rpc_method_handler(call)


def _guarded(handler: "grpc.RpcMethodHandler[Any, Any]", way: _Way) -> "grpc.RpcMethodHandler[Any, Any]":
    inner: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    wrap: Callable[[Any, _Way], Any]
    if handler.response_streaming:
        make = (
            grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
        )
        built = _stream_stream if handler.request_streaming else _stream
        wrap = built if inspect.isasyncgenfunction(inner) else _unbuilt_stream
    else:
        make = (
            grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        )
        wrap = _unary if inspect.iscoroutinefunction(inner) else _unbuilt_unary
    parse, serialize = handler.request_deserializer, handler.response_serializer
    if parse is not None:
        parse = _parse(parse, way)
    if serialize is not None:
        serialize = _serialize(serialize)
    return make(wrap(inner, way), parse, serialize)


def _parse(parse: Callable[[bytes], Any], way: _Way) -> Callable[[bytes], Any]:
    def parsed(data: bytes) -> Any:
        return way.parsed(data, parse)

    return parsed


def _parsed(data: bytes, parse: Callable[[bytes], Any]) -> Any:
    try:
        return parse(data)
    except DecodeError as error:
        return _Undecodable(error)


def _serialize(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    def serialized(response: Any) -> bytes:
        return response if isinstance(response, bytes) else serialize(response)

    return serialized


def _unary(inner: Callable[[Any, Context], Awaitable[Any]], way: _Way) -> Callable[[Any, Context], Awaitable[Any]]:
    async def call(request: Any, context: Context) -> Any:
        try:
            with way.slot():
                if type(request) is _Large:
                    request = await request.taken()
                way.check(request)
                answer = inner(request, context)
                del request  # the handler's alone: it may be large
                return await answer
        except _OVER:
            raise
        except Exception as error:
            await _abort(context, way, error)
        finally:
            way.leave()

    return call


def _stream(inner: Callable[[Any, Context], AsyncGenerator[Any, None]], way: _Way) -> Callable[[Any, Context], Any]:
    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            with way.slot():
                if type(request) is _Large:
                    request = await request.taken()
                way.check(request)
                async with aclosing(inner(request, context)) as replies:
                    async for reply in replies:
                        yield reply
        except _OVER:
            raise
        except Exception as error:
            await _abort(context, way, error)
        finally:
            way.leave()

    return call


def _stream_stream(
    inner: Callable[[Any, Context], AsyncGenerator[Any, None]], way: _Way
) -> Callable[[Any, Context], Any]:
    return _stream(lambda requests, context: inner(_decoded(requests), context), way)


async def _decoded(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        if type(request) is _Large:
            request = await request.taken()
        _check(request)
        yield request


def _unbuilt_unary(_: object, way: _Way) -> Callable[[Any, Context], Awaitable[Any]]:
    async def call(_: Any, context: Context) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{way.method} is not built yet")

    return _unary(call, way)


def _unbuilt_stream(_: object, way: _Way) -> Callable[[Any, Context], Any]:
    async def call(_: Any, context: Context) -> AsyncGenerator[Any, None]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{way.method} is not built yet")
        yield  # makes it an async generator

    return _stream(call, way)


def _check(request: object) -> None:
    if isinstance(request, _Undecodable):
        raise invalid(f"the request is not a valid message: {request.error}")


async def _abort(context: Context, way: _Way, error: Exception) -> NoReturn:
    if not isinstance(error, TopicsError):
        log.error("%s failed", way.method, exc_info=error)
        error = TopicsError(Reason.INTERNAL, "internal error")
    count_refusal(way.refusals, "grpc", error)
    await context.abort(*failure(error))
