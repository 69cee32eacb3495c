"""Runs of the tag index: stretches of a log whose records are indexed together, dropped as a whole with them.

A run has one row that says where it ends, and chunks with its tags in order (`storage.tagchunk`). Sealing writes runs
of level 0; `FAN_IN` neighbours of a level are merged into one of the next level, so that a look-up meets few. What
readers see changes with the rows of runs only, in one batch: chunks without a run are those of a merge under way or
one that was interrupted.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from typing import Final, NamedTuple, Protocol

from topics_service.storage import keys
from topics_service.storage.block import Block
from topics_service.storage.store import Family, Store, StoreError, WriteBatch
from topics_service.storage.tagchunk import (
    MAX_POSITIONS,
    Chunk,
    CorruptChunkError,
    Entries,
    encode,
    limited,
    split,
)

FAN_IN: Final = 32
"""The number of runs that are merged: 5 M records have some 10 large runs and up to twice as many small ones."""
WIDE: Final = 32
"""A prefix whose tags fill more chunks of a run than this is better looked for in the blocks."""
_MERGE_POSITIONS: Final = 1 << 12  # in one slice: some 5 ms
_MOSTLY: Final = 0.75  # of the entries have a tag of their own: then none are joined
_MAX_LEVEL: Final = 3
PRUNED: Final = 64
"""Positions: a shorter entry is left to the next merge, for its chunk would be written again."""
_RUN: Final = struct.Struct("<BxxxxxxxQ")
_VERSION: Final = 1


class Rows(Protocol):
    """The part of a store that look-ups need."""

    def floor(self, family: Family, key: bytes) -> tuple[bytes, bytes] | None:
        """See Store."""
        ...

    def scan(self, family: Family, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See Store."""
        ...


class Run(NamedTuple):
    """Indexes the seqs from `base` up to, without, `stop`; runs of one store do not overlap."""

    base: int
    level: int
    stop: int


def runs(store: Rows, log_id: int, start: int = 0) -> Iterator[Run]:
    """The runs of a log in `store` that end above `start`, in order. Raises StoreError if one is damaged."""
    low, high = keys.runs(log_id)
    if start > 1:
        found = store.floor(Family.TAGS, keys.run(log_id, start, 0xFF))
        low = low if found is None else max(low, found[0])
    for key, value in store.scan(Family.TAGS, low, high):
        base, level = keys.run_of(key)
        run = Run(base, level, read_stop(log_id, value))
        if run.stop > start:
            yield run


def read_stop(log_id: int, value: bytes) -> int:
    """Decode the row of a run. Raises StoreError if it is damaged."""
    if len(value) != _RUN.size or value[0] != _VERSION:
        raise StoreError(f"a run of the tag index of log {log_id} is damaged")
    stop: int = _RUN.unpack(value)[1]
    return stop


def add(batch: WriteBatch, log_id: int, blocks: Iterable[Block]) -> None:
    """Add a run of level 0 with the tags of consecutive blocks. Without a tag there is none."""
    base = stop = 0
    tags: list[bytes] = []
    positions: list[int] = []
    for block in blocks:
        base, stop = base or block.base_seq, block.end_seq
        column = block.tags
        if column is None:
            continue
        offset = block.base_seq - base
        if None in column:
            for i, tag in enumerate(column, offset):
                if tag is not None:
                    tags.append(tag)
                    positions.append(i)
        else:
            tags += column  # type: ignore[arg-type]  # none is absent
            positions += range(offset, offset + block.count)
    if tags:
        for entries in split(_sorted(tags, positions)):
            _put(batch, log_id, Run(base, 0, stop), entries)
        _put_run(batch, log_id, Run(base, 0, stop))


def positions(store: Rows, log_id: int, run: Run, tag: bytes, start: int = 0) -> Iterator["array[int]"]:
    """The positions of a tag in a run, ascending, from the entry on that can hold position `start`."""
    for _, chunk in _chunks(store, log_id, run, tag, start):
        for i in chunk.matching(tag, prefix=False):
            yield chunk.positions(i)
        if chunk.last > tag:
            return


