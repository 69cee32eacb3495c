"""WebSocket (RFC 6455): one upgraded connection. Frames are the business of `websockets`, time and memory are ours."""

import asyncio
import logging
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from starlette.types import ASGIApp, Message
from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN, SERVER, Protocol
from websockets.server import ServerProtocol

from topics_gateway.transport.error_responses import JSON, STATUS_LINES, internal_error
from topics_gateway.transport.exchange import BrokenOffError
from topics_gateway.transport.h2rules import IDLE_BURST, IDLE_PER_SECOND
from topics_gateway.transport.linger import Linger, end_side
from topics_gateway.transport.registry import Registry, logger
from topics_gateway.transport.upgrade import VERSION, BadUpgradeError, UnsupportedVersionError
from topics_net import background
from topics_net.send_timeout import prepare, undrained
from topics_net.sliced_protocol import SlicedProtocol

# Of a message that is not complete: a larger one is reported to the application.
_LARGE_BYTES: Final = 8192
# A longer text is not copied for its frame: many clients may be sent the same.
_COPY_BYTES: Final = 16384
# Time for a client to read pending frames and answer our close frame.
_CLOSE_SECONDS: Final = 10.0
_GIVE_UP_SECONDS: Final = 2.0
# At the end of the server: how long the application may take to say goodbye.
_GRACE_SECONDS: Final = 1.0

_quiet: Final = logging.getLogger("topics.http.websocket")
_quiet.setLevel(logging.WARNING)  # the library logs every connection


class Frames(Protocol):
    """`websockets` takes a close between the fragments of a message for a violation; RFC 6455, 5.4 allows it there."""

    def recv_frame(self, frame: Frame) -> None:
        """Process an incoming frame; a close ends the message that is not complete."""
        if frame.opcode is Opcode.CLOSE:
            self.current_size = None
        super().recv_frame(frame)


