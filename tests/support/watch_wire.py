"""Frames of watches on each protocol, as frames of the oracle: streams of sessions, JSON and protobuf."""

import asyncio
import base64
import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import msgspec

from support.log_model import Lost, Rec
from support.watch_oracle import CaughtUp, Deleted, Frame, Records, Tombstone
from topics_proto.v1 import record_pb2
from topics_proto.v1 import watch_service_pb2 as pb

Raw = dict[str, msgspec.Raw]
Told = tuple[str, Frame | None, dict[str, int]]  # topic, frame and where all topics stand after it


class Connection(ABC):
    """One stream of a session."""

    broken = False

    @abstractmethod
    async def open(self, url: str, cursors: dict[str, int]) -> None: ...

    @abstractmethod
    def pieces(self) -> AsyncIterator[list[Told]]:
        """What came together."""

    @abstractmethod
    def half_close(self) -> bool:
        """Let the server end the stream, so that all that it has sent can be read; False if there is no such thing."""

    @abstractmethod
    def close(self) -> None: ...


class SseConnection(Connection):
    def __init__(self, port: int) -> None:
        self._port = port
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, url: str, cursors: dict[str, int]) -> None:
        self._reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        self._writer = writer
        place = f"Last-Event-ID: {event_id(cursors)}\r\n" if cursors else ""
        writer.write(f"GET {url} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{place}\r\n".encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head

    async def pieces(self) -> AsyncIterator[list[Told]]:
        while True:
            try:
                size = int((await self._reader.readuntil(b"\r\n")), 16)
            except asyncio.IncompleteReadError:
                self.broken = True
                return
            piece = await self._reader.readexactly(size + 2)
            if not size:
                return
            blocks = piece[:-2].split(b"\n\n")
            assert blocks.pop() == b"", "an event is cut"
            yield [self._event(block) for block in blocks if not self._is_other(block)]

    def half_close(self) -> bool:
        assert self._writer is not None
        self._writer.write_eof()
        return True

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    @staticmethod
    def _is_other(block: bytes) -> bool:
        return block == b"retry: 2000" or block.startswith(b'event: error\ndata: {"code":429,')

    @staticmethod
    def _event(block: bytes) -> Told:
        place, name, text = (line.partition(b": ")[2] for line in block.split(b"\n"))
        data = msgspec.json.decode(text, type=Raw)
        topic = msgspec.json.decode(data["topic"])
        return topic, json_frame(name.decode().replace("-", "_"), data), read_id(place)


class OpenWatchConnection(Connection):
    """OpenWatch. Its first message says where everything stands."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    async def open(self, url: str, cursors: dict[str, int]) -> None:
        self._call = self._stub.OpenWatch(pb.OpenWatchRequest(wid=url.rpartition("/")[2], cursor=cursors))
        response = await self._call.read()
        assert response is not grpc.aio.EOF
        assert response.frame.WhichOneof("kind") == "subscribed"
        self._cursors = dict(response.frame.cursor)

    async def pieces(self) -> AsyncIterator[list[Told]]:
        yield [("", None, self._cursors)]
        while (response := await self._call.read()) is not grpc.aio.EOF:
            frame = response.frame
            kind = frame.WhichOneof("kind")
            told = getattr(frame, kind)
            if kind == "topic_deleted":
                self._cursors = {name: seq for name, seq in self._cursors.items() if name != told.topic}
            self._cursors = self._cursors | dict(frame.cursor)
            if kind == "error":
                assert told.code == 429
                continue
            yield [(told.topic, grpc_frame(kind, told), self._cursors)]

    def half_close(self) -> bool:
        return False

    def close(self) -> None:
        self._call.cancel()


_WHITE = " \t\r\n"  # digits of a number in base 4


def event_id(cursors: Mapping[str, int]) -> str:
    """The id for a place. The instance of a topic, which is under `topic#` in a map, is white space behind its seq."""
    members = []
    for name, seq in sorted(cursors.items()):
        if not name.endswith("#"):
            number, white = cursors.get(name + "#", 0), ""
            while number:
                number, white = number >> 2, _WHITE[number & 3] + white
            members.append(f'"{name}":{seq}{white}')
    return base64.urlsafe_b64encode(f"{{{','.join(members)}}}".encode()).decode().rstrip("=")


def read_id(text: bytes) -> dict[str, int]:
    """The place in an id."""
    content = base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4)).decode()
    place: dict[str, int] = json.loads(content)
    for name, white in re.findall(r'"([^"]+)":\d+([ \t\r\n]+)', content):
        place[name + "#"] = int("".join(str(_WHITE.index(digit)) for digit in white), 4)
    return place


def json_frame(name: str, data: Raw) -> Frame:
    """A frame from the members that SSE and WebSocket share."""

    def number(member: str) -> int:
        return int(bytes(data[member]))

    match name:
        case "record":
            records = tuple(map(json_record, msgspec.json.decode(data["records"], type=list[Raw])))
            return Records(number("from_seq"), number("to_seq"), number("head_seq"), records)
        case "tombstone":
            lost = Lost(number("gap_from"), number("gap_to"), msgspec.json.decode(data["reason"]))
            return Tombstone(lost, number("earliest_seq"), number("head_seq"))
        case "caught_up":
            return CaughtUp(number("head_seq"))
        case "topic_deleted":
            assert data["reason"] == msgspec.Raw(b'"deleted"')
            return Deleted(number("head_seq"))
    raise AssertionError(f"{name} {data}")


def json_record(found: Raw) -> Rec:
    """Every part as its text stood on the wire."""
    return Rec(
        seq=int(bytes(found["$seq"])),
        ts=int(bytes(found["$ts"])),
        data=bytes(found.get("data", b"")),
        meta=bytes(found["meta"]) if "meta" in found else None,
        tag=_text(found, "$tag"),
        node=_text(found, "$node"),
    )


def _text(found: Raw, member: str) -> bytes | None:
    return msgspec.json.decode(found[member], type=str).encode() if member in found else None


async def http(port: int, method: str, path: str, body: Any = None) -> dict[str, Any]:
    """One exchange on a connection of its own; the reply of a success."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    try:
        text = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = "" if body is None else f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n"
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{kind}\r\n".encode() + text)
        reply = await reader.read()
    finally:
        writer.close()
    head, _, text = reply.partition(b"\r\n\r\n")
    assert head.split()[1] in (b"200", b"201"), reply
    found: dict[str, Any] = msgspec.json.decode(text)
    return found


def grpc_frame(kind: str, told: Any) -> Frame:
    """A frame from its message."""
    match kind:
        case "records":
            records = tuple(
                Rec(
                    rec.seq, rec.ts_ms, rec.data, rec.meta or None,
                    rec.tag.encode() if rec.HasField("tag") else None,
                    rec.node.encode() if rec.HasField("node") else None,
                )
                for rec in told.records
            )  # fmt: skip
            return Records(told.from_seq, told.to_seq, told.head_seq, records)
        case "tombstone":
            lost = told.tombstone
            reason = record_pb2.GapReason.Name(lost.reason).removeprefix("GAP_REASON_").lower()
            assert lost.missed_estimate == max(0, lost.gap_to - lost.gap_from + 1)
            return Tombstone(Lost(lost.gap_from, lost.gap_to, reason), lost.earliest_seq, lost.head_seq)
        case "caught_up":
            return CaughtUp(told.head_seq)
        case "topic_deleted":
            return Deleted(told.head_seq)
    raise AssertionError(f"{kind} {told}")
