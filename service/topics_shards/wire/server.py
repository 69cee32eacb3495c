"""Calls from other processes: the shard's end of their connections, and the socket that they come to."""

import asyncio
import logging
import os
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextvars import Context
from pathlib import Path
from typing import Any, Final

import msgspec

from topics_net import background
from topics_net.dead_peers import watch_peer
from topics_net.rate_limited_logger import RateLimitedLogger
from topics_service.engine.errors import Reason, TopicsError
from topics_shards.shards import NotHereError, Shard
from topics_shards.wire.entrance import Entrance, Refused
from topics_shards.wire.errors import encode_error
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
    REFUSED,
    RESULT,
    RUN,
    FrameProtocol,
    FramingError,
    Hello,
    agreed_version,
)
from topics_shards.wire.handshake import (
    UNPROVEN_FRAME,
    HandshakeError,
    Identity,
    ServerHandshake,
    encode_refusal,
)
from topics_shards.wire.methods import DECODE_ERRORS, RemoteMethod, UnknownArgumentError
from topics_shards.wire.origin import enter
from topics_shards.wire.pulse import Pulse
from topics_shards.wire.tcp import address_of, is_foreign

log: Final = logging.getLogger("topics.shards")

_MAX_CALLS: Final = 1 << 17  # twice what a caller keeps to
_MAX_HELD_BYTES: Final = 128 << 20  # of the calls of one connection that are under way; one may be larger
_MAX_CONNECTIONS: Final = 1024
_LINGER_SECONDS: Final = 0.5
_BACKLOG: Final = 256
_PEER: Final = struct.Struct("3i")
_CALLS: Final = frozenset((RUN, OPEN))
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_hello: Final = msgspec.msgpack.Decoder(Hello).decode


