"""The tag index: finds records with a tag without walking the log.

Sealed blocks are indexed by run: one row per distinct tag of a run, holding positions relative to the run's base.
Blocks above `sealed_to` are few by construction (`maintenance`) and are looked at directly.

Batches of Kafka clients would have to be decoded for it, which costs more than the rest of their append. So they
are only marked as not indexed, and indexed when a tag is looked up (`maintenance.index_marked`).
"""

import heapq
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from topics_service.engine.blocks import LogBlocks
from topics_service.engine.model import TagMatch
from topics_service.engine.snapshot import Snapshot
from topics_service.storage import keys
from topics_service.storage.block import Block, StoredBlock
from topics_service.storage.store import Family, Store, WriteBatch

GLOB_ROWS = 2048  # index rows of a Glob that are looked at to find where its tags stand: about 2 ms
_STALE_ROWS = 8  # rows of one tag to step over before seeking is cheaper
_BEHIND = b"\xff" * 9  # behind every row of a tag, and before those of the next


def index(batch: WriteBatch, log_id: int, run: Iterable[Block]) -> None:
    """Add the index rows of a run of blocks."""
    base: int | None = None
    positions: defaultdict[bytes | None, list[int]] = defaultdict(list)
    for block in run:
        base = block.base_seq if base is None else base
        if block.tags is None:
            continue
        offset = block.base_seq - base
        for i, tag in enumerate(block.tags, offset):
            positions[tag].append(i)
    positions.pop(None, None)
    for tag, found in positions.items():
        batch.put(Family.TAGS, keys.tag(log_id, tag or b"", base or 0), array("I", found).tobytes())


def mark(batch: WriteBatch, blocks: Iterable[StoredBlock]) -> None:
    """Note that sealed blocks are not indexed."""
    for block in blocks:
        batch.put(Family.TAGS, keys.unindexed(block.log_id, block.base_seq), b"")


def marked(store: Store, log_id: int, start: int = 0) -> Iterator[int]:
    """Yield the bases, from `start` on, of the sealed blocks in `store` that are not indexed."""
    for key, _ in store.scan(Family.TAGS, *keys.unindexed_range(log_id, start)):
        yield keys.tag_run(key)


def is_marked(store: Store, block: StoredBlock) -> bool:
    """Return whether the block is one that is not indexed."""
    return store.get(Family.TAGS, keys.unindexed(block.log_id, block.base_seq)) is not None


def indexed_to(stores: Iterable[Store], blocks: LogBlocks, seq: int) -> int:
    """Return the last seq, from `seq` on, before a block that is not indexed."""
    end, stores = (1 << 64) - 1, tuple(stores)
    if blocks.marked is None:
        blocks.marked = any(True for store in stores for _ in marked(store, blocks.log_id))
    if not blocks.marked:
        return end
    for store in stores:
        found = store.floor(Family.TAGS, keys.unindexed(blocks.log_id, seq))
        if found is not None and found[0] >= keys.unindexed_range(blocks.log_id)[0]:
            base = keys.tag_run(found[0])
            if not blocks.is_below(base, seq):
                return seq - 1
        end = min(end, next(marked(store, blocks.log_id, seq), end + 1) - 1)
    return end


def matching(
    stores: Iterable[Store], log_id: int, s: Snapshot, blocks: LogBlocks, match: TagMatch, bound: int
) -> list[int]:
    """Return the live seqs below `bound` with a matching tag, ascending. The cost grows with the matches, not the log.

    Every block marked as not indexed is decoded for it; `maintenance.index_marked` avoids that.
    """
    prefix = match.op == "Glob"
    found: set[int] = set()
    for store in stores:
        for _, run, row in _rows(store, log_id, match.value, prefix=prefix):
            found.update(run + offset for offset in array("I", row))
        for base in marked(store, log_id) if blocks.marked is not False else ():
            if base < bound and not blocks.is_below(base, s.earliest):
                block = blocks.tagged(base, scan=True)
                found.update(base + i for i in block.positions_of(match.value, prefix=prefix))
    at = max(s.sealed_to + 1, s.earliest)
    while (at := s.first_live(at)) <= s.head:
        block = blocks.tagged(at)
        found.update(block.base_seq + i for i in block.positions_of(match.value, prefix=prefix))
        at = block.end_seq
    return sorted(seq for seq in found if seq < bound and s.is_live(seq))


