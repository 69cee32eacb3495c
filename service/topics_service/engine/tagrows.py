"""Rows of the tag index as earlier versions wrote them: one for each tag of a run, with positions relative to its base.

They are read, and removed with their records, until `maintenance` has moved their log to `tagruns`.
"""

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from topics_service.engine.model import TagMatch
from topics_service.storage import keys
from topics_service.storage.store import Family, Store, WriteBatch

GLOB_ROWS = 2048  # index rows of a Glob that are looked at to find where its tags stand: about 2 ms
_STALE_ROWS = 8  # rows of one tag to step over before seeking is cheaper
_BEHIND = b"\xff" * 9  # behind every row of a tag, and before those of the next


def exist(store: Store, log_id: int) -> bool:
    """Return whether the log has such rows."""
    return any(True for _ in store.scan(Family.TAGS, *keys.tag_rows(log_id)))


def matching(store: Store, log_id: int, match: TagMatch) -> Iterator[int]:
    """The indexed seqs whose tag matches."""
    for _, run, row in _rows(store, log_id, match.value, prefix=match.op == "Glob"):
        for offset in array("I", row):
            yield run + offset


def walk(stores: Sequence[Store], log_id: int, match: TagMatch, start: int) -> Iterator[tuple[int, int]] | None:
    """The indexed seqs at or above `start` whose tag matches, as ascending ranges [first, stop), dead ones included.

    The index is read only as far as the result is consumed, beginning at the run that holds `start`. None for a Glob
    whose tags have more than `GLOB_ROWS` rows to look at.
    """
    if match.op == "Eq":
        rows = [_rows_from(store, log_id, match.value, start) for store in stores]
        return (found for run, row in heapq.merge(*rows) for found in ranges(run, array("I", row), start))
    heads: list[_Head] = []
    for i, store in enumerate(stores):
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


def ranges(run: int, row: Sequence[int], start: int) -> Iterator[tuple[int, int]]:
    """Positions relative to `run`, ascending, as ranges of seqs from `start` on."""
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
        yield from ranges(run, positions, start)
        for _, i, stem in group:
            row = next(stores[i].scan(Family.TAGS, stem + keys.u64(run + 1), stem + _BEHIND), None)
            if row is not None:
                heapq.heappush(heads, (keys.tag_run(row[0]), i, stem))
