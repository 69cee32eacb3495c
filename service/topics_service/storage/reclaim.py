"""Immediate reclamation of disk space that RocksDB would free only at some later time.

The write-ahead log stays until its rows are in tables. Deleted rows stay until a compaction meets them; without writes
to their topic that may never happen.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from rocksdict import BottommostLevelCompaction, CompactOptions

from topics_service.storage import clean_shutdown, keys, livetables
from topics_service.storage.livetables import Table
from topics_service.storage.rocks import RocksStore
from topics_service.storage.segment_upkeep import SegmentUpkeep
from topics_service.storage.store import Family

log = logging.getLogger("topics.storage")

_MAX_LOGS: Final = 10_000
_SPARE_BYTES: Final = 1 << 20
_WORTH_BYTES: Final = 1 << 20  # of a family without the blocks
_BESIDE: Final = (Family.TAGS, Family.IDEMPOTENCY, Family.ROUTER_COPIES, Family.JOBS, Family.PRODUCERS)
_LAST_SEQ: Final = (1 << 64) - 1


class _Range(NamedTuple):
    """Keys from `start` to `stop`, both inclusive, and their bytes: `dead` for certain, `beside` at most."""

    family: Family
    start: bytes
    stop: bytes
    dead: int
    beside: int
    log_id: int | None = None  # the log whose blocks these are


class Reclaim:
    """Reclaims space of an open store. `run` blocks without the GIL."""

    def __init__(self, store: RocksStore, live_bytes: Callable[[], int], segments: SegmentUpkeep | None = None) -> None:
        """`live_bytes` are the record bytes of all logs: no compaction of blocks writes more than about these."""
        self._store = store
        self._segments = segments or SegmentUpkeep(store)
        self._live_bytes = live_bytes
        self._lock = threading.Lock()
        self._stopped = False
        self._dead: dict[int, int] = {}  # by log id the seq up to which all rows of blocks are dead
        self._looked_at: set[int] = set()
        self._options = CompactOptions()
        self._options.set_exclusive_manual_compaction(False)  # those of RocksDB itself continue
        self._options.set_bottommost_level_compaction(BottommostLevelCompaction.force())

    def freed(self, log_id: int, stop: int | None) -> None:
        """Note that the blocks of a log below seq `stop` were deleted, or all rows of the log (None)."""
        self._dead[log_id] = _LAST_SEQ if stop is None else max(stop - 1, self._dead.get(log_id, 0))
        if len(self._dead) > _MAX_LOGS:
            del self._dead[next(iter(self._dead))]

    @property
    def is_due(self) -> bool:
        """True while deleted rows may still be on the disk."""
        return bool(self._dead) or self._store.usage.freed_bytes > 0

    def run(self, free: Callable[[], int], enough: Callable[[], bool]) -> bool:
        """Flush the memtables, which ends the log, then compact dead rows until there is `enough` space.

        Compactions that could need more than the `free` bytes are skipped. False if the store is about to close.
        Raises the errors of RocksDB.
        """
        with self._lock:
            if self._stopped:
                return False
            for family in self._store.families:
                family.flush(True)
            if clean_shutdown.known_damage(self._store.path) is not None:
                return True  # damaged tables are left alone
            dead, self._dead = self._dead, {}
            try:
                for each in self._ranges(dead):
                    if self._stopped or enough():
                        return not self._stopped
                    if each.dead or each.beside:
                        if each.beside + _SPARE_BYTES > free():
                            continue
                        self._store.families[each.family].compact_range(each.start, each.stop, self._options)
                    if each.log_id is not None:
                        dead.pop(each.log_id, None)
            finally:
                self._dead = dead | self._dead
            self._segments.squeeze(free, enough)
            return not self._stopped

    def stop(self) -> None:
        """Wait for the running round and prevent further ones. Call it before the store is closed."""
        self._stopped = True
        self._segments.stop()
        with self._lock:
            pass

    # --------------------------------------------------------------- internals

    def _ranges(self, dead: dict[int, int]) -> Iterable[_Range]:
        """Yield ranges worth a compaction: those known to be dead, the largest first; then those where deletions
        lie that have not met their rows yet, as a restart leaves them."""
        blocks = self._tables(Family.BLOCKS)
        whole = [log_id for log_id, stop in dead.items() if stop == _LAST_SEQ]
        found = [
            self._range(Family.BLOCKS, blocks, keys.pair(log_id, 0), keys.pair(log_id, stop), log_id)
            for log_id, stop in dead.items()
        ]
        for family in _BESIDE if whole else ():
            tables = self._tables(family)
            if sum(table.size for table in tables) >= _WORTH_BYTES:
                found += [
                    self._range(family, tables, keys.u64(log_id), keys.pair(log_id, _LAST_SEQ)) for log_id in whole
                ]
        yield from sorted(found, key=lambda each: -each.dead)
        for table in self._tables(Family.BLOCKS):
            if table.deletions and table.number not in self._looked_at:
                self._looked_at.add(table.number)
                yield self._range(Family.BLOCKS, self._tables(Family.BLOCKS), table.start, table.stop)

    def _range(
        self, family: Family, tables: Sequence[Table], start: bytes, stop: bytes, log_id: int | None = None
    ) -> _Range:
        touched = [table for table in tables if table.start <= stop and start <= table.stop]
        dead = sum(table.size for table in touched if start <= table.start and table.stop <= stop)
        beside = sum(table.size for table in touched) - dead
        if family is Family.BLOCKS:
            beside = min(beside, self._live_bytes() * 9 // 8 + _SPARE_BYTES)
        return _Range(family, start, stop, dead, beside, log_id)

    def _tables(self, family: Family) -> list[Table]:
        return livetables.of(self._store.families[family])
