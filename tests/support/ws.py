"""A WebSocket client without automatic replies, down to single frames."""

import itertools
import json
import os
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import urlsplit

TEXT, BINARY, CONT, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10
KEY = "dGhlIHNhbXBsZSBub25jZQ=="

_ids = itertools.count(1)


def upgrade(path: str, headers: Mapping[str, str]) -> bytes:
    """The head of a request for an upgrade."""
    fields = {
        "host": "localhost",
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec-websocket-key": KEY,
        "sec-websocket-version": "13",
        **headers,
    }
    lines = [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""]).encode()


def frame(opcode: int, data: bytes = b"", *, fin: bool = True, size: int | None = None) -> bytes:
    """A frame as a client sends it; `size` claims another length than `data` has."""
    length = len(data) if size is None else size
    head = bytes([opcode | (0x80 if fin else 0)])
    if length < 126:
        head += bytes([0x80 | length])
    elif length < 65536:
        head += struct.pack("!BH", 0x80 | 126, length)
    else:
        head += struct.pack("!BQ", 0x80 | 127, length)
    mask = os.urandom(4)
    masked = int.from_bytes(data, "big") ^ int.from_bytes((mask * (len(data) // 4 + 1))[: len(data)], "big")
    return head + mask + masked.to_bytes(len(data), "big")


class RefusedError(Exception):
    """The upgrade got an HTTP answer: `status`, `headers`, and the JSON `body`."""

    def __init__(self, status: int, headers: dict[str, str], body: Any) -> None:
        super().__init__(f"{status} {body}")
        self.status = status
        self.headers = headers
        self.body = body


class WebSocket:
    """Connects at once; raises RefusedError. Frames that a call skipped are kept for `wait`."""

    def __init__(
        self, base: str, path: str = "/v0/ws", *, buffer: int = 0, key: str | None = None, **headers: str
    ) -> None:
        url = urlsplit(base)
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        self._data = b""
        self._skipped: list[dict[str, Any]] = []
        self.texts: list[str] = []  # in order of arrival
        self.sock = socket.socket()
        try:
            if buffer:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            self.sock.settimeout(20)
            self.sock.connect((url.hostname or "", url.port or 0))
            self._upgrade(upgrade(path, headers))
        except BaseException:
            self.sock.close()
            raise

    def _upgrade(self, request: bytes) -> None:
        self.sock.sendall(request)
        while b"\r\n\r\n" not in self._data:
            self._data += self._more()
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        if not status.startswith("HTTP/1.1 101"):
            while more := self.sock.recv(65536):
                self._data += more
            pairs = (line.partition(": ") for line in lines)
            raise RefusedError(int(status.split()[1]), {n.lower(): v for n, _, v in pairs}, json.loads(self._data))

    def close(self) -> None:
        """Leave without a word."""
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, *frames: bytes) -> None:
        """Send bytes as they are."""
        self.sock.sendall(b"".join(frames))

    def send(self, message: Any) -> None:
        """Send a text: one that is given, or JSON."""
        text = message if isinstance(message, str) else json.dumps(message)
        self.write(frame(TEXT, text.encode()))

    def frame(self, seconds: float = 20) -> tuple[int, bytes]:
        """The next frame, of any kind."""
        self.sock.settimeout(seconds)
        first, size = self._exactly(2)
        assert first & 0x80
        assert not size & 0x80, "servers do not mask"
        if size == 126:
            (size,) = struct.unpack("!H", self._exactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", self._exactly(8))
        return first & 0x0F, self._exactly(size)

    def recv(self, seconds: float = 20) -> dict[str, Any]:
        """The next message."""
        opcode, data = self.frame(seconds)
        while opcode == PING:
            self.write(frame(PONG, data))
            opcode, data = self.frame(seconds)
        assert opcode == TEXT, (opcode, data)
        self.texts.append(data.decode())
        found: dict[str, Any] = json.loads(data)
        return found

    def wait(self, op: str, seconds: float = 20) -> dict[str, Any]:
        """The next message of this kind; those before it are dropped."""
        while self._skipped:
            message = self._skipped.pop(0)
            if message["op"] == op:
                return message
        ends = time.monotonic() + seconds
        while True:
            message = self.recv(max(0.001, ends - time.monotonic()))
            if message["op"] == op:
                return message

    def cmd(self, op: str, **members: Any) -> dict[str, Any]:
        """Send a command and return its reply."""
        request_id = members.setdefault("request_id", f"r{next(_ids)}")
        self.send({"op": op, **members})
        while True:
            message = self.recv()
            if message.get("request_id") == request_id:
                return message
            self._skipped.append(message)

    def subscribe(self, **members: Any) -> dict[str, Any]:
        """Follow topics; where they stand."""
        reply = self.cmd("subscribe", **members)
        assert reply["op"] == "subscribed", reply
        topics: dict[str, Any] = reply["topics"]
        return topics

    def publish(self, topic: str, *datas: Any, **members: Any) -> dict[str, Any]:
        """Append records; the ack."""
        members.setdefault("records", [{"data": data} for data in datas])
        reply = self.cmd("publish", topic=topic, **members)
        assert reply["op"] == "ack", reply
        return reply

    def refused(self, code: str, op: str, **members: Any) -> dict[str, Any]:
        """A command that gets an error; returns it."""
        reply = self.cmd(op, **members)
        assert set(reply) == {"op", "request_id", "code", "message"}, reply
        assert (reply["op"], reply["code"]) == ("error", code), reply
        assert reply["message"]
        return reply

    def records(self, count: int) -> list[dict[str, Any]]:
        """The next records, of as many frames as needed; exactly `count`."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            found += self.wait("record")["records"]
        assert len(found) == count
        return found

    def before_pong(self) -> list[dict[str, Any]]:
        """What was sent until now and not waited for."""
        assert self.cmd("ping")["op"] == "pong"
        skipped, self._skipped = self._skipped, []
        return skipped

    def closed(self, seconds: float = 20) -> tuple[int, str]:
        """The close frame, behind anything else, and the end of the connection."""
        while True:
            opcode, data = self.frame(seconds)
            if opcode == CLOSE:
                self.write(frame(CLOSE, data))
                assert self.sock.recv(1) == b""
                return int.from_bytes(data[:2], "big"), data[2:].decode()
            if opcode == TEXT:
                self._skipped.append(json.loads(data))

    def _exactly(self, size: int) -> bytes:
        pieces, have = [self._data], len(self._data)
        while have < size:
            pieces.append(self._more())
            have += len(pieces[-1])
        data = b"".join(pieces)
        self._data = data[size:]
        return data[:size]

    def _more(self) -> bytes:
        data = self.sock.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the server has closed the connection")
        return data
