"""A small client of the HTTP API, and exchanges below it for what a client library will not send."""

import contextlib
import itertools
import json
import socket
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Self
from urllib.parse import quote

import httpx

_numbers = itertools.count(1)
JSON = {"content-type": "application/json"}
REC = {"records": [{"data": 1}]}
# As a JSON text, what no field of an unsigned integer takes.
NOT_INTEGERS = ["1.0", "1e2", '"5"', "true", "null", "[]", "{}", "-1", "1.5", str(1 << 64)]


def fresh(stem: str = "t") -> str:
    """A topic name that this test run has not used before."""
    return f"{stem}-{next(_numbers):05}"


class Api:
    """Calls with JSON bodies. `put`, `write`, ... give the httpx response; `state`, `read`, ... check and decode it."""

    def __init__(self, base: str) -> None:
        self.base = base
        # Reading the certificates of all authorities, for a connection without TLS, would take 30 ms each time.
        verify = base.startswith("https:")
        headers = {"accept-encoding": "identity"}
        self.client = httpx.Client(base_url=base, headers=headers, timeout=20, trust_env=False, verify=verify)

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, method: str, path: str, body: Any = None, **kw: Any) -> httpx.Response:
        """`body` is sent as it is if it is text or bytes, else as JSON."""
        if body is not None:
            kw["content"] = body if isinstance(body, str | bytes) else json.dumps(body)
            kw["headers"] = JSON | kw.get("headers", {})
        return self.client.request(method, path, **kw)

    def put(self, name: str, **config: Any) -> httpx.Response:
        return self.send("PUT", path(name), config)

    def make(self, stem: str = "t", /, **config: Any) -> str:
        """A new topic."""
        name = fresh(stem)
        ok(self.put(name, **config), 201)
        return name

    def write(self, name: str, records: Any, /, params: Any = None, headers: Any = None, **body: Any) -> httpx.Response:
        return self.send("POST", path(name), {"records": records, **body}, params=params, headers=headers or {})

    def append(self, name: str, *datas: Any, **body: Any) -> dict[str, Any]:
        return ok(self.write(name, [{"data": data} for data in datas], **body), 200, 201)

    def get(self, name: str, **params: Any) -> httpx.Response:
        return self.send("GET", path(name), params=params)

    def state(self, name: str, touch: str = "false") -> dict[str, Any]:
        return ok(self.get(name, touch=touch))

    def listing(self, **params: Any) -> dict[str, Any]:
        return ok(self.send("GET", "/v0/topics", params=params))

    def drop(self, name: str, **params: Any) -> httpx.Response:
        return self.send("DELETE", path(name), params=params)

    def diff(self, name: str, **body: Any) -> httpx.Response:
        return self.send("POST", path(name, "/diff"), body)

    def read(self, name: str, from_seq: int = 0, **body: Any) -> dict[str, Any]:
        return ok(self.diff(name, from_seq=from_seq, **body))

    def read_all(self, name: str, from_seq: int = 0) -> list[dict[str, Any]]:
        """Every record, page by page."""
        records: list[dict[str, Any]] = []
        while True:
            page = self.read(name, from_seq, limit=1000, include_tags=True, max_batch_bytes=8 << 20)
            records += page["records"]
            if page["caught_up"]:
                return records
            assert page["next_from_seq"] > from_seq or page["tombstone"], page
            from_seq = page["next_from_seq"]

    def delete(self, name: str, **body: Any) -> httpx.Response:
        return self.send("POST", path(name, "/delete"), body)

    def rm(self, name: str, **body: Any) -> dict[str, Any]:
        return ok(self.delete(name, **body))


def path(name: str, tail: str = "") -> str:
    """The path of a topic, its name percent-encoded."""
    return f"/v0/topics/{quote(name, safe='')}{tail}"


def member(name: str, text: str) -> str:
    """The text of an object with one member, its value a JSON text."""
    return f'{{"{name}":{text}}}'


def ok(response: httpx.Response, *statuses: int) -> dict[str, Any]:
    """The body of a success."""
    assert response.status_code in (statuses or (200,)), f"{response.status_code}: {response.text[:500]}"
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert isinstance(body, dict)
    assert "error" not in body
    return body


def refused(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The error object of a refusal, its envelope checked."""
    assert response.status_code == status, f"wanted {status} {code}, got {response.status_code}: {response.text[:500]}"
    assert response.headers["content-type"] == "application/json"
    return envelope(response.json(), code)


def envelope(body: Any, code: str | None = None) -> dict[str, Any]:
    """The error object in an error body, next to `performance` only: lower-case code, some message."""
    assert isinstance(body, dict), body
    assert "error" in body, body
    assert set(body) <= {"error", "performance"}, body
    error = body["error"]
    assert {"code", "message"} <= set(error) <= {"code", "message", "detail"}, error
    assert error["code"] == error["code"].lower()
    assert error["message"]
    assert isinstance(error.get("detail", {}), dict)
    assert code is None or error["code"] == code, error
    return dict(error)


class RawReply(NamedTuple):
    """One response as received."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """A TCP connection to the HTTP API, for bytes that no client library sends."""

    def __init__(self, port: int, seconds: float = 10) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def send(self, data: bytes) -> "Wire":
        """Send; a server that has already answered and closed is not an error."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)
        return self

    def half_close(self) -> None:
        """End our side."""
        self.socket.shutdown(socket.SHUT_WR)

    def reply(self, *, head: bool = False) -> RawReply | None:
        """The next response; None when the server closed instead."""
        while b"\r\n\r\n" not in self._buffer:
            if not self._more():
                assert not self._buffer, self._buffer
                return None
        top, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        line, *lines = top.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (text.partition(":") for text in lines)}
        status = int(line.split()[1])
        length = 0 if head or status in (100, 204) else int(headers["content-length"])
        while len(self._buffer) < length:
            assert self._more(), "closed within a response"
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return RawReply(status, headers, body)

    def replies(self) -> Iterator[RawReply]:
        """Every response until the server closes."""
        while (reply := self.reply()) is not None:
            yield reply

    def reset(self) -> None:
        """Close with RST, as a process that was killed does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.socket.close()

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _more(self) -> bool:
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            return False
        self._buffer += data
        return bool(data)


def request(method: str, target: str, body: bytes | None = None, **headers: str) -> bytes:
    """The bytes of one HTTP/1.1 request; header names are written with `_` for `-`."""
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost"]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
        headers.setdefault("Content_Type", "application/json")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def elapsed(started: float) -> float:
    """Seconds since `started` on the monotonic clock."""
    return time.monotonic() - started
