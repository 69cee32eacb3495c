"""Records as protobuf, serialized once and shared by all streams that carry them."""

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from topics_proto.v1 import stream_pb2
from topics_service.api.grpc.records import add_records
from topics_service.engine.model import Slice
from topics_service.statistics import CacheStatistics
from topics_service.storage.block import Block

_ENTRY_WEIGHT: Final = 400  # of a cache entry, without its bytes
_SHARE: Final = 4  # a slice below 1/4 of its block is serialized alone


class Parts(NamedTuple):
    """Optional fields present in the records."""

    tags: bool
    metas: bool
    datas: bool = True


class RunCache:
    """Serializes slices of blocks as fields `records` of a RecordBatch, and keeps whole blocks in that form.

    The least recently used leave at `max_bytes`. Blocks never change and are known by log, first seq and count, so
    nothing here is ever stale. Splicing a run of 100 records into a message takes a twentieth of building it again.
    """

    def __init__(self, max_bytes: int) -> None:
        self.statistics = CacheStatistics()
        self._max_bytes = max_bytes
        self._bytes = 0
        self._runs: OrderedDict[tuple[int, int, int, Parts], _Run] = OrderedDict()

    @property
    def size(self) -> int:
        """Size of the cached runs in bytes."""
        return self._bytes

    def records(self, slices: Iterable[Slice], parts: Parts) -> list[bytes | memoryview]:
        """The records of each slice, to be put one behind the other into a RecordBatch."""
        return [self._slice(piece, parts) for piece in slices]

    def _slice(self, piece: Slice, parts: Parts) -> bytes | memoryview:
        block, start, stop = piece.block, piece.start, piece.stop
        key = (block.log_id, block.base_seq, block.count, parts)
        run = self._runs.get(key)
        if run is not None:
            self._runs.move_to_end(key)
            self.statistics.hits += 1
        else:
            self.statistics.misses += 1
            if (stop - start) * _SHARE < block.count or block.weight > self._max_bytes // 8:
                return _serialize(piece, parts)
            run = self._runs[key] = _Run(block, parts)
            self._bytes += run.weight
            while self._bytes > self._max_bytes:
                self._bytes -= self._runs.popitem(last=False)[1].weight
        return run.data if stop - start == block.count else run.part(start, stop)


class _Run:
    """All records of one block."""

    __slots__ = ("_ends", "data", "weight")

    def __init__(self, block: Block, parts: Parts) -> None:
        self.data = _serialize(Slice(block, 0, block.count), parts)
        self.weight = _ENTRY_WEIGHT + len(self.data) + 8 * block.count
        self._ends: array[int] | None = None

    def part(self, start: int, stop: int) -> memoryview:
        """The records at positions start..stop-1."""
        if self._ends is None:
            self._ends = _ends(self.data)
        return memoryview(self.data)[self._ends[start] : self._ends[stop]]


def _serialize(piece: Slice, parts: Parts) -> bytes:
    batch = stream_pb2.RecordBatch()
    add_records(batch, (piece,), include_tags=parts.tags, include_meta=parts.metas, include_data=parts.datas)
    return batch.SerializeToString()


def _ends(data: bytes) -> "array[int]":
    """Return the start of each record and the end of the last. A record is a field byte, its length and its bytes."""
    at, ends = 0, array("Q", [0])
    while at < len(data):
        at += 1
        length = shift = 0
        while True:
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        at += length
        ends.append(at)
    return ends
