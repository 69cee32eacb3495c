"""The store on RocksDB, through rocksdict in raw mode (bytes in, bytes out)."""

import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rocksdict import (
    BlockBasedOptions,
    Cache,
    ColumnFamily,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    WriteOptions,
)
from rocksdict import WriteBatch as RawBatch

from topics_service.storage import closing, damaged, keys, walarchive, walcheck
from topics_service.storage.private import make_private
from topics_service.storage.store import Family, StoreError, StoreOpenError, StoreStalledError, WriteBatch
from topics_service.storage.walbatches import MOMENT_KEY
from topics_service.storage.walfiles import WalFiles

log = logging.getLogger("topics.storage")

_FORMAT_KEY = b"format"
_FORMAT = b"topics-rocksdb-1"
_SETTLE_SECONDS = 2.0
_FOR_EVER = 1 << 40  # seconds: what is archived is removed by `walarchive.trim`
_HELD_BACK = ("rocksdb.is-write-stopped", "rocksdb.actual-delayed-write-rate")
_COMPACTING = "rocksdb.num-running-compactions"  # in the whole database
_BLOOMED = (Family.IDEMPOTENCY, Family.TAGS)  # looked up by exact key or prefix: a bloom filter pays


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

    Write-ahead logging is always on. A torn log tail (a crash in mid-write) is cut on open; damage before the tail
    refuses to open (`DBRecoveryMode.tolerate_corrupted_tail_records`: RocksDB's default would drop everything after
    one bad byte without an error).

    When a compaction meets a damaged table, RocksDB refuses all writes from then on. From the next open on there are no
    compactions: what is intact can be read and written, and the disk space of what is deleted stays taken.

    With `keep_log` the write-ahead log stays when it is not needed any more (`walarchive`), and tells when it was
    written, to the millisecond. None goes on as whoever opened the directory last.
    """

    _keeps_log = False
    _written_ms = 0

    def __init__(
        self,
        path: Path,
        *,
        block_cache_bytes: int = 64 << 20,
        write_buffer_bytes: int = 256 << 20,
        open_tables: int = 1000,
        keep_log: bool | None = None,
    ) -> None:
        """Open or create the database. Raises StoreOpenError."""
        cache = Cache(block_cache_bytes)
        families = {_name(family): _options(family, cache, write_buffer_bytes) for family in Family}
        try:
            make_private(path)
            fresh = not (path / "CURRENT").exists()
            refuse_damage(path)
            damage = closing.known_damage(path)
            keep_log = walarchive.line_of(path) is not None if keep_log is None else keep_log
        except (OSError, ValueError) as error:
            raise StoreOpenError(f"can't open the data directory {path}: {error}") from error
        except StoreOpenError as error:
            raise StoreOpenError(f"can't open the data directory {path}: {error}") from None
        if damage is not None:
            log.error("%s is damaged, and its files are not compacted any more: %s", path, damage)
            for options in families.values():
                options.set_disable_auto_compactions(True)
        whole = _options(Family.META, cache, write_buffer_bytes)
        whole.set_max_open_files(open_tables)
        if keep_log:
            whole.set_wal_ttl_seconds(_FOR_EVER)
        try:
            self._db = Rdict(str(path), whole, column_families=families)
        except Exception as error:  # rocksdict raises bare Exception
            damage = walcheck.find_damage(path, whole=True) if "Corruption" in str(error) else None
            why = str(error) if damage is None else f"{error}: {damage}"
            raise StoreOpenError(f"can't open the data directory {path}: {why}") from error
        self._families = [self._db.get_column_family(_name(family)) for family in Family]
        self._handles: list[ColumnFamily] = [self._db.get_column_family_handle(_name(family)) for family in Family]
        self._write_options = WriteOptions()
        self._write_options.no_slowdown = True
        self._path = path
        self._keeps_log = keep_log
        self._check_format(path, fresh=fresh)
        try:
            closing.forget(path)
            if keep_log:
                walarchive.begin(path)
            else:
                walarchive.end(path)
        except (OSError, ValueError) as error:
            self._release()
            raise StoreOpenError(f"can't open the data directory {path}: {error}") from error
        self.wal_switches = WalFiles(path).switches

    def _check_format(self, path: Path, *, fresh: bool) -> None:
        found = self.get(Family.META, _FORMAT_KEY)
        if found is None and fresh:
            batch = self.batch()
            batch.put(Family.META, _FORMAT_KEY, _FORMAT)
            self.write(batch)
            self.sync()
        elif found != _FORMAT:
            self._release()
            raise StoreOpenError(f"the data directory {path} has the format {found!r}, this server reads {_FORMAT!r}")

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
            if "Corruption" in str(error):
                self._note_damage(str(error))
            raise StoreError(f"write failed: {error}") from error
        if self._keeps_log:
            self._written_ms = now

    def _note_damage(self, text: str) -> None:
        """A compaction has met a damaged table. Until the next open nothing can be written."""
        try:
            closing.note_damage(self._path, text)
        except OSError as error:
            log.warning("can't write down the damage of %s: %s", self._path, error)

    def sync(self) -> None:
        """See Store. Releases the GIL while it waits for the disk."""
        try:
            self._db.flush_wal(True)
        except Exception as error:  # rocksdict raises bare Exception
            raise StoreError(f"fsync failed: {error}") from error

    def get(self, family: Family, key: bytes) -> bytes | None:
        """See Store."""
        try:
            value: bytes | None = self._families[family].get(key)
        except Exception as error:  # rocksdict raises bare Exception
            raise StoreError(f"read failed: {error}") from error
        return value

    def floor(self, family: Family, key: bytes) -> tuple[bytes, bytes] | None:
        """See Store."""
        cursor = self._families[family].iter()
        cursor.seek_for_prev(key)
        if not cursor.valid():
            why = damaged.error_of(cursor)
            return None if why is None else damaged.floor(self._families[family], key, why)
        return cursor.key(), cursor.value()

    def scan(self, family: Family, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See Store."""
        cursor = self._families[family].iter()
        cursor.seek(start)
        while cursor.valid():
            key: bytes = cursor.key()
            if key >= stop:
                return
            yield key, cursor.value()
            cursor.next()
        _check(cursor)

    @property
    def next_sequence(self) -> int:
        """The number that RocksDB gives to the next row that is written."""
        return int(self._db.latest_sequence_number()) + 1

    def is_stalled(self) -> bool:
        """Whether RocksDB takes no writes, or delays them, until it has compacted."""
        return any(family.property_int_value(name) for name in _HELD_BACK for family in self._families)

    @property
    def families(self) -> Sequence[Rdict]:
        """The column families of the open database, none once it is closed."""
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
            closing.remember(self._path, tables)
        except OSError as error:
            log.warning("can't write down the files of %s: %s", self._path, error)

    def abandon(self) -> None:
        """Close without writing anything, after a failure: what was acknowledged is in the log, for the next open."""
        self._db.cancel_all_background(True)  # rocksdict would write the memtables out before it closes: now it can't
        self._release()

    def _final_tables(self) -> list[str] | None:
        """The tables that there will be after the close: everything is flushed, and no compaction begins any more. None
        if those that run take long."""
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


