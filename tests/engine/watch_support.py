"""A watcher as tests see it: frames in short, and the wakes that it got."""

from collections.abc import Mapping
from typing import Any

from engine_support import World

from topics_service.engine.watch.core import Watch
from topics_service.engine.watch.frames import (
    CaughtUpFrame,
    ErrorFrame,
    RecordsFrame,
    TombstoneFrame,
    TopicDeletedFrame,
    WatchRequest,
    WatchTopic,
)

Short = tuple[Any, ...]


class Watcher:
    """A watch that is pulled like a stream does it."""

    def __init__(
        self,
        world: World,
        topics: Mapping[str, WatchTopic | int | None] | str = "t",
        *,
        epochs: Mapping[str, int] | None = None,
        heads: Mapping[str, int] | None = None,
        **request: Any,
    ) -> None:
        """`topics` maps names to where to start: a seq, or None for the tail; text is one topic from the start."""
        given = {topics: 0} if isinstance(topics, str) else topics
        starts = {
            name: start if isinstance(start, WatchTopic) else WatchTopic(from_seq=start or 0, tail=start is None)
            for name, start in given.items()
        }
        self.wakes: list[str] = []
        self.request = WatchRequest(topics=starts, **request)
        self.watch: Watch = world.engine.watch(self.request, self.wakes.append, epochs=epochs, heads=heads)

    def next(self) -> Short | None:
        frame = self.watch.next()
        return None if frame is None else short(frame)

    def frames(self) -> list[Short]:
        """Everything that is due, until the watch waits."""
        found: list[Short] = []
        for _ in range(10_000):
            self.wakes.clear()
            frame = self.watch.next()
            if frame is not None:
                found.append(short(frame))
            elif not self.wakes:
                return found
        raise AssertionError("the watch never comes to rest")

    def events(self) -> list[Short]:
        """The same in brief: what was read and lost, without cursors."""
        return [brief(frame) for frame in self.frames()]


def short(frame: Any) -> Short:
    """A frame as a tuple: its kind, its topic and the rest."""
    match frame:
        case RecordsFrame():
            seqs = [part.block.base_seq + i for part in frame.slices for i in range(part.start, part.stop)]
            return "records", frame.topic, seqs, frame.from_seq, frame.to_seq, frame.head_seq
        case TombstoneFrame():
            lost = frame.tombstone
            return "lost", frame.topic, lost.gap_from, lost.gap_to, lost.reason, frame.opening
        case CaughtUpFrame():
            return "caught-up", frame.topic, frame.head_seq
        case TopicDeletedFrame():
            return frame.reason, frame.topic, frame.head_seq
        case ErrorFrame():
            return "error", frame.reason.code, frame.code, frame.topics, frame.terminal
    raise AssertionError(f"no frame of a watch: {frame}")


def brief(frame: Short) -> Short:
    """A short frame without cursors and heads."""
    match frame:
        case ("records", topic, seqs, *_):
            return (topic, *seqs)
        case ("lost", topic, start, stop, reason, _):
            return topic, reason, start, stop
        case ("caught-up" | "deleted" as kind, topic, _):
            return topic, kind
    return frame