class ServerConnection(FrameProtocol):
    """The shard's end of one connection."""

    def __init__(self, server: "ShardServer", entrance: Entrance | None = None) -> None:
        """One that comes by an entrance has to prove itself first."""
        super().__init__(max_frame=MAX_FRAME if entrance is None else UNPROVEN_FRAME)
        self._server = server
        self._entrance = entrance
        self._handshake = None if entrance is None else ServerHandshake(entrance.identity, server.method_names)
        self._is_refused = False
        self._pulse: Pulse | None = None
        self._loop = asyncio.get_running_loop()
        self._name = ""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._streams: dict[int, asyncio.Semaphore] = {}  # a unit for each item that is asked for
        self._held = 0
        self._is_reading = True
        self._room = asyncio.Event()

    @property
    def peer(self) -> str:
        """See FrameProtocol."""
        return self._name or "a process that has not said hello"

    def connection_made(self, transport: Any) -> None:
        """See FrameProtocol."""
        super().connection_made(transport)
        self._server.connections.add(self)
        if self._entrance is not None:
            self._come_in(self._entrance)
        elif not _is_own(transport):
            self.cut_off("it belongs to another user")

    def lost(self) -> None:
        """Cancel the calls of a peer that is gone."""
        self._server.connections.discard(self)
        if self._entrance is not None:
            self._entrance.leave(self)
        if self._pulse is not None:
            self._pulse.stop()
        self._room.set()
        self.break_off()

    def pause_writing(self) -> None:
        """Read no more calls while the peer does not read the answers."""
        super().pause_writing()
        self._room.clear()
        self._regulate()

    def writable(self) -> None:
        """Read on."""
        self._room.set()
        self._regulate()

    @property
    def is_idle(self) -> bool:
        """Return whether no call is under way."""
        return not self._tasks

    def break_off(self) -> None:
        """Cancel all calls; their callers see that the outcome is unknown."""
        for call in list(self._tasks):
            self._cancel(call)

    # ------------------------------------------------------------------ handshake over TCP

    def _come_in(self, entrance: Entrance) -> None:
        if len(self._server.connections) > _MAX_CONNECTIONS or not entrance.admit(self):
            entrance.refuse()
            self.abort()
            return
        watch_peer(self.transport.get_extra_info("socket"))
        if is_foreign(self.transport):
            self._refuse("TLS is of another protocol")

    def _shake(self, handshake: ServerHandshake, kind: int, body: memoryview) -> None:
        if self._is_refused:
            return
        try:
            answers = handshake.take(kind, body)
        except HandshakeError as error:
            self._refuse(str(error))
            return
        for answer, signed in answers:
            self.send(answer, 0, signed)
        if not handshake.caller:
            return
        self._name, self._handshake, self.max_frame = handshake.caller, None, MAX_FRAME
        self._pulse = Pulse(self, lambda: bool(self._tasks))
        if self._entrance is not None:
            self._entrance.leave(self)
        if self._server.is_closing:
            self.send(GOODBYE, 0)

    def _refuse(self, cause: str) -> None:
        """Tell an unproven peer the cause, heed it no more, and end it once it had time to read that."""
        if self.transport is None or self._is_refused:
            return
        self._is_refused = True
        if self._entrance is not None:
            self._entrance.note(address_of(self.transport), cause)
        self.send(REFUSED, 0, encode_refusal(cause))
        background.call_later(_LINGER_SECONDS, self.abort)

    def expire(self) -> None:
        """End a connection that has not proven itself in time."""
        if self.transport is not None and not self._is_refused and self._entrance is not None:
            self._entrance.note(address_of(self.transport), "it has not proven in time that it is a node")
        self.abort()

    def abort(self) -> None:
        """End the connection at once, without a word."""
        if self.transport is not None:
            self.transport.abort()
            self.transport, self.is_writable = None, False

    shutdown = abort  # of one that has not proven itself: no call of it is under way

    def cut_off(self, why: str) -> None:
        """See FrameProtocol."""
        if self._handshake is not None:
            self._refuse(why)
        else:
            super().cut_off(why)

    def expect_more(self) -> None:
        """See FrameProtocol."""
        if self._pulse is not None:
            self._pulse.start()

    # ------------------------------------------------------------------ frames

    def take(self, kind: int, call: int, body: memoryview) -> None:
        """See FrameProtocol."""
        if self._handshake is not None:
            self._shake(self._handshake, kind, body)
        elif kind in _CALLS:
            self._begin(kind, call, body)
        elif kind == MORE:
            asked = self._streams.get(call)
            if asked is not None:
                asked.release()
        elif kind == CANCEL:
            self._cancel(call)
        elif kind == HELLO and not self._name:
            self._greet(body)
        else:
            raise FramingError(f"a frame of the kind {kind}")

    def _greet(self, body: memoryview) -> None:
        try:
            hello = _decode_hello(body)
        except DECODE_ERRORS as error:
            raise FramingError(f"its hello: {error}") from None
        version = agreed_version(hello.version)
        if not version:
            raise FramingError(f"its hello is of version {hello.version}")
        self._name = hello.name or "a process without a name"
        self.send(HELLO, 0, _encode(Hello(version, self._server.name, self._server.method_names)))
        if self._server.is_closing:
            self.send(GOODBYE, 0)

    def _begin(self, kind: int, call: int, body: memoryview) -> None:
        if not self._name or call in self._tasks or len(self._tasks) >= _MAX_CALLS:
            raise FramingError("a call before its hello" if not self._name else f"the call {call} is one too many")
        if len(body) < CALL.size:
            raise FramingError(f"a call of {len(body)} bytes")
        number, method_number = CALL.unpack_from(body)
        if method_number >= len(self._server.methods):
            raise FramingError(f"a call of the method {method_number}")
        method = self._server.methods[method_number]
        if method.is_stream != (kind == OPEN):
            raise FramingError(f"a call of {method.name} as what it is not")
        if self._pulse is not None:
            self._pulse.start()
        shard = self._server.shards.get(number)
        if shard is None or self._server.is_closing:
            self.send(AWAY, call)
            return
        context = Context()
        try:
            decoded = method.decode_call(body[CALL.size :])
            context.run(enter, decoded.origin)
        except UnknownArgumentError as error:
            self._server.log.warning("a call from %s is of a later release: %s", self.peer, error)
            self.send(AWAY, call)
            return
        except DECODE_ERRORS as error:
            self._server.log.error("a call of %s from %s can't be read: %s", method.name, self.peer, error)
            self.send(FAILED, call, encode_error(TopicsError(Reason.INTERNAL, "internal error"), method.name))
            return
        begin: Any = shard.stream if method.is_stream else shard.run
        began = begin(method.method, *decoded.positional, **decoded.named)
        size = len(body)
        if kind == RUN:
            work = self._run(call, method, began, size)
        else:
            asked = self._streams[call] = asyncio.Semaphore(0)  # at once: the first item may be asked for already
            work = self._stream(call, method, began, asked, size)
        self._held += size
        self._tasks[call] = self._loop.create_task(work, context=context)
        if self._held > _MAX_HELD_BYTES:
            self._regulate()

    def _cancel(self, call: int) -> None:
        task = self._tasks.get(call)
        if task is not None:
            self._loop.call_soon(task.cancel)  # once it has begun: else it would not come to its end either

    async def _run(self, call: int, method: RemoteMethod, began: Coroutine[Any, Any, Any], size: int) -> None:
        try:
            self._answer(RESULT, call, method, await began)
        except NotHereError:
            self.send(AWAY, call)
        except asyncio.CancelledError as error:
            self.send(FAILED, call, encode_error(error, method.name))
        except Exception as error:
            self.send(FAILED, call, encode_error(error, method.name))
        finally:
            self._ended(call, size)

    async def _stream(
        self, call: int, method: RemoteMethod, items: AsyncGenerator[Any, None], asked: asyncio.Semaphore, size: int
    ) -> None:
        try:
            while True:
                await asked.acquire()
                if not self.is_writable:
                    await self._room.wait()
                self._answer(ITEM, call, method, await anext(items))
        except StopAsyncIteration:
            self.send(END, call)
        except NotHereError:
            self.send(AWAY, call)
        except asyncio.CancelledError as error:
            self.send(FAILED, call, encode_error(error, method.name))
        except Exception as error:
            self.send(FAILED, call, encode_error(error, method.name))
        finally:
            del self._streams[call]
            try:
                await items.aclose()
            finally:
                self._ended(call, size)

    def _answer(self, kind: int, call: int, method: RemoteMethod, value: Any) -> None:
        body = method.encode_result(value)
        if len(body) > self.max_frame:
            raise TopicsError(Reason.RESULT_TOO_LARGE, f"the answer takes {len(body)} bytes, more than may be sent")
        self.send(kind, call, body)

    def _ended(self, call: int, size: int) -> None:
        del self._tasks[call]
        self._held -= size
        if not self._is_reading:
            self._regulate()
        if self._server.is_closing and not self._tasks:
            self._server.settled()

    def _regulate(self) -> None:
        """Read while there is room for calls and for answers."""
        wanted = self.is_writable and self._held <= _MAX_HELD_BYTES
        if self.transport is None or wanted == self._is_reading:
            return
        self._is_reading = wanted
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()