def positions_below(store: Rows, log_id: int, run: Run, prefix: bytes, limit: int | None = None) -> list[int] | None:
    """The positions of all tags that start with `prefix`, ascending; None if that takes more than `limit` chunks."""
    found: list[int] = []
    for looked, (_, chunk) in enumerate(_chunks(store, log_id, run, prefix, 0)):
        if looked == limit:
            return None
        for i in chunk.matching(prefix, prefix=True):
            found += chunk.positions(i)
        if chunk.last > prefix and not chunk.last.startswith(prefix):
            break
    found.sort()
    return found


def prune(store: Store, batch: WriteBatch, log_id: int, run: Run, value: bytes, *, prefix: bool, stop: int) -> None:
    """Remove the longer entries of matching tags, all of whose positions are below `stop`."""
    for key, chunk in _chunks(store, log_id, run, value, 0):
        matching = chunk.matching(value, prefix=prefix)
        dead = {i for i in matching if len(found := chunk.positions(i)) >= PRUNED and found[-1] < stop}
        if dead:
            left = [i for i in range(chunk.count) if i not in dead]
            if left:
                batch.put(Family.TAGS, key, encode(_taken(chunk, left)))
            else:
                batch.delete(Family.TAGS, key)
        if chunk.last > value and not (prefix and chunk.last.startswith(value)):
            return


def drop_below(store: Store, batch: WriteBatch, log_id: int, earliest: int) -> None:
    """Remove the runs that end at or below `earliest`."""
    for run in runs(store, log_id):
        if run.stop > earliest:
            return
        _drop(store, batch, log_id, run)


class Merge:
    """Merges neighbouring runs of a store, a slice at a time."""

    def __init__(self, store: Store, log_id: int, sources: Sequence[Run]) -> None:
        first, last = sources[0], sources[-1]
        self.store = store
        self._log_id = log_id
        self._run = Run(first.base, first.level + 1, last.stop)
        self._sources = [_Source(log_id, source, source.base - first.base) for source in sources]
        self._rest = Entries([], [], array("I"))
        self._begun = False

    def step(self, batch: WriteBatch, is_live: Callable[[int], bool] | None, earliest: int) -> bool | None:
        """Add the next slice to the batch. Returns whether that was the last one; None if a source is gone, which ends
        the merge. Positions of records below `earliest`, and of those that are not live, are left out.

        Raises StoreError if a chunk is damaged.
        """
        store, log_id, run = self.store, self._log_id, self._run
        if not self._begun:
            batch.delete_range(Family.TAGS, *keys.chunks(log_id, run.base, run.level))  # of an interrupted merge
            self._begun = True
        there = set(runs(store, log_id))
        if not all(source.run in there for source in self._sources):
            batch.delete_range(Family.TAGS, *keys.chunks(log_id, run.base, run.level))
            return None
        merged = 0
        while merged < _MERGE_POSITIONS:
            entries = self._next(store)
            if entries is None:
                for part in split(self._rest):
                    _put(batch, log_id, run, part)
                first, last = self._sources[0].run, self._sources[-1].run
                start, stop = keys.chunks(log_id, *first[:2])[0], keys.chunks(log_id, *last[:2])[1]
                batch.delete_range(Family.TAGS, start, stop)  # they are neighbours, as their chunks are
                for source in self._sources:
                    batch.delete(Family.TAGS, keys.run(log_id, source.run.base, source.run.level))
                _put_run(batch, log_id, run)
                return True
            merged += len(entries.positions)
            if is_live is not None or earliest > run.base:
                entries = _living(entries, run.base, is_live, earliest)
            joined = Entries(
                self._rest.tags + entries.tags,
                self._rest.counts + entries.counts,
                self._rest.positions + entries.positions,
            )
            *parts, self._rest = split(joined, whole=False)
            for part in parts:
                _put(batch, log_id, run, part)
        return False

    def _next(self, store: Store) -> Entries | None:
        """The next entries in order: up to the first end of what is read of a source. None behind the last one."""
        bound: tuple[bytes, int] | None = None
        for i, source in enumerate(self._sources):
            source.fill(store)
            if source.tags and (bound is None or (source.tags[-1], i) < bound):
                bound = source.tags[-1], i
        if bound is None:
            return None
        tag, last = bound
        taken = [
            source.take((bisect_right if i <= last else bisect_left)(source.tags, tag))
            for i, source in enumerate(self._sources)
        ]
        return _joined([each for each in taken if each.tags])


