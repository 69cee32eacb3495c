"""Followers of live queries on a real server, over SSE, WebSockets and gRPC, and the fold of their frames."""

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any, Protocol, Self

import grpc
import httpx
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from support.waiting import poll
from topics_proto.v1 import sql_pb2, sql_service_pb2_grpc
from topics_proto.v1 import sql_service_pb2 as pb

Frame = tuple[str, dict[str, Any]]
_OPS = {sql_pb2.CHANGE_OP_INSERT: "Insert", sql_pb2.CHANGE_OP_UPDATE: "Update", sql_pb2.CHANGE_OP_DELETE: "Delete"}


class Fold:
    """The rows that frames add up to. Raises for frames that contradict each other."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.position: str | None = None
        self._pending: Counter[str] | None = None

    def take(self, frame: Frame) -> None:
        """Take a frame in."""
        name, data = frame
        match name:
            case "snapshot":
                pending = Counter[str]() if self._pending is None else self._pending
                pending.update(map(_text, data["rows"]))
                self._pending = pending
                if "position" in data:
                    self.rows, self._pending, self.position = pending, None, data["position"]
            case "caught-up":
                self.position = data["position"]
            case "change":
                assert self._pending is None, "a change among the rows of a snapshot"
                assert (data["row"] is None) == (data["op"] == "Delete"), data
                assert (data["old"] is None) == (data["op"] == "Insert"), data
                if data["old"] is not None:
                    old = _text(data["old"])
                    assert self.rows[old] > 0, f"{data} of a row that was not there"
                    self.rows[old] -= 1
                if data["row"] is not None:
                    self.rows[_text(data["row"])] += 1
                self.position = data["position"]
            case "gap":
                self._pending = None

    @property
    def sorted(self) -> list[str]:
        """The rows as JSON, in order."""
        return sorted(self.rows.elements())


def folded(rows: list[dict[str, Any]]) -> list[str]:
    """Rows of a query as a fold has them."""
    return sorted(map(_text, rows))


def _text(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


class Source(Protocol):
    """Frames of a stream until it ends."""

    def __iter__(self) -> Iterator[Frame]: ...

    def close(self) -> None: ...


class SseFrames:
    """The events of POST /api/sql/subscribe."""

    def __init__(self, url: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        self._client = httpx.Client(base_url=url, timeout=httpx.Timeout(60, connect=10))
        self._stream = self._client.stream("POST", "/api/sql/subscribe", json=body, headers=headers)
        self.response = self._stream.__enter__()

    def __iter__(self) -> Iterator[Frame]:
        name = ""
        try:
            for line in self.response.iter_lines():
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    yield name, json.loads(line[6:])
        finally:
            self._stream.__exit__(None, None, None)
            self._client.close()

    def close(self) -> None:
        network = self.response.extensions["network_stream"]
        with suppress(OSError):  # it is closed already
            network.get_extra_info("socket").shutdown(socket.SHUT_RDWR)  # wakes the thread that reads


class SocketFrames:
    """The frames of the only query of a WebSocket."""

    def __init__(self, url: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        address = f"ws{url.removeprefix('http')}/api/sql/ws"
        self._held = ExitStack()
        self._socket = self._held.enter_context(connect(address, additional_headers=headers, max_size=None))
        self._socket.send(json.dumps(body | {"op": "subscribe", "request_id": [1]}))

    def __iter__(self) -> Iterator[Frame]:
        with suppress(ConnectionClosed):
            for text in self._socket:
                frame = json.loads(text)
                assert frame.pop("request_id") in ([1], None), frame
                yield frame.pop("type"), frame

    def close(self) -> None:
        self._held.close()


class GrpcFrames:
    """The messages of SqlService.Subscribe, as the events are."""

    def __init__(self, target: str, sql: str, after: str | None = None) -> None:
        self._channel = grpc.insecure_channel(target)
        stub = sql_service_pb2_grpc.SqlServiceStub(self._channel)
        self._call = stub.Subscribe(pb.SubscribeRequest(sql=sql, after=after))
        self._names: list[str] = []

    def __iter__(self) -> Iterator[Frame]:
        try:
            for message in self._call:
                yield from self._frames(message)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                yield "error", {"code": error.code().name, "message": error.details()}

    def close(self) -> None:
        self._call.cancel()
        self._channel.close()

    def _frames(self, message: pb.SubscribeResponse) -> Iterator[Frame]:
        match message.WhichOneof("frame"):
            case "opened":
                self._names = [column.name for column in message.opened.schema]
            case "snapshot":
                snapshot = message.snapshot
                data: dict[str, Any] = {"rows": list(map(self._row, snapshot.rows))}
                yield "snapshot", data | ({"position": snapshot.position} if snapshot.HasField("position") else {})
            case "caught_up":
                yield "caught-up", {"position": message.caught_up.position}
            case "changes":
                for change in message.changes.changes:
                    row = self._row(change.row) if change.HasField("row") else None
                    old = self._row(change.old) if change.HasField("old") else None
                    yield "change", {"op": _OPS[change.op], "row": row, "old": old, "position": change.position}
            case "gap":
                gap = message.gap
                yield "gap", {"from": gap.from_position, "to": gap.to_position, "reason": gap.reason}

    def _row(self, row: sql_pb2.SqlRow) -> dict[str, Any]:
        values = [getattr(value, value.WhichOneof("kind") or "", None) for value in row.values]
        return dict(zip(self._names, values, strict=True))


class Follower:
    """Reads a source on a thread and folds its frames; those behind a position need the fold up to there."""

    def __init__(self, source: Source, fold: Fold | None = None, *, folds: bool = True) -> None:
        self.frames: list[Frame] = []
        self.fold = fold or Fold()
        self._folds = folds
        self.failure: BaseException | None = None
        self._source = source
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for frame in self._source:
                self.frames.append(frame)
                if self._folds:
                    self.fold.take(frame)
        except (httpx.HTTPError, httpx.StreamError, grpc.RpcError, OSError):
            pass  # the server or the test ended it
        except BaseException as error:
            self.failure = error

    def wait(self, name: str, count: int = 1, seconds: float = 20.0) -> dict[str, Any]:
        """The content of the frame of this name, counted from 1."""

        def found() -> dict[str, Any] | None:
            assert self.failure is None, self.failure
            those = [data for kind, data in list(self.frames) if kind == name]
            return those[count - 1] if len(those) >= count else None

        got = poll(found, seconds, lambda: f"frame {count} {name}; there are {self.frames[-20:]}")
        assert got is not None
        return got

    def until(self, rows: list[dict[str, Any]], seconds: float = 30.0) -> None:
        """Wait until the fold is these rows."""
        wanted = folded(rows)

        def is_same() -> bool:
            assert self.failure is None, self.failure
            return self.fold.sorted == wanted

        poll(is_same, seconds, lambda: f"the fold {self.fold.sorted[:20]} to be {wanted[:20]}")

    def close(self) -> None:
        """End the stream."""
        self._source.close()
        self._thread.join(20)
        assert not self._thread.is_alive(), "the stream does not end"
        assert self.failure is None, self.failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
