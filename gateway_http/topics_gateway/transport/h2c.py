"""HTTP/2, with prior knowledge (RFC 9113, 3.3) or over TLS: one connection, one application task a stream."""

import asyncio
import logging
import time
import urllib.parse
from collections.abc import Callable, Iterable
from typing import Any, Final

from h2.config import H2Configuration
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from starlette.types import ASGIApp

from topics_gateway.transport.connection_resources import ConnectionResources
from topics_gateway.transport.error_responses import error_body, internal_error, respond
from topics_gateway.transport.h2rules import (
    IDLE_BURST,
    IDLE_PER_SECOND,
    BoundedFrames,
    CountingConnection,
    GoawayTolerant,
    check_request,
    check_trailers,
)
from topics_gateway.transport.header_validation import BadHeadError, response_field
from topics_gateway.transport.linger import Linger
from topics_gateway.transport.registry import Registry, endpoints, logger
from topics_net import background
from topics_net.send_timeout import prepare, undrained
from topics_net.sliced_protocol import SlicedProtocol

# Four times the default: a DATA frame costs Python about the same whatever its size.
MAX_FRAME_BYTES: Final = 65536
# A connection may have so many unread bytes of bodies however many there are in all.
UNREAD_BYTES: Final = 65536
# Smaller pieces of a body are put together: each by itself takes many times its size.
SMALL_PIECE_BYTES: Final = 1024
# Frames of this much are joined into one write.
WRITE_BYTES: Final = 65536
# A peer that makes us answer (PING, SETTINGS, RST_STREAM) but does not read is cut off beyond this.
MAX_CONTROL_BYTES: Final = 1 << 20

# RFC 9113, 8.2.2: these have no meaning in HTTP/2 and must not be sent.
HOP_BY_HOP: Final = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))

# It logs every header that it reads, keys among them, at the level debug.
logging.getLogger("hpack").setLevel(logging.WARNING)

Headers = Iterable[tuple[bytes, bytes]]
Message = dict[str, Any]