class Upkeep:
    """Work that is due on the tag index of a log."""

    __slots__ = ("is_damaged", "is_moving", "merge")

    def __init__(self) -> None:
        self.merge: Merge | None = None
        self.is_moving = False  # rows of earlier versions are being replaced
        self.is_damaged = False  # nothing more is done


class _Source:
    """A run that is being merged, read chunk by chunk."""

    def __init__(self, log_id: int, run: Run, shift: int) -> None:
        self.run = run
        self.tags: list[bytes] = []
        self._log_id = log_id
        self._shift = shift
        self._after, self._stop = keys.chunks(log_id, run.base, run.level)
        self._chunk = Entries([], [], array("I"))

    def fill(self, store: Store) -> None:
        """Read the next chunk, if there is one and nothing of the last one is left."""
        if self.tags or self._after >= self._stop:
            return
        row = next(store.scan(Family.TAGS, self._after, self._stop), None)
        if row is None:
            self._after = self._stop
            return
        self._after = row[0] + b"\x00"
        tags, counts, found = _decode(self._log_id, row[1]).entries()
        if len(tags) < len(found) < len(tags) / _MOSTLY:  # single positions are merged faster
            tags = list(chain.from_iterable(map(repeat, tags, counts)))
            counts = [1] * len(tags)
        if self._shift:
            found = array("I", map(self._shift.__add__, found))
        self.tags, self._chunk = tags, Entries(tags, counts, found)

    def take(self, count: int) -> Entries:
        """Take the first entries."""
        tags, counts, found = self._chunk
        cut = sum(counts[:count])
        self._chunk = Entries(tags[count:], counts[count:], found[cut:])
        self.tags = self._chunk.tags
        return Entries(tags[:count], counts[:count], found[:cut])


def mergeable(found: Sequence[Run], largest: int) -> Sequence[Run] | None:
    """The first `FAN_IN` neighbours of one level, if together they have at most `largest` seqs."""
    start = 0
    for at in range(1, len(found) + 1):
        if at == len(found) or found[at].level != found[start].level:
            start = at
        elif at - start + 1 == FAN_IN:
            if found[start].level < _MAX_LEVEL and found[at].stop - found[start].base <= largest:
                return found[start : at + 1]
            start += 1
    return None


def _sorted(tags: list[bytes], places: list[int]) -> Entries:
    """The entries of records in order of their positions."""
    counted = Counter(tags)
    order = sorted(range(len(tags)), key=tags.__getitem__)
    found = array("I", map(places.__getitem__, order))
    distinct = sorted(counted)
    return _limited(Entries(distinct, list(map(counted.__getitem__, distinct)), found))


def _limited(entries: Entries) -> Entries:
    if max(entries.counts, default=0) <= MAX_POSITIONS:
        return entries
    tags, counts, at = list[bytes](), list[int](), 0
    for tag, count in zip(entries.tags, entries.counts, strict=True):
        for each, found in limited(tag, entries.positions[at : at + count]):
            tags.append(each)
            counts.append(len(found))
        at += count
    return Entries(tags, counts, entries.positions)


