"""Forwarding of gRPC calls to the owner of the shard, as bytes."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final

import grpc

from topics_cluster.calls import find_call
from topics_cluster.forwarded import ForwardedContext
from topics_cluster.owner_search import (
    DISTRUSTED,
    HOLD_SECONDS,
    NOT_OWNER,
    DistrustedError,
    OwnerSearch,
    OwnerSource,
    no_owner,
    not_owner,
)
from topics_cluster.trust import HEADER, Origin, Signer
from topics_net import background
from topics_service.api.grpc.handlers import Context, Handler
from topics_service.api.grpc.status import failure
from topics_service.api.request_context import OWNER, begin_call
from topics_service.engine.errors import TopicsError

log: Final = logging.getLogger("topics.cluster")

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 11_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 250),
    ("grpc.max_reconnect_backoff_ms", 250),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)
# Metadata of one connection or of gRPC itself.
_OWN: Final = frozenset(("user-agent", "te", "content-type", HEADER))
_SLICE_SECONDS: Final = 0.05  # of waiting for a connection, after which another node may own the shard
_UNAVAILABLE: Final = grpc.StatusCode.UNAVAILABLE
_DETAILS: Final = "grpc-status-details-bin"  # in the answers of our servers
Metadata = tuple[tuple[str, str | bytes], ...]


class GrpcForwarder:
    """Gives calls to the owner of the shard, and its answers to the clients as they are.

    Messages stay bytes. Metadata, deadline, status and its details go through both ways, and so does a cancellation.
    A call that reaches no owner, or one that says that it owns nothing any more, is held for `hold_seconds` and never
    beyond its deadline, then it is `not_ready`. Once a call may have reached an owner it is only repeated if it is
    declared idempotent, its request is a single message, and nothing of the answer was sent; else it is UNAVAILABLE.
    """

    def __init__(
        self,
        owner: OwnerSource,
        signer: Signer,
        *,
        credentials: Callable[[], grpc.ChannelCredentials | None] = lambda: None,
        hold_seconds: float = HOLD_SECONDS,
        on_refused: Callable[[str], None] = lambda _cause: None,
    ) -> None:
        """`credentials` returns those of each new channel; None is no TLS. `on_refused` gets the cause for which an
        owner refuses what this node forwards."""
        self._owner = owner
        self._signer = signer
        self._credentials = credentials
        self._hold_seconds = hold_seconds
        self._on_refused = on_refused
        self._channels: dict[str, _Channel] = {}

    @property
    def in_flight(self) -> int:
        """Calls that have been given to an owner."""
        return sum(channel.calls for channel in self._channels.values())

    def handler(self, method: str) -> Handler:
        """The handler of a method, `/topics.v1.TopicsService/Append`; None if there is no such method."""
        declared = find_call(method[1:].replace("/", "."))
        if declared is None:
            return None

        streams = declared.request_streams or declared.response_streams

        async def unary(request: bytes, context: Context) -> bytes:
            call = self._call(method, context, is_repeatable=declared.is_repeatable)
            return await self._unary(call, request)

        async def stream(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            call = self._call(method, context, is_repeatable=declared.is_repeatable)
            if not declared.request_streams:
                call.request = await anext(requests, None)
                if call.request is None:
                    await context.abort(grpc.StatusCode.INTERNAL, "the request has no message")
            async with aclosing(self._stream(call, requests)) as answers:
                async for answer in answers:
                    yield answer

        if streams:
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)

    async def ask(self, method: str, request: bytes, origin: Origin, seconds: float) -> bytes:
        """Make a call of this node's own to the owner, once, which must take no longer. Raises `not_ready`, which is a
        DistrustedError if the owner refuses it."""
        address = (await OwnerSearch(self._owner, seconds).next()).grpc
        channel = self._channel(address)
        with channel:
            if not await channel.is_ready():
                raise no_owner()
            signature = self._signer.sign(origin, address, method)
            try:
                reply: bytes = await channel.unary(method)(request, timeout=seconds, metadata=((HEADER, signature),))
            except grpc.aio.AioRpcError as error:
                cause = dict(error.trailing_metadata() or ()).get(DISTRUSTED)
                raise (no_owner() if cause is None else DistrustedError(str(cause))) from error
            return reply

    async def leave(self, address: str) -> None:
        """End the calls at a node, host:port of its gRPC port, that is known to be lost."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.close()

    async def close(self) -> None:
        """Close all channels."""
        for address in list(self._channels):
            await self.leave(address)

    def _call(self, method: str, context: Context, *, is_repeatable: bool) -> "_Call":
        return _Call(method, context, self._owner, self._hold_seconds, is_repeatable, self._on_refused)

    async def _unary(self, call: "_Call", request: bytes) -> bytes:
        while True:
            channel = await self._connected(call)
            with channel:
                made = channel.unary(call.method)(
                    request, timeout=call.context.time_remaining(), metadata=self._metadata(call, channel)
                )
                try:
                    reply: bytes = await made
                except (grpc.aio.AioRpcError, asyncio.CancelledError):
                    await call.end_unless_again(made, channel.address, can_repeat=True)
                    continue
                await call.begin_answer(made, channel.address)
                call.context.set_trailing_metadata(await made.trailing_metadata())
                return reply

    async def _stream(self, call: "_Call", requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        while True:
            channel = await self._connected(call)
            with channel:
                made = channel.stream(call.method)(
                    requests if call.request is None else _only(call.request),
                    timeout=call.context.time_remaining(),
                    metadata=self._metadata(call, channel),
                )
                try:
                    async for reply in made:
                        await call.begin_answer(made, channel.address)
                        yield reply
                    if await made.code() is not grpc.StatusCode.OK:
                        raise asyncio.CancelledError
                except (grpc.aio.AioRpcError, asyncio.CancelledError):
                    await call.end_unless_again(made, channel.address, can_repeat=call.request is not None)
                    continue
                finally:
                    made.cancel()
                await call.begin_answer(made, channel.address)
                call.context.set_trailing_metadata(await made.trailing_metadata())
                return

    async def _connected(self, call: "_Call") -> "_Channel":
        """A channel that is connected to the owner. Ends the call if there is none in time."""
        try:
            while True:
                if isinstance(call.context, ForwardedContext):
                    raise not_owner()
                address = (await call.search.next()).grpc
                try:
                    channel = self._channel(address)
                except OSError as error:  # of the files of certificates
                    log.warning("can't connect to %s: %s", address, error)
                    continue
                if await channel.is_ready():
                    return channel
        except TopicsError as error:
            code, details, trailing = failure(error)
            if isinstance(call.context, ForwardedContext):
                trailing = (*trailing, (NOT_OWNER, b"1"))
            await call.context.abort(code, details, trailing)

    def _channel(self, address: str) -> "_Channel":
        channel = self._channels.get(address)
        if channel is None:
            for other in [each for each in self._channels.values() if not each.calls]:
                del self._channels[other.address]
                other.close_later()
            channel = self._channels[address] = _Channel(address, self._credentials())
        return channel

    def _metadata(self, call: "_Call", channel: "_Channel") -> Metadata:
        signature = self._signer.sign(call.origin, channel.address, call.method)
        return (*call.metadata, (HEADER, signature))


class _Call:
    """One call of a client."""

    def __init__(
        self,
        method: str,
        context: Context,
        owner: OwnerSource,
        hold_seconds: float,
        is_repeatable: bool,
        on_refused: Callable[[str], None],
    ) -> None:
        given = tuple(context.invocation_metadata() or ())
        request = begin_call(given, context)
        remaining = context.time_remaining()
        self.method = method
        self.context = context
        self.metadata: Metadata = tuple((name, value) for name, value in given if name not in _OWN)
        self.origin = Origin(request.peer, request.text)
        self.search = OwnerSearch(owner, hold_seconds if remaining is None else min(hold_seconds, remaining))
        self.request: bytes | None = None
        """The message of a request that is a single one, where the answer streams."""
        self._is_repeatable = is_repeatable
        self._on_refused = on_refused
        self._is_answered = False

    async def begin_answer(self, made: Any, address: str) -> None:
        """Send the initial metadata, once."""
        if self._is_answered:
            return
        self._is_answered = True
        given = await made.initial_metadata() or ()
        await self.context.send_initial_metadata((*given, (OWNER, address)))

    async def end_unless_again(self, made: Any, address: str, *, can_repeat: bool) -> None:
        """Give the status of a call that failed to the client, unless the call is to be repeated."""
        task = asyncio.current_task()
        if not made.done() or (task is not None and task.cancelling()):
            made.cancel()
            raise asyncio.CancelledError
        code, details, trailing = await made.code(), await made.details(), await made.trailing_metadata() or ()
        names = {name for name, _ in trailing}
        if DISTRUSTED in names:
            refused = DistrustedError(str(dict(trailing)[DISTRUSTED]))
            self._on_refused(refused.cause)
            code, details, trailing = failure(refused)
        if self._is_again(code, names) and can_repeat and not self._is_answered and not self.search.is_over:
            return
        if code is grpc.StatusCode.CANCELLED and not names:  # by us, who have lost the owner
            code = _UNAVAILABLE
        await self.begin_answer(made, address)
        trailing = [(name, value) for name, value in trailing if name != NOT_OWNER]
        await self.context.abort(code, details or "", tuple(trailing))

    def _is_again(self, code: grpc.StatusCode, trailing: set[str]) -> bool:
        if NOT_OWNER in trailing:
            return True
        is_lost = code in (_UNAVAILABLE, grpc.StatusCode.CANCELLED) and _DETAILS not in trailing
        return is_lost and self._is_repeatable


class _Channel:
    """A channel to one node; a context manager counts the calls on it."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        self.calls = 0
        self._closing: asyncio.Task[None] | None = None
        self._methods: dict[tuple[str, bool], Any] = {}
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials, options=_OPTIONS)

    def __enter__(self) -> None:
        self.calls += 1

    def __exit__(self, *_: object) -> None:
        self.calls -= 1

    async def is_ready(self) -> bool:
        """Wait a moment for the connection; return whether there is one. False for a channel that is closed."""
        with contextlib.suppress(TimeoutError, grpc.aio.UsageError):
            if self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
                return True
            async with asyncio.timeout(_SLICE_SECONDS):
                await self._channel.channel_ready()
                return True
        return False

    def unary(self, method: str) -> Any:
        """The call of a method whose request and answer are single messages."""
        found = self._methods.get((method, False))
        if found is None:
            found = self._methods[method, False] = self._channel.unary_unary(method)
        return found

    def stream(self, method: str) -> Any:
        """The call of any other method."""
        found = self._methods.get((method, True))
        if found is None:
            found = self._methods[method, True] = self._channel.stream_stream(method)
        return found

    async def close(self) -> None:
        """Close at once; calls on it end."""
        await self._channel.close()

    def close_later(self) -> None:
        """Close when the event loop gets to it."""
        self._closing = background.start(self.close())


async def _only(request: bytes) -> AsyncIterator[bytes]:
    yield request
