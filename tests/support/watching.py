"""The watch API on an engine in memory, in the time of the running loop, and short ways to write and to read."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from topics_service.api.access.auth import ALL_SCOPES, UNRESTRICTED, Principal
from topics_service.api.watch import EngineSource, WatchApi, WatchCaps
from topics_service.api.watch_stream import SessionStream
from topics_service.engine.engine import Engine
from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DeleteRequest
from topics_service.engine.watch.frames import (
    CaughtUpFrame,
    Frame,
    RecordsFrame,
    TombstoneFrame,
    TopicDeletedFrame,
    WatchRequest,
    WatchTopic,
)
from topics_service.statistics import WatchStatistics
from topics_service.storage.memory import MemoryStore


class LoopClock:
    """The running loop's time, in ms."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now_ms(self) -> int:
        return round(self._loop.time() * 1000)


class Watching:
    """An engine and the watch API in front of it; tests of overload set `overload_ms`."""

    def __init__(self, limits: Limits | None = None, **caps: int) -> None:
        clock = LoopClock()
        self.engine = Engine(MemoryStore(), clock, limits=limits)
        self.statistics = WatchStatistics()
        self.overload_ms = 0
        self.api = WatchApi(
            EngineSource(lambda: self.engine),
            self.engine.priority,
            lambda: self.overload_ms,
            self.statistics,
            WatchCaps(**caps),
            clock=clock,
        )

    def put(self, *names: str, **config: Any) -> None:
        for name in names:
            self.engine.put_topic(name, ConfigInput(**config))
        self.engine.sync()

    def append(self, topic: str, count: int = 1, *, nodes: bytes | None = None) -> None:
        """The given number of records, whose data is a number that grows within the topic."""
        head = self.engine.get_topic(topic, touch=False).head_seq
        datas = [b"%d" % (head + 1 + i) for i in range(count)]
        batch = Batch(datas=datas, nodes=None if nodes is None else [nodes] * count)
        self.engine.append(AppendRequest(topic=topic, batch=batch))
        self.engine.sync()

    def delete(self, topic: str, before: int) -> None:
        self.engine.delete_records(DeleteRequest(topic=topic, before_seq=before))
        self.engine.sync()

    def drop(self, topic: str) -> None:
        self.engine.delete_topic(topic)
        self.engine.sync()

    def recreate(self, topic: str) -> None:
        self.drop(topic)
        self.put(topic)

    async def session(self, *topics: str, principal: Principal = UNRESTRICTED, **request: Any) -> str:
        """The wid of a new session."""
        return (await self.api.create(watch(*topics, **request), principal=principal)).wid

    async def visit(self, wid: str, cursor: Mapping[str, int] | None = None) -> list[Any]:
        """Open a stream, read what there is, and leave."""
        with await self.api.open(wid, cursor or {}, principal=UNRESTRICTED) as stream:
            return tell(await quiet(stream))


def watch(*topics: str, from_seq: int = 0, tail: bool = False, **request: Any) -> WatchRequest:
    """A request for these topics, all from the same place."""
    start = WatchTopic(from_seq=from_seq, tail=tail)
    return WatchRequest(topics=dict.fromkeys(topics, start), **request)


def key(name: str, *prefixes: str) -> Principal:
    """The owner of an API key."""
    return Principal(name, ALL_SCOPES, prefixes or None)


async def quiet(stream: SessionStream, seconds: float = 0.5) -> list[Frame]:
    """The frames that come before nothing comes for so long, or the stream ends."""
    frames: list[Frame] = []
    try:
        while True:
            async with asyncio.timeout(seconds):
                frames.append(await anext(stream))
    except (TimeoutError, StopAsyncIteration):
        return frames


def seqs(frames: Iterable[Frame], topic: str | None = None) -> list[int]:
    """The seqs of all records in the frames, of one topic."""
    return [
        piece.block.base_seq + i
        for frame in frames
        if isinstance(frame, RecordsFrame) and topic in (None, frame.topic)
        for piece in frame.slices
        for i in range(piece.start, piece.stop)
    ]


def tell(frames: Iterable[Frame]) -> list[Any]:
    """The frames in short: ("t", [1, 2]), ("t", "cap", 1, 2), ("t", "caught up"), ("t", "deleted", 2)."""
    told: list[Any] = []
    for frame in frames:
        match frame:
            case RecordsFrame():
                told.append((frame.topic, seqs([frame])))
            case TombstoneFrame():
                lost = frame.tombstone
                told.append((frame.topic, lost.reason, lost.gap_from, lost.gap_to))
            case CaughtUpFrame():
                told.append((frame.topic, "caught up"))
            case TopicDeletedFrame():
                told.append((frame.topic, "deleted", frame.head_seq))
            case _:
                told.append(frame)
    return told


def code(error: Any) -> str:
    """The error code of a caught TopicsError."""
    assert isinstance(error.value, TopicsError)
    return error.value.reason.code