class ShardServer:
    """Serves the shards of this process to others. `shards` may change at any time; a call to one that is not in it
    has not happened."""

    def __init__(self, shards: Mapping[int, Shard], methods: list[RemoteMethod], name: str = "") -> None:
        self.shards = shards
        self.methods = methods
        self.method_names = [method.name for method in methods]
        self.name = name
        self.connections: set[ServerConnection] = set()
        self.is_closing = False
        self.log = RateLimitedLogger(log)
        self._server: asyncio.Server | None = None
        self._entrance: Entrance | None = None
        self._path: Path | None = None
        self._settled = asyncio.Event()

    async def listen(self, path: Path) -> None:
        """Listen on a Unix socket, in a directory that belongs to this user alone. Replaces what is left of one.

        Raises OSError.
        """
        _check_directory(path.parent)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: ServerConnection(self), str(path), backlog=_BACKLOG)
        self._path = path

    async def listen_tcp(
        self, sock: socket.socket, tls: ssl.SSLContext | None, identity: Identity, refused: Refused | None = None
    ) -> None:
        """Listen on a bound socket of TCP, which belongs to this server then, for nodes that prove themselves.

        Calls `refused` for those that do not. Raises OSError.
        """
        entrance = self._entrance = Entrance(identity, refused)
        await entrance.open(sock, lambda: ServerConnection(self, entrance), tls)

    async def drain(self, seconds: float) -> None:
        """Take no more calls, and wait for those under way; what is left after that time is broken off."""
        self.is_closing = True
        if self._server is not None:
            self._server.close()
        if self._entrance is not None and not self._entrance.draining:
            self._entrance.shut_down()
        for connection in list(self.connections):
            connection.send(GOODBYE, 0)
        try:
            async with asyncio.timeout(seconds):
                await self._idle()
        except TimeoutError:
            for connection in list(self.connections):
                connection.break_off()
            await self._idle()

    async def close(self) -> None:
        """End all connections, after `drain`."""
        for connection in list(self.connections):
            if connection.transport is not None:
                connection.transport.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def settled(self) -> None:
        """Note that a connection has no calls any more."""
        self._settled.set()

    async def _idle(self) -> None:
        while not all(connection.is_idle for connection in self.connections):
            self._settled.clear()
            await self._settled.wait()


def _check_directory(path: Path) -> None:
    if path.stat().st_mode & 0o077:
        raise PermissionError(f"{path} is open to other users")


def _is_own(transport: Any) -> bool:
    """Return whether the peer of a Unix socket runs as this user, or as root."""
    sock: socket.socket = transport.get_extra_info("socket")
    if sock.family != socket.AF_UNIX:
        return True
    _, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return uid in (0, os.geteuid())


def unix(path: Path) -> Any:
    """An opener of connections to a Unix socket, for a Channel."""

    async def opened(protocol: Any) -> object:
        return await asyncio.get_running_loop().create_unix_connection(protocol, str(path))

    return opened
