"""The store on RocksDB, through rocksdict in raw mode (bytes in, bytes out)."""

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple, Self, cast

from rocksdict import (
    BlockBasedOptions,
    Cache,
    ChecksumType,
    ColumnFamily,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteOptions,
)
from rocksdict import WriteBatch as RawBatch

from topics_service.storage import clean_shutdown, corruption, damagedfiles, keys, manifest, tablelist, tables
from topics_service.storage.absent import AbsentFamily
from topics_service.storage.holding import Hold, in_use, is_held
from topics_service.storage.private import make_private
from topics_service.storage.rocks_snapshot import RocksSnapshot
from topics_service.storage.store import (
    FIRST_FAMILIES,
    Family,
    Reader,
    StoreError,
    StoreOpenError,
    StoreStalledError,
    WriteBatch,
)
from topics_service.storage.wal import archive, end_mark, quarantine, validation
from topics_service.storage.wal.batches import MOMENT_KEY
from topics_service.storage.wal.switches import SwitchCounter

log = logging.getLogger("topics.storage")

_FORMAT_KEY = b"format"
_FORMAT = b"topics-rocksdb-3"
_FORMATS = (b"topics-rocksdb-1", b"topics-rocksdb-2", _FORMAT)  # that are read, the last of which is written
_SETTLE_SECONDS = 2.0
_ERRORS = 64  # that are kept with the file that they are of
_FOR_EVER = 1 << 40  # seconds: archived logs are removed by `archive.trim`
_HELD_BACK = ("rocksdb.is-write-stopped", "rocksdb.actual-delayed-write-rate")
_COMPACTING = "rocksdb.num-running-compactions"  # in the whole database
_FLUSHING = "rocksdb.num-immutable-mem-table"
_MIN_RESERVE = 4 << 20
_LARGE = 1 << 40
_LATER = "Column families not opened"
_BLOOMED = (
    Family.IDEMPOTENCY,
    Family.TAGS,
    Family.ROWS,
    Family.INDEXES,
)  # looked up by exact key or prefix: a bloom filter pays


