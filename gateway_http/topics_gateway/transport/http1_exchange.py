"""One HTTP/1.1 request and its response."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from starlette.types import Message

from topics_gateway.transport.error_responses import STATUS_LINES
from topics_gateway.transport.exchange import Exchange
from topics_gateway.transport.header_validation import response_field
from topics_gateway.transport.linger import LINGER_SECONDS
from topics_net import background
from topics_net.send_timeout import prepare, undrained

if TYPE_CHECKING:
    from topics_gateway.transport.http1 import Http1Protocol

# A larger part of a response is not copied for its frame: many clients may be sent the same bytes.
COPY_BYTES: Final = 16384
# A larger body is not kept for the whole time that its request takes.
MAX_WHOLE_BYTES: Final = 65536


class Http1Exchange(Exchange):
    """One request of an HTTP/1.1 connection.

    A small body that has arrived whole is in `scope["state"]["body"]`; an application that takes it out from there has
    no need to `receive` it.
    """

    def __init__(
        self, protocol: "Http1Protocol", scope: dict[str, Any], began: float, keep_alive: bool, awaits_100: bool
    ) -> None:
        super().__init__(scope, began)
        self._protocol = protocol
        self._transport = protocol.transport
        self._arrival: asyncio.Event | None = None  # of a part of the body, or the end; once the application waits
        # The request.
        self.keep_alive = keep_alive
        self.awaits_100 = awaits_100
        self.body: bytes | bytearray = b""  # as much of it as the application has not read
        self.more_body = True
        self._body_read = False
        # The response.
        self._is_bodyless = False
        self._chunked = False
        self._rest: int | None = 0  # bytes of the body that are due; None if its length is not known
        self._head = b""
        if awaits_100:
            scope["state"]["awaits_100"] = lambda: self.awaits_100

    # The request

    def add(self, data: bytes) -> None:
        """Take a part of the body."""
        if not self.body:
            self.body = data
        else:
            if isinstance(self.body, bytes):
                self.body = bytearray(self.body)
            self.body += data
        self.awaits_100 = False  # it does not wait
        if self._arrival is not None:
            self._arrival.set()

    def end_of_body(self) -> None:
        """The body is complete."""
        self.more_body = self.awaits_100 = False
        if self._arrival is not None:
            self._arrival.set()

    def disconnect(self) -> None:
        """The client has disconnected: wake `receive` and let `send` drop messages."""
        if not self.response_complete:
            self.disconnected = True
            self.scope["state"]["gone"] = True
        if self._arrival is not None:
            self._arrival.set()

    async def receive(self) -> Message:
        if self.awaits_100 and not self._transport.is_closing():
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.awaits_100 = False
        while not (self.disconnected or self.response_complete):
            if self.body or not (self.more_body or self._body_read):
                body, self.body = self.body, b""
                self._body_read = not self.more_body
                whole = self.scope["state"].pop("body", b"")
                return {"type": "http.request", "body": whole or bytes(body), "more_body": self.more_body}
            self._protocol.regulate()
            if self._arrival is None:
                self._arrival = asyncio.Event()
            self._arrival.clear()
            await self._arrival.wait()
        return {"type": "http.disconnect"}

    def begin(self) -> None:
        """Give the application its body, if it is small and whole."""
        if self.body and not self.more_body and len(self.body) <= MAX_WHOLE_BYTES:
            self.scope["state"]["body"], self.body = bytes(self.body), b""

    def break_off(self, *, cancelled: bool) -> None:
        self.disconnect()
        self._transport.close()

    # The response

    async def send(self, message: Message) -> None:
        protocol = self._protocol
        if protocol.write_paused and not self.disconnected:
            await self._drained()
        if self._transport.is_closing():
            self.disconnect()
        if self.disconnected:
            return
        if self.is_start(message):
            self._start_response(message["status"], message.get("headers", ()))
            return
        more_body = message.get("more_body", False)
        self._send_body(message.get("body", b""), more_body)
        if more_body and protocol.write_paused:
            await self._drained()

    async def _drained(self) -> None:
        send_timeouts = self._protocol.registry.send_timeouts
        send_timeouts.enter(self)
        try:
            await self._protocol.drained()
        finally:
            send_timeouts.leave(self)

    def undrained(self) -> object:
        """The unsent bytes: a value that changes whenever bytes leave."""
        return undrained(self._transport)

    def give_up(self) -> None:
        """Close the connection, whose client takes nothing; it may still take the timeout event for a moment."""
        transport = self._transport
        event = (
            self.scope["state"].get("timeout_event", b"") if self.response_started and not self._is_bodyless else b""
        )
        if event and not self._rest:
            transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event) if self._chunked else event)
            transport.close()
            background.call_later(LINGER_SECONDS, transport.abort)
        else:
            transport.abort()
        self.disconnect()
        self._protocol.resume_writing()

    def _start_response(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        if self.awaits_100 and self.more_body:
            # The client may or may not send its body now, so nothing after it can be understood.
            self.keep_alive = False
        content = [STATUS_LINES[status]]
        framed = dated = closing = False
        for field in headers:
            name = response_field(*field)
            value = field[1]
            if name == b"content-length":
                if not framed:
                    self._rest = int(value)
                    framed = True
            elif name == b"transfer-encoding":
                if value.lower() == b"chunked":
                    self._rest = None
                    framed = self._chunked = True
            elif name == b"connection":
                if b"close" in (token.strip() for token in value.lower().split(b",")):
                    self.keep_alive = False
                    closing = True
                elif not self.keep_alive:
                    continue
            elif name == b"date":
                dated = True
            content += (name, b": ", value, b"\r\n")
        self.response_started = True
        self.awaits_100 = False
        if not dated:
            content += (b"date: ", self._protocol.registry.date(), b"\r\n")
        if not self.keep_alive and not closing:
            content.append(b"connection: close\r\n")
        if self.scope["method"] == "HEAD" or status in (204, 304):
            self._is_bodyless = True
            self._rest = None
        elif not framed:
            self._rest = None
            # HTTP/1.0 knows no chunks: the end of the connection, which is not kept, ends the body.
            if self.scope["http_version"] != "1.0":
                self._chunked = True
                content.append(b"transfer-encoding: chunked\r\n")
        content.append(b"\r\n")
        self._head = b"".join(content)  # goes out with the first part of the body: one system call instead of two

    def _send_body(self, body: bytes, more_body: bool) -> None:
        frame: tuple[bytes, ...] = (body,) if body else ()
        if self._is_bodyless:
            frame = ()
        elif self._chunked:
            end = b"" if more_body else b"0\r\n\r\n"
            if len(body) > COPY_BYTES:
                frame = (b"%x\r\n" % len(body), body, b"\r\n" + end)
            elif body:
                frame = (b"%x\r\n%b\r\n%b" % (len(body), body, end),)
            elif end:
                frame = (end,)
        elif self._rest is not None:
            self._rest -= len(body)
            if self._rest < 0:
                raise RuntimeError("response body longer than content-length")
        transport = self._transport
        if self._head:
            if more_body:
                prepare(transport)
            transport.writelines((self._head, *frame))
            self._head = b""
        elif len(frame) == 1:
            transport.write(frame[0])
        elif frame:
            transport.writelines(frame)
        if not more_body:
            if self._rest:
                raise RuntimeError("response body shorter than content-length")
            self.response_complete = True
            if self._arrival is not None:
                self._arrival.set()
            self._protocol.finished()
