"""A data directory opened for verification: nothing in it is changed, and unreadable parts are reported."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from rocksdict import AccessType, Cache, Rdict, ReadOptions

from topics_service.storage import corruption, damagedfiles, tablelist
from topics_service.storage.boot import boot_id
from topics_service.storage.families import known_families
from topics_service.storage.holding import is_held
from topics_service.storage.rocks import (
    _FORMAT,
    _FORMAT_KEY,
    _FORMATS,
    ReadingStore,
    RocksStore,
)
from topics_service.storage.rocks_options import _name, _options
from topics_service.storage.secondary import SecondaryStore
from topics_service.storage.starting import find_damage
from topics_service.storage.store import Family, StoreError, StoreOpenError
from topics_service.storage.wal import quarantine

_CACHE_BYTES: Final = 16 << 20
_READAHEAD: Final = 1 << 20
_SST: Final = re.compile(r"\d+\.sst")


class Damage(NamedTuple):
    """A stretch of a family that can't be read: behind the key `after` (None: from the start) and before the key
    `before` (None: up to the end). `file` is the table file, where RocksDB names it."""

    after: bytes | None
    before: bytes | None
    why: str
    file: str | None


class Source(Protocol):
    """The rows to check, which do not change during the check."""

    def get(self, family: Family, key: bytes) -> bytes | None:
        """See Store."""
        ...

    def floor(self, family: Family, key: bytes) -> tuple[bytes, bytes] | None:
        """See Store."""
        ...

    def rows(self, family: Family, start: bytes = b"") -> Iterator[tuple[bytes, bytes] | Damage]:
        """Every row of the family from `start` on in key order, and between them the stretches that can't be read."""
        ...


class DirectorySource:
    """Implements Source on a data directory. `live` says that a server holds it: then the rows are those of the moment
    when it was opened, whatever the server does."""

    def __init__(self, store: RocksStore, path: Path, scratch: Path, *, live: bool) -> None:
        """`scratch` is the path that RocksDB names in place of `path`."""
        self.live = live
        self._paths = str(scratch), str(path)
        self._store = store
        self._options = ReadOptions()
        self._options.set_verify_checksums(True)
        self._options.set_readahead_size(_READAHEAD)

    def get(self, family: Family, key: bytes) -> bytes | None:
        """See Store."""
        return self._store.get(family, key)

    def floor(self, family: Family, key: bytes) -> tuple[bytes, bytes] | None:
        """See Store."""
        return self._store.floor(family, key)

    def rows(self, family: Family, start: bytes = b"") -> Iterator[tuple[bytes, bytes] | Damage]:
        """See Source. Each block of each table file on the way is read, and its checksum compared."""
        rows = self._store._families[family]
        cursor = rows.iter(self._options)
        cursor.seek(start)
        last: bytes | None = None  # that was readable
        damage: StoreError | None = None
        seen = start
        while True:
            if cursor.valid():
                seen = cursor.key()
                try:
                    value = (
                        cursor.value() if family is not Family.BLOCKS else self._store.resolved(seen, cursor.value())
                    )
                except StoreError as error:  # it is alone
                    damage = damage or error
                else:
                    if damage is not None:
                        yield self._damage(last, seen, damage)
                        damage = None
                    last = seen
                    yield last, value or b""
                cursor.next()
                continue
            why = self._store.why(cursor)
            if why is None:
                behind = None
            else:
                damage = damage or StoreError(why)
                behind = corruption.seek_behind(rows, self._options, seen)
            if behind is None:
                if damage is not None:
                    yield self._damage(last, None, damage)
                return
            cursor = behind

    def _damage(self, after: bytes | None, before: bytes | None, error: StoreError) -> Damage:
        why = str(error).removeprefix("read failed: ")
        file = _SST.search(why)
        return Damage(after, before, self._named(why), file and file[0])

    def _named(self, why: str) -> str:
        return why.replace(*self._paths)


@contextmanager
def opened(path: Path) -> Iterator[DirectorySource]:
    """Open the data directory for reading only.

    Blocks while the write-ahead log (64 MiB at most) is read into memory. Raises StoreOpenError, naming the file where
    it is known, when the server could not open it either, and for a directory of another format.
    """
    scratch = Path(tempfile.mkdtemp(prefix="topics-verify-"))
    try:
        live = is_held(path)
        damage = tablelist.find_damage(path, closed=False) if live else None
        if damage is not None:  # RocksDB may never come back from it
            raise StoreOpenError(damage)
        store: RocksStore = SecondaryStore(path, scratch) if live else _ReadOnlyStore(path, scratch)
        try:
            if isinstance(store, SecondaryStore):
                store.catch_up()
            try:
                found = store.get(Family.META, _FORMAT_KEY)
            except StoreError as error:
                raise StoreOpenError(str(error).replace(str(scratch), str(path))) from error
            if found not in _FORMATS:
                raise StoreOpenError(f"the data directory {path} has the format {found!r}, this checks {_FORMAT!r}")
            yield DirectorySource(store, path, scratch, live=live)
        finally:
            store.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class _ReadOnlyStore(ReadingStore):
    """A database without a writer, opened through links from a directory of our own.

    RocksDB's read-only mode changes nothing, but rocksdict puts a file into the directory.
    """

    _IS = "a database under verification"

    def __init__(self, path: Path, scratch: Path) -> None:
        """Raises StoreOpenError."""
        try:
            broken = find_damage(path, boot_id())
            for file in path.iterdir():
                if file.is_file() and file.name not in ("LOCK", "rocksdict-config.json"):
                    (scratch / file.name).symlink_to(file.absolute())
            if broken is not None:
                quarantine.set_aside(scratch, broken)  # as a start would
        except OSError as error:
            raise StoreOpenError(f"can't read the data directory {path}: {error}") from error
        cache = Cache(_CACHE_BYTES)
        known = known_families(scratch)
        families = {_name(family): _options(family, cache, 0) for family in known}
        for options in families.values():
            options.create_if_missing(False)
            options.create_missing_column_families(False)
        try:
            access = AccessType.read_only()
            self._db = Rdict(str(scratch), families["default"], column_families=families, access_type=access)
        except Exception as error:  # rocksdict raises bare Exception
            raise StoreOpenError(damagedfiles.named(path, str(error).replace(str(scratch), str(path)))) from error
        self._path = scratch
        self._take_families(known)
