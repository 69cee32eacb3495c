"""A database that another process writes, followed for reading: a RocksDB secondary instance."""

import logging
import os
from pathlib import Path

from rocksdict import AccessType, Cache, Options, Rdict

from topics_service.storage.families import known_families
from topics_service.storage.private import make_private
from topics_service.storage.rocks import ReadingStore
from topics_service.storage.rocks_options import _name, _options
from topics_service.storage.store import Family, StoreError, StoreOpenError

log = logging.getLogger("topics.storage")

_TRIES = 50
_LOG_BYTES = 1 << 20


class SecondaryStore(ReadingStore):
    """Implements Store for reading, in a separate process; nothing is ever written to the data directory.

    Its content is fixed between two calls of `catch_up`, even while the writer deletes and compacts: the files are kept
    open.
    """

    _IS = "a follower"

    def __init__(self, path: Path, own: Path, *, block_cache_bytes: int = 16 << 20) -> None:
        """Open the database in `path`; `own` is a directory for this instance alone. Raises StoreOpenError."""
        self._cache = Cache(block_cache_bytes)
        self._path = path
        self._own = own
        self._caught: tuple[tuple[str, int], int] | None = None  # manifest and newest log when it last caught up
        self.generation = 0
        """Says which state of the rows it is: the same number, the same rows."""
        self.whole = False
        """Return whether the rows are those of one moment of the writer: if not, some can be missing."""
        if not (path / "CURRENT").exists():  # RocksDB would begin to make one
            raise StoreOpenError(f"can't follow the data directory {path}: there is no database")
        try:
            make_private(own)
            caught = self._manifest(), self._newest_log()
            self._open()
            self._caught = caught
        except Exception as error:  # rocksdict raises bare Exception
            raise StoreOpenError(f"can't follow the data directory {path}: {error}") from error

    def _open(self) -> None:
        known = known_families(self._path)
        self._db = Rdict(
            str(self._path),
            _follower_options(Family.META, self._cache),
            column_families={_name(family): _follower_options(family, self._cache) for family in known},
            access_type=AccessType.secondary(str(self._own)),
        )
        self._take_families(known)

    def catch_up(self) -> None:
        """Read everything that was written before the call. Raises StoreError; the content may have holes then.

        RocksDB reads the manifest first and then lists the logs. When the writer flushes a log and removes it in
        between, its rows are in neither, while those of later logs are there (seen: 729 records missing in the
        middle, once in 421 tries). So a try counts only if the manifest was the same before and after it.

        And what was flushed before it was read from a log stays hidden behind older rows that were (seen: deletes that
        readers did not get to know of, about once in 100 steps with many flushes): RocksDB skips that part of the log
        and keeps the memtable, whose rows win. A log that is new together with a change of the manifest says that this
        can be so; the database is opened again then.
        """
        self.whole = False
        for _ in range(_TRIES):
            try:
                before = self._manifest(), self._newest_log()
                if self._is_overtaken(*before):
                    self._reopen()
                    self._caught = before
                self._db.try_catch_up_with_primary()
                if self._manifest() == before[0]:
                    self._caught = before
                    self.generation = self._db.latest_sequence_number()
                    self.whole = True
                    return
            except FileNotFoundError:  # the manifest was replaced just now
                continue
            except Exception as error:  # rocksdict raises bare Exception
                raise StoreError(f"can't follow the writer: {error}") from error
        raise StoreError("can't follow the writer: its files changed during each try")

    def _reopen(self) -> None:
        if self._caught is not None:  # else it was closed before, and could not be opened
            self._caught = None
            self._release()
        self._open()

    def _is_overtaken(self, manifest: tuple[str, int], log: int) -> bool:
        """Return whether rows may have been flushed that were never read from their log."""
        return self._caught is None or (manifest != self._caught[0] and log > self._caught[1])

    def _manifest(self) -> tuple[str, int]:
        """The current manifest and its size: it grows with each flush and compaction, before files are removed."""
        name = (self._path / "CURRENT").read_text().strip()
        return name, (self._path / name).stat().st_size

    def _newest_log(self) -> int:
        """The number of the log that is written to. Not less than that of any log that the manifest speaks of."""
        logs = (name[:-4] for name in os.listdir(self._path) if name.endswith(".log"))
        return max((int(number) for number in logs if number.isdigit()), default=0)


def _follower_options(family: Family, cache: Cache) -> Options:
    options = _options(family, cache, 0)
    options.create_if_missing(False)
    options.create_missing_column_families(False)
    options.set_max_open_files(-1)  # files that the writer removes stay readable while they are open
    # By default 15 threads for each family are started to open new files, each time that the writer is caught up with:
    # 255 threads and 10 ms. With one it takes 0.05 ms.
    options.set_max_file_opening_threads(1)
    options.set_max_log_file_size(_LOG_BYTES)
    options.set_keep_log_file_num(2)
    options.set_stats_dump_period_sec(0)
    return options
