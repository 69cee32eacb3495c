"""HTTP/1.1: uvicorn's httptools protocol, made strict about time, memory and the shape of its errors."""

import asyncio
import time
import urllib.parse
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

import httptools
from uvicorn._types import ASGI3Application, ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from topics_gateway.transport.connection_resources import ConnectionResources
from topics_gateway.transport.error_responses import JSON, error_body, internal_error, respond
from topics_gateway.transport.header_validation import TOKEN, BadHeadError, check_host, check_same_host, single_fields
from topics_gateway.transport.idle import IdleTimer
from topics_gateway.transport.linger import LINGER_SECONDS, Linger
from topics_gateway.transport.registry import Registry, logger
from topics_gateway.transport.upgrade import VERSION, UnsupportedVersionError
from topics_net import background
from topics_net.send_timeout import prepare, undrained

# Requests that a client sent ahead of its answers: beyond this the connection is not read any further.
PIPELINE_LIMIT: Final = 64
# A read of 256 KiB may hold 43,000 chunks of a byte, or 6,700 requests, a quarter of a second of work: what is parsed
# in one step of the loop, at first, at least, and at most. In between it is what may take so many calls of the parser.
FIRST_BYTES: Final = 16384
BUSY_BYTES: Final = 2048
CALM_BYTES: Final = 65536
BUSY_CALLS: Final = 64
# A larger part of a response is not copied for its frame: many clients may be sent the same bytes.
COPY_BYTES: Final = 16384
# The parser knows some methods and refuses all others. It is shown these as they are, and POST for any other one,
# which frames a body alike; so the application answers what the path does not take.
SHOWN_METHODS: Final = (b"GET ", b"POST ", b"PUT ", b"DELETE ", b"HEAD ", b"PATCH ", b"OPTIONS ")
STAND_IN: Final = b"POST"
EMPTY_LINE: Final = b"\r\n\r\n"


class HeadTooLargeError(Exception):
    """Raised in a parser callback when a request head exceeds `max_header_bytes`."""


