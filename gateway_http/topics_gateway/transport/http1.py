"""HTTP/1.1 on the parser of httptools: one connection, whose requests are answered one after the other."""

import asyncio
import time
import urllib.parse
from collections import deque
from typing import Any, Final

import httptools
from starlette.types import ASGIApp

from topics_gateway.transport.connection_resources import ConnectionResources
from topics_gateway.transport.error_responses import JSON, STATUS_LINES, error_body
from topics_gateway.transport.header_validation import TOKEN, BadHeadError, check_host, check_same_host, single_fields
from topics_gateway.transport.http1_exchange import Http1Exchange
from topics_gateway.transport.linger import Linger
from topics_gateway.transport.registry import Registry, endpoints
from topics_gateway.transport.upgrade import VERSION, UnsupportedVersionError
from topics_net import background
from topics_net.sliced_protocol import SlicedProtocol

# Requests that a client sent ahead of its answers: beyond this the connection is not read any further.
PIPELINE_LIMIT: Final = 64
# Bytes of bodies that the application has not read yet: the same.
MAX_UNREAD_BYTES: Final = 65536
# The parser knows some methods and refuses all others. It is shown these as they are, and POST for any other one,
# which frames a body alike; so the application answers what the path does not take.
SHOWN_METHODS: Final = (b"GET ", b"POST ", b"PUT ", b"DELETE ", b"HEAD ", b"PATCH ", b"OPTIONS ")
STAND_IN: Final = b"POST"
EMPTY_LINE: Final = b"\r\n\r\n"


class HeadTooLargeError(Exception):
    """Raised in a parser callback when a request head exceeds `max_header_bytes`."""


