"""Calls to another process: the caller's end of a connection, and the connection as it is opened again and again."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from topics_net import background
from topics_net.dead_peers import watch_peer
from topics_net.rate_limited_logger import RateLimitedLogger
from topics_shards.shards import LostCallError, NotHereError
from topics_shards.wire.errors import decode_error
from topics_shards.wire.framing import (
    AWAY,
    CALL,
    CANCEL,
    END,
    FAILED,
    GOODBYE,
    HELLO,
    ITEM,
    MAX_FRAME,
    MORE,
    OPEN,
    PROOF,
    PULSE,
    REFUSED,
    RESULT,
    RUN,
    VERSION,
    FrameProtocol,
    FramingError,
    Hello,
    agreed_version,
)
from topics_shards.wire.handshake import (
    UNPROVEN_SERVER_FRAME,
    CallerHandshake,
    HandshakeError,
    Identity,
    decode_refusal,
)
from topics_shards.wire.methods import DECODE_ERRORS, RemoteMethod
from topics_shards.wire.pulse import Silence
from topics_shards.wire.tcp import Open, is_foreign

log: Final = logging.getLogger("topics.shards")

_MAX_CALLS: Final = 1 << 16
_LAST_NUMBER: Final = (1 << 32) - 1
_FIRST_BACKOFF: Final = 0.01
_MAX_BACKOFF: Final = 1.0
_HELLO_SECONDS: Final = 5.0
_OF_SETTINGS: Final = (ssl.SSLError, socket.gaierror, FileNotFoundError, PermissionError, IsADirectoryError)
_ENDS: Final = frozenset((RESULT, FAILED, AWAY, END))
_VALUES: Final = frozenset((RESULT, ITEM))
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_hello: Final = msgspec.msgpack.Decoder(Hello).decode


class GoneError(Exception):
    """The connection broke after the call was sent: it may have had its effect or not."""


class Outgoing:
    """A call under way. `done` is its result, or the next item of its stream."""

    __slots__ = ("done", "method", "number")

    def __init__(self, number: int, method: RemoteMethod, done: "asyncio.Future[Any]") -> None:
        self.number = number
        self.method = method
        self.done = done


class ClientConnection(FrameProtocol):
    """The caller's end of one connection."""

    def __init__(self, channel: "Channel") -> None:
        identity = channel.identity
        super().__init__(max_frame=MAX_FRAME if identity is None else UNPROVEN_SERVER_FRAME)
        self._channel = channel
        self._handshake = None if identity is None else CallerHandshake(identity, channel.name)
        self._silence = None if identity is None else Silence(self, lambda: bool(self._calls))
        self._calls: dict[int, Outgoing] = {}
        self._numbers: Mapping[str, int] = {}  # of the peer's methods
        self._last = 0
        self._loop = asyncio.get_running_loop()
        self.is_ready = False
        """True while calls may be made."""

    @property
    def peer(self) -> str:
        """See FrameProtocol."""
        return self._channel.name

    @property
    def address(self) -> str:
        """See Channel."""
        return self._channel.address

    @property
    def has_room(self) -> bool:
        """Return whether one more call may be made now."""
        return self.is_writable and len(self._calls) < _MAX_CALLS

    def connection_made(self, transport: Any) -> None:
        """Say hello."""
        super().connection_made(transport)
        if self._handshake is None:
            self.send(HELLO, 0, _encode(Hello(VERSION, self._channel.own_name)))
            return
        watch_peer(transport.get_extra_info("socket"), reads_at_once=False)
        if is_foreign(transport):
            self._refuse("TLS is of another protocol")
        else:
            self.send(HELLO, 0, self._handshake.hello)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        if self._handshake is not None and self.transport is not None:
            cause = exc or "without a cause"  # as a node does that stops just then
            self._channel.log.warning("%s ended the connection before it proved itself: %s", self.peer, cause)
        super().connection_lost(exc)

    def lost(self) -> None:
        """Fail the calls that were sent."""
        if self._silence is not None:
            self._silence.stop()
        self._fail(GoneError)
        self._channel.closed(self)

    def _fail(self, error: type[Exception]) -> None:
        self.is_ready = False
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.done.done():
                call.done.set_exception(error())

    def writable(self) -> None:
        """Let waiting callers continue."""
        self._channel.wake()

    # ------------------------------------------------------------------ calls

    def run(self, shard: int, method: RemoteMethod, body: bytes) -> Outgoing:
        """Send a call. Raises NotHereError if the peer does not know the method."""
        return self._begin(RUN, shard, method, body)

    def open(self, shard: int, method: RemoteMethod, body: bytes) -> Outgoing:
        """Open a stream; `more` asks for each item. Raises as `run`."""
        return self._begin(OPEN, shard, method, body)

    def _begin(self, kind: int, shard: int, method: RemoteMethod, body: bytes) -> Outgoing:
        number = self._numbers.get(method.name)
        if number is None:
            raise NotHereError(f"{self.peer} runs a version without {method.name}")
        call = self._last = 1 if self._last == _LAST_NUMBER else self._last + 1
        outgoing = self._calls[call] = Outgoing(call, method, self._loop.create_future())
        if self._silence is not None:
            self._silence.start()
        self.send(kind, call, body, CALL.pack(shard, number))
        return outgoing

    def more(self, outgoing: Outgoing) -> None:
        """Ask for the next item, for which `done` stands then."""
        if self.transport is None or outgoing.number not in self._calls:
            raise GoneError
        outgoing.done = self._loop.create_future()
        self.send(MORE, outgoing.number)

    def cancel(self, outgoing: Outgoing) -> None:
        """End a call, whose caller does not wait any more."""
        if self._calls.pop(outgoing.number, None) is not None:
            self.send(CANCEL, outgoing.number)
            if len(self._calls) == _MAX_CALLS - 1:
                self._channel.wake()

    def lose(self, outgoing: Outgoing) -> None:
        """End a call, and fail it for its caller as if the connection had broken."""
        self.cancel(outgoing)
        if not outgoing.done.done():
            outgoing.done.set_exception(GoneError())

    def take(self, kind: int, call: int, body: memoryview) -> None:
        """See FrameProtocol."""
        if kind in _ENDS:
            outgoing = self._calls.pop(call, None)
            if outgoing is None:
                return  # it was cancelled
            if len(self._calls) == _MAX_CALLS - 1:
                self._channel.wake()
        elif kind == ITEM:
            outgoing = self._calls.get(call)
            if outgoing is None:
                return
        else:
            self._take_other(kind, body)
            return
        done = outgoing.done
        if done.done():  # cancelled, which is not known here yet
            return
        try:
            if kind in _VALUES:
                done.set_result(outgoing.method.decode_result(body))
            elif kind == FAILED:
                done.set_exception(decode_error(body))
            elif kind == END:
                done.set_result(END_OF_STREAM)
            else:
                done.set_exception(NotHereError())
        except DECODE_ERRORS as error:
            name = outgoing.method.name
            if type(error) is msgspec.DecodeError:  # it is no MessagePack at all
                done.set_exception(GoneError())
                raise FramingError(f"the answer of {name}: {error}") from None
            self._channel.log.error("the answer of %s from %s can't be read: %s", name, self.peer, error)
            done.set_exception(LostCallError(f"the answer of {name} can't be read"))

    def _take_other(self, kind: int, body: memoryview) -> None:
        """Take a frame that is not of a call."""
        if kind == REFUSED and self._silence is not None:
            self._fail(NotHereError)  # no call reaches a shard before the peer trusts this node
            self._refuse(f"{decode_refusal(body)}, it says")
        elif self._handshake is not None:
            self._shake(self._handshake, kind, body)
        elif kind == GOODBYE:
            self.is_ready = False
            self._channel.closed(self)
        elif kind == HELLO and not self.is_ready:
            self._greeted(body)
        elif kind != PULSE or self._silence is None:
            raise FramingError(f"a frame of the kind {kind}")

    def _greeted(self, body: memoryview) -> None:
        try:
            hello = _decode_hello(body)
        except DECODE_ERRORS as error:
            raise FramingError(f"its hello: {error}") from None
        if agreed_version(hello.version) != hello.version:
            raise FramingError(f"its hello is of version {hello.version}")
        self._ready(hello.methods)

    def _shake(self, handshake: CallerHandshake, kind: int, body: memoryview) -> None:
        """Take a frame of the handshake over TCP."""
        try:
            proof = handshake.take(kind, body)
        except HandshakeError as error:
            self._refuse(str(error))
            return
        if proof is not None:
            self.send(PROOF, 0, proof)
            self._handshake, self.max_frame = None, MAX_FRAME
            self._ready(handshake.methods)

    def _ready(self, methods: list[str]) -> None:
        self._numbers = {name: number for number, name in enumerate(methods)}
        self.is_ready = True
        self._channel.opened(self)

    def _refuse(self, cause: str) -> None:
        """End a connection to a peer that this node does not trust, or that does not trust it."""
        self._channel.failed(cause)
        if self.transport is not None:
            self.transport.abort()
            self.transport, self.is_writable = None, False


