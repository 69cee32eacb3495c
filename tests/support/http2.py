"""HTTP/2 frames as a client may send them that keeps to no rule."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import NamedTuple, Self

from hpack import Decoder, Encoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4
ENHANCE_YOUR_CALM = 11


def h2frame(kind: int, flags: int = 0, stream: int = 0, data: bytes = b"") -> bytes:
    return struct.pack("!I", len(data))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + data


def block(fields: list[tuple[str, str]]) -> bytes:
    """The fields of a head, which depend on no other one."""
    return Encoder().encode(fields, huffman=False)


def head(stream: int, flags: int = END_HEADERS, **more: str) -> bytes:
    """The HEADERS of a write to the topic `t`, with the fields `more` behind it."""
    fields = [(":method", "POST"), (":path", "/v0/topics/t"), (":scheme", "http"), (":authority", "localhost")]
    return h2frame(HEADERS, flags, stream, block([*fields, *more.items()]))


class Answer(NamedTuple):
    """One response; `status` 0 if the stream was reset without one."""

    status: int
    body: bytes


class Http2:
    """A connection with nothing but the preface behind it."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.sock.sendall(PREFACE + h2frame(SETTINGS))
        self.heard = b""
        self.reading = threading.Thread(target=self._read)
        self.reading.start()

    def _read(self) -> None:
        try:
            while data := self.sock.recv(65536):
                self.heard += data
        except OSError:
            pass

    def send(self, data: bytes, times: int = 1) -> None:
        """Send, until the server has had enough."""
        try:
            for _ in range(times):
                self.sock.sendall(data)
        except OSError:
            pass

    def frames(self) -> Iterator[tuple[int, int, bytes]]:
        """Frames heard so far: kind, stream and content of each."""
        at = 0
        while at + 9 <= len(self.heard):
            size, kind = int.from_bytes(self.heard[at : at + 3], "big"), self.heard[at + 3]
            yield kind, int.from_bytes(self.heard[at + 5 : at + 9], "big"), self.heard[at + 9 : at + 9 + size]
            at += 9 + size

    def goaway(self) -> int | None:
        """The server's error code; None if it closed without one. Waits for the end of the connection."""
        self.reading.join(20)
        assert not self.reading.is_alive(), "the connection goes on"
        self.sock.close()
        codes = [int.from_bytes(content[4:8], "big") for kind, _, content in self.frames() if kind == GOAWAY]
        return codes[-1] if codes else None

    def answers(self) -> dict[int, Answer]:
        """Frames heard so far, by stream."""
        decoder, statuses, bodies = Decoder(), dict[int, int](), dict[int, bytes]()
        for kind, stream, content in self.frames():
            if kind == HEADERS:
                statuses[stream] = int(dict(decoder.decode(content))[":status"])
            elif kind == DATA:
                bodies[stream] = bodies.get(stream, b"") + content
            elif kind == RST:
                statuses.setdefault(stream, 0)
        return {stream: Answer(status, bodies.get(stream, b"")) for stream, status in statuses.items()}

    def close(self) -> None:
        """End the connection, unless the server has."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.reading.join(20)
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