class RocksBatch:
    """A batch bound to the open database's column families."""

    __slots__ = ("_handles", "raw")

    def __init__(self, handles: list[ColumnFamily]) -> None:
        self.raw = RawBatch(raw_mode=True)
        self._handles = handles

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """See WriteBatch."""
        self.raw.put(key, value, self._handles[family])

    def delete(self, family: Family, key: bytes) -> None:
        """See WriteBatch."""
        self.raw.delete(key, self._handles[family])

    def apply(self, family: Family, changes: Mapping[bytes, bytes | None]) -> None:
        """See WriteBatch."""
        put, delete, handle = self.raw.put, self.raw.delete, self._handles[family]
        for key, value in changes.items():
            if value is None:
                delete(key, handle)
            else:
                put(key, value, handle)

    def delete_range(self, family: Family, start: bytes, stop: bytes) -> None:
        """See WriteBatch."""
        self.raw.delete_range(start, stop, self._handles[family])

    def is_empty(self) -> bool:
        """See WriteBatch."""
        return bool(self.raw.is_empty())

    @property
    def nbytes(self) -> int:
        """See WriteBatch."""
        return int(self.raw.size_in_bytes())


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

    _keeps_log = False
    _written_ms = 0
    _path = Path()
    _ends: end_mark.Ends | None = None
    _hold: Hold | None = None

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
        steps = _Steps.within(reserve_bytes)
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
        steps: "_Steps",
    ) -> None:
        cache = Cache(block_cache_bytes)
        families = {_name(family): _options(family, cache, write_buffer_bytes, steps) for family in Family}
        try:
            make_private(path)
            fresh = not (path / "CURRENT").exists()
            self._take(path)
            _prepare(path, boot_id)
            damage, unknown = clean_shutdown.known_damage(path), clean_shutdown.damaged_list(path)
            keep_log = archive.line_of(path) is not None if keep_log is None else keep_log
        except (OSError, ValueError) as error:
            raise StoreOpenError(f"can't open the data directory {path}: {_why(error)}") from error
        except StoreOpenError as error:
            raise StoreOpenError(f"can't open the data directory {path}: {error}") from None
        if unknown is not None:
            log.warning("%s: can't check for missing files", unknown)
        if damage is not None:
            log.error("%s is damaged, compactions are disabled: %s", path, damage)
            for options in families.values():
                options.set_disable_auto_compactions(True)
        whole = _options(Family.META, cache, write_buffer_bytes, steps)
        whole.set_max_open_files(open_tables)
        if keep_log:
            whole.set_wal_ttl_seconds(_FOR_EVER)
        try:
            self._db = Rdict(str(path), whole, column_families=families)
        except Exception as error:  # rocksdict raises bare Exception
            why = in_use(path) if "While lock file" in str(error) else damagedfiles.named(path, str(error))
            if _LATER in why:
                why = f"a later version wrote it ({why})"
            raise StoreOpenError(f"can't open the data directory {path}: {why}") from error
        self._families = [self._db.get_column_family(_name(family)) for family in Family]
        self._handles: list[ColumnFamily] = [self._db.get_column_family_handle(_name(family)) for family in Family]
        self._write_options = WriteOptions()
        self._write_options.no_slowdown = True
        self._path = path
        self._keeps_log = keep_log
        try:
            self._mark_begin(path, boot_id)
        except OSError as error:
            self._release()
            raise StoreOpenError(f"can't open the data directory {path}: {_why(error)}") from error
        self.opened_sequence = self.next_sequence
        """The sequence number that the next row had when the log had been replayed."""
        self._check_format(path, fresh=fresh)
        try:
            clean_shutdown.forget(path)
            if keep_log:
                archive.begin(path)
            else:
                archive.end(path)
        except (OSError, ValueError) as error:
            self._release()
            raise StoreOpenError(f"can't open the data directory {path}: {_why(error)}") from error
        self.wal_switches = SwitchCounter(path).switches

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
                archive.forget_line(path)  # the families of its backups are fewer than those of the log from here on
                self._write_format()
            except (OSError, StoreError) as error:
                self._release()
                why = _why(error) if isinstance(error, OSError) else error
                raise StoreOpenError(f"can't open the data directory {path}: {why}") from error
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
        return RocksBatch(self._handles)

    def write(self, batch: WriteBatch) -> None:
        """See Store."""
        assert isinstance(batch, RocksBatch), "a batch belongs to the store that made it"
        if self._keeps_log:
            now = time.time_ns() // 1_000_000
            if now != self._written_ms:
                batch.put(Family.META, MOMENT_KEY, keys.u64(now))
                self._written_ms = 0  # until it is written
        try:
            self._db.write(batch.raw, self._write_options)
        except Exception as error:  # rocksdict raises bare Exception
            if "Write stall" in str(error):
                raise StoreStalledError(str(error)) from error
            if "Corruption" not in str(error):
                raise StoreError(f"write failed: {error}") from error
            why = self._named(str(error))
            self._note_damage(why)
            raise StoreError(f"write failed: {why}", damagedfiles.named_file(why)) from error
        if self._ends is not None:
            self._ends.wrote(self._db.latest_sequence_number() + 1)
        if self._keeps_log:
            self._written_ms = now

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
        try:
            value: bytes | None = self._families[family].get(key)
        except Exception as error:  # rocksdict raises bare Exception
            raise self.unread(str(error)) from error
        return value

    def floor(self, family: Family, key: bytes) -> tuple[bytes, bytes] | None:
        """See Store."""
        cursor = self._families[family].iter()
        cursor.seek_for_prev(key)
        if not cursor.valid():
            why = self.why(cursor)
            return None if why is None else corruption.floor(self._families[family], key, why)
        return cursor.key(), cursor.value()

    def scan(self, family: Family, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See Store. The bound is RocksDB's: deleted rows behind it are not walked, of which there can be many."""
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
        return int(self._families[Family.BLOCKS].property_int_value(_FLUSHING) or 0) if self._families else 0

    @property
    def path(self) -> Path:
        """The data directory."""
        return self._path

    @property
    def families(self) -> Sequence[Rdict]:
        """The column families of the open database; empty once it is closed."""
        return self._families

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

    def _take_families(self, known: Collection[Family]) -> None:
        """Take the families of the open database; others are empty."""
        self._families = [
            self._db.get_column_family(_name(family)) if family in known else cast("Rdict", AbsentFamily())
            for family in Family
        ]
        self._handles = []

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


def find_damage(path: Path, boot_id: str) -> validation.Break | None:
    """Look for damage that RocksDB would silently accept. Return the break at which the logs must be cut after a power
    cut, or None. Raises StoreOpenError, naming the file, and OSError."""
    if clean_shutdown.is_headless(path):
        raise StoreOpenError(f"the file {path / 'CURRENT'} is missing, and there are files of a database")
    damage = clean_shutdown.find_damage(path)
    if damage is None and (path / "CURRENT").exists():
        damage = tablelist.find_damage(path, closed=clean_shutdown.is_closed(path))
    if damage is not None:
        raise StoreOpenError(damage)
    if clean_shutdown.is_closed(path):
        return None
    try:
        return validation.find_break(path, boot_id)
    except validation.LostLogError as error:
        raise StoreOpenError(str(error)) from None


def _prepare(path: Path, boot_id: str) -> None:
    """Cut the logs where a power cut broke them. Until the database is open, which logs there are says nothing of how
    far the last server came: so note it. Raises StoreOpenError and OSError."""
    broken = find_damage(path, boot_id)
    if broken is not None:
        aside = quarantine.set_aside(path, broken)
        log.warning("%s, as after a power cut: what follows is not applied, and kept in %s", broken.text, aside)
    mark = end_mark.read(path)
    if mark is not None:
        mark.starting = validation.starting(path, mark)
        end_mark.write(path, mark)


def known_families(path: Path) -> list[Family]:
    """Return the families that the database has: one of an earlier version has fewer."""
    try:
        names = manifest.read(path).families
    except (OSError, ValueError):
        return list(Family)  # to open it fails, or another try helps
    return [family for family in Family if family in FIRST_FAMILIES or _name(family) in names]


def _why(error: OSError | ValueError) -> str:
    """Return the error without its number, and with its file."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


def _name(family: Family) -> str:
    return "default" if family is Family.META else family.name.lower()


class _Steps(NamedTuple):
    """Bytes: of a memtable or table, of the first level below 0, of a compaction's input below that, and of the log."""

    table: int
    level: int
    compaction: int
    log: int

    @classmethod
    def within(cls, reserve: int) -> Self:
        """Four tables of level 0 and the level below it, which a compaction takes together, in twice the reserve."""
        whole = max(reserve, _MIN_RESERVE) if reserve else _LARGE
        return cls(min(whole // 4, 64 << 20), min(whole, 256 << 20), min(whole, 25 * (64 << 20)), min(whole, 64 << 20))


def _options(family: Family, cache: Cache, write_buffer_bytes: int, steps: _Steps | None = None) -> Options:
    steps = steps or _Steps.within(0)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_max_total_wal_size(steps.log)  # bounds the replay, which holds the GIL
    options.set_db_write_buffer_size(write_buffer_bytes)
    options.set_write_buffer_size(min(64 << 20 if family is Family.BLOCKS else 16 << 20, steps.table))
    options.set_target_file_size_base(steps.table)
    options.set_max_bytes_for_level_base(steps.level)
    options.set_max_compaction_bytes(steps.compaction)
    options.set_max_write_buffer_number(6)
    options.set_level_zero_slowdown_writes_trigger(40)
    options.set_level_zero_stop_writes_trigger(80)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(4 << 20)  # of RocksDB's own log, which is unbounded by default
    options.set_bytes_per_sync(1 << 20)
    options.set_compression_type(DBCompressionType.lz4())
    table = BlockBasedOptions()
    table.set_format_version(tables.FORMAT_VERSION)  # those that `tables` reads
    table.set_checksum_type(ChecksumType.xxh3())
    table.set_block_cache(cache)
    table.set_cache_index_and_filter_blocks(True)
    if family in _BLOOMED:
        table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options