END_OF_STREAM: Final = object()


class Channel:
    """The way to one other process: a connection that is opened again whenever it breaks, until `close`.

    `connection` is the one to make calls on; None while there is none.
    """

    def __init__(
        self,
        open_connection: Open,
        name: str,
        own_name: str,
        identity: Identity | None = None,
        *,
        address: str = "",
    ) -> None:
        """Both names are for log lines. Begins to connect.

        With an identity, which connections over TCP need, the peer has to prove that it is the node `name`. `address`
        is host:port of the node's gRPC port, as its clients reach it; empty for another process of this node.
        """
        self.name = name
        self.address = address
        self.own_name = own_name
        self.identity = identity
        self.connection: ClientConnection | None = None
        self._open = open_connection
        self.log = RateLimitedLogger(log)
        self._waiters: list[asyncio.Future[None]] = []
        self._connections: set[ClientConnection] = set()
        self._is_closed = False
        self._backoff = 0.0
        self._opened_at = 0.0
        self._task: asyncio.Task[None] | None = background.start(self._connect())

    async def changed(self) -> None:
        """Return when there may be a connection, or room on it, that was not there."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def wake(self) -> None:
        """Wake all that wait for a change."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def opened(self, connection: ClientConnection) -> None:
        """Note a connection on which the peer has said hello."""
        if self._is_closed:
            connection.transport.abort()
            return
        self.connection = connection
        self._opened_at = asyncio.get_running_loop().time()
        self.wake()

    def closed(self, connection: ClientConnection) -> None:
        """Note that a connection takes no more calls."""
        if connection.transport is None:
            self._connections.discard(connection)
        if self.connection is connection:
            self.connection = None
            if asyncio.get_running_loop().time() - self._opened_at > _MAX_BACKOFF:
                self._backoff = 0.0
        if self._task is None and not self._is_closed:
            self._task = background.start(self._connect())
        self.wake()

    def failed(self, cause: str) -> None:
        """Log the cause for which there is no connection: an operator has to look."""
        self.log.error("no calls go to %s: %s", self.name, cause)

    def close(self) -> None:
        """End it, with all calls under way."""
        self._is_closed = True
        self.connection = None
        if self._task is not None:
            self._task.cancel()
        for connection in self._connections:
            if connection.transport is not None:
                connection.transport.abort()
        self.wake()

    async def _connect(self) -> None:
        while self.connection is None:
            if self._backoff:
                await asyncio.sleep(self._backoff)
            self._backoff = min(2 * self._backoff, _MAX_BACKOFF) or _FIRST_BACKOFF
            connection = ClientConnection(self)
            try:
                await self._open(lambda made=connection: made)  # type: ignore[misc]
            except OSError as error:
                if isinstance(error, _OF_SETTINGS):
                    self.failed(str(error))
                log.debug("no connection to %s: %s", self.name, error)
            else:
                self._connections.add(connection)
                if await self._greeted(connection):
                    break
        self._task = None

    async def _greeted(self, connection: ClientConnection) -> bool:
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                while connection.transport is not None and not connection.is_ready:
                    await self.changed()
        except TimeoutError:
            connection.cut_off("it does not say hello")
        return connection.is_ready