def refuse_damage(path: Path) -> None:
    """Look for what RocksDB would take in silence. Raises StoreOpenError, naming the file, and OSError."""
    if closing.is_headless(path):
        raise StoreOpenError(f"the file {path / 'CURRENT'} is missing, and there are files of a database")
    damage = closing.find_damage(path)
    if damage is not None:
        raise StoreOpenError(damage)
    damage = walcheck.find_damage(path, whole=False)
    if damage is not None:
        raise StoreOpenError(f"{damage}, with intact records after it")


def _check(cursor: RdictIter) -> None:
    """Raise StoreError if the cursor ended at damage rather than at the end of the rows."""
    try:
        cursor.status()
    except Exception as error:  # rocksdict raises bare Exception
        raise StoreError(f"read failed: {error}") from error


def _name(family: Family) -> str:
    return "default" if family is Family.META else family.name.lower()


def _options(family: Family, cache: Cache, write_buffer_bytes: int) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_max_total_wal_size(64 << 20)  # bounds the replay, which holds the GIL (design.md 4)
    options.set_db_write_buffer_size(write_buffer_bytes)
    options.set_write_buffer_size(64 << 20 if family is Family.BLOCKS else 16 << 20)
    options.set_max_write_buffer_number(6)
    options.set_level_zero_slowdown_writes_trigger(40)
    options.set_level_zero_stop_writes_trigger(80)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(4 << 20)  # of RocksDB's own log, which has no bound by itself
    options.set_bytes_per_sync(1 << 20)
    options.set_compression_type(DBCompressionType.lz4())
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_cache_index_and_filter_blocks(True)
    if family in _BLOOMED:
        table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options
