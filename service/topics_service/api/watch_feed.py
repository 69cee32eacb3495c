"""A watch of one shard as another process follows it: its frames with what has moved, item by item."""

from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from topics_service.api.watch_stream import WatchStream
from topics_service.engine.watch.frames import (
    CaughtUpFrame,
    ErrorFrame,
    HeartbeatFrame,
    Position,
    RecordsFrame,
    TombstoneFrame,
    TopicDeletedFrame,
)
from topics_service.engine.watch.topic_partition import parse_topic_partition

_SILENT_SEQS: Final = 1024  # passed over without a frame, after which the cursors are sent alone


class FeedItem(Struct, kw_only=True, omit_defaults=True):
    """One step of a watch: a frame, and what it moved. The first item has no frame, but what the watch began with.

    `cursors` and `epochs` are those that have changed since the item before, `gone` the topics that left them.
    `priority` is that of the frame's topic at this moment.
    """

    frame: RecordsFrame | TombstoneFrame | CaughtUpFrame | TopicDeletedFrame | ErrorFrame | None = None
    cursors: dict[str, int] = {}
    epochs: dict[str, int] = {}
    gone: list[str] = []
    priority: int = 0
    positions: dict[str, Position] = {}
    heads: dict[str, int] = {}
    priorities: dict[str, int] = {}


class Feed:
    """The items of one stream, which the shard's dispatcher gives its turns as it does those of clients.

    `given` counts the items.
    """

    def __init__(self, stream: WatchStream, priority: Callable[[str], int]) -> None:
        self.stream = stream
        self.given = 0
        self._priority = priority
        self._cursors: dict[str, int] = {}
        self._epochs: dict[str, int] = {}

    def first(self) -> FeedItem:
        """The positions that the watch begins with."""
        watch = self.stream.watch
        item = self._item(None)
        item.positions = watch.positions
        item.heads = watch.heads
        item.priorities = {name: self._priority(parse_topic_partition(name)[0]) for name in watch.positions}
        return item

    def next(self) -> FeedItem | None:
        """The next item; None if there is none for now. Confirms that the one before was handed over."""
        frame = self.stream.poll()
        if frame is not None:
            assert not isinstance(frame, HeartbeatFrame), "it has none"
            return self._item(frame)
        cursors, sent = self.stream.watch.cursors, self._cursors
        passed = sum(seq - sent.get(name, 0) for name, seq in cursors.items())
        if self.stream.over or passed >= _SILENT_SEQS or not sent.keys() <= cursors.keys():
            return self._item(None)
        return None

    def _item(
        self, frame: RecordsFrame | TombstoneFrame | CaughtUpFrame | TopicDeletedFrame | ErrorFrame | None
    ) -> FeedItem:
        watch = self.stream.watch
        self.given += 1
        item = FeedItem(
            frame=frame,
            cursors=dict(watch.cursors.items() - self._cursors.items()),
            epochs=dict(watch.epochs.items() - self._epochs.items()),
            gone=[*(self._cursors.keys() - watch.cursors.keys())],
        )
        if frame is not None and not isinstance(frame, ErrorFrame):
            item.priority = self._priority(frame.topic)
        self._cursors, self._epochs = watch.cursors.copy(), watch.epochs.copy()
        return item


def heads_of(item: FeedItem) -> Iterator[tuple[str, int]]:
    """The heads that an item tells, by topic partition."""
    frame = item.frame
    yield from item.heads.items()
    if isinstance(frame, TombstoneFrame):
        yield frame.topic_partition, frame.tombstone.head_seq
    elif isinstance(frame, RecordsFrame | CaughtUpFrame | TopicDeletedFrame):
        yield frame.topic_partition, frame.head_seq