class Http2Protocol(SlicedProtocol):
    """Serves one HTTP/2 connection.

    Violations of the protocol end the connection with GOAWAY; nothing is logged for what a client does wrong.
    """

    MIN_BYTES = 1024
    MAX_BYTES = 16384

    def __init__(self, app: ASGIApp, registry: Registry) -> None:
        super().__init__(registry.loop_budget)
        self.app = app
        self.registry = registry
        self.loop = asyncio.get_running_loop()
        self.client: tuple[str, int] | None = None
        self.server: tuple[str, int] | None = None
        self.scheme = "http"
        self.resources = ConnectionResources()
        self.write_paused = False
        self.blocked: set[Stream] = set()
        self._streams: dict[int, Stream] = {}
        self._draining = False
        self._unread = 0  # bytes of bodies that the streams have
        self._held = False  # not read, since all connections have too many
        self._idle_left = IDLE_BURST
        self._idle_at = self.loop.time()
        self._handlers: dict[type[object], Callable[[Any], None]] = {
            RequestReceived: self._on_request,
            DataReceived: self._on_data,
            StreamEnded: self._on_ended,
            StreamReset: self._on_reset,
            WindowUpdated: self._on_window,
            RemoteSettingsChanged: self._on_settings,
            ConnectionTerminated: self._on_goaway,
            TrailersReceived: self._on_trailers,
        }
        limits = registry.limits
        self.h2 = h2 = CountingConnection(
            # Response headers are checked and lower-cased by Stream; of a request that is malformed h2 would end the
            # connection, and so all others on it.
            H2Configuration(
                client_side=False,
                header_encoding=None,
                validate_inbound_headers=False,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        h2.state_machine = GoawayTolerant()
        h2.incoming_buffer = BoundedFrames(limits.max_header_bytes)
        settings = {
            SettingCodes.MAX_CONCURRENT_STREAMS: limits.max_streams,
            SettingCodes.INITIAL_WINDOW_SIZE: limits.stream_window,
            SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
            SettingCodes.MAX_HEADER_LIST_SIZE: limits.max_header_bytes,
            SettingCodes.ENABLE_CONNECT_PROTOCOL: 0,
        }
        h2.local_settings = Settings(client=False, initial_values=settings)
        h2.max_inbound_frame_size = MAX_FRAME_BYTES
        h2.decoder.max_header_list_size = limits.max_header_bytes
        h2.initiate_connection()
        # h2 ends the connection when a client opens too many streams, also one that has not seen our settings
        # yet. So h2 gets no limit and _on_request refuses streams, which clients retry.
        settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 2**31 - 1
        h2.local_settings = Settings(client=False, initial_values=settings)
        more = limits.connection_window - h2.inbound_flow_control_window
        if more > 0:
            h2.increment_flow_control_window(more)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvloop's is no subclass
        self.transport = transport
        self.client, self.server, self.scheme = endpoints(transport)
        self.registry.connections.add(self)
        prepare(transport)
        self.flush()

    def _feed(self, data: bytes) -> int:
        try:
            events = self.h2.receive_data(data)
        except ProtocolError:
            # h2 has queued the GOAWAY.
            self._end()
            return 0
        except Exception as error:  # a fault of h2 or hpack must not become a traceback by the event loop
            logger.debug("HTTP/2 input not understood: %r", error)
            self._end(ErrorCodes.PROTOCOL_ERROR)
            return 0
        idle, self.h2.idle = self.h2.idle, 0
        if idle:
            self.count_idle(idle)
        for event in events:
            if self._ended:
                return 0
            handler = self._handlers.get(type(event))
            if handler is not None:
                handler(event)
        self.flush()
        if self.write_paused and self.transport.get_write_buffer_size() > MAX_CONTROL_BYTES:
            self.transport.abort()
        return len(events) + idle

    def _is_full(self) -> bool:
        return self._held

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        self._wake_blocked()

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        self.resources.close()
        self.registry.forget(self)

    # Events

    def _on_request(self, event: RequestReceived) -> None:
        stream_id = event.stream_id
        if self._draining or len(self._streams) >= self.registry.limits.max_streams:
            self.reset(stream_id, ErrorCodes.REFUSED_STREAM)
            self.count_idle()
            return
        stream = Stream(self, stream_id)
        self.registry.head_timeouts.cancel(self.transport)
        self._streams[stream_id] = stream
        app = stream.open(event.headers)
        task = background.start(stream.run(app))
        self.registry.tasks.add(task)
        task.add_done_callback(stream.done)

    def _on_data(self, event: DataReceived) -> None:
        stream = self._streams.get(event.stream_id)
        size = event.flow_controlled_length
        if stream is None or not stream.feed(event.data, size):
            self.acknowledge(event.stream_id, size)
            return
        unread = self.registry.unread
        self._unread += size
        unread.nbytes += size
        if unread.is_full and self._unread > UNREAD_BYTES and not self._held:
            self._held = True
            unread.hold(self)
            self._regulate()

    def _on_trailers(self, event: TrailersReceived) -> None:
        try:
            check_trailers(event.headers)
        except ProtocolError:
            self._end(ErrorCodes.PROTOCOL_ERROR)

    def _on_ended(self, event: StreamEnded) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.end_of_body()

    def _on_reset(self, event: StreamReset) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.disconnect()

    def _on_window(self, event: WindowUpdated) -> None:
        if event.stream_id:
            stream = self._streams.get(event.stream_id)
            if stream is not None:
                stream.wake_sender()
        else:
            self._wake_blocked()

    def _on_settings(self, event: RemoteSettingsChanged) -> None:
        # A larger initial window opens the window of every stream.
        self._wake_blocked()

    def _on_goaway(self, event: ConnectionTerminated) -> None:
        # No further requests will come; the ones that run are still wanted, unless the client found an error.
        if event.error_code == ErrorCodes.NO_ERROR and self._streams:
            self._draining = True
        else:
            self._end()

    def count_idle(self, frames: int = 1) -> None:
        """Count frames that are work for us and ask for nothing; too many end the connection."""
        now = self.loop.time()
        self._idle_left = min(IDLE_BURST, self._idle_left + (now - self._idle_at) * IDLE_PER_SECOND) - frames
        self._idle_at = now
        if self._idle_left < 0:
            self._end(ErrorCodes.ENHANCE_YOUR_CALM)

    # For Stream

    def finished(self, stream: "Stream") -> None:
        """The task of a stream is done."""
        self._streams.pop(stream.id, None)
        if self._streams or self._ended:
            return
        if self._draining:
            self._end()
        else:
            self.registry.head_timeouts.start(self.transport)

    def go_on(self) -> None:
        """Read again, if nothing that came before has to be looked at first."""
        if self._held:
            self._held = False
            self.registry.unread.leave(self)
            self._regulate()

    def taken(self, stream_id: int, size: int) -> None:
        """A stream does not have `size` received bytes any more."""
        self._unread -= size
        self.registry.unread.take(size)
        if self._unread <= UNREAD_BYTES:
            self.go_on()
        self.acknowledge(stream_id, size)

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Give `size` received bytes back to the client's windows."""
        if size and not self._ended:
            self.h2.acknowledge_received_data(size, stream_id)
            self.flush()

    def reset(self, stream_id: int, code: ErrorCodes) -> None:
        """Send RST_STREAM, unless the stream is closed already."""
        if self._ended:
            return
        try:
            self.h2.reset_stream(stream_id, code)
        except ProtocolError:
            return
        self.flush()

    def flush(self) -> None:
        """Hand what h2 has queued to the transport."""
        data = self.h2.data_to_send()
        if data and not self.transport.is_closing():
            self.transport.write(data)

    # The end

    def shutdown(self) -> None:
        """Send GOAWAY; close now if no request runs, else after the running ones."""
        if self._ended:
            return
        self._draining = True
        if self._streams:
            self.h2.close_connection(ErrorCodes.NO_ERROR)
            self.flush()
        else:
            self._end(ErrorCodes.NO_ERROR, linger=False)

    head_timeout = shutdown

    def _end(self, code: ErrorCodes | None = None, *, linger: bool = True) -> None:
        """Write what is queued (and GOAWAY with `code`), end the streams, close."""
        if self._ended:
            return
        if code is not None:
            self.h2.close_connection(code)
        self.flush()
        self._release()
        if self.transport.is_closing():
            return
        if linger:
            self.resources.close()
            Linger(self.registry, self.transport)
            self.registry.forget(self)
        else:
            self.transport.close()

    def _release(self) -> None:
        self._ended = True
        self.registry.head_timeouts.cancel(self.transport)
        for stream in list(self._streams.values()):
            stream.disconnect()
        self.registry.unread.leave(self)
        self._wake_blocked()

    def _wake_blocked(self) -> None:
        for stream in list(self.blocked):
            stream.wake_sender()


class Stream:
    """One request and its response: the `receive` and `send` of the application."""

    def __init__(self, protocol: Http2Protocol, stream_id: int) -> None:
        self.id = stream_id
        self._began = time.perf_counter()
        self._protocol = protocol
        self._scope: Message = {}
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
        self._started = False
        self._complete = False
        self._disconnected = False
        self._bodyless = False
        self._content_length: int | None = None
        self._sent = 0

    def open(self, headers: list[tuple[bytes, bytes]]) -> ASGIApp:
        """Build the scope; return what answers the request: the application, or a 400 for a head that is none."""
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
        self._scope = {
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
            self._scope["state"]["awaits_100"] = self._awaits_100
        return self._protocol.app

    def _refusal(self, message: str) -> ASGIApp:
        """Stands in for the application."""

        async def refuse(scope: Any, receive: Any, send: Any) -> None:
            await respond(400, error_body("invalid_request", message, self._began), send)

        return refuse

    def _awaits_100(self) -> bool:
        """Return True while the client waits for `100 Continue`, which `_receive` sends."""
        return self._expects_continue

    # Events of the connection

    def feed(self, data: bytes, size: int) -> bool:
        """Take body bytes that count `size` in the windows; return False if they will not be read."""
        if self._disconnected or self._complete:
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
        """The client is gone or no longer wants the response."""
        self._disconnected = True
        self._scope["state"]["gone"] = True
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

    async def run(self, app: ASGIApp) -> None:
        """Run the application once; its errors are logged here and nowhere else."""
        scope: Any = self._scope
        receive: Any = self._receive
        send: Any = self._send
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._complete:
                self._reset(ErrorCodes.CANCEL)
            raise
        except Exception:
            logger.exception("exception in the application: %s %s", self._scope["method"], self._scope["path"])
        else:
            if self._complete or self._disconnected:
                return
            logger.error("incomplete response by the application: %s %s", self._scope["method"], self._scope["path"])
        if self._complete or self._disconnected:
            return
        if self._started:
            self._reset(ErrorCodes.INTERNAL_ERROR)
        else:
            await respond(500, internal_error(self._began), self._send)

    def done(self, task: asyncio.Task[None]) -> None:
        """Callback of the task; also runs if the task was cancelled before its first step."""
        self._protocol.registry.tasks.discard(task)
        self._disconnected = True
        self._discard_body()
        self._protocol.finished(self)

    async def _receive(self) -> Message:
        while True:
            if self._disconnected or self._complete:
                return {"type": "http.disconnect"}
            if self._chunks or (self._ended and not self._body_read):
                chunks = self._chunks
                body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
                self._chunks = []
                self._body_read = self._ended
                size, self._unacknowledged = self._unacknowledged, 0
                self._protocol.taken(self.id, size)
                return {"type": "http.request", "body": body, "more_body": not self._ended}
            if self._expects_continue and not self._started:
                self._expects_continue = False
                self._protocol.h2.send_headers(self.id, [(b":status", b"100")])
                self._protocol.flush()
            self._event.clear()
            await self._event.wait()

    async def _send(self, message: Message) -> None:
        try:
            await self._put(message)
        finally:
            if self._waits:
                self._waits = False
                self._protocol.registry.send_timeouts.leave(self)

    async def _put(self, message: Message) -> None:
        """Send a part of the response; waits for the client's windows and while the transport's buffer is full.

        Once the client is gone the message is dropped. A message out of order, a header that is none and a body
        that contradicts `content-length` raise RuntimeError.
        """
        while self._protocol.write_paused and not self._disconnected:
            await self._room()
        if self._protocol.transport.is_closing():
            self.disconnect()
        if self._disconnected:
            return
        kind = message["type"]
        if self._complete:
            raise RuntimeError(f"ASGI message {kind!r} after the response was complete")
        if not self._started:
            if kind != "http.response.start":
                raise RuntimeError(f"ASGI message {kind!r} where 'http.response.start' was due")
            self._send_head(message["status"], message.get("headers", ()))
            return
        if kind != "http.response.body":
            raise RuntimeError(f"ASGI message {kind!r} where 'http.response.body' was due")
        more_body = message.get("more_body", False)
        if not self._bodyless:
            await self._send_body(message.get("body", b""), more_body)
        if not more_body and not self._disconnected:
            self._complete = True
            self._event.set()
            self._discard_body()
            if not self._ended:
                # RFC 9113, 8.1: the response is complete, the rest of the request is not wanted.
                self._protocol.reset(self.id, ErrorCodes.NO_ERROR)

    def _send_head(self, status: int, headers: Headers) -> None:
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
        self._bodyless = self._scope["method"] == "HEAD" or status in (204, 304)
        self._started = True
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
            if self._disconnected:
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
        while more_body and protocol.write_paused and not self._disconnected:
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
