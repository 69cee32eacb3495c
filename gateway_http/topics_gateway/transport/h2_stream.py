"""One HTTP/2 stream: a request and its response, within the windows of the client."""

import asyncio
import urllib.parse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from h2.errors import ErrorCodes
from starlette.types import ASGIApp, Message

from topics_gateway.transport.error_responses import error_body, respond
from topics_gateway.transport.exchange import Exchange
from topics_gateway.transport.h2rules import check_request
from topics_gateway.transport.header_validation import BadHeadError, response_field
from topics_net.send_timeout import undrained

if TYPE_CHECKING:
    from topics_gateway.transport.h2c import Http2Protocol

# Smaller pieces of a body are joined: each alone takes many times its size.
SMALL_PIECE_BYTES: Final = 1024
# Frames of this much are joined into one write.
WRITE_BYTES: Final = 65536
# RFC 9113, 8.2.2: these have no meaning in HTTP/2 and must not be sent.
HOP_BY_HOP: Final = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))


class Stream(Exchange):
    """One request of an HTTP/2 connection."""

    def __init__(self, protocol: "Http2Protocol", stream_id: int) -> None:
        super().__init__({})
        self.id = stream_id
        self._protocol = protocol
        self._event = asyncio.Event()
        self._senders: list[asyncio.Future[None]] = []
        self._waits = False
        # The request.
        self._chunks: list[bytes | bytearray] = []
        self._unacknowledged = 0
        self._ended = False
        self._body_read = False
        self._expects_continue = False
        # The response.
        self._bodyless = False
        self._content_length: int | None = None
        self._sent = 0

    def open(self, headers: list[tuple[bytes, bytes]]) -> ASGIApp:
        """Build the scope; return the application, or a 400 for an invalid head."""
        fault = ""
        try:
            check_request(headers)
        except BadHeadError as error:
            fault = str(error)
        method = target = authority = b""
        fields: list[tuple[bytes, bytes]] = []
        has_host = False
        for name, value in headers:
            if name == b":path":
                target = value
            elif name == b":method":
                method = value
            elif name == b":authority":
                authority = value
            elif not name.startswith(b":"):
                if name == b"host":
                    has_host = True
                elif name == b"expect" and value.lower() == b"100-continue":
                    self._expects_continue = True
                fields.append((name, value))
        if authority and not has_host:
            fields.insert(0, (b"host", authority))
        raw_path, _, query = target.partition(b"?")
        if not target.isascii() or b"#" in target or not (target.startswith(b"/") or target == b"*"):
            fault = fault or "invalid request target"
        path = raw_path.decode("ascii", "replace")
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "2",
            "server": self._protocol.server,
            "client": self._protocol.client,
            "scheme": self._protocol.scheme,
            "root_path": "",
            "method": method.decode("ascii", "replace"),
            "path": urllib.parse.unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": fields,
            "state": {"connection_resources": self._protocol.resources},
        }
        if fault:
            self._protocol.count_idle()
            return self._refusal(f"malformed HTTP request: {fault}")
        if self._expects_continue:
            self.scope["state"]["awaits_100"] = self._awaits_100
        return self._protocol.app

    def _refusal(self, message: str) -> ASGIApp:
        """Stands in for the application."""

        async def refuse(scope: Any, receive: Any, send: Any) -> None:
            await respond(400, error_body("invalid_request", message, self.began), send)

        return refuse

    def _awaits_100(self) -> bool:
        """Return True while the client waits for `100 Continue`, which `receive` sends."""
        return self._expects_continue

    # Events of the connection

    def feed(self, data: bytes, size: int) -> bool:
        """Take body bytes that count `size` in the windows; return False if they will not be read."""
        if self.disconnected or self.response_complete:
            return False
        self._unacknowledged += size
        self._expects_continue = False  # it does not wait
        if data:
            chunks = self._chunks
            if len(data) >= SMALL_PIECE_BYTES or not chunks:
                chunks.append(data)
            elif isinstance(last := chunks[-1], bytearray):
                last += data
            else:
                chunks.append(bytearray(data))
            self._event.set()
        return True

    def end_of_body(self) -> None:
        self._ended = True
        self._expects_continue = False
        self._event.set()

    def disconnect(self) -> None:
        """The client has disconnected or cancelled the response."""
        self.disconnected = True
        self.scope["state"]["gone"] = True
        self._discard_body()
        self._event.set()
        self.wake_sender()

    def wake_sender(self) -> None:
        """A window or the transport's buffer has room: let a waiting `send` look again."""
        self._protocol.blocked.discard(self)
        for future in self._senders:
            if not future.done():
                future.set_result(None)
        self._senders.clear()

    # The task

    def break_off(self, *, cancelled: bool) -> None:
        if not (cancelled and self.response_complete):
            self._reset(ErrorCodes.CANCEL if cancelled else ErrorCodes.INTERNAL_ERROR)

    def done(self, task: asyncio.Task[None]) -> None:
        """Callback of the task; also runs if the task was cancelled before its first step."""
        self._protocol.registry.tasks.discard(task)
        self.disconnected = True
        self._discard_body()
        self._protocol.finished(self)

    async def receive(self) -> Message:
        while True:
            if self.disconnected or self.response_complete:
                return {"type": "http.disconnect"}
            if self._chunks or (self._ended and not self._body_read):
                chunks = self._chunks
                body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
                self._chunks = []
                self._body_read = self._ended
                size, self._unacknowledged = self._unacknowledged, 0
                self._protocol.taken(self.id, size)
                return {"type": "http.request", "body": body, "more_body": not self._ended}
            if self._expects_continue and not self.response_started:
                self._expects_continue = False
                self._protocol.h2.send_headers(self.id, [(b":status", b"100")])
                self._protocol.flush()
            self._event.clear()
            await self._event.wait()

    async def send(self, message: Message) -> None:
        try:
            await self._put(message)
        finally:
            if self._waits:
                self._waits = False
                self._protocol.registry.send_timeouts.leave(self)

    async def _put(self, message: Message) -> None:
        while self._protocol.write_paused and not self.disconnected:
            await self._room()
        if self._protocol.transport.is_closing():
            self.disconnect()
        if self.disconnected:
            return
        if self.is_start(message):
            self._send_head(message["status"], message.get("headers", ()))
            return
        more_body = message.get("more_body", False)
        if not self._bodyless:
            await self._send_body(message.get("body", b""), more_body)
        if not more_body and not self.disconnected:
            self.response_complete = True
            self._event.set()
            self._discard_body()
            if not self._ended:
                # RFC 9113, 8.1: the response is complete, the rest of the request is not wanted.
                self._protocol.reset(self.id, ErrorCodes.NO_ERROR)

    def _send_head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        fields = [(b":status", b"%d" % status)]
        dated = closing = False
        for name, value in headers:
            name = response_field(name, value)
            if name in HOP_BY_HOP:
                closing = closing or (name == b"connection" and value == b"close")
                continue
            if name == b"content-length":
                self._content_length = int(value)
            elif name == b"date":
                dated = True
            fields.append((name, value))
        if not dated:
            fields.append((b"date", self._protocol.registry.date()))
        self._bodyless = self.scope["method"] == "HEAD" or status in (204, 304)
        self.response_started = True
        self._protocol.h2.send_headers(self.id, fields, end_stream=self._bodyless)
        self._protocol.flush()
        if closing:
            self._protocol.shutdown()

    async def _send_body(self, body: bytes, more_body: bool) -> None:
        size = len(body)
        if self._content_length is not None:
            self._content_length -= size
            if self._content_length < 0:
                raise RuntimeError("response body longer than content-length")
            if self._content_length and not more_body:
                raise RuntimeError("response body shorter than content-length")
        protocol = self._protocol
        h2 = protocol.h2
        view = memoryview(body)
        sent = unflushed = 0
        while sent < size:
            if self.disconnected:
                return
            room = 0
            if not protocol.write_paused:
                room = min(size - sent, h2.local_flow_control_window(self.id), h2.max_outbound_frame_size)
            if room <= 0:
                protocol.flush()
                unflushed = 0
                # Flushing may have filled the transport's buffer; either way only an event can make room.
                await self._room()
                continue
            h2.send_data(self.id, view[sent : sent + room], end_stream=not more_body and sent + room == size)
            sent += room
            self._sent += room
            unflushed += room
            if unflushed >= WRITE_BYTES:
                protocol.flush()
                unflushed = 0
        if not size and not more_body:
            h2.end_stream(self.id)
        protocol.flush()
        while more_body and protocol.write_paused and not self.disconnected:
            await self._room()

    async def _room(self) -> None:
        """Wait for `wake_sender`; the caller looks again, for others may have taken the room."""
        if not self._waits:
            self._waits = True
            self._protocol.registry.send_timeouts.enter(self)
        future = self._protocol.loop.create_future()
        self._senders.append(future)
        self._protocol.blocked.add(self)
        await future

    def undrained(self) -> object:
        """The unsent bytes: a value that changes whenever bytes of this stream, or any that block it, leave."""
        return self._sent, undrained(self._protocol.transport) if self._protocol.write_paused else None

    def give_up(self) -> None:
        """End the stream, whose client opens no window, or a connection that takes nothing at all."""
        if self._protocol.write_paused:
            self._protocol.transport.abort()
        else:
            self._reset(ErrorCodes.CANCEL)

    def _reset(self, code: ErrorCodes) -> None:
        self.disconnect()
        self._protocol.reset(self.id, code)

    def _discard_body(self) -> None:
        """Return the bytes that will not be read to the connection's window."""
        self._chunks = []
        size, self._unacknowledged = self._unacknowledged, 0
        self._protocol.taken(self.id, size)
