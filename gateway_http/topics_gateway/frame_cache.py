"""A cache of the last encoded frame of records of each partition, shared by streams that send the same frame."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from topics_gateway.render import Parts
from topics_service.engine.model import Slice
from topics_service.engine.watch.frames import CaughtUpFrame, RecordsFrame, WatchFrame
from topics_service.statistics import CacheStatistics

T = TypeVar("T")

_MAX_SLICES: Final = 32  # of a frame that is kept; live ones have few
_ENTRY_WEIGHT: Final = 1000  # of an entry, without the weight by `weigh`
_SHARE: Final = 8  # entries heavier than 1/8 of all are not kept


class FrameCache(Generic[T]):
    """Keeps the result of `make` for a frame until the partition's next one; beyond `max_bytes` the oldest leaves."""

    def __init__(self, make: Callable[[RecordsFrame, Parts], T], weigh: Callable[[T], int], max_bytes: int) -> None:
        """`weigh` says how many bytes something made holds, or will hold."""
        self.statistics = CacheStatistics()
        self._make = make
        self._weigh = weigh
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[str, int | None, Parts], _Entry[T]] = OrderedDict()

    @property
    def size(self) -> int:
        """The weight of the cached values."""
        return self._bytes

    def get(self, frame: RecordsFrame, parts: Parts) -> T:
        """Return the cached value of this frame, or make it."""
        if len(frame.slices) > _MAX_SLICES:
            return self._make(frame, parts)
        name = (frame.topic, frame.partition, parts)
        key = (frame.from_seq, frame.to_seq, frame.head_seq, *map(_identity, frame.slices))
        entry = self._kept.get(name)
        if entry is not None and entry.key == key:
            self.statistics.hits += 1
            return entry.made
        self.statistics.misses += 1
        if entry is not None:
            del self._kept[name]
            self._bytes -= entry.weight
        made = self._make(frame, parts)
        weight = _ENTRY_WEIGHT + self._weigh(made)
        if weight * _SHARE <= self._max_bytes:
            self._kept[name] = _Entry(key, made, weight)
            self._bytes += weight
            while self._bytes > self._max_bytes:
                self._bytes -= self._kept.popitem(last=False)[1].weight
        return made

    def last(self, frame: CaughtUpFrame, parts: Parts) -> T | None:
        """Return the value of the previous frame of records, if it is cached."""
        entry = self._kept.get((frame.topic, frame.partition, parts))
        return None if entry is None else entry.made


def partition_member(frame: WatchFrame) -> dict[str, int]:
    """The member that frames have only where the topic has several partitions."""
    return {} if frame.partition is None else {"partition": frame.partition}


def partition_text(frame: WatchFrame) -> bytes:
    """The same as JSON text, to follow another member."""
    return b"" if frame.partition is None else b',"partition":%d' % frame.partition


class _Entry(Generic[T]):
    __slots__ = ("key", "made", "weight")

    def __init__(self, key: tuple[object, ...], made: T, weight: int) -> None:
        self.key = key
        self.made = made
        self.weight = weight


def _identity(piece: Slice) -> tuple[int, int, int, int, int]:
    """Blocks never change and are known by log, first seq and count."""
    block = piece.block
    return block.log_id, block.base_seq, block.count, piece.start, piece.stop
