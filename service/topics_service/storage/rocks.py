"""The store on RocksDB, through rocksdict in raw mode (bytes in, bytes out)."""

import logging
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import ClassVar, cast

from rocksdict import Cache, ColumnFamily, Rdict, RdictIter, ReadOptions, WriteOptions

from topics_service.storage import clean_shutdown, corruption, damagedfiles, keys, livetables, segments, starting
from topics_service.storage.absent import AbsentFamily
from topics_service.storage.families import known_families
from topics_service.storage.holding import Hold, in_use, is_held
from topics_service.storage.private import make_private
from topics_service.storage.rocks_batch import RocksBatch
from topics_service.storage.rocks_options import LARGE_FAMILIES, Steps, _name, _options
from topics_service.storage.rocks_snapshot import RocksSnapshot
from topics_service.storage.store import Family, Reader, StoreError, StoreOpenError, StoreStalledError, WriteBatch
from topics_service.storage.wal import archive, end_mark
from topics_service.storage.wal.batches import MOMENT_KEY
from topics_service.storage.wal.switches import SwitchCounter

log = logging.getLogger("topics.storage")

LOG_POSITION_KEY = b"log_position"
"""The META row of a directory that follows the log of a cluster: how far its rows are the log's."""

_FORMAT_KEY = b"format"
_FORMAT = b"topics-rocksdb-4"
_FORMATS = (b"topics-rocksdb-1", b"topics-rocksdb-2", b"topics-rocksdb-3", _FORMAT)  # read; the last one is written
_SETTLE_SECONDS = 2.0
_ERRORS = 64  # that are kept with the file that they are of
_FOR_EVER = 1 << 40  # seconds: archived logs are removed by `archive.trim`
_HELD_BACK = ("rocksdb.is-write-stopped", "rocksdb.actual-delayed-write-rate")
_COMPACTING = "rocksdb.num-running-compactions"  # in the whole database
_FLUSHING = "rocksdb.num-immutable-mem-table"
_LATER = "Column families not opened"
_MOST_FREED = 4096  # rows of a removed range that are looked at, one by one