def _joined(parts: Sequence[Entries]) -> Entries:
    """The entries of several runs, given in their order, in order of the tags."""
    if len(parts) == 1:
        return parts[0]
    tags = list(chain.from_iterable(part.tags for part in parts))
    order = sorted(range(len(tags)), key=tags.__getitem__)
    counts = list(chain.from_iterable(part.counts for part in parts))
    found = array("I", b"".join(part.positions.tobytes() for part in parts))
    tags = list(map(tags.__getitem__, order))
    if len(found) == len(counts):
        places = array("I", map(found.__getitem__, order))
    else:
        starts = [0, *accumulate(counts)]
        places = array("I", b"".join(found[starts[i] : starts[i] + counts[i]].tobytes() for i in order))
        counts = list(map(counts.__getitem__, order))
    if len(set(tags)) > len(tags) * _MOSTLY:
        return Entries(tags, counts, places)  # joining the few of one tag takes longer than it saves
    joined, sums = list[bytes](), list[int]()
    for tag, count in zip(tags, counts, strict=True):
        if joined and joined[-1] == tag and sums[-1] + count <= MAX_POSITIONS:
            sums[-1] += count
        else:
            joined.append(tag)
            sums.append(count)
    return Entries(joined, sums, places)


def _living(entries: Entries, base: int, is_live: Callable[[int], bool] | None, earliest: int) -> Entries:
    tags, counts, places = list[bytes](), list[int](), array("I")
    at = 0
    for tag, count in zip(entries.tags, entries.counts, strict=True):
        kept = [
            place
            for place in entries.positions[at : at + count]
            if base + place >= earliest and (is_live is None or is_live(base + place))
        ]
        at += count
        if kept:
            tags.append(tag)
            counts.append(len(kept))
            places.extend(kept)
    return Entries(tags, counts, places)


def _taken(chunk: Chunk, indexes: Sequence[int]) -> Entries:
    found = [chunk.positions(i) for i in indexes]
    return Entries(
        [chunk.tag(i) for i in indexes], list(map(len, found)), array("I", b"".join(each.tobytes() for each in found))
    )


def _chunks(store: Rows, log_id: int, run: Run, tag: bytes, start: int) -> Iterator[tuple[bytes, Chunk]]:
    """The chunks of a run, with their keys, from the one on that can hold the position `start` of a tag, or the first
    tag behind it; up to the last one whose first tag is not above every text that starts with `tag`."""
    low, high = keys.chunks(log_id, run.base, run.level)
    found = store.floor(Family.TAGS, keys.chunk(log_id, run.base, run.level, tag, start))
    if found is not None and found[0] >= low:
        yield found[0], _decode(log_id, found[1])
        low = found[0] + b"\x00"
    for key, value in store.scan(Family.TAGS, low, min(high, keys.chunk_stop(log_id, run.base, run.level, tag))):
        yield key, _decode(log_id, value)


def _decode(log_id: int, value: bytes) -> Chunk:
    try:
        return Chunk(value)
    except CorruptChunkError as error:
        raise StoreError(f"the tag index of log {log_id} is damaged: {error}") from error


def _put(batch: WriteBatch, log_id: int, run: Run, entries: Entries) -> None:
    if entries.tags:
        key = keys.chunk(log_id, run.base, run.level, entries.tags[0], entries.positions[0])
        batch.put(Family.TAGS, key, encode(entries))


def _put_run(batch: WriteBatch, log_id: int, run: Run) -> None:
    batch.put(Family.TAGS, keys.run(log_id, run.base, run.level), _RUN.pack(_VERSION, run.stop))


def _drop(store: Store, batch: WriteBatch, log_id: int, run: Run) -> None:
    batch.delete(Family.TAGS, keys.run(log_id, run.base, run.level))
    start, stop = keys.chunks(log_id, run.base, run.level)
    if run.level:  # and what interrupted merges have left below
        batch.delete_range(Family.TAGS, keys.chunks(log_id, 0, run.level)[0], stop)
    else:  # a range costs every reader of the family a little until it is compacted
        for key, _ in store.scan(Family.TAGS, start, stop):
            batch.delete(Family.TAGS, key)
