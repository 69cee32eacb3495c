"""Where our HTTP/2 differs from that of the h2 library, and what it and WebSockets bear of frames that say nothing."""

from typing import Final

from h2.connection import ConnectionInputs, ConnectionState, H2ConnectionStateMachine
from h2.exceptions import DenialOfServiceError
from h2.frame_buffer import FrameBuffer
from hyperframe.frame import Frame

# What a client may send at once and per second that is work for us and none for it: resets (CVE-2023-44487), PING,
# SETTINGS (CVE-2019-9512, 9515), empty DATA (9518), PRIORITY, unknown frames; on a WebSocket control frames and empty
# fragments. Cancelled long polls stay far below.
IDLE_BURST: Final = 1000.0
IDLE_PER_SECOND: Final = 100.0


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