class Http1Protocol(SlicedProtocol):
    """Serves one HTTP/1.1 connection.

    Bounds the time for a request head, and the size of heads, trailers and pipelines; refuses heads that can be read in
    two ways; takes any method. A request is handed on once all that was received is parsed, so that the body of a small
    one is whole by then.
    """

    def __init__(self, app: ASGIApp, registry: Registry) -> None:
        super().__init__(registry.loop_budget)
        self.app = app
        self.registry = registry
        self.write_paused = False
        self._writable = asyncio.Event()
        self._resources = ConnectionResources()
        self._parser = self._new_parser()
        self._running: Http1Exchange | None = None
        self._waiting: deque[Http1Exchange] = deque()  # behind it; the body of the last one may not be complete
        self._newest: Http1Exchange | None = None  # the last one of all
        # Of the request being parsed.
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._scope: dict[str, Any] = {}
        self._method = ""  # that the parser is not shown
        self._began = time.perf_counter()
        self._max_head = registry.limits.max_header_bytes
        self._head_bytes = 0
        self._head_may_be_large = False
        self._in_head = False
        self._in_body = False
        self._body_rest = 0  # of a body with a length
        self._body_advanced = False
        self._overhead_bytes = 0
        self._upgrading = False
        self._between = True  # two messages: the next byte is a method's
        self._begun = b""  # of a request line that is not complete
        self._tail = b""  # the last bytes of a piece, which may hold a part of an empty line
        self._work = 0  # calls of the parser, in this slice
        self._host: bytes | None = None  # the newest valid one

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvloop's is no subclass
        self.transport = transport
        self.registry.connections.add(self)
        self._client, self._server, self._scheme = endpoints(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        self._resources.close()
        self.registry.forget(self)

    def _release(self) -> None:
        """Signal the disconnect to the running request and break the reference cycles."""
        self._ended = True
        self.registry.head_timeouts.cancel(self.transport)
        running, self._running = self._running, None
        if running is not None:
            running.disconnect()
        self.resume_writing()
        self._backlog.clear()
        self._waiting.clear()
        self._newest = self._parser = None

    # Input

    def _feed(self, data: bytes) -> int:
        """Parse a slice, in pieces that end wherever a message may end: so it is known where each one begins."""
        self._work = 0
        if self._begun:
            data, self._begun = self._begun + data, b""
        at, size = 0, len(data)
        while at < size and not self._ended:
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
            at = end
        if self._waiting:
            if self._running is None:
                self._run_next()
            if self._is_blocked():  # else continue, to notice the end of the connection
                self.regulate()
        return self._work

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
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:  # always behind a head, and so behind a piece
            if not self._asks_for_websocket():
                self._ignore_upgrade()
            elif self._running is not None or self._waiting:
                self._reject(400, "malformed HTTP request: upgrade after an unanswered request")
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
                self._reject(431, "request head too large", head=bool(self._url) and self._is_head())
        elif self._in_body and not self._body_advanced:
            # Chunk extensions and trailers: httptools collects an unfinished trailer without telling us.
            self._overhead_bytes += size
            if self._overhead_bytes > self._max_head:
                self._reject(400, "malformed HTTP request: trailers too large")

    def _is_head(self) -> bool:
        return bool(self._parser.get_method() == b"HEAD")

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        """A request line begins."""
        self._url = b""
        self._headers = []
        self._head_bytes = 0
        self._in_head = True
        self._upgrading = False
        self._work += 1

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head; of a trailer none is kept, for the application has seen the headers already."""
        if self._in_head:
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """A head is complete."""
        url, headers = self._url, self._headers
        if self._head_may_be_large:
            size = len(url) + sum(len(name) + len(value) + 4 for name, value in headers)
            if size > self._max_head:
                raise HeadTooLargeError
        parser = self._parser
        version = parser.get_http_version()
        method = self._method or parser.get_method().decode("ascii")
        fields = self._check_fields(version)
        target = url if url.startswith(b"/") else self._path_of(url, fields.get(b"host"))
        if b"#" in target:
            raise BadHeadError("invalid request target")
        raw_path, _, query = target.partition(b"?")
        path = raw_path.decode("ascii")  # the parser takes no others
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": self._scheme,
            "root_path": "",
            "method": method,
            "path": urllib.parse.unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": headers,
            "state": {"connection_resources": self._resources},
        }
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
        self.registry.head_timeouts.cancel(self.transport)
        # Whatever follows a CONNECT would be for the tunnel that the client does not get.
        keep_alive = version == "1.1" and parser.should_keep_alive() and method != "CONNECT"
        awaits_100 = b"expect" in fields and fields[b"expect"].lower() == b"100-continue" and version == "1.1"
        self._newest = exchange = Http1Exchange(self, self._scope, self._began, keep_alive, awaits_100)
        self._waiting.append(exchange)

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._body_advanced = True
        self._work += 1
        self._overhead_bytes = 0
        exchange = self._newest
        if exchange is not None and not exchange.response_complete:
            exchange.add(body)
            if len(exchange.body) > MAX_UNREAD_BYTES:
                self.regulate()

    def on_message_complete(self) -> None:
        """The body is complete, or a head that asks for an upgrade."""
        self._in_body = False
        if self._upgrading:
            return
        self._between = True
        exchange = self._newest
        if exchange is not None and not exchange.response_complete:
            exchange.end_of_body()

    def _check_fields(self, version: str) -> dict[bytes, bytes]:
        """The header fields by their names. Raises BadHeadError for a head that two readers may take differently."""
        if version not in ("1.1", "1.0"):
            raise BadHeadError(f"HTTP/{version} in the syntax of HTTP/1.1")
        fields = single_fields(self._headers)
        host = fields.get(b"host")
        if host is None:
            if version == "1.1":
                raise BadHeadError("no Host header")
        elif host != self._host:
            check_host(host)
            self._host = host
        if b"transfer-encoding" in fields:
            codings = [value.lower() for name, value in self._headers if name == b"transfer-encoding"]
            if version == "1.0" or codings != [b"chunked"] or b"content-length" in fields:
                raise BadHeadError("a body that is framed by something else than chunked or a Content-Length")
        return fields

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
            self._headers.insert(0, (b"host", authority))
        path = rest[len(authority) :]
        return path if path.startswith(b"/") else b"/" + path

    # Upgrades

    def _asks_for_websocket(self) -> bool:
        # In any other request the wish for a WebSocket is ignored, like all upgrades that are not offered.
        fields, scope = dict(self._headers), self._scope
        return (
            self.registry.websocket is not None
            and scope["method"] == "GET"
            and scope["http_version"] == "1.1"
            and fields.get(b"upgrade", b"").lower() == b"websocket"
            and b"upgrade" in (token.lower().strip() for token in fields.get(b"connection", b"").split(b","))
        )

    def _open_websocket(self, rest: bytes) -> None:
        """Hand the connection over, and `rest`, the bytes after the head; or refuse an upgrade that is malformed."""
        make = self.registry.websocket
        assert make is not None, "it is offered"
        try:
            protocol = make(self.app, self.registry, self._scope, self._url)
        except UnsupportedVersionError as error:
            headers = b"upgrade: websocket\r\nsec-websocket-version: %b\r\n" % VERSION
            self._reject(426, f"malformed WebSocket upgrade: {error}", headers=headers)
            return
        except ValueError as error:
            self._reject(400, f"malformed WebSocket upgrade: {error}")
            return
        self.registry.head_timeouts.cancel(self.transport)
        self._backlog.clear()  # it is in `rest`
        self.regulate()
        self._ended = True
        self.registry.forget(self)
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        self._parser = None  # breaks the reference cycle
        if rest:
            protocol.data_received(rest)

    def _ignore_upgrade(self) -> None:
        """Parse a request again without its `upgrade` header, which a server may ignore (RFC 9110, 7.8).

        Java's client offers h2c with its first request. httptools takes any upgrade for the end of HTTP and would
        lose the request's body.
        """
        parser = self._parser
        head = [parser.get_method(), b" ", self._url, b" HTTP/", parser.get_http_version().encode(), b"\r\n"]
        for name, value in self._headers:
            if name != b"upgrade":
                head += (name, b": ", value, b"\r\n")
        head.append(b"\r\n")
        self._parser = self._new_parser()
        self._parse(b"".join(head), b"", 0)

    # Output

    def _run_next(self) -> None:
        """Hand on the oldest request."""
        self._running = exchange = self._waiting.popleft()
        exchange.begin()
        tasks = self.registry.tasks
        task = background.start(exchange.run(self.app))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def finished(self) -> None:
        """The running request is answered: start the next one, or end the connection."""
        exchange, self._running = self._running, None
        if exchange is None or self.transport.is_closing():
            return
        if not exchange.keep_alive:
            if exchange.more_body or self._ended:
                self._linger()
            else:
                self.transport.close()
            return
        if self._waiting:
            self._run_next()
        else:
            self.registry.head_timeouts.start(self.transport)
        if self._backlog:
            self._schedule()
        if self._is_paused:
            self.regulate()

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self.write_paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        """The transport has room again."""
        self.write_paused = False
        self._writable.set()

    async def drained(self) -> None:
        """Wait for `resume_writing`."""
        await self._writable.wait()

    def _is_full(self) -> bool:
        """Return whether the application has so much to read that no more of it is received."""
        newest = self._newest
        if newest is not None and len(newest.body) > MAX_UNREAD_BYTES and not newest.response_complete:
            return True
        return self._is_blocked()

    def _is_blocked(self) -> bool:
        waiting = self._waiting
        return bool(waiting) and (
            len(waiting) >= PIPELINE_LIMIT or sum(len(exchange.body) for exchange in waiting) > MAX_UNREAD_BYTES
        )

    def _reject(self, status: int, message: str, *, head: bool = False, headers: bytes = b"") -> None:
        """Answer input that is no HTTP, after the answers to the requests before it, and close.

        `head` says that it is a HEAD request, whose answer has no body; `headers` are lines for the answer.
        """
        self._ended = True
        newest = self._newest
        if self._in_body and newest is not None:
            if newest.response_complete:
                # Already answered: another answer would be taken for that of the next request.
                self.transport.close()
                return
            if newest is self._running:
                started = newest.response_started
                self._running = None
                newest.disconnect()
                if started:
                    # Its response can't be completed, and an error inside it would be taken for a part of it.
                    self.transport.close()
                else:
                    self._write_error(status, message, headers, head=head)
                return
            self._waiting.pop()
        last = self._waiting[-1] if self._waiting else self._running
        if last is not None:
            last.keep_alive = False
        else:
            self._write_error(status, message, headers, head=head)

    def _write_error(self, status: int, message: str, headers: bytes, *, head: bool) -> None:
        if self.transport.is_closing():
            return
        body = error_body("invalid_request", message, self._began)
        self.transport.write(
            b"%bdate: %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n%b"
            % (STATUS_LINES[status], self.registry.date(), JSON, len(body), headers, b"" if head else body)
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
        newest = self._newest
        if self._running is None or newest is None:
            self.transport.close()
        else:
            newest.keep_alive = False
