"""Calls to another process: the caller's end of a connection, and the connection as it is opened again and again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from topics_net import background
from topics_shards.shards import NotHereError
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
    MORE,
    OPEN,
    RESULT,
    RUN,
    VERSION,
    FrameProtocol,
    FramingError,
    Hello,
)
from topics_shards.wire.methods import DECODE_ERRORS, RemoteMethod

log: Final = logging.getLogger("topics.shards")

_MAX_CALLS: Final = 1 << 16
_LAST_NUMBER: Final = (1 << 32) - 1
_FIRST_BACKOFF: Final = 0.01
_MAX_BACKOFF: Final = 1.0
_HELLO_SECONDS: Final = 5.0
_ENDS: Final = frozenset((RESULT, FAILED, AWAY, END))
_VALUES: Final = frozenset((RESULT, ITEM))
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_hello: Final = msgspec.msgpack.Decoder(Hello).decode

Open = Callable[[Callable[[], asyncio.BaseProtocol]], Awaitable[object]]
"""Opens a connection with such a protocol. Raises OSError."""


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
        super().__init__(channel.scratch)
        self._channel = channel
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
    def has_room(self) -> bool:
        """Return whether one more call may be made now."""
        return self.is_writable and len(self._calls) < _MAX_CALLS

    def connection_made(self, transport: Any) -> None:
        """Say hello."""
        super().connection_made(transport)
        self.send(HELLO, 0, _encode(Hello(VERSION, self._channel.own_name)))

    def lost(self) -> None:
        """Fail the calls that were sent."""
        self.is_ready = False
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.done.done():
                call.done.set_exception(GoneError())
        self._channel.closed(self)

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
        elif kind == HELLO and not self.is_ready:
            self._greeted(body)
            return
        elif kind == GOODBYE:
            self.is_ready = False
            self._channel.closed(self)
            return
        else:
            raise FramingError(f"a frame of the kind {kind}")
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
            done.set_exception(GoneError())
            raise FramingError(f"the answer of {outgoing.method.name}: {error}") from None

    def _greeted(self, body: memoryview) -> None:
        try:
            hello = _decode_hello(body)
        except msgspec.DecodeError as error:
            raise FramingError(f"its hello: {error}") from None
        if hello.version != VERSION:
            raise FramingError(f"its hello is of version {hello.version}")
        self._numbers = {name: number for number, name in enumerate(hello.methods)}
        self.is_ready = True
        self._channel.opened(self)


END_OF_STREAM: Final = object()


class Channel:
    """The way to one other process: a connection that is opened again whenever it breaks, until `close`.

    `connection` is the one to make calls on; None while there is none.
    """

    def __init__(self, open_connection: Open, name: str, own_name: str, scratch: bytearray | None = None) -> None:
        """Both names are for log lines. Begins to connect."""
        self.name = name
        self.own_name = own_name
        self.scratch = scratch
        self.connection: ClientConnection | None = None
        self._open = open_connection
        self._waiters: list[asyncio.Future[None]] = []
        self._connections: set[ClientConnection] = set()
        self._is_closed = False
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
        self.wake()

    def closed(self, connection: ClientConnection) -> None:
        """Note that a connection takes no more calls."""
        if connection.transport is None:
            self._connections.discard(connection)
        if self.connection is connection:
            self.connection = None
        if self._task is None and not self._is_closed:
            self._task = background.start(self._connect())
        self.wake()

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
        backoff = _FIRST_BACKOFF
        while self.connection is None:
            connection = ClientConnection(self)
            try:
                await self._open(lambda made=connection: made)  # type: ignore[misc]
            except OSError as error:
                log.debug("no connection to %s: %s", self.name, error)
            else:
                self._connections.add(connection)
                if await self._greeted(connection):
                    break
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, _MAX_BACKOFF)
        self._task = None

    async def _greeted(self, connection: ClientConnection) -> bool:
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                while connection.transport is not None and not connection.is_ready:
                    await self.changed()
        except TimeoutError:
            connection.cut_off("it does not say hello")
        return connection.is_ready
