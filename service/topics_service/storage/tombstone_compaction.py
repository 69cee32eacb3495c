"""Compaction of SST files that hold only tombstones.

RocksDB moves a table to the lowest level unchanged when nothing there overlaps it. That happens to the deletions of
short-lived topics: their rows never left the memtable, and log ids only grow. No later compaction considers such a
table, and each keeps a file descriptor and a kilobyte forever. Ten minutes with 25 topics created and deleted per
second left a hundred.
"""

import logging
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, Final

from rocksdict import BottommostLevelCompaction, CompactOptions

from topics_client.units import counted
from topics_service.storage import clean_shutdown
from topics_service.storage.rocks import RocksStore

log = logging.getLogger("topics.storage")

PERIOD_SECONDS: Final = 30.0
FEW: Final = 8
"""The number of such tables that may stay: below it, a round does nothing."""
_MAX_TABLES: Final = 64  # in one round
_MAX_NEIGHBOUR_BYTES: Final = 16 << 20
_Facts = dict[str, Any]
_TABLE = re.compile(r"^ *(\d+):\d+\[", re.MULTILINE)  # of the property below: number, size, range of keys


class TombstoneCompaction:
    """Compacts tombstone-only tables of an open store. Methods block without the GIL."""

    def __init__(self, store: RocksStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._stopped = False
        self._options = CompactOptions()
        self._options.set_exclusive_manual_compaction(False)  # those of RocksDB itself continue
        self._options.set_bottommost_level_compaction(BottommostLevelCompaction.force())

    def run(self) -> int:
        """Run one round; return the number of compacted tables. Tables of a damaged database are left alone."""
        with self._lock:
            if self._stopped or clean_shutdown.known_damage(self._store._path) is not None:
                return 0
            tables = {int(PurePath(table["name"]).stem): table for table in self._store._db.live_files()}
            if sum(map(_is_dead, tables.values())) < FEW:
                return 0
            done = 0
            for family in self._store._families:
                numbers = map(int, _TABLE.findall(family.property_value("rocksdb.sstables") or ""))
                for start, stop in _dead_ranges([tables[number] for number in numbers if number in tables]):
                    if self._stopped or done == _MAX_TABLES:
                        return done
                    family.compact_range(start, stop, self._options)
                    done += 1
            log.debug("compacted %s that held only deletions", counted(done, "table"))
            return done

    def stop(self) -> None:
        """Wait for the round that runs, and let there be no other: call before the store is closed."""
        self._stopped = True
        with self._lock:
            pass


def _is_dead(table: _Facts) -> bool:
    """Return whether it holds deletions only; level 0 takes care of itself."""
    return bool(table["level"]) and table["num_entries"] == table["num_deletions"]


def _dead_ranges(tables: Sequence[_Facts]) -> Iterator[tuple[bytes, bytes]]:
    """The key ranges of tombstone-only tables of a family, except those that overlap much other data: compacting would
    rewrite it, and RocksDB does so, with the deletions, when it is worth it.
    """
    for dead in filter(_is_dead, tables):
        start, stop = dead["start_key"], dead["end_key"]
        beside = sum(
            table["size"]
            for table in tables
            if table is not dead and table["start_key"] <= stop and table["end_key"] >= start
        )
        if beside <= _MAX_NEIGHBOUR_BYTES:
            yield start, stop
