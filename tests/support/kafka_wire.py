"""A client that speaks Kafka's protocol by hand, one frame at a time, over a blocking socket."""

import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Any, Self

from topics_kafka.protocol import SUPPORTED, ApiKey, Message, decode_response, encode_request


class ClosedError(AssertionError):
    """The server closed the connection instead of answering."""


class Wire:
    """One connection. A request takes the newest version that the server has, unless it says another."""

    def __init__(
        self, port: int, *, client_id: str | None = "wire", timeout: float = 20, tls: ssl.SSLContext | None = None
    ) -> None:
        self.client_id = client_id
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self._correlation = 0

    def call(self, api: ApiKey, version: int | None = None, **body: Any) -> Message:
        """Send one request and read its response."""
        version = SUPPORTED[api][1] if version is None else version
        correlation = self.send(api, version, body)
        return self.receive(api, version, correlation)

    def send(self, api: ApiKey, version: int, body: Mapping[str, Any]) -> int:
        """Send one request; returns its correlation id."""
        self._correlation += 1
        self.write_frame(b"".join(self.request(api, version, self._correlation, body)))
        return self._correlation

    def request(self, api: ApiKey, version: int, correlation: int, body: Mapping[str, Any]) -> list[bytes]:
        """The frame of a request, without its length."""
        return [bytes(part) for part in encode_request(api, version, correlation, self.client_id, body)]

    def receive(self, api: ApiKey, version: int, correlation: int | None = None) -> Message:
        """Read the next response, which must be the one to this request."""
        found, body = decode_response(api, version, self.read_frame())
        assert correlation is None or found == correlation, (found, correlation)
        return body

    def authenticate(self, password: str, user: str = "any") -> Message:
        """SASL/PLAIN; the response of SaslAuthenticate."""
        chosen = self.call(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
        assert chosen["error_code"] == 0, chosen
        return self.call(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=f"\0{user}\0{password}".encode())

    def write_frame(self, frame: bytes) -> None:
        """Send a frame with its length in front."""
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def read_frame(self) -> bytes:
        """The next frame, without its length. Raises ClosedError at the end of the stream."""
        (length,) = struct.unpack(">i", self._read(4))
        return self._read(length)

    def is_closed(self, seconds: float = 10) -> bool:
        """Wait until the server ends the connection; False if it sends something instead, or nothing at all."""
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(1) == b""
        except (ConnectionResetError, BrokenPipeError):
            return True
        except TimeoutError:
            return False

    def _read(self, count: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < count:
            try:
                piece = self.socket.recv(min(count - len(pieces), 1 << 20))
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise ClosedError(f"the server closed the connection, {len(pieces)} of {count} bytes came")
            pieces += piece
        return bytes(pieces)

    def close(self) -> None:
        """Close our side."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