class WebSocketProtocol(SlicedProtocol):
    """Serves one upgraded connection as an ASGI application sees it.

    - A message is one up to `ws_max_size` bytes, over any number of frames; a larger one ends in close code 1009,
      text that is not UTF-8 in 1007. Reading stops while messages wait for the application.
    - `send` returns once there is room for the next message; a client that takes not one byte for the send timeout
      is closed with 1013. A message to a disconnected client raises ConnectionError.
    - The server pings a client that it has not heard for `ws_ping_interval`; one that neither sends nor takes a byte
      for `ws_ping_timeout` after that is closed with 1011. The client's pings are answered, the newest one while it
      reads slowly.
    - When the server stops, the application has a second to end the connection; then it is closed with 1012.
    - Nothing is compressed: permessage-deflate is not offered.

    Beyond ASGI: `websocket.accept` with `"utf8": True` asks for `text` as bytes of UTF-8, in both directions; it is
    offered as the extension `websocket.utf8`. `websocket.http.response` is offered too. `"holds"` there may be a
    function, which is called with the bytes of a large message as it grows, and with 0 once the application has handled
    it; where it says False, the connection ends with 1013.
    """

    # What is parsed before the application takes the messages in it: a small one takes 40 times its size once parsed.
    FIRST_BYTES = MAX_BYTES = 8192
    MIN_BYTES = 512

    def __init__(self, app: ASGIApp, registry: Registry, scope: dict[str, Any], target: bytes) -> None:
        """Take over the HTTP request of `scope`. Raises BadUpgradeError."""
        super().__init__(registry.loop_budget)
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        versions = [value for name, value in headers if name == b"sec-websocket-version"]
        if versions != [VERSION]:
            raise UnsupportedVersionError(f"the Sec-WebSocket-Version must be {VERSION.decode()}")
        texts = Headers((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
        handshake = ServerProtocol(logger=_quiet)
        self._response = handshake.accept(Request(target.decode("latin-1"), texts))
        if self._response.status_code != 101:
            raise BadUpgradeError(str(handshake.handshake_exc))
        self._began = time.perf_counter()
        self._app = app
        self._registry = registry
        self._limits = registry.limits
        self._scope = scope | {
            "type": "websocket",
            "scheme": "wss" if scope["scheme"] == "https" else "ws",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "subprotocols": [
                name.strip() for line in texts.get_all("Sec-WebSocket-Protocol") for name in line.split(",")
            ],
            "extensions": {"websocket.http.response": {}, "websocket.utf8": {}},
        }
        self._loop = asyncio.get_running_loop()

        self._frames: Frames | None = None  # once accepted
        self._denial: Message | None = None
        self._utf8 = False
        self._idle_left = IDLE_BURST
        self._idle_at = self._loop.time()
        self._parts = bytearray()  # of the message that is not complete
        self._is_text = False
        self._holds: Callable[[int], bool] | None = None
        self._is_large = False  # what arrives or waits, so that `holds` was called
        self._messages: deque[Message] = deque([{"type": "websocket.connect"}])
        self._arrival = asyncio.Event()  # of a message
        self._disconnect: Message | None = None

        self._room = asyncio.Event()
        self._room.set()
        self._late_pong = b""
        self._closing = False  # nothing more is sent
        self._heard = False
        self._undrained: object = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvloop's is no subclass
        self.transport = transport
        self._registry.connections.add(self)
        task = background.start(self._run())
        self._registry.tasks.add(task)
        task.add_done_callback(self._registry.tasks.discard)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave(1006)
        if self._close_timer is not None:
            self._close_timer.cancel()
        if self._frames is not None:
            self._frames.parser.close()  # a reference cycle that holds the input
        self._ended = True
        self._backlog.clear()
        self._scope["state"]["connection_resources"].close()
        self._registry.forget(self)

    # Input

    def data_received(self, data: bytes) -> None:
        self._heard = True
        super().data_received(data)

    def eof_received(self) -> None:
        """The client has ended its side: end ours, after the buffered output."""
        self._leave(1006)
        self._abort_later(_GIVE_UP_SECONDS)

    def _feed(self, data: bytes) -> int:
        frames = self._frames
        assert frames is not None, "an open WebSocket"
        frames.receive_data(data)
        events = frames.events_received()
        for event in events:
            if isinstance(event, Frame):
                self._take(event)
        if self._holds is not None:
            self._tell_size(frames)
        if not self._flush(frames):
            self._backlog.clear()  # what comes after the end does not count
        return len(events)

    def _is_blocked(self) -> bool:
        """Return whether the application has something to take, or is still to accept."""
        return bool(self._messages) or self._frames is None

    def _count_idle(self) -> None:
        """A frame that is work for us and asks for nothing."""
        now = self._loop.time()
        self._idle_left = min(IDLE_BURST, self._idle_left + (now - self._idle_at) * IDLE_PER_SECOND) - 1
        self._idle_at = now
        if self._idle_left < 0 and not self._closing:
            self._fail(1008, "too many frames that say nothing")

    def _tell_size(self, frames: Frames) -> None:
        """Report the size of an incomplete message to the application, however it is fragmented."""
        arrived = len(self._parts) + len(frames.reader.buffer)
        if arrived > _LARGE_BYTES and not self._closing and self._holds is not None:
            self._is_large = True
            if not self._holds(arrived):
                self._fail(1013, "messages, of this API key or of all, hold as many bytes as they may")

    def _take(self, frame: Frame) -> None:
        opcode = frame.opcode
        if opcode is Opcode.CLOSE:
            closed = self._frames.close_rcvd if self._frames is not None else None
            self._leave(closed.code if closed is not None else 1005, closed.reason if closed is not None else "")
            return
        data: bytes = frame.data  # type: ignore[assignment]  # bytes, in what was received
        if opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            self._count_idle()
            return
        if not data and not frame.fin:
            self._count_idle()
        frame.data = b""  # the parser holds on to the frame until the next one comes
        if opcode is not Opcode.CONT:
            self._is_text = opcode is Opcode.TEXT
        if not frame.fin or self._parts:
            self._parts += data
            if not frame.fin:
                return
            data = bytes(self._parts)
            self._parts = bytearray()
        if self._closing:
            return
        if self._is_text:
            if not _is_utf8(data):
                self._fail(1007, "the text is not UTF-8")
                return
            self._put({"type": "websocket.receive", "text": data if self._utf8 else data.decode()})
        else:
            self._put({"type": "websocket.receive", "bytes": data})

    def _put(self, message: Message) -> None:
        self._messages.append(message)
        self._arrival.set()

    async def receive(self) -> Message:
        """The next message of the client; once it is gone, always `websocket.disconnect`."""
        if self._is_large and not self._messages and self._holds is not None:
            self._is_large = False
            self._holds(0)
        while not self._messages:
            if self._disconnect is not None:
                return self._disconnect
            self._arrival.clear()
            await self._arrival.wait()
        message = self._messages.popleft()
        if not self._messages and self._backlog:
            self._parse_backlog()
        return message

    # Output

    async def send(self, message: Message) -> None:
        """Send one message of the application; see the class."""
        kind = message["type"]
        if self._frames is None:
            self._answer_upgrade(kind, message)
            return
        if self._closing:
            raise ConnectionAbortedError("the WebSocket is closed")
        if kind == "websocket.close":
            self._end(message.get("code", 1000), message.get("reason") or "")
            return
        if kind != "websocket.send":
            raise RuntimeError(f"ASGI message {kind!r} on an open WebSocket")
        if not self._room.is_set():
            await self._wait_for_room()
        data = message.get("text")
        if data is None:
            self._frames.send_binary(message["bytes"])
            self._flush(self._frames)
        else:
            self._write_text(data if isinstance(data, bytes) else data.encode())
        if not self._room.is_set():
            await self._wait_for_room()

    def _write_text(self, data: bytes) -> None:
        """Do as `Protocol.send_text`, without three copies of a text that many clients may receive."""
        size = len(data)
        if size < 126:
            head = struct.pack("!BB", 0x81, size)
        elif size < 65536:
            head = struct.pack("!BBH", 0x81, 126, size)
        else:
            head = struct.pack("!BBQ", 0x81, 127, size)
        if size > _COPY_BYTES:
            self.transport.writelines((head, data))
        else:
            self.transport.write(head + data)

    def _flush(self, frames: Frames) -> bool:
        """Write the protocol's own output; False when that was the last of it."""
        writes = frames.data_to_send()
        if not writes:
            return True
        if b"" in writes:  # the end: both sides have closed, or the client broke the rules
            self.transport.write(b"".join(writes))
            code = frames.close_sent.code if frames.close_sent is not None else 1006
            self._leave(code)
            if frames.parser_exc is None:
                self.transport.close()
            else:
                end_side(self.transport)  # and drop what it still sends, lest a reset overtake our close frame
            self._abort_later(_GIVE_UP_SECONDS)
            return False
        if self._room.is_set():
            self.transport.write(b"".join(writes))
        else:
            self._late_pong = writes[-1]
        return True

    async def _wait_for_room(self) -> None:
        send_timeouts = self._registry.send_timeouts
        send_timeouts.enter(self)
        try:
            await self._room.wait()
        finally:
            send_timeouts.leave(self)
        if self._closing:
            raise ConnectionAbortedError("the WebSocket is closed")

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._room.clear()

    def resume_writing(self) -> None:
        """The transport has room again."""
        self._room.set()
        if self._late_pong and not self._closing:
            self.transport.write(self._late_pong)
        self._late_pong = b""

    def undrained(self) -> object:
        """The unsent bytes: a value that changes whenever bytes leave."""
        return undrained(self.transport)

    def give_up(self) -> None:
        """The client takes nothing; it may still take our close frame for a moment."""
        self._fail(1013, "the client did not read for too long")

    # The upgrade

    def _answer_upgrade(self, kind: str, message: Message) -> None:
        if self._closing:
            return
        if self._denial is not None:
            if kind != "websocket.http.response.body":
                raise RuntimeError(f"ASGI message {kind!r} inside the answer to an upgrade")
            self._denial["body"] += message.get("body", b"")
            if not message.get("more_body", False):
                self._deny(self._denial["status"], self._denial.get("headers", ()), self._denial["body"])
        elif kind == "websocket.accept":
            self._accept(message)
        elif kind == "websocket.http.response.start":
            self._denial = {**message, "body": b""}
        elif kind == "websocket.close":
            self._deny(403, (), b"")
        else:
            raise RuntimeError(f"ASGI message {kind!r} in answer to an upgrade")

    def _accept(self, message: Message) -> None:
        headers = self._response.headers
        for name, value in message.get("headers", ()):
            headers[name.decode("latin-1")] = value.decode("latin-1")
        if message.get("subprotocol"):
            headers["Sec-WebSocket-Protocol"] = message["subprotocol"]
        self._utf8 = message.get("utf8") is True
        self._holds = message.get("holds")
        self._frames = Frames(SERVER, max_size=self._limits.ws_max_size, logger=_quiet)
        prepare(self.transport)
        self.transport.write(self._response.serialize())
        self._ping_later()
        self._parse_backlog()  # what came behind the request

    def _deny(self, status: int, headers: Any, body: bytes) -> None:
        lines = [STATUS_LINES[status], b"date: %b\r\nconnection: close\r\n" % self._registry.date()]
        lines += [b"%b: %b\r\n" % pair for pair in headers if pair[0].lower() not in (b"connection", b"content-length")]
        lines.append(b"content-length: %d\r\n\r\n" % len(body))
        self.transport.write(b"".join(lines) + body)
        self._leave(1006)
        self._scope["state"]["connection_resources"].close()
        Linger(self._registry, self.transport)
        self._registry.forget(self)

    # The end

    def _leave(self, code: int, reason: str = "") -> None:
        """Signal the end to the application."""
        self._closing = True
        if self._disconnect is None:
            self._disconnect = {"type": "websocket.disconnect", "code": code, "reason": reason}
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        self._arrival.set()
        self._room.set()

    def _end(self, code: int, reason: str) -> None:
        """Say goodbye, and close when the client has answered, or after some seconds."""
        assert self._frames is not None, "an open WebSocket"
        if not self._closing and self._frames.state is OPEN:
            self._frames.send_close(code, reason)
            self.transport.write(b"".join(self._frames.data_to_send()))
        self._leave(code, reason)
        self._abort_later(_GIVE_UP_SECONDS if self._registry.draining else _CLOSE_SECONDS)
        self._messages.clear()
        self._parse_backlog()

    def _fail(self, code: int, reason: str) -> None:
        """Say goodbye to a client that will not answer, or is not to be listened to."""
        assert self._frames is not None, "an open WebSocket"
        if not self._closing:
            self._frames.fail(code, reason)
            self.transport.write(b"".join(self._frames.data_to_send()))
            end_side(self.transport)
            self._leave(code, reason)
            self._abort_later(_GIVE_UP_SECONDS)

    def _abort_later(self, seconds: float) -> None:
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._close_timer = background.call_later(seconds, self.transport.abort)

    def shutdown(self) -> None:
        """The server stops: it is the application's to say goodbye, and ours if it does not."""
        background.call_later(_GRACE_SECONDS, self._stop)

    def _stop(self) -> None:
        if self._frames is None or self._closing:
            return
        self._end(1012, "the server is shutting down")

    # Pings

    def _ping_later(self) -> None:
        if self._limits.ws_ping_interval:
            self._ping_timer = background.call_later(self._limits.ws_ping_interval, self._ping)

    def _ping(self) -> None:
        frames = self._frames
        if self._heard or not self._room.is_set() or frames is None:
            self._heard = False  # it need not be asked, or SendTimeouts looks after it
            self._ping_later()
            return
        frames.send_ping(b"")
        self._flush(frames)
        self._undrained = self.undrained()
        if self._limits.ws_ping_timeout:
            self._ping_timer = background.call_later(self._limits.ws_ping_timeout, self._expect_pong)
        else:
            self._ping_later()

    def _expect_pong(self) -> None:
        alive = self._heard or self._is_paused or not self._room.is_set() or self.undrained() != self._undrained
        if alive:
            self._ping_later()
        else:
            self._fail(1011, "no answer to a ping")

    # The application

    async def _run(self) -> None:
        code = 1000
        try:
            await self._app(self._scope, self.receive, self.send)
        except asyncio.CancelledError:
            self.transport.abort()
            raise
        except BrokenOffError:
            self.transport.abort()
            return
        except Exception as error:
            if self._closing and isinstance(error, ConnectionError):
                return  # it was sending while the client left
            logger.exception("exception in the application: WebSocket %s", self._scope["path"])
            code = 1011
        else:
            if self._frames is None and not self._closing:
                logger.error("no answer by the application: WebSocket %s", self._scope["path"])
        if self._closing:
            return
        if self._frames is None:
            self._deny(500, ((b"content-type", JSON),), internal_error(self._began))
        else:
            self._end(code, "internal error" if code == 1011 else "")


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
