"""Frames of watches, in short and as they are compared."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from support.watching import quiet, seqs, tell
from topics_service.api.watch_stream import SessionStream
from topics_service.engine.watch.frames import (
    CaughtUpFrame,
    ErrorFrame,
    Frame,
    HeartbeatFrame,
    RecordsFrame,
    TombstoneFrame,
    TopicDeletedFrame,
)


def by_topic(frames: Iterable[Frame]) -> dict[str, list[Any]]:
    """The frames of each topic, in short."""
    told: dict[str, list[Any]] = {}
    for frame in frames:
        assert isinstance(frame, RecordsFrame | CaughtUpFrame | TopicDeletedFrame | TombstoneFrame), frame
        told.setdefault(frame.topic, []).append(tell([frame])[0][1:])
    return told


async def until_told(stream: SessionStream, found: list[Frame], heads: Mapping[str, int]) -> None:
    """Read frames until the cursors are at `heads`, and a little more."""
    async with asyncio.timeout(20):
        while any(stream.cursors.get(name, 0) < seq for name, seq in heads.items()):
            frame = await anext(stream)
            if not isinstance(frame, HeartbeatFrame):
                found.append(frame)
    found += [frame for frame in await quiet(stream, 0.05) if not isinstance(frame, HeartbeatFrame)]


async def read(stream: SessionStream, found: list[Frame]) -> None:
    """Read all frames."""
    while True:
        found.append(await anext(stream))


def read_of_last_instance(frames: Iterable[Frame], topic: str) -> list[int]:
    """The seqs of the records since the topic was told as deleted last; each instance is read in order, once."""
    read: list[int] = []
    for frame in frames:
        if isinstance(frame, ErrorFrame) or getattr(frame, "topic", "") != topic:
            continue
        if isinstance(frame, TopicDeletedFrame):
            read = []
        elif isinstance(frame, TombstoneFrame):
            assert frame.tombstone.reason == "recreated", frame  # while the shard was away
            read = []
        elif isinstance(frame, RecordsFrame):
            read += seqs([frame])
            assert read == list(range(1, len(read) + 1)), (topic, read)
    return read