class Http1Protocol(HttpToolsProtocol):
    """Serves one HTTP/1.1 connection.

    Beyond uvicorn: a deadline for the request head, bounded heads, trailers and pipelines, no head that can be read in
    two ways, any method, JSON errors in the order of the requests, `http.disconnect` for the request that runs (not for
    the newest one of a pipeline).
    """

    def __init__(self, config: Config, registry: Registry, timer: IdleTimer) -> None:
        self._resources = ConnectionResources()
        super().__init__(config, registry, {"connection_resources": self._resources}, asyncio.get_running_loop())
        self.logger = logger
        self.registry = registry
        self._timer = timer
        self._max_head = registry.limits.max_header_bytes
        # The cycle whose application runs now; `self.cycle` is the newest one, which may wait in the pipeline.
        self._running: Cycle | None = None
        self._closing = False
        self._backlog = bytearray()  # received, not parsed yet
        self._slice = FIRST_BYTES
        self._going_on = False
        self._calls = 0  # of the parser, in this slice
        self._between = True  # two messages: the next byte is a method's
        self._begun = b""  # of a request line that is not complete
        self._method = ""  # that the parser is not shown
        self._body_rest = 0  # of a body with a length
        self._tail = b""  # the last bytes of a piece, which may hold a part of an empty line
        self._in_head = False
        self._in_body = False
        self._upgrading = False
        self._began = time.perf_counter()
        self._host: bytes | None = None  # the newest valid one
        self._head_bytes = 0
        self._head_may_be_large = False
        self._body_advanced = False
        self._overhead_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        super().connection_made(transport)
        self.flow = PipelineFlow(
            transport, lambda: bool(self._backlog) or self._body_is_full() or self._pipeline_is_full()
        )
        self._timer.on_timeout = transport.close

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        self._resources.close()
        self.registry.forget(self)

    def _release(self) -> None:
        """Tell the running request that its client is gone and break the reference cycles."""
        self._closing = True
        self._timer.cancel()
        running, self._running = self._running, None
        if running is not None:
            running.disconnect()
        self._backlog.clear()
        self.flow.resume_writing()
        self.pipeline.clear()
        self.cycle = None  # type: ignore[assignment]  # as before the first request
        self.parser = None  # type: ignore[assignment]  # as uvicorn does

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if not self._backlog and len(data) <= self._slice:
            self._feed(data)
            return
        self._backlog += data
        self.flow.pause_reading()
        if not self._going_on:
            self._feed_backlog()

    def _go_on(self) -> None:
        """Parse more of the backlog in the next step of the loop."""
        if self._backlog and not self._going_on:
            self._going_on = True
            background.call_soon(self._feed_backlog)

    def _feed_backlog(self) -> None:
        """Parse what was received: all at once while that is little work, as it is for a large body."""
        self._going_on = False
        calls = 0
        while self._backlog and not self._pipeline_is_full():  # if it is, it goes on when a request is answered
            data = bytes(self._backlog[: self._slice])
            del self._backlog[: self._slice]
            self._feed(data)
            if self._closing:
                self._backlog.clear()
                return
            calls += self._calls
            if calls > BUSY_CALLS:
                self._go_on()
                break
        if not self._backlog:
            self.flow.resume_reading()

    def _feed(self, data: bytes) -> None:
        """Parse a slice, in pieces that end wherever a message may end: so it is known where each one begins."""
        self._calls = 0
        if self._begun:
            data, self._begun = self._begun + data, b""
        at, size = 0, len(data)
        fed = size
        while at < size:
            if self._between:
                self._began = time.perf_counter()
                line_end = data.find(b"\n", at)
                if line_end < 0 or not data.startswith(SHOWN_METHODS, at) or data.count(b" ", at, line_end) != 2:
                    data, at = self._request_line(data[at:]), 0
                    size = len(data)
                    if not data:
                        break
                self._between = False
            end = 0 if self._body_rest or self._tail else data.find(EMPTY_LINE, at) + 4
            if end < 4:
                end = self._end_of_piece(data, at, size)
            self._parse(data[at:end], data, end)
            if self._closing:
                return
            at = end
        if fed >= BUSY_BYTES:
            self._slice = max(BUSY_BYTES, min(CALM_BYTES, fed * BUSY_CALLS // max(1, self._calls)))

    def _request_line(self, data: bytes) -> bytes:
        """Return the start of a message as the parser may be shown it; nothing while its first line is not complete.

        The method is one that the parser takes, and single spaces stand around the target, where it takes more.
        """
        data = data.lstrip(b"\r\n")
        token = TOKEN.match(data)
        end = token.end() if token is not None else 0
        line_end = data.find(b"\n")
        if token is None or data[end : end + 1] not in (b" ", b""):
            return data  # which the parser refuses
        if (len(data) if line_end < 0 else line_end) > self._max_head:
            self._reject(431, "request head too large", head=token[0] == b"HEAD")
            return b""
        if line_end < 0:
            self._begun = data
            return b""
        if data.count(b" ", 0, line_end) != 2:
            self._reject(400, "malformed HTTP request: invalid request line", head=token[0] == b"HEAD")
            return b""
        if data.startswith(SHOWN_METHODS):
            return data
        self._method = token[0].decode()
        return STAND_IN + data[end:]

    def _end_of_piece(self, data: bytes, at: int, size: int) -> int:
        """A message ends behind an empty line, of its head or its chunks, or by its length."""
        if self._body_rest:
            end = min(size, at + self._body_rest)
            self._body_rest -= end - at
            return end
        if tail := self._tail:
            found = (tail + data[at : at + 3]).find(EMPTY_LINE)
            if found >= 0:
                self._tail = b""
                return at + found + 4 - len(tail)
        if tail and (found := data.find(EMPTY_LINE, at)) >= 0:
            self._tail = b""
            return found + 4
        self._tail = data[-3:] if size - at >= 3 else (tail + data[at:])[-3:]
        return size

    def _parse(self, piece: bytes, data: bytes, end: int) -> None:
        """Parse what ends at `end` of the slice `data`."""
        size = len(piece)
        # A head that lies within one piece of a small read needs no measuring.
        self._head_may_be_large = self._head_bytes + size > self._max_head
        self._body_advanced = False
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:  # always behind a head, and so behind a piece
            if not self._should_upgrade():
                self._ignore_upgrade()
            elif self._running is not None:
                self._reject(400, "malformed HTTP request: upgrade behind a request that is not answered yet")
            else:
                self._open_websocket(data[end:] + bytes(self._backlog))
            return
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, HeadTooLargeError):
                self._reject(431, "request head too large", head=self._is_head())
            elif isinstance(cause, BadHeadError):
                self._reject(400, f"malformed HTTP request: {cause}", head=self._is_head())
            else:
                # Of a request with a bad target the method is known; after other errors it may be an older one's.
                bad_target = isinstance(error, httptools.HttpParserInvalidURLError)
                self._reject(400, f"malformed HTTP request: {error}", head=bad_target and self._is_head())
            return
        if self._in_head:
            self._head_bytes += size
            if self._head_bytes > self._max_head:
                self._reject(431, "request head too large", head=bool(self.url) and self._is_head())
        elif self._in_body and not self._body_advanced:
            # Chunk extensions and trailers: httptools collects an unfinished trailer without telling us.
            self._overhead_bytes += size
            if self._overhead_bytes > self._max_head:
                self._reject(400, "malformed HTTP request: trailers too large")

    def _is_head(self) -> bool:
        return bool(self.parser.get_method() == b"HEAD")

    # Parser callbacks

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._calls += 1
        self._upgrading = False
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self.headers.append((name.lower(), value.rstrip(b" \t")))
        # A trailer must not change the headers that the application has already seen.

    def on_headers_complete(self) -> None:
        if self._head_may_be_large:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self._max_head:
                raise HeadTooLargeError
        parser = self.parser
        scope = self.scope
        version = parser.get_http_version()
        scope["method"] = method = self._method or parser.get_method().decode("ascii")
        if version != "1.1":
            scope["http_version"] = version
        fields = self._check_fields(version)
        self._set_target(scope, fields.get(b"host"))
        self._in_head = False
        if parser.should_upgrade():
            self._upgrading = True
            return
        self._method = ""
        self._head_bytes = 0
        self._in_body = True
        self._body_rest = int(fields.get(b"content-length", b"0"))
        self._body_advanced = True  # as far as this piece went
        self._overhead_bytes = 0
        self._timer.pause()
        # Whatever follows a CONNECT would be for the tunnel that the client does not get.
        keep_alive = version == "1.1" and parser.should_keep_alive() and method != "CONNECT"
        waits = b"expect" in fields and fields[b"expect"].lower() == b"100-continue" and version == "1.1"
        cycle = Cycle(self, waits, keep_alive)
        if waits:
            scope["state"]["awaits_100"] = cycle.awaits_100
        self.cycle = cycle
        if self._running is None:
            self._run(cycle)
        else:
            self.pipeline.appendleft((cycle, self.app))
            if self._pipeline_is_full():  # else go on: that is how the end of the connection is noticed
                self.flow.pause_reading()

    def on_body(self, body: bytes) -> None:
        self._body_advanced = True
        self._calls += 1
        self._overhead_bytes = 0
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        cycle.waiting_for_100_continue = False  # it does not wait
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._in_body = False
        if self._upgrading:
            return
        self._between = True
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.more_body = False
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()

    def _should_upgrade(self) -> bool:
        # In any other request the wish for a WebSocket is ignored, like all upgrades that are not offered.
        return super()._should_upgrade() and self.scope["method"] == "GET" and self.scope["http_version"] == "1.1"

    def _open_websocket(self, rest: bytes) -> None:
        """Hand the connection over, and `rest`, what came behind the head; or refuse an upgrade that is malformed."""
        scope = cast("dict[str, Any]", self.scope)
        make = cast("Callable[..., asyncio.Protocol]", self.ws_protocol_class)
        try:
            protocol = make(self.app, self.config, self.registry, scope, self.url)
        except UnsupportedVersionError as error:
            headers = b"upgrade: websocket\r\nsec-websocket-version: %b\r\n" % VERSION
            self._reject(426, f"malformed WebSocket upgrade: {error}", headers=headers)
            return
        except ValueError as error:
            self._reject(400, f"malformed WebSocket upgrade: {error}")
            return
        self._timer.cancel()
        self._closing = True  # what is left of the backlog is in `rest`
        self._backlog.clear()
        self.flow.resume_reading()
        self.registry.forget(self)
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        self.parser = None  # type: ignore[assignment]  # breaks the reference cycle
        if rest:
            protocol.data_received(rest)

    def _check_fields(self, version: str) -> dict[bytes, bytes]:
        """The header fields by their names. Raises BadHeadError for a head that two readers may take differently."""
        if version not in ("1.1", "1.0"):
            raise BadHeadError(f"HTTP/{version} in the syntax of HTTP/1.1")
        fields = single_fields(self.headers)
        host = fields.get(b"host")
        if host is None:
            if version == "1.1":
                raise BadHeadError("no Host header")
        elif host != self._host:
            check_host(host)
            self._host = host
        if b"transfer-encoding" in fields:
            codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
            if version == "1.0" or codings != [b"chunked"] or b"content-length" in fields:
                raise BadHeadError("a body that is framed by something else than chunked or a Content-Length")
        return fields

    def _set_target(self, scope: Any, host: bytes | None) -> None:
        """Put the target into the scope. Raises BadHeadError for one that is none, or is for another host."""
        target = self.url
        if not target.startswith(b"/"):
            target = self._path_of(target, host)
        if b"#" in target:
            raise BadHeadError("invalid request target")
        raw_path, _, query = target.partition(b"?")
        path = raw_path.decode("ascii")  # the parser takes no others
        scope["path"] = urllib.parse.unquote(path) if "%" in path else path
        scope["raw_path"] = raw_path
        scope["query_string"] = query

    def _path_of(self, target: bytes, host: bytes | None) -> bytes:
        """The path and query of an absolute target, or `*`. Raises BadHeadError if it is for another host."""
        if target == b"*":
            return target
        scheme, _, rest = target.partition(b"://")
        scheme = scheme.lower()
        if scheme not in (b"http", b"https"):
            raise BadHeadError("invalid request target")
        authority = rest.partition(b"?")[0].partition(b"/")[0]
        check_same_host(authority, authority if host is None else host, scheme)
        if host is None:
            self.headers.insert(0, (b"host", authority))
        path = rest[len(authority) :]
        return path if path.startswith(b"/") else b"/" + path

    def _ignore_upgrade(self) -> None:
        """Parse a request again without its `upgrade` header, which a server may ignore (RFC 9110, 7.8).

        Java's client offers h2c with its first request. httptools takes any upgrade for the end of HTTP and would
        lose the request's body.
        """
        head = [self.parser.get_method(), b" ", self.url, b" HTTP/", self.parser.get_http_version().encode(), b"\r\n"]
        for name, value in self.headers:
            if name != b"upgrade":
                head += (name, b": ", value, b"\r\n")
        head.append(b"\r\n")
        self.parser = self._new_parser()
        self._parse(b"".join(head), b"", 0)

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    # Responses

    def _run(self, cycle: "Cycle") -> None:
        self._running = cycle
        self._start_asgi_task(cycle, self.app)

    def on_response_complete(self) -> None:
        """The running cycle has sent its response: go on with the next request, or end the connection."""
        cycle, self._running = self._running, None
        if cycle is None or self.transport.is_closing():
            return
        if not cycle.keep_alive:
            if cycle.more_body or self._closing:
                self._linger()
            else:
                self.transport.close()
            return
        if self.pipeline:
            following, _ = self.pipeline.pop()
            assert isinstance(following, Cycle)
            self._run(following)
        else:
            self._timer.start()
        self._go_on()
        self.flow.resume_reading()

    def _body_is_full(self) -> bool:
        """Return whether so much of the body waits for the application that no more of it is read."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and len(cycle.body) > HIGH_WATER_LIMIT

    def _pipeline_is_full(self) -> bool:
        pipeline = self.pipeline
        return bool(pipeline) and (
            len(pipeline) >= PIPELINE_LIMIT or sum(len(cycle.body) for cycle, _ in pipeline) > HIGH_WATER_LIMIT
        )

    def _reject(self, status: int, message: str, *, head: bool = False, headers: bytes = b"") -> None:
        """Answer input that is no HTTP, after the answers to the requests before it, and close.

        `head` says that it is a HEAD request, whose answer has no body; `headers` are lines for the answer.
        """
        self._closing = True
        last: RequestResponseCycle | None = self.cycle
        if self._in_body and last is not None:
            if last.response_complete:
                # Already answered: another answer would be taken for that of the next request.
                self.transport.close()
                return
            running = self._running
            if running is not None and last is running:
                started = running.response_started
                self._running = None
                running.disconnect()
                if started:
                    # Its response can't be completed, and an error inside it would be taken for a part of it.
                    self.transport.close()
                else:
                    self._write_error(status, message, headers, head=head)
                return
            self.pipeline.popleft()
            last = self.pipeline[0][0] if self.pipeline else self._running
        if self._running is not None and last is not None:
            last.keep_alive = False
        else:
            self._write_error(status, message, headers, head=head)

    def _write_error(self, status: int, message: str, headers: bytes, *, head: bool) -> None:
        if self.transport.is_closing():
            return
        body = error_body("invalid_request", message, self._began)
        self.transport.write(
            b"%bdate: %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n%b"
            % (STATUS_LINE[status], self.registry.date(), JSON, len(body), headers, b"" if head else body)
        )
        self._linger()

    def _linger(self) -> None:
        transport = self.transport
        self._release()
        self._resources.close()
        Linger(self.registry, transport)
        self.registry.forget(self)

    def shutdown(self) -> None:
        """Close now if no request runs, else after the responses to the requests that have arrived."""
        if self._running is None:
            self.transport.close()
        else:
            self.cycle.keep_alive = False


class PipelineFlow(FlowControl):
    """Flow control that does not resume reading for a running request while too much waits behind it."""

    def __init__(self, transport: asyncio.Transport, is_full: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._is_full = is_full

    def resume_reading(self) -> None:
        if self.read_paused and not self._is_full():
            super().resume_reading()


class Cycle(RequestResponseCycle):
    """One request and its response; `receive` is uvicorn's."""

    def __init__(self, protocol: Http1Protocol, expect_100_continue: bool, keep_alive: bool) -> None:
        super().__init__(
            scope=protocol.scope,
            transport=protocol.transport,
            flow=protocol.flow,
            logger=logger,
            access_logger=logger,
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=expect_100_continue,
            keep_alive=keep_alive,
            on_response=protocol.on_response_complete,
        )
        self._registry = protocol.registry
        self._began = protocol._began
        self.bodyless = False
        self.until_close = False
        self.head = b""

    def awaits_100(self) -> bool:
        """Return True while the client waits for `100 Continue`, which `receive` sends."""
        return self.waiting_for_100_continue

    def disconnect(self) -> None:
        """The client is gone: wake `receive` and let `send` drop what it gets."""
        if not self.response_complete:
            self.disconnected = True
            self.scope["state"]["gone"] = True
        self.message_event.set()

    def _abort(self) -> None:
        """Close the connection: the client must see that this response is not complete."""
        self.disconnect()
        self.transport.close()

    async def run_asgi(self, app: ASGI3Application) -> None:
        """Run the application once; its errors are logged here and nowhere else."""
        try:
            await app(self.scope, self.receive, self.send)
        except asyncio.CancelledError:
            self._abort()
            raise
        except Exception:
            logger.exception("exception in the application: %s %s", self.scope["method"], self.scope["path"])
        else:
            if self.response_complete or self.disconnected:
                return
            logger.error("incomplete response by the application: %s %s", self.scope["method"], self.scope["path"])
        if self.response_complete or self.disconnected:
            return
        if self.response_started:
            self._abort()
        else:
            await self.send_500_response()

    async def send_500_response(self) -> None:
        """Answer with the error envelope and close."""
        self.keep_alive = False
        await respond(500, internal_error(self._began), cast("Callable[[dict[str, Any]], Any]", self.send))

    async def send(self, message: ASGISendEvent) -> None:
        """Write a part of the response; waits while the transport's buffer is full, before and after it.

        Once the client is gone the message is dropped. A message out of order, a header that is none and a body
        that contradicts `content-length` raise RuntimeError.
        """
        if self.flow.write_paused and not self.disconnected:
            await self._room()
        if self.transport.is_closing():
            self.disconnect()
        if self.disconnected:
            return
        if self.response_complete:
            raise RuntimeError(f"ASGI message {message['type']!r} after the response was complete")
        if self.response_started:
            if message["type"] != "http.response.body":
                raise RuntimeError(f"ASGI message {message['type']!r} where 'http.response.body' was due")
            more_body = message.get("more_body", False)
            self._send_body(message.get("body", b""), more_body)
            if more_body and self.flow.write_paused:
                await self._room()
        else:
            if message["type"] != "http.response.start":
                raise RuntimeError(f"ASGI message {message['type']!r} where 'http.response.start' was due")
            self._send_head(message["status"], message.get("headers", ()))

    async def _room(self) -> None:
        send_timeouts = self._registry.send_timeouts
        send_timeouts.enter(self)
        try:
            await self.flow.drain()
        finally:
            send_timeouts.leave(self)

    def undrained(self) -> object:
        """The unsent bytes: a value that changes whenever bytes leave."""
        return undrained(self.transport)

    def give_up(self) -> None:
        """Close the connection, whose client takes nothing; it may still take the timeout event for a moment."""
        transport = self.transport
        event = self.scope["state"].get("timeout_event", b"") if self.response_started and not self.bodyless else b""
        if event and self.expected_content_length == 0:
            transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event) if self.chunked_encoding else event)
            transport.close()
            background.call_later(LINGER_SECONDS, transport.abort)
        else:
            transport.abort()
        self.disconnect()
        self.flow.resume_writing()

    def _send_head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        if self.waiting_for_100_continue and self.more_body:
            # The client may or may not send its body now, so nothing after it can be understood.
            self.keep_alive = False
        content = [STATUS_LINE[status]]
        chunked: bool | None = None
        dated = closing = False
        for name, value in headers:
            if HEADER_RE.search(name) or HEADER_VALUE_RE.search(value):
                raise RuntimeError(f"invalid response header {name!r}")
            name = name.lower()
            if name == b"content-length":
                if chunked is None:
                    self.expected_content_length = int(value)
                    chunked = False
            elif name == b"transfer-encoding":
                if value.lower() == b"chunked":
                    self.expected_content_length = 0
                    chunked = True
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
        self.waiting_for_100_continue = False
        if not dated:
            content += (b"date: ", self._registry.date(), b"\r\n")
        if not self.keep_alive and not closing:
            content.append(b"connection: close\r\n")
        if self.scope["method"] == "HEAD" or status in (204, 304):
            self.bodyless = True
        elif chunked is None:
            if self.scope["http_version"] == "1.0":
                # HTTP/1.0 knows no chunks: the end of the connection, which is not kept, ends the body.
                self.until_close = True
            else:
                chunked = True
                content.append(b"transfer-encoding: chunked\r\n")
        self.chunked_encoding = chunked
        content.append(b"\r\n")
        self.head = b"".join(content)  # goes out with the first part of the body: one system call instead of two

    def _send_body(self, body: bytes, more_body: bool) -> None:
        frame: tuple[bytes, ...] = (body,) if body else ()
        if self.bodyless:
            self.expected_content_length = 0
            frame = ()
        elif self.chunked_encoding:
            end = b"" if more_body else b"0\r\n\r\n"
            if len(body) > COPY_BYTES:
                frame = (b"%x\r\n" % len(body), body, b"\r\n" + end)
            elif body:
                frame = (b"%x\r\n%b\r\n%b" % (len(body), body, end),)
            elif end:
                frame = (end,)
        elif not self.until_close:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0:
                raise RuntimeError("response body longer than content-length")
        if self.head:
            if more_body:
                prepare(self.transport)
            self.transport.writelines((self.head, *frame))
            self.head = b""
        elif len(frame) == 1:
            self.transport.write(frame[0])
        elif frame:
            self.transport.writelines(frame)
        if not more_body:
            if self.expected_content_length:
                raise RuntimeError("response body shorter than content-length")
            self.response_complete = True
            self.message_event.set()
            self.on_response()