def walk(stores: Iterable[Store], log_id: int, match: TagMatch, start: int) -> Iterator[tuple[int, int]] | None:
    """The indexed seqs at or above `start` whose tag matches, as ascending ranges [first, stop), dead ones included.

    The index is read only as far as the result is consumed, beginning at the run that holds `start`. None for a Glob
    whose tags have more than `GLOB_ROWS` rows to look at.
    """
    if match.op == "Eq":
        rows = [_rows_from(store, log_id, match.value, start) for store in stores]
        return (found for run, row in heapq.merge(*rows) for found in _ranges(run, array("I", row), start))
    heads: list[_Head] = []
    for i, store in enumerate(stores := tuple(stores)):
        found = _heads(store, log_id, match.value, start)
        if found is None:
            return None
        heads += [(run, i, stem) for run, stem in found]
    return _merged(stores, heads, start)


def prune(store: Store, batch: WriteBatch, log_id: int, match: TagMatch, head: int) -> None:
    """Remove the rows of a match when all its records up to `head` are being deleted."""
    for key, run, row in _rows(store, log_id, match.value, prefix=match.op == "Glob"):
        if run + array("I", row)[-1] <= head:
            batch.delete(Family.TAGS, key)


def prune_below(store: Store, batch: WriteBatch, log_id: int, tags: Iterable[bytes], earliest: int) -> None:
    """Remove the rows of these tags that point only below `earliest`."""
    for tag in tags:
        for key, run, row in _rows(store, log_id, tag, prefix=False):
            if run + array("I", row)[-1] >= earliest:
                break
            batch.delete(Family.TAGS, key)


def _rows(store: Store, log_id: int, tag: bytes, *, prefix: bool) -> Iterator[tuple[bytes, int, bytes]]:
    for key, row in store.scan(Family.TAGS, *keys.tag_range(log_id, tag, prefix=prefix)):
        yield key, keys.tag_run(key), row


def _rows_from(store: Store, log_id: int, tag: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    """The rows of one tag, from that whose run can hold `start`."""
    low, high = keys.tag_range(log_id, tag, prefix=False)
    found = store.floor(Family.TAGS, keys.tag(log_id, tag, start))
    if found is not None and found[0] >= low:
        low = found[0]
    return ((keys.tag_run(key), row) for key, row in store.scan(Family.TAGS, low, high))


def _ranges(run: int, row: Sequence[int], start: int) -> Iterator[tuple[int, int]]:
    """The positions of a row, ascending, as ranges of seqs from `start` on."""
    at, size = bisect_left(row, start - run), len(row)
    while at < size:
        first, stop = row[at], at + 1
        if stop < size and row[stop] == first + 1:
            shift = first - at
            stop = bisect_left(range(size), 1, lo=stop, key=lambda i: row[i] - i != shift)
        yield run + first, run + first + stop - at
        at = stop


_Head = tuple[int, int, bytes]  # base of a run, number of the store, the key of the row without the base


def _heads(store: Store, log_id: int, prefix: bytes, start: int) -> list[tuple[int, bytes]] | None:
    """Of every tag that starts with `prefix` the first row that reaches `start`; None if that is too much to ask."""
    heads: list[tuple[int, bytes]] = []
    low, high = keys.tag_range(log_id, prefix, prefix=True)
    touched = 0
    while low < high:
        stem = done = b""
        stale = 0
        for key, row in store.scan(Family.TAGS, low, high):
            touched += 1
            if touched > GLOB_ROWS:
                return None
            if key[:-8] != stem:
                stem, stale = key[:-8], 0
            if stem != done:
                run = keys.tag_run(key)
                if run + array("I", row[-4:])[0] >= start:
                    heads.append((run, stem))
                    done = stem
                    continue
            stale += 1
            if stale == _STALE_ROWS:
                low = stem + _BEHIND if stem == done else _row_at(store, key, start)
                touched += _STALE_ROWS
                break
        else:
            break
    return heads


def _row_at(store: Store, key: bytes, start: int) -> bytes:
    """Return the key after row `key`, which lies before `start`: that of a later row of its tag, or the next one."""
    found = store.floor(Family.TAGS, key[:-8] + keys.u64(start))
    return key + b"\x00" if found is None or found[0] <= key else found[0]


def _merged(stores: Sequence[Store], heads: list[_Head], start: int) -> Iterator[tuple[int, int]]:
    """The ranges of many tags: runs do not overlap, so that one run after the other is in order."""
    heapq.heapify(heads)
    while heads:
        run = heads[0][0]
        group: list[_Head] = []
        while heads and heads[0][0] == run:
            group.append(heapq.heappop(heads))
        positions: list[int] = []
        for _, i, stem in group:
            positions += array("I", stores[i].get(Family.TAGS, stem + keys.u64(run)) or b"")
        positions = sorted(set(positions)) if len(stores) > 1 else sorted(positions)
        yield from _ranges(run, positions, start)
        for _, i, stem in group:
            row = next(stores[i].scan(Family.TAGS, stem + keys.u64(run + 1), stem + _BEHIND), None)
            if row is not None:
                heapq.heappush(heads, (keys.tag_run(row[0]), i, stem))
