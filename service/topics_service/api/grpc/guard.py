"""Interceptor of every call: authorizes it, and turns errors into the documented status."""

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, aclosing, nullcontext
from contextvars import ContextVar
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.message import DecodeError

from topics_service.api.access.auth import Principal
from topics_service.api.access.authorizer import Authorizer, authorize, rule_of
from topics_service.api.access.passwords import UnverifiedPasswordError
from topics_service.api.access.quota import SMALL_BYTES, Held, Usage, count_refusal
from topics_service.api.access.revocation import RevocableCall
from topics_service.api.grpc.handlers import OUR_METHODS, Context, Handler, function_of, wrap_handler
from topics_service.api.grpc.status import failure
from topics_service.api.memory_wait import wait_for
from topics_service.api.observers import NO_OBSERVERS, Observers
from topics_service.api.request_context import OWNER, RequestContext, current_request
from topics_service.api.running import LostCallError, RunningCalls
from topics_service.engine.errors import Reason, TopicsError, invalid

log = logging.getLogger("topics.grpc")

Refusals = Counter[tuple[str, str]]

# The call already has a status, or its client has left: nothing more can be sent.
_OVER: Final = (grpc.aio.AbortError, grpc.aio.InternalError)

_BROKEN_OFF: Final = (grpc.StatusCode.UNAVAILABLE, "the server broke the call off")
"""The status of a call that may have had its effect or not."""

# A large message takes its size three times: as bytes, as a message and as columns.
_DECODED: Final = 3

_caller: ContextVar[Principal] = ContextVar("caller")


def caller() -> Principal:
    """Return the caller of the current call. Only for handlers behind the guard."""
    return _caller.get()


class _CallContext:
    """One call's way in, past no authorizer."""

    def __init__(self, method: str, refusals: Refusals, running: RunningCalls | None = None) -> None:
        self.method = method
        self.refusals = refusals
        self._running = running

    def slot(self) -> AbstractContextManager[RevocableCall | None]:
        """Return the context manager in which the call runs."""
        return nullcontext()

    def check(self, request: Any) -> None:
        """Raise `invalid_request` for a request that could not be parsed."""
        _check(request)

    def parsed(self, data: bytes, parse: Callable[[bytes], Any]) -> Any:
        """Parse the newest message, which replaces the previous one."""
        return _parsed(data, parse)

    def enter(self) -> None:
        """Note that the call runs: from now on it can be broken off."""
        if self._running is not None:
            self._running.enter()

    async def cancelled(self, context: Context) -> None:
        """End a call that was broken off. Without a status, its client would wait for its deadline."""
        if self._running is not None and self._running.is_broken_off():
            await context.abort(*_BROKEN_OFF)

    def leave(self) -> None:
        """Release the resources of the call. Idempotent."""


class _AuthorizedCallContext(_CallContext):
    """Context of an authorized call. It counts against limits before its message arrives, which may never happen."""

    def __init__(
        self,
        authorizer: Authorizer,
        method: str,
        principal: Principal,
        refusals: Refusals,
        observers: Observers,
        running: RunningCalls | None,
    ) -> None:
        """Raises `throttled` when the caller has too many calls."""
        super().__init__(method, refusals, running)
        self._authorizer = authorizer
        self._observers = observers
        self._rpc = _rpc_of(method)
        self._principal = principal
        self._usage: Usage | None = None
        self._held = Held(None, authorizer.quotas.memory, _DECODED)
        if self._principal.key_id:
            usage = authorizer.quotas.for_key(self._principal.key_id)
            if rule_of(self._rpc).slot:
                usage.take_request()
                self._usage = usage
            self._held = Held(usage, authorizer.quotas.memory, _DECODED)
            task = asyncio.current_task()
            assert task is not None, "each call has its task"
            task.add_done_callback(self._end)  # no handler runs if the client leaves before its message arrived

    def slot(self) -> AbstractContextManager[RevocableCall | None]:
        return self._authorizer.while_valid(self._principal)

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
        """Raise `forbidden` unless the call is allowed, and `invalid_request` for a request that can't be parsed."""
        field = rule_of(self._rpc).field
        authorize(self._principal, self._rpc, getattr(request, field, "") if field else "", self._observers)
        _check(request)
        _caller.set(self._principal)


class _Undecodable:
    """Placeholder for a request that could not be parsed, until a handler can report it."""

    def __init__(self, error: DecodeError) -> None:
        self.error = error


