"""HTTP/2, with prior knowledge (RFC 9113, 3.3) or over TLS: one connection, one application task a stream."""

import asyncio
import logging
from collections.abc import Callable
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
from topics_gateway.transport.h2_stream import Stream
from topics_gateway.transport.h2rules import (
    IDLE_BURST,
    IDLE_PER_SECOND,
    BoundedFrames,
    CountingConnection,
    GoawayTolerant,
    check_trailers,
)
from topics_gateway.transport.linger import Linger
from topics_gateway.transport.registry import Registry, endpoints, logger
from topics_net import background
from topics_net.send_timeout import prepare
from topics_net.sliced_protocol import SlicedProtocol

# Four times the default: a DATA frame costs Python about the same whatever its size.
MAX_FRAME_BYTES: Final = 65536
# Unread body bytes that every connection may have, regardless of the total.
UNREAD_BYTES: Final = 65536
# A peer that makes us answer (PING, SETTINGS, RST_STREAM) but does not read is cut off beyond this.
MAX_CONTROL_BYTES: Final = 1 << 20

# It logs every header that it reads, keys among them, at the level debug.
logging.getLogger("hpack").setLevel(logging.WARNING)


class Http2Protocol(SlicedProtocol):
    """Serves one HTTP/2 connection.

    Violations of the protocol end the connection with GOAWAY; faults of clients are not logged.
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
            self.regulate()

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

    def finished(self, stream: Stream) -> None:
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
            self.regulate()

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
        """Hand the output of h2 to the transport."""
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

    def _end(self, code: ErrorCodes | None = None, *, linger: bool = True) -> None:
        """Write the output (and GOAWAY with `code`), end the streams, close."""
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
