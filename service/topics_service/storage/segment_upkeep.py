"""Upkeep of large values that are kept apart (`segments`): space of dead ones comes back, and older ones move there.

A table whose values are mostly dead is emptied: each of its values is looked up by its row, and those that are alive
are written again, behind all others. Then one deletion of the table's range, in a table of its own, makes RocksDB drop
it without a byte being rewritten.

Before that everything written so far is made durable: a power cut must not bring back a row whose value is gone. And
since each part of a table was read by then, a damaged one stays as it is, rather than being met by a compaction, after
which RocksDB takes no writes.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Final

from rocksdict import BottommostLevelCompaction, CompactOptions, ReadOptions

from topics_client.units import human_size
from topics_service.storage import clean_shutdown, corruption, livetables, segments
from topics_service.storage.livetables import Table
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family, StoreError, StoreStalledError

log = logging.getLogger("topics.storage")

PERIOD_SECONDS: Final = 2.0
_ALLOWED_BYTES: Final = 256 << 20  # of dead values, besides a share of those alive
_ALLOWED_SHARE: Final = 0.15
_DEAD: Final = 0.9  # a table with so large a share of dead values is emptied in any case
_LEAST: Final = 0.05  # and one with less than that never
_WORTH_LOOKING: Final = 128 << 20  # freed bytes
_LOOK_SECONDS: Final = 15.0  # after which less is worth it
_MAX_TABLES: Final = 16  # in one round
_SLICE_ROWS: Final = 256
_SLICE_BYTES: Final = 1 << 20
_SLICE_SECONDS: Final = 0.002
_DUTY: Final = 4  # times the work before it is a pause
_MOVED_BYTES_PER_SECOND: Final = 64 << 20
_MOVED_BYTES: Final = 256 << 20  # after which their old places are compacted
_READAHEAD: Final = 1 << 20
_QUIET_SECONDS: Final = 5.0
_LITTLE_BYTES: Final = 1 << 20  # in the memtable, which are flushed in some milliseconds
_FLUSHES: Final = 4
_PATIENCE_SECONDS: Final = 0.05
_MOST_PATIENCE_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.0002
_FULL: Final = "rocksdb.num-immutable-mem-table"
_PENDING: Final = "rocksdb.mem-table-flush-pending"  # full ones that no flush has begun with
_ENTRIES: Final = "rocksdb.num-entries-active-mem-table"
_SIZE: Final = "rocksdb.cur-size-active-mem-table"


class SegmentUpkeep:
    """Upkeep of an open store. `run` and `squeeze` block, and may run on any thread."""

    def __init__(
        self,
        store: RocksStore,
        has_room: Callable[[], bool] = lambda: True,
        is_sound: Callable[[], bool] = lambda: True,
    ) -> None:
        """`has_room` says whether the disk has room for values to be written again, `is_sound` whether the store may be
        written at all."""
        self._store = store
        self._is_sound = is_sound
        self._has_room = has_room
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._damaged: set[int] = set()  # tables that can't be read
        self._looked_at = 0.0
        self._patience = _PATIENCE_SECONDS
        self._moved = 0
        self._moved_from: bytes | None = None
        self._is_cleared = False
        self._urgent = False
        self._options = CompactOptions()
        self._options.set_exclusive_manual_compaction(False)  # those of RocksDB itself continue
        self._options.set_bottommost_level_compaction(BottommostLevelCompaction.force())

    def run(self) -> None:
        """Run one round, with pauses for other threads. Raises StoreError and those of RocksDB."""
        with self._lock:
            if self._is_over():
                return
            self._clear_away()
            self._walk()
            usage, now = self._store.usage, time.monotonic()
            if usage.freed_bytes < _WORTH_LOOKING and (not usage.freed_bytes or now - self._looked_at < _LOOK_SECONDS):
                return
            self._looked_at, usage.freed_bytes = now, 0
            self._empty(self._chosen())

    def squeeze(self, free: Callable[[], int], enough: Callable[[], bool]) -> None:
        """Empty tables, those with the most dead values first, until there is `enough` space, without pauses."""
        with self._lock:
            self._urgent = True
            try:
                if self._is_over():
                    return
                while self._store.usage.counted is not None and not self._is_stopped():
                    self._walk_on(moves=False)
                self._store.usage.freed_bytes = 0
                for dead, table in self._by_dead_share(_LEAST):
                    if self._is_stopped() or enough():
                        return
                    if table.size * (1 - dead) + _SLICE_BYTES < free():
                        self._empty([table])
            finally:
                self._urgent = False

    def stop(self) -> None:
        """Wait for the running round and prevent further ones. Call it before the store is closed."""
        self._stopped.set()
        with self._lock:
            pass

    # --------------------------------------------------------------- internals

    def _is_over(self) -> bool:
        return self._is_stopped() or clean_shutdown.known_damage(self._store.path) is not None

    def _is_stopped(self) -> bool:
        return self._stopped.is_set() or not self._is_sound()

    def _pause(self, seconds: float) -> None:
        if not self._urgent:
            self._stopped.wait(seconds)

    def _clear_away(self) -> None:
        """Compact deletions whose tables an earlier server left."""
        if self._is_cleared:
            return
        for table in livetables.of(self._store.families[Family.SEGMENTS]):
            if table.deletions:
                self._store.families[Family.SEGMENTS].compact_range(table.start, table.stop, self._options)
        self._is_cleared = True

    # ------------------------------------------------------------------- walk

    def _walk(self) -> None:
        """Count what there was before, and move large values of earlier versions to where they belong."""
        usage = self._store.usage
        while usage.counted is not None and not self._is_stopped():
            began = time.monotonic()
            moved = self._walk_on(moves=self._has_room())
            if moved is None:
                return
            self._moved += moved
            took = time.monotonic() - began
            self._pause(max(took * _DUTY, moved / _MOVED_BYTES_PER_SECOND))
            if self._moved >= _MOVED_BYTES:
                self._compact_moved(usage.counted)
            if usage.counted is None:
                usage.freed_bytes += _WORTH_LOOKING  # of before
                self._compact_moved(None)

    def _walk_on(self, *, moves: bool) -> int | None:
        """Look at the next rows; return the bytes that were moved, if any are to be. None: they can't be for now."""
        store, usage = self._store, self._store.usage
        rows = store.families[Family.BLOCKS]
        with store.writing:
            at = usage.counted
            if at is None:
                return 0
            cursor, moved, seen = rows.iter(), 0, 0
            cursor.seek(at)
            batch, found = store.batch(), list[segments.Reference]()
            while cursor.valid() and seen < _SLICE_ROWS and moved < _SLICE_BYTES:
                key, value = cursor.key(), cursor.value()
                reference = segments.reference(value)
                if reference is not None:
                    found.append(reference)
                elif moves and segments.is_apart(value):
                    batch.put(Family.BLOCKS, key, value)
                    moved += len(value)
                    self._moved_from = self._moved_from or key
                seen, at = seen + 1, key + b"\x00"
                cursor.next()
            if not cursor.valid() and store.why(cursor) is not None:
                behind = corruption.seek_behind(rows, ReadOptions(), at)
                at = None if behind is None else behind.key()
            elif not cursor.valid():
                at = None
            if moved:
                if store.is_stalled():
                    return None
                try:
                    store.rewrite(batch)
                except StoreStalledError:
                    return None
            for reference in found:
                usage.found(reference)
            usage.counted = at
            return moved

    def _compact_moved(self, to: bytes | None) -> None:
        """Drop the values from the places from which they were moved."""
        start, self._moved_from, self._moved = self._moved_from, None, 0
        if start is not None:
            self._store.families[Family.BLOCKS].flush(True)
            self._store.families[Family.BLOCKS].compact_range(start, to, self._options)

    # ----------------------------------------------------------------- tables

    def _by_dead_share(self, least: float) -> list[tuple[float, Table]]:
        """The tables of which at least this share is dead, with that share, the largest first."""
        usage, found = self._store.usage, list[tuple[float, Table]]()
        for table in livetables.of(self._store.families[Family.SEGMENTS]):
            if table.number in self._damaged or table.deletions:
                continue
            start, stop = segments.position_of(table.start), segments.position_of(table.stop) + 1
            if usage.counted is not None and start < usage.first:
                continue
            span = (stop - start) * table.entries // max(1, table.entries - 1)  # the last one has a size too
            dead = 1 - usage.live_in(start, stop) / max(1, span)
            if dead >= least:
                found.append((dead, table))
        return sorted(found, key=lambda each: -each[0])

    def _chosen(self) -> list[Table]:
        """The tables to be emptied in this round."""
        tables = self._by_dead_share(_LEAST)
        chosen = [table for dead, table in tables if dead >= _DEAD]
        left = sum(dead * table.size for dead, table in tables if dead < _DEAD)
        allowed = _ALLOWED_BYTES + _ALLOWED_SHARE * self._store.usage.live_bytes
        for dead, table in tables:
            if dead < _DEAD and left > allowed and self._has_room():
                chosen.append(table)
                left -= dead * table.size
        if len(chosen) > _MAX_TABLES:
            self._store.usage.freed_bytes += _WORTH_LOOKING  # there is more to do
        return chosen[:_MAX_TABLES]

    def _empty(self, tables: Iterable[Table]) -> None:
        """Move what is alive out of these tables, and remove them."""
        empty: list[Table] = []
        for table in sorted(tables, key=lambda each: each.start):
            try:
                if not self._move_out(table):
                    break
                empty.append(table)
            except StoreStalledError:
                break
            except StoreError as error:
                self._damaged.add(table.number)
                log.error("a table of records keeps its space, since it can't be read: %s", error)
        if not empty or self._is_stopped():
            return
        self._store.sync()
        for start, stop in self._runs(empty):
            if self._is_stopped() or not self._remove(start, stop):
                self._store.usage.freed_bytes += _WORTH_LOOKING
                return
        log.debug("removed %s of dead records", human_size(sum(table.size for table in empty)))

    def _runs(self, empty: list[Table]) -> Iterator[tuple[bytes, bytes]]:
        """Join tables between which there is no other one."""
        starts = sorted(table.start for table in livetables.of(self._store.families[Family.SEGMENTS]))
        after = dict(pairwise(starts))
        start, stop = empty[0].start, empty[0].stop
        last = empty[0]
        for table in empty[1:]:
            if after.get(last.start) != table.start:
                yield start, stop
                start = table.start
            stop, last = table.stop, table
        yield start, stop

    def _move_out(self, table: Table) -> bool:
        """Write again what is alive in a table, after which nothing refers to it. False if it was not done.

        Raises StoreError where the table can't be read.
        """
        store = self._store
        options = ReadOptions()
        options.fill_cache(False)  # type: ignore[call-arg]  # its declaration lacks the argument
        options.set_verify_checksums(True)
        options.set_readahead_size(_READAHEAD)
        end = table.stop + b"\x00"
        options.set_iterate_upper_bound(end)
        cursor = store.families[Family.SEGMENTS].iter(options)
        cursor.seek(table.start)
        alive: list[tuple[bytes, bytes]] = []
        gathered, began = 0, time.monotonic()
        while cursor.valid():
            key = cursor.key()
            if self._is_alive(key):
                value = cursor.value()
                alive.append((key, value))
                gathered += len(value)
            cursor.next()
            if gathered >= _SLICE_BYTES:
                if not self._write_again(alive):
                    return False
                self._pause(gathered / _MOVED_BYTES_PER_SECOND)
                alive, gathered = [], 0
            took = time.monotonic() - began
            if took > _SLICE_SECONDS:
                self._pause(took * _DUTY)
                began = time.monotonic()
            if self._is_stopped():
                return False
        why = store.why(cursor)
        if why is not None:
            raise StoreError(f"read failed: {why}")
        return self._write_again(alive)

    def _is_alive(self, key: bytes) -> bool:
        """Return whether the row refers to this value. Once it does not, it never will again."""
        row, position = segments.row_of(key), segments.position_of(key)
        try:
            value: bytes | None = self._store.families[Family.BLOCKS].get(row)
        except Exception as error:  # rocksdict raises bare Exception
            raise StoreError(f"read failed: {error}") from error
        reference = None if value is None else segments.reference(value)
        return reference is not None and reference.position == position

    def _write_again(self, values: list[tuple[bytes, bytes]]) -> bool:
        store = self._store
        if values and not (self._urgent or self._has_room()):
            return False
        with store.writing:
            batch, freed = store.batch(), list[tuple[bytes, segments.Reference]]()
            for key, value in values:
                if self._is_alive(key):
                    row = segments.row_of(key)
                    batch.put(Family.BLOCKS, row, value)
                    freed.append((row, segments.Reference(segments.position_of(key), len(value))))
            if freed:
                store.rewrite(batch)
            for row, reference in freed:
                store.usage.freed(row, reference)
                store.usage.freed_bytes -= reference.size
        return True

    def _remove(self, start: bytes, stop: bytes) -> bool:
        """Delete the values from `start` to `stop`, both inclusive, and their tables. False if it was not done.

        The deletion gets a table of its own: with other rows in it, it would overlap all tables between.
        """
        rows, deadline = self._store.families[Family.SEGMENTS], time.monotonic() + _QUIET_SECONDS
        while not self._delete(start, stop):
            if time.monotonic() > deadline or self._is_over():
                return False
            self._stopped.wait(_PATIENCE_SECONDS)
        rows.compact_range(start, stop, self._options)
        return True

    def _delete(self, start: bytes, stop: bytes) -> bool:
        """Write the deletion of a range while nothing else is in memory. False if writes would wait for it too long."""
        store, rows = self._store, self._store.families[Family.SEGMENTS]
        for _ in range(_FLUSHES):  # each leaves less for the next one
            if (rows.property_int_value(_SIZE) or 0) > _LITTLE_BYTES:
                rows.flush(True)
        with store.writing:
            if rows.property_int_value(_FULL) or store.is_stalled():
                return False
            if rows.property_int_value(_ENTRIES):
                rows.flush(False)
                if not self._is_none(_FULL):
                    self._patience = min(2 * self._patience, _MOST_PATIENCE_SECONDS)
                    return False
            batch = store.batch()
            batch.delete_range(Family.SEGMENTS, start, stop + b"\x00")
            store.rewrite(batch)
            store.usage.removed_to = max(store.usage.removed_to, segments.position_of(stop))
            rows.flush(False)
            self._is_none(_PENDING)
        self._patience = _PATIENCE_SECONDS
        return True

    def _is_none(self, name: str) -> bool:
        """Wait until a number of memtables is 0. False after some time."""
        rows, deadline = self._store.families[Family.SEGMENTS], time.monotonic() + self._patience
        while rows.property_int_value(name):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True
