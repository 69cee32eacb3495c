"""Record batches for Fetch. Those that have to be rendered from stored blocks are cached for the next reader."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from topics_service.engine.batches import FetchPart
from topics_service.statistics import CacheStatistics
from topics_service.storage import recordbatch
from topics_service.storage.block import Block
from topics_service.storage.kafkablock import KafkaBlock
from topics_service.storage.recordbatch import Columns

Buffers = Sequence[bytes | memoryview]

_BATCH_BYTES: Final = 64 << 10  # approximate size of a rendered batch
_RECORD_OVERHEAD: Final = 24
_ENTRY_WEIGHT: Final = 300  # of a cache entry, without its bytes
_DEAD_WEIGHT: Final = 36  # of a dead position in a key
_LARGE: Final = 8  # a batch above 1/8 of the cache is not cached

_Key = tuple[int, int, int, tuple[int, ...]]


class BatchCache:
    """An LRU cache of rendered batches, up to `max_bytes`.

    Its key is the log, first seq, count and dead positions of a batch: an entry is never stale.
    """

    def __init__(self, max_bytes: int) -> None:
        self.statistics = CacheStatistics()
        self.rendered_bytes = 0
        """Bytes of all batches rendered since the start."""
        self._max_bytes = max_bytes
        self._bytes = 0
        self._batches: OrderedDict[_Key, bytes] = OrderedDict()

    @property
    def size(self) -> int:
        """Weight of the cached batches."""
        return self._bytes

    def stored(self, block: KafkaBlock, part: FetchPart) -> Buffers:
        """A batch as a Kafka client sent it, without its dead records, in pieces. Copied only if some are dead."""
        batch = block.batch(block.part_at(part.start))
        if part.dead:
            return (self._rebuilt(part, batch),)
        return recordbatch.patched(batch, part.first_seq - 1)

    def render(self, part: FetchPart) -> Iterator[bytes]:
        """Render the live records of other protocols, one batch after the other."""
        block = part.block
        assert isinstance(block, Block), "there are two kinds"
        dead = set(part.dead)
        step = _step(block)
        start = part.start
        while start < part.stop:
            stop = min(start - start % step + step, part.stop)
            gone = tuple(i for i in range(start, stop) if i in dead) if dead else ()
            if len(gone) < stop - start:
                yield self._encoded(block, start, stop, gone)
            start = stop

    def _rebuilt(self, part: FetchPart, batch: memoryview) -> bytes:
        key = (part.block.log_id, part.first_seq, part.stop - part.start, _relative(part.dead, part.start))
        found = self._find(key)
        if found is None:
            keep = _but(key[3], part.stop - part.start)
            found = self._keep(key, recordbatch.rebuilt(batch, part.first_seq - 1, keep))
        return found

    def _encoded(self, block: Block, start: int, stop: int, gone: tuple[int, ...]) -> bytes:
        key = (block.log_id, block.base_seq + start, stop - start, _relative(gone, start))
        found = self._find(key)
        if found is None:
            batch = recordbatch.encoded(
                block.base_seq + start - 1,
                _times(block, start, stop),
                _columns(block, start, stop),
                None if block.nodes is None else block.nodes[start:stop],
                _but(key[3], stop - start) if gone else None,
                last_offset_delta=stop - start - 1,
            )
            found = self._keep(key, batch)
        return found

    def _find(self, key: _Key) -> bytes | None:
        found = self._batches.get(key)
        if found is None:
            self.statistics.misses += 1
        else:
            self.statistics.hits += 1
            self._batches.move_to_end(key)
        return found

    def _keep(self, key: _Key, batch: bytes) -> bytes:
        self.rendered_bytes += len(batch)
        weight = _weight(key, batch)
        if weight > self._max_bytes // _LARGE:
            return batch
        self._batches[key] = batch
        self._bytes += weight
        while self._bytes > self._max_bytes:
            self._bytes -= _weight(*self._batches.popitem(last=False))
        return batch


def aligned(part: FetchPart) -> FetchPart:
    """Shorten a part that ends within a cached batch and holds a whole one, to the end of the last whole one.

    The next fetch then begins with a whole batch, so that all readers share the same batches.
    """
    block = part.block
    if not isinstance(block, Block) or part.stop == block.count:
        return part
    stop = part.stop - part.stop % _step(block)
    if stop in (part.stop, 0) or stop <= part.start:
        return part
    return FetchPart(block, part.start, stop, tuple(i for i in part.dead if i < stop))


def _step(block: Block) -> int:
    """Records per batch of the block: a batch begins at each multiple of it."""
    return max(1, _BATCH_BYTES * block.count // (block.nbytes + _RECORD_OVERHEAD * block.count))


def _relative(positions: tuple[int, ...], start: int) -> tuple[int, ...]:
    return tuple(i - start for i in positions) if positions and start else positions


def _but(gone: Iterable[int], count: int) -> list[int]:
    """The positions below `count` that are not in `gone`."""
    dead = set(gone)
    return [i for i in range(count) if i not in dead]


def _columns(block: Block, start: int, stop: int) -> Columns:
    ends = [block.ends[start - 1] if start else 0, *block.ends[start:stop]]
    whole = block.data
    datas = [whole[begin:end] for begin, end in pairwise(ends)]
    tags, metas, kinds = block.tags, block.metas, block.kinds
    return Columns(
        datas,
        None if tags is None else tags[start:stop],
        None if metas is None else metas[start:stop],
        None if kinds is None else kinds[start:stop],
    )


def _times(block: Block, start: int, stop: int) -> list[int]:
    times: list[int] = []
    begin = 0
    for count, ts in block.ts_runs:
        end = begin + count
        if end > start:
            times += [ts] * (min(end, stop) - max(begin, start))
            if end >= stop:
                break
        begin = end
    return times


def _weight(key: _Key, batch: bytes) -> int:
    return _ENTRY_WEIGHT + len(batch) + _DEAD_WEIGHT * len(key[3])