class _Large:
    """Placeholder for a message that is decoded only once there is memory for it.

    It has the message's fields once that is decoded. `message` hands the message over without keeping it, since gRPC
    holds this object, and the message's bytes, until the call ends.
    """

    def __init__(self, data: bytes, parse: Callable[[bytes], Any], held: Held) -> None:
        self._held = held
        self._data = data
        self._parse = parse
        self._has_memory = asyncio.Event()
        self._message: Any = None
        self._error: TopicsError | None = None
        try:
            if held.ask(len(data), self._has_memory.set):
                self._decode()
            elif held.is_crowded:
                held.give_up()
        except TopicsError as error:
            self._error, self._data = error, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)

    async def message(self) -> Any:
        """Take the message, waiting for memory. Raises `throttled`."""
        if self._error is not None:
            raise self._error
        if self._message is None:
            await wait_for(self._has_memory, self._held)
            self._decode()
        message, self._message = self._message, None
        return message

    def _decode(self) -> None:
        self._message = _parsed(self._data, self._parse)
        self._data = b""


class Guard(grpc.aio.ServerInterceptor):
    """Authorizes calls, and turns exceptions of handlers into a status.

    A TopicsError has its own status; any other exception is INTERNAL, logged once and not disclosed. A request that
    can't be parsed is INVALID_ARGUMENT. A method without an implementation is UNIMPLEMENTED, without a log entry.
    Cancellation is passed on, since swallowing it would leak the call, unless the call was broken off. Health and
    reflection, which are not in topics.v1, need no authorization. Handlers must be coroutine functions or async
    generators; their replies may already be serialized.
    """

    def __init__(
        self,
        authorizer: Authorizer,
        refusals: Refusals | None = None,
        observers: Observers = NO_OBSERVERS,
        running: RunningCalls | None = None,
    ) -> None:
        """`refusals` counts the calls refused for a limit of their key; `running` gets those that may be broken off,
        which are UNAVAILABLE then."""
        self._authorizer = authorizer
        self._running = running
        self._observers = observers
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
            return None  # unknown method: UNIMPLEMENTED without authorization, since reflection discloses the same
        if not method.startswith(OUR_METHODS):
            return _guarded(handler, _CallContext(method, self._refusals))
        try:
            authorization = authorization_of(handler_call_details.invocation_metadata or ())
            principal = self._authorizer.identify(_rpc_of(method), authorization)
            return _guarded(handler, self._authorized(method, principal))
        except UnverifiedPasswordError as unverified:
            return self._verified(handler, method, unverified)
        except TopicsError as error:
            return _refused(_CallContext(method, self._refusals), error)

    def _authorized(self, method: str, principal: Principal) -> _AuthorizedCallContext:
        return _AuthorizedCallContext(
            self._authorizer, method, principal, self._refusals, self._observers, self._running
        )

    def _verified(
        self, handler: "grpc.RpcMethodHandler[Any, Any]", method: str, unverified: UnverifiedPasswordError
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """Check the password before the request is read, as only the call itself knows the address of its client.

        For that a call of any kind becomes a stream of bytes.
        """

        async def call(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
            try:
                peer = RequestContext("grpc", context).peer
                call_context = self._authorized(method, await self._authorizer.verify(unverified, peer))
            except TopicsError as error:
                await _abort(context, _CallContext(method, self._refusals), error)
            guarded = _guarded(handler, call_context)
            inner, serialize = function_of(guarded), guarded.response_serializer
            try:
                given = _deserialized(requests, guarded.request_deserializer)
                request = given if guarded.request_streaming else await anext(given, None)
                if request is None:
                    await context.abort(grpc.StatusCode.INTERNAL, "the request has no message")
                if guarded.response_streaming:
                    async with aclosing(inner(request, context)) as replies:
                        async for reply in replies:
                            yield reply if serialize is None else serialize(reply)
                else:
                    reply = await inner(request, context)
                    yield reply if serialize is None else serialize(reply)
            finally:
                call_context.leave()

        return grpc.stream_stream_rpc_method_handler(call)


def _rpc_of(method: str) -> str:
    return method[1:].replace("/", ".")


def authorization_of(metadata: Iterable[tuple[str, str | bytes]]) -> bytes | None:
    """The credential in the metadata. Raises `invalid_request` for two."""
    given = [value for name, value in metadata if name == "authorization"]
    if len(given) > 1:  # a proxy in front may check the other one
        raise invalid("more than one authorization in the metadata")
    authorization = given[0] if given else None
    return authorization.encode() if isinstance(authorization, str) else authorization


async def _deserialized(requests: AsyncIterator[bytes], parse: Callable[[bytes], Any] | None) -> AsyncIterator[Any]:
    async for request in requests:
        yield request if parse is None else parse(request)


def _refused(call_context: _CallContext, error: TopicsError) -> "grpc.RpcMethodHandler[Any, Any]":
    """End a call of any kind without reading its request, which may be large."""

    async def call(_: Any, context: Context) -> AsyncIterator[Any]:
        await _abort(context, call_context, error)
        yield  # makes it an async generator

    return grpc.stream_stream_rpc_method_handler(call)


def _guarded(
    handler: "grpc.RpcMethodHandler[Any, Any]", call_context: _CallContext
) -> "grpc.RpcMethodHandler[Any, Any]":
    inner = function_of(handler)
    wrap: Callable[[Any, _CallContext], Any]
    if handler.response_streaming:
        implemented = _stream_stream if handler.request_streaming else _stream
        wrap = implemented if inspect.isasyncgenfunction(inner) else _unimplemented_stream
    else:
        wrap = _unary if inspect.iscoroutinefunction(inner) else _unimplemented_unary
    parse, serialize = handler.request_deserializer, handler.response_serializer
    return wrap_handler(  # type: ignore[no-any-return]
        handler,
        wrap,
        call_context,
        parse=parse and _parse(parse, call_context),
        serialize=serialize and _serialize(serialize),
    )


def _parse(parse: Callable[[bytes], Any], call_context: _CallContext) -> Callable[[bytes], Any]:
    def parsed(data: bytes) -> Any:
        return call_context.parsed(data, parse)

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


def _unary(
    inner: Callable[[Any, Context], Awaitable[Any]], call_context: _CallContext
) -> Callable[[Any, Context], Awaitable[Any]]:
    async def call(request: Any, context: Context) -> Any:
        try:
            call_context.enter()
            with call_context.slot():
                if type(request) is _Large:
                    request = await request.message()
                call_context.check(request)
                answer = inner(request, context)
                del request  # only the handler keeps it, as it may be large
                reply = await answer
                current = current_request.get()
                if current is not None and current.owner:
                    context.set_trailing_metadata(((OWNER, current.owner),))
                return reply
        except _OVER:
            raise
        except asyncio.CancelledError:
            await call_context.cancelled(context)
            raise
        except Exception as error:
            await _abort(context, call_context, error)
        finally:
            call_context.leave()

    return call


def _stream(
    inner: Callable[[Any, Context], AsyncGenerator[Any, None]], call_context: _CallContext
) -> Callable[[Any, Context], Any]:
    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            call_context.enter()
            with call_context.slot() as running:
                if type(request) is _Large:
                    request = await request.message()
                call_context.check(request)
                async with aclosing(inner(request, context)) as replies:
                    async for reply in replies:
                        if running is None:
                            yield reply
                            continue
                        running.begin_sending()
                        yield reply
                        running.end_sending()
                current = current_request.get()
                if current is not None and current.owner:
                    context.set_trailing_metadata(((OWNER, current.owner),))
        except _OVER:
            raise
        except asyncio.CancelledError:
            await call_context.cancelled(context)
            raise
        except Exception as error:
            await _abort(context, call_context, error)
        finally:
            call_context.leave()

    return call


def _stream_stream(
    inner: Callable[[Any, Context], AsyncGenerator[Any, None]], call_context: _CallContext
) -> Callable[[Any, Context], Any]:
    return _stream(lambda requests, context: inner(_decoded(requests), context), call_context)


async def _decoded(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        if type(request) is _Large:
            request = await request.message()
        _check(request)
        yield request


def _unimplemented_unary(_: object, call_context: _CallContext) -> Callable[[Any, Context], Awaitable[Any]]:
    async def call(_: Any, context: Context) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{call_context.method} is not implemented")

    return _unary(call, call_context)


def _unimplemented_stream(_: object, call_context: _CallContext) -> Callable[[Any, Context], Any]:
    async def call(_: Any, context: Context) -> AsyncGenerator[Any, None]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{call_context.method} is not implemented")
        yield  # makes it an async generator

    return _stream(call, call_context)


def _check(request: object) -> None:
    if isinstance(request, _Undecodable):
        raise invalid(f"the request is not a valid message: {request.error}")


async def _abort(context: Context, call_context: _CallContext, error: Exception) -> NoReturn:
    if isinstance(error, LostCallError):
        await context.abort(*_BROKEN_OFF)
    if not isinstance(error, TopicsError):
        log.error("%s failed", call_context.method, exc_info=error)
        error = TopicsError(Reason.INTERNAL, "internal error")
    count_refusal(call_context.refusals, "grpc", error)
    code, details, trailing = failure(error)
    current = current_request.get()
    if current is not None and current.owner:
        trailing = (*trailing, (OWNER, current.owner))
    await context.abort(code, details, trailing)
