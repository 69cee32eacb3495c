"""Differences of this HTTP/2 from the h2 library, and the limit on empty frames of HTTP/2 and WebSockets."""

from collections.abc import Sequence
from typing import Final

from h2.connection import ConnectionInputs, ConnectionState, H2Connection, H2ConnectionStateMachine
from h2.events import Event
from h2.exceptions import DenialOfServiceError, ProtocolError
from h2.frame_buffer import FrameBuffer
from h2.utilities import HeaderValidationFlags, validate_headers
from hyperframe.frame import DataFrame, Frame, HeadersFrame, RstStreamFrame, WindowUpdateFrame

from topics_client.installation import require_hooks
from topics_gateway.transport.header_validation import TOKEN, BadHeadError, check_host, check_same_host, single_fields

# What a client may send at once and per second that is work for us and none for it: resets (CVE-2023-44487) and what
# makes us reset (CVE-2025-8671), PING, SETTINGS (CVE-2019-9512, 9515), empty DATA (9518), PRIORITY, unknown frames,
# windows opened by a few bytes (9511); on a WebSocket control frames and empty fragments. Cancelled long polls stay far
# below.
IDLE_BURST: Final = 1000.0
IDLE_PER_SECOND: Final = 100.0
# What may be answered with one WINDOW_UPDATE: clients send two for each DATA frame, that of the stream and that of the
# connection, or fewer.
_BYTES_A_WINDOW_UPDATE: Final = 32
_MAX_WINDOW_UPDATES: Final = 10_000

_REQUEST: Final = HeaderValidationFlags(
    is_client=False, is_trailer=False, is_response_header=False, is_push_promise=False
)
_TRAILERS: Final = _REQUEST._replace(is_trailer=True)

require_hooks(H2ConnectionStateMachine, "_transitions")
require_hooks(FrameBuffer, "__next__", "_validate_frame_length")
require_hooks(FrameBuffer(server=True), "_data", "_headers_buffer")
require_hooks(H2Connection, "_prepare_for_sending", "_receive_frame")
require_hooks(H2Connection(), "incoming_buffer", "state_machine")  # replaced in h2c.py

Headers = Sequence[tuple[bytes, bytes]]


class GoawayTolerant(H2ConnectionStateMachine):
    """h2 takes GOAWAY for the end of the connection; by RFC 9113, 6.8 the running streams are to finish after it."""

    _transitions = H2ConnectionStateMachine._transitions | {
        (ConnectionState.SERVER_OPEN, ConnectionInputs.SEND_GOAWAY): (None, ConnectionState.SERVER_OPEN),
        (ConnectionState.SERVER_OPEN, ConnectionInputs.RECV_GOAWAY): (None, ConnectionState.SERVER_OPEN),
    }


class BoundedFrames(FrameBuffer):
    """h2 checks the length of a frame after all of it has arrived (up to 16 MiB), and a header block by frames."""

    def __init__(self, max_header_bytes: int) -> None:
        super().__init__(server=True)
        self._max_header_bytes = max_header_bytes

    def __next__(self) -> Frame:
        if len(self._data) >= 3:
            self._validate_frame_length(int.from_bytes(self._data[:3], "big"))
        if self._headers_buffer and sum(len(frame.data) for frame in self._headers_buffer) > self._max_header_bytes:
            raise DenialOfServiceError("header block too large")
        return super().__next__()


class CountingConnection(H2Connection):
    """Counts, in `idle`, received frames that ask for nothing, and those that make h2 reset a stream.

    h2 has no event for some of them: frames on closed streams, an overflowing window. A WINDOW_UPDATE
    asks for something as long as there are no more of them than what was sent calls for.
    """

    idle = 0
    _receiving = False
    _window_updates = 0  # that are still called for

    def _receive_frame(self, frame: Frame) -> list[Event]:
        self.idle += self._asks_nothing(frame)
        self._receiving = True
        try:
            return super()._receive_frame(frame)
        finally:
            self._receiving = False

    def _asks_nothing(self, frame: Frame) -> bool:
        if isinstance(frame, DataFrame):
            return not frame.data and "END_STREAM" not in frame.flags
        if isinstance(frame, WindowUpdateFrame):
            stream = self.streams.get(frame.stream_id)
            if not self._window_updates or (frame.stream_id and (stream is None or stream.closed)):
                return True
            self._window_updates -= 1
            return False
        return not isinstance(frame, HeadersFrame)

    def _prepare_for_sending(self, frames: list[Frame]) -> None:
        for frame in frames:
            if isinstance(frame, DataFrame):
                called_for = self._window_updates + len(frame.data) // _BYTES_A_WINDOW_UPDATE
                self._window_updates = min(_MAX_WINDOW_UPDATES, called_for)
            elif self._receiving and isinstance(frame, RstStreamFrame):
                self.idle += 1
        super()._prepare_for_sending(frames)


def check_request(headers: Headers) -> None:
    """Raise BadHeadError for a request head that is malformed or ambiguous (RFC 9113, 8.2 and 8.3)."""
    fields = single_fields(headers)
    authority, host = fields.get(b":authority"), fields.get(b"host")
    # h2 would compare the two byte by byte.
    rest = headers if authority is None else [field for field in headers if field[0] != b"host"]
    try:
        method = dict(validate_headers(rest, _REQUEST))[b":method"]
    except ProtocolError as error:
        raise BadHeadError(str(error)) from None
    if TOKEN.fullmatch(method) is None:
        raise BadHeadError("invalid method")
    if authority is None:
        check_host(host or b"")
    else:
        check_same_host(authority, authority if host is None else host, fields.get(b":scheme", b""))


def check_trailers(headers: Headers) -> None:
    """Raise ProtocolError for trailers that are malformed."""
    for _ in validate_headers(headers, _TRAILERS):
        pass
