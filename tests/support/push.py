"""Clients of streams of server-sent events: any of them, a watch, `/work`; and what comes out of them."""

import base64
import json
import re
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlencode


class Event(NamedTuple):
    """One block of a stream of server-sent events. A comment has neither event nor data."""

    event: str
    data: Any
    id: str
    comment: str
    text: str


class EndedError(AssertionError):
    """The server ended the stream, or went away."""


class EventStream:
    """One open stream, or the refusal that came instead. Reads with a deadline, in the thread that asks.

    `buffer` bounds what our kernel takes in for a client that does not read.
    """

    def __init__(
        self,
        port: int,
        target: str,
        *,
        accept: str = "text/event-stream",
        key: str = "",
        method: str = "GET",
        version: str = "1.1",
        headers: Mapping[str, str] = {},
        buffer: int = 0,
    ) -> None:
        self.socket = socket.socket()
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(20)
        lines = [f"{method} {target} HTTP/{version}", "Host: localhost"]
        lines += [f"Accept: {accept}"] if accept else []
        lines += [f"Authorization: Bearer {key}"] if key else []
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._raw = b""
        self._body = b""
        self._ended = False
        try:
            self.socket.connect(("127.0.0.1", port))
            self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
            head = self._head()
        except BaseException:
            self.socket.close()
            raise
        self.status = int(head[0].split()[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        self._chunked = self.headers.get("transfer-encoding") == "chunked"

    def refusal(self) -> dict[str, Any]:
        """The error of a stream that was not opened."""
        length = int(self.headers["content-length"])
        while len(self._raw) < length:
            self._read(20)
        body = json.loads(self._raw[:length])
        assert set(body) <= {"error", "performance"}
        return dict(body["error"])

    def next(self, seconds: float = 20) -> Event:
        """The next block."""
        deadline = time.monotonic() + seconds
        self._unchunk()
        while b"\n\n" not in self._body:
            if self._ended:
                raise EndedError("the stream is over")
            self._read(deadline - time.monotonic())
            self._unchunk()
        text, _, self._body = self._body.partition(b"\n\n")
        fields = {"event": "", "data": "null", "id": "", "": "", "retry": ""}
        for line in text.decode().split("\n"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        return Event(fields["event"], json.loads(fields["data"]), fields["id"], fields[""], text.decode())

    def ends(self, seconds: float = 20) -> None:
        """There is nothing more but comments, and then the end."""
        deadline = time.monotonic() + seconds
        try:
            while True:
                event = self.next(deadline - time.monotonic())
                assert not event.event, event
        except EndedError:
            pass

    def is_quiet(self, seconds: float) -> bool:
        """Whether no event comes for so long."""
        deadline = time.monotonic() + seconds
        try:
            while True:
                if self.next(deadline - time.monotonic()).event:
                    return False
        except TimeoutError:
            return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _head(self) -> list[str]:
        while b"\r\n\r\n" not in self._raw:
            if self._ended:
                raise EndedError("no answer")
            self._read(20)
        head, _, self._raw = self._raw.partition(b"\r\n\r\n")
        return head.decode("latin-1").split("\r\n")

    def _read(self, seconds: float) -> None:
        if seconds <= 0:
            raise TimeoutError("nothing came in time")
        self.socket.settimeout(seconds)
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        self._raw += data
        self._ended = self._ended or not data

    def _unchunk(self) -> None:
        if not self._chunked:
            self._body, self._raw = self._body + self._raw, b""
            return
        while b"\r\n" in self._raw:
            size, _, rest = self._raw.partition(b"\r\n")
            length = int(size, 16)
            if len(rest) < length + 2:
                return
            self._body += rest[:length]
            self._raw = rest[length + 2 :]
            if not length:
                self._ended = True


class PushStream(EventStream):
    """One `/work`."""

    def __init__(
        self,
        port: int,
        topic: str,
        *,
        accept: str = "text/event-stream",
        key: str = "",
        method: str = "GET",
        **query: Any,
    ) -> None:
        target = f"/v0/topics/{quote(topic, safe='')}/work?{urlencode(query)}"
        super().__init__(port, target, accept=accept, key=key, method=method)

    def jobs(self, count: int, seconds: float = 20) -> list[dict[str, Any]]:
        """The next jobs, with only comments in between."""
        deadline = time.monotonic() + seconds
        found: list[dict[str, Any]] = []
        while len(found) < count:
            event = self.next(deadline - time.monotonic())
            assert event.event in ("job", ""), event
            if event.event == "job":
                assert event.id == str(event.data["$seq"])
                found.append(event.data)
        return found


class WatchStream(EventStream):
    """One stream of a watch session."""

    def event(self, name: str, seconds: float = 20, where: Callable[[Any], bool] = lambda _: True) -> Event:
        """The next event of this name for which `where` holds of its data; others are skipped."""
        deadline = time.monotonic() + seconds
        while True:
            event = self.next(deadline - time.monotonic())
            if event.event == name and where(event.data):
                return event

    def events(self, count: int, seconds: float = 20) -> list[Event]:
        """The next `count` events, without heartbeats and `retry`."""
        deadline = time.monotonic() + seconds
        found: list[Event] = []
        while len(found) < count:
            event = self.next(deadline - time.monotonic())
            found += [event] if event.event else []
        return found

    def records(self, count: int, topic: str | None = None, seconds: float = 20) -> list[dict[str, Any]]:
        """Exactly `count` records, from as many events as needed."""
        deadline = time.monotonic() + seconds
        found: list[dict[str, Any]] = []
        while len(found) < count:
            event = self.event("record", deadline - time.monotonic(), lambda data: topic in (None, data["topic"]))
            found += event.data["records"]
        assert len(found) == count
        return found


def cursors(event: Event) -> dict[str, int]:
    """The map in the id of a watch's event: base64url without padding of compact JSON, sorted by name.

    White space after a seq identifies the instance of a recreated topic.
    """
    assert re.fullmatch(r"[A-Za-z0-9_-]+", event.id), event.id
    text = base64.urlsafe_b64decode(event.id + "=" * (-len(event.id) % 4)).decode()
    members: list[tuple[str, int]] = json.loads(text, object_pairs_hook=list)
    assert [name for name, _ in members] == sorted({name for name, _ in members}), "each name once"
    assert re.sub(r"[ \t\r\n]", "", text) == "{" + ",".join(f"{json.dumps(name)}:{seq}" for name, seq in members) + "}"
    return dict(members)


def event_id(positions: Mapping[str, Any]) -> str:
    """What a client sends as Last-Event-ID to say where it stands."""
    text = json.dumps(positions, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