class RocksStore:
    """Implements Store in one directory, which it locks against other processes.

    Write-ahead logging is always on. A torn log tail (a crash in mid-write) is cut on open. Opening fails on damage
    before the tail, and if the logs lack rows written in this boot of the machine or synced before it
    (`wal.validation`; `DBRecoveryMode.tolerate_corrupted_tail_records`: RocksDB's default would silently drop
    everything after one bad byte). Log data behind a break that a power cut caused is set aside (`wal.quarantine`).

    When a compaction meets a damaged table, RocksDB refuses all further writes. From the next open on, compactions are
    off: intact data can be read and written, and deleted data keeps its disk space.

    With `keep_log`, log files that are no longer needed are kept (`wal.archive`), and batches record their time to the
    millisecond. None keeps the setting of the last open.
    """

    _archives_log: ClassVar[bool] = False
    """True for a subclass that needs log files for longer than RocksDB, and removes them itself."""
    _keeps_log = False
    _written_ms = 0
    _path = Path()
    _ends: end_mark.Ends | None = None
    _hold: Hold | None = None
    changes = 0
    """The number of calls of `write`."""
    _handles: list[ColumnFamily]

    def __init__(
        self,
        path: Path,
        *,
        block_cache_bytes: int = 64 << 20,
        write_buffer_bytes: int = 256 << 20,
        open_tables: int = 1000,
        keep_log: bool | None = None,
        boot_id: str = "",
        reserve_bytes: int = 0,
    ) -> None:
        """Open or create the database. Raises StoreOpenError.

        `boot_id` names this boot of the machine ("" = unknown: an unclean end is taken for a power cut). Where
        `reserve_bytes` of the disk are always free (0: not known), the steps of compactions are of such a size that
        they find room in them.
        """
        steps = Steps.within(reserve_bytes)
        self.writing = threading.RLock()
        """The lock of writes, also for changes that depend on what rows are."""
        self.usage = segments.Usage(0, steps.table)
        """The values of BLOCKS that are kept apart."""
        self.max_unflushed = 2 * steps.log
        """At most this many written bytes are not in tables yet; a flush at the limit needs as much again."""
        try:
            self._open_at(path, block_cache_bytes, write_buffer_bytes, open_tables, keep_log, boot_id, steps)
        except BaseException:
            self._let_go()
            raise

    def _open_at(
        self,
        path: Path,
        block_cache_bytes: int,
        write_buffer_bytes: int,
        open_tables: int,
        keep_log: bool | None,
        boot_id: str,
        steps: "Steps",
    ) -> None:
        cache = Cache(block_cache_bytes)
        every = {_name(family): _options(family, cache, write_buffer_bytes, steps) for family in Family}
        try:
            make_private(path)
            fresh = not (path / "CURRENT").exists()
            self._take(path)
            starting.prepare(path, boot_id)
            known = list(Family) if fresh else known_families(path)
            damage, unknown = clean_shutdown.known_damage(path), clean_shutdown.damaged_list(path)
            keep_log = archive.line_of(path) is not None if keep_log is None else keep_log
        except (OSError, ValueError) as error:
            raise StoreOpenError(f"can't open the data directory {path}: {starting.reason(error)}") from error
        except StoreOpenError as error:
            raise StoreOpenError(f"can't open the data directory {path}: {error}") from None
        if unknown is not None:
            log.warning("%s: can't check for missing files", unknown)
        if damage is not None:
            log.error("%s is damaged, compactions are disabled: %s", path, damage)
            for options in every.values():
                options.set_disable_auto_compactions(True)
        whole = _options(Family.META, cache, write_buffer_bytes, steps)
        whole.set_max_open_files(open_tables)
        if keep_log or self._archives_log:
            whole.set_wal_ttl_seconds(_FOR_EVER)
        try:
            self._db = Rdict(
                str(path), whole, column_families={_name(family): every[_name(family)] for family in known}
            )
        except Exception as error:  # rocksdict raises bare Exception
            why = in_use(path) if "While lock file" in str(error) else damagedfiles.named(path, str(error))
            if _LATER in why:
                why = f"a later version wrote it ({why})"
            raise StoreOpenError(f"can't open the data directory {path}: {why}") from error
        self._take_families(known)
        self._handles = [self._db.get_column_family_handle(_name(family)) for family in known]
        self._write_options = WriteOptions()
        self._write_options.no_slowdown = True
        self._path = path
        self._keeps_log = keep_log
        try:
            self._mark_begin(path, boot_id)
        except OSError as error:
            self._release()
            raise StoreOpenError(f"can't open the data directory {path}: {starting.reason(error)}") from error
        self.opened_sequence = self.next_sequence
        """The sequence number that the next row had when the log had been replayed."""
        self._check_format(path, fresh=fresh)
        try:
            clean_shutdown.forget(path)
            if len(known) < len(Family):
                archive.forget_line(path)  # the families of its backups are fewer than those of the log from here on
            if keep_log:
                archive.begin(path)
            elif not self._archives_log:
                archive.end(path)
        except (OSError, ValueError) as error:
            self._release()
            raise StoreOpenError(f"can't open the data directory {path}: {starting.reason(error)}") from error
        try:
            for family in Family:
                if family not in known:
                    self._families[family] = self._db.create_column_family(_name(family), every[_name(family)])
            self._handles = [self._db.get_column_family_handle(_name(family)) for family in Family]
            self.usage = segments.Usage(self._next_position(), steps.table)
        except Exception as error:  # rocksdict raises bare Exception
            self._release()
            raise StoreOpenError(f"can't open the data directory {path}: {error}") from error
        self.wal_switches = SwitchCounter(path).switches

    def _take_families(self, known: Collection[Family]) -> None:
        """Take the families of the open database; others are empty."""
        self._families = [
            self._db.get_column_family(_name(family)) if family in known else cast("Rdict", AbsentFamily())
            for family in Family
        ]
        self._handles = []

    def _next_position(self) -> int:
        """A position above those of all values and removed ranges."""
        last = max((each.stop for each in livetables.of(self._families[Family.SEGMENTS])), default=b"")
        with suppress(StoreError):
            cursor = self._families[Family.SEGMENTS].iter()
            cursor.seek_to_last()
            last = max(last, cursor.key()) if cursor.valid() else last
        return segments.position_of(last) + 1 if last else 0

    def _check_format(self, path: Path, *, fresh: bool) -> None:
        try:
            found = self.get(Family.META, _FORMAT_KEY)
        except StoreError as error:
            self._release()
            raise StoreOpenError(f"can't open the data directory {path}: {error}", error.file) from error
        if found == _FORMAT:
            return
        if found in _FORMATS or (found is None and fresh):
            try:
                self._write_format()
            except StoreError as error:
                self._release()
                raise StoreOpenError(f"can't open the data directory {path}: {error}") from error
        else:
            self._release()
            raise StoreOpenError(f"the data directory {path} has the format {found!r}, this server reads {_FORMAT!r}")

    def _write_format(self) -> None:
        """Write the row of today's format. Durable on return: from then on there may be what earlier versions can't
        read, and they refuse the directory."""
        batch = self.batch()
        batch.put(Family.META, _FORMAT_KEY, _FORMAT)
        self._write_options.no_slowdown = False  # a long log was replayed: there may be no room yet
        try:
            self.write(batch)
        finally:
            self._write_options.no_slowdown = True
        self.sync()

    def _take(self, path: Path) -> None:
        """Lock the directory while the logs are examined and cut."""
        try:
            self._hold = Hold(path)
        except BlockingIOError:
            raise StoreOpenError(in_use(path)) from None
        except OSError:
            pass  # a file system without such locks
        if is_held(path):
            raise StoreOpenError(in_use(path))

    def _let_go(self) -> None:
        if self._ends is not None:
            self._ends.close()
            self._ends = None
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    def _mark_begin(self, path: Path, boot_id: str) -> None:
        """Write the mark of a new log, after all earlier logs were flushed to tables."""
        first, next_seq = max(number for number, _ in archive.numbered(path)), self.next_sequence
        mark = end_mark.Mark(boot_id, first, next_seq, written=next_seq, synced=next_seq)
        mark.manifest = (path / "CURRENT").read_text()
        end_mark.write(path, mark)
        self._ends = end_mark.Ends(path, first)

    def batch(self) -> RocksBatch:
        """See Store."""
        return RocksBatch(self._handles, self.usage)

    def leave_log(self) -> bool:
        """Become the directory of a single server, if it followed the log of a cluster: no node continues it from here.

        Return whether it did. Raises StoreError.
        """
        if self.get(Family.META, LOG_POSITION_KEY) is None:
            return False
        batch = RocksBatch(self._handles, self.usage)
        batch.delete(Family.META, LOG_POSITION_KEY)
        self.rewrite(batch)
        return True

    def write(self, batch: WriteBatch) -> None:
        """See Store."""
        self.changes += 1
        self.rewrite(batch)

    def rewrite(self, batch: WriteBatch) -> None:
        """Apply a batch that leaves every row as it is, but for where its value lies. As `write`, on any thread."""
        assert isinstance(batch, RocksBatch), "a batch belongs to the store that made it"
        with self.writing:
            if self._keeps_log:
                now = time.time_ns() // 1_000_000
                if now != self._written_ms:
                    batch.put(Family.META, MOMENT_KEY, keys.u64(now))
                    self._written_ms = 0  # until it is written
            if any(reference.position <= self.usage.removed_to for _, reference in batch.placed):
                raise StoreStalledError("the batch was begun so long ago that its place is gone")
            freed = [found for key, stop in batch.removed for found in self._freed(key, stop)]
            try:
                self._db.write(batch.raw, self._write_options)
            except Exception as error:  # rocksdict raises bare Exception
                raise self._unwritten(str(error)) from error
            if self._ends is not None:
                self._ends.wrote(self._db.latest_sequence_number() + 1)
            if self._keeps_log:
                self._written_ms = now
            for key, reference in freed:
                self.usage.freed(key, reference)
            for key, reference in batch.placed:
                self.usage.added(key, reference)

    def _freed(self, key: bytes, stop: bytes | None) -> list[tuple[bytes, segments.Reference]]:
        """Find what a row, or the rows up to `stop`, refer to. Where there are many the count begins again."""
        rows = self._families[Family.BLOCKS]
        found: list[tuple[bytes, segments.Reference]] = []
        with suppress(Exception):  # rocksdict raises bare Exception; what is damaged is not counted
            if stop is None:
                value = rows.get(key)
                reference = None if value is None else segments.reference(value)
                return [] if reference is None else [(key, reference)]
            options = ReadOptions()
            options.set_iterate_upper_bound(stop)
            cursor = rows.iter(options)
            cursor.seek(key)
            for _ in range(_MOST_FREED):
                if not cursor.valid():
                    return found
                reference = segments.reference(cursor.value())
                if reference is not None:
                    found.append((cursor.key(), reference))
                cursor.next()
            self.usage.restart()
        return []

    def _unwritten(self, why: str) -> StoreError | StoreStalledError:
        if "Write stall" in why:
            return StoreStalledError(why)
        if "Corruption" not in why:
            return StoreError(f"write failed: {why}")
        why = self._named(why)
        self._note_damage(why)
        return StoreError(f"write failed: {why}", damagedfiles.named_file(why))

    def _note_damage(self, text: str) -> None:
        """Record that a compaction met a damaged table. Until the next open nothing can be written."""
        try:
            clean_shutdown.note_damage(self._path, text)
        except OSError as error:
            log.warning("can't record the damage of %s: %s", self._path, error)

    def sync(self) -> None:
        """See Store. Releases the GIL while it waits for the disk."""
        written = 0 if self._ends is None else self._ends.written
        try:
            self._db.flush_wal(True)
        except Exception as error:  # rocksdict raises bare Exception
            raise StoreError(f"fsync failed: {error}") from error
        if self._ends is not None:
            self._ends.synced(written)

    def get(self, family: Family, key: bytes) -> bytes | None:
        """See Store."""
        while True:
            try:
                value: bytes | None = self._families[family].get(key)
            except Exception as error:  # rocksdict raises bare Exception
                raise self.unread(str(error)) from error
            if value is None or family is not Family.BLOCKS:
                return value
            whole = self.resolved(key, value)
            if whole is not None:
                return whole

    def resolved(self, key: bytes, value: bytes) -> bytes | None:
        """The value of a row of BLOCKS that has `value` or a reference to it; None if the row has changed since.

        Raises StoreError.
        """
        reference = segments.reference(value)
        if reference is None:
            return value
        try:
            found: bytes | None = self._families[Family.SEGMENTS].get(segments.key(reference.position, key))
        except Exception as error:  # rocksdict raises bare Exception
            raise self.unread(str(error)) from error
        if found is not None and len(found) == reference.size:
            return found
        if found is None and self._families[Family.BLOCKS].get(key) != value:
            return None
        raise self.unread("Corruption: a block is not in the segment that its row refers to")

    def floor(self, family: Family, key: bytes) -> tuple[bytes, bytes] | None:
        """See Store."""
        while True:
            cursor = self._families[family].iter()
            cursor.seek_for_prev(key)
            if not cursor.valid():
                why = self.why(cursor)
                return None if why is None else self._floor_beside_damage(family, key, why)
            found, value = cursor.key(), cursor.value()
            if family is not Family.BLOCKS:
                return found, value
            try:
                whole = self.resolved(found, value)
            except StoreError as error:
                stretch = corruption.unreadable(self._families[family], found, self._is_readable)
                raise corruption.DamagedRowsError(str(error), None, stretch[1], at=stretch[0]) from error
            if whole is not None:
                return found, whole

    def _is_readable(self, key: bytes, value: bytes) -> bool:
        try:
            self.resolved(key, value)
        except StoreError:
            return False
        return True

    def _floor_beside_damage(self, family: Family, key: bytes, why: str) -> tuple[bytes, bytes] | None:
        try:
            found = corruption.floor(self._families[family], key, why)
        except corruption.DamagedRowsError as error:
            if family is Family.BLOCKS and error.below is not None:
                error.below = self._whole_row(*error.below)
            raise
        return found if found is None or family is not Family.BLOCKS else self._whole_row(*found)

    def _whole_row(self, key: bytes, value: bytes) -> tuple[bytes, bytes] | None:
        whole = self.resolved(key, value)
        return None if whole is None else (key, whole)

    def scan(self, family: Family, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See Store. The bound is RocksDB's: deleted rows behind it are not walked, of which there can be many."""
        rows = self._forth(family, start, stop)
        return rows if family is not Family.BLOCKS else self._whole_rows(rows)

    def _forth(self, family: Family, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        options = ReadOptions()
        options.set_iterate_upper_bound(stop)  # the cursor points to both of them, and does not keep them alive
        cursor = self._families[family].iter(options)
        cursor.seek(start)
        while cursor.valid():
            yield cursor.key(), cursor.value()
            cursor.next()
        why = self.why(cursor)
        if why is not None:
            raise self.unread(why)

    def scan_back(self, family: Family, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See Store."""
        rows = self._back(family, start, stop)
        return rows if family is not Family.BLOCKS else self._whole_rows(rows)

    def _back(self, family: Family, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        options = ReadOptions()  # its lower bound is rocksdict's upper one
        options.set_iterate_upper_bound(stop)
        cursor = self._families[family].iter(options)
        cursor.seek_to_last()  # below the bound
        while cursor.valid():
            key = cursor.key()
            if key < start:
                return
            yield key, cursor.value()
            cursor.prev()
        why = self.why(cursor)
        if why is not None:
            raise self.unread(why)

    def _whole_rows(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for key, value in rows:
            whole = self.resolved(key, value) or self.get(Family.BLOCKS, key)
            if whole is not None:
                yield key, whole

    def snapshot(self) -> Reader:
        """See Store."""
        return RocksSnapshot(self)

    def why(self, cursor: RdictIter) -> str | None:
        """Explain why the cursor stands at no row, naming the damaged file; None at the end of the rows."""
        found = corruption.error_of(cursor)
        return None if found is None else self._named(found)

    @cached_property
    def _errors(self) -> dict[str, str]:
        return {}

    def unread(self, why: str) -> StoreError:
        """The error of a read that failed, naming the damaged file."""
        why = self._named(why)
        return StoreError(f"read failed: {why}", damagedfiles.named_file(why))

    def _named(self, why: str) -> str:
        """Return the error with the damaged file. Finding it takes milliseconds, so results are cached."""
        if why not in self._errors:
            if len(self._errors) == _ERRORS:
                self._errors.clear()
            self._errors[why] = damagedfiles.named(self._path, why)
        return self._errors[why]

    @property
    def next_sequence(self) -> int:
        """The sequence number of the next written row."""
        return int(self._db.latest_sequence_number()) + 1

    def is_stalled(self) -> bool:
        """Return whether RocksDB takes no writes, or delays them, until it has compacted."""
        return any(family.property_int_value(name) for name in _HELD_BACK for family in self._families)

    @property
    def flushing(self) -> int:
        """Return the number of full memtables of blocks that are not flushed yet. One more takes new writes."""
        each = (self._families[family] for family in LARGE_FAMILIES) if self._families else ()
        return max((int(family.property_int_value(_FLUSHING) or 0) for family in each), default=0)

    @property
    def path(self) -> Path:
        """The data directory."""
        return self._path

    @property
    def families(self) -> Sequence[Rdict]:
        """The column families of the open database; empty once it is closed."""
        return self._families

    @property
    def merged(self) -> Sequence[Rdict]:
        """The column families whose compactions write: all but that of large values."""
        return [rows for number, rows in enumerate(self._families) if number != Family.SEGMENTS]

    def close(self) -> None:
        """See Store. Flushes, so that the next open has no log to replay."""
        try:
            for family in self._families:
                family.set_options({"disable_auto_compactions": "true"})  # of this open database alone
                family.flush(True)
            self.sync()
            tables = self._final_tables()
        finally:
            self._release()
        if tables is None:
            return
        try:
            clean_shutdown.remember(self._path, tables)
        except OSError as error:
            log.warning("can't record the files of %s: %s", self._path, error)

    def abandon(self) -> None:
        """Close after a failure without writing anything: acknowledged data is in the log, for the next open."""
        self._db.cancel_all_background(True)  # rocksdict would write the memtables out before it closes: now it can't
        self._release()

    def _final_tables(self) -> list[str] | None:
        """Return the tables that will exist after the close, with everything flushed and no compactions. None if
        running ones take too long."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while any(family.property_int_value(_COMPACTING) for family in self._families):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.005)
        return [file["name"].lstrip("/") for file in self._db.live_files()]

    def _release(self) -> None:
        self._families.clear()
        self._handles.clear()
        try:
            self._db.close()
        except Exception as error:  # rocksdict raises bare Exception
            raise StoreError(f"close failed: {error}") from error
        finally:
            self._let_go()


class ReadingStore(RocksStore):
    """A database that is opened for reading only; a subclass opens it."""

    _IS: ClassVar[str]  # what it is, in errors

    def batch(self) -> RocksBatch:
        """Not supported: raises StoreError."""
        raise StoreError(f"{self._IS} is read-only")

    def write(self, batch: WriteBatch) -> None:
        """Not supported: raises StoreError."""
        raise StoreError(f"{self._IS} is read-only")

    def sync(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Release the files. The database is unchanged."""
        self._release()
