"""Checkpoints of an open database: directories that hold its state at one moment and share its files."""

import shutil
import time
from pathlib import Path
from typing import Final

from rocksdict import Checkpoint

from topics_service.storage import durable
from topics_service.storage.private import make_private
from topics_service.storage.rocks import _FORMAT, _FORMATS, RocksStore
from topics_service.storage.store import StoreError

FORMAT: Final = _FORMAT.decode()
"""The format of the rows, as a database of this version says it."""
READABLE_FORMATS: Final = frozenset(known.decode() for known in _FORMATS)
"""The formats that this version opens."""

_FLUSH_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.005
_ROOM_BYTES: Final = 4 << 20  # for the log and the lists of files, besides the memtables
_MEMTABLES: Final = "rocksdb.cur-size-all-mem-tables"
_UNFLUSHED: Final = "rocksdb.num-immutable-mem-table"


def create(store: RocksStore, path: Path) -> None:
    """Make `path` a database with everything that was written before the call, durable on return.

    It is a prefix of all writes: with each write it has all earlier ones, over all families. Files that never change
    are hard links, so `path` must be on the file system of the database, and not exist. Writes continue meanwhile.
    Blocks; call it in a separate thread. Raises StoreError, and leaves nothing then.

    RocksDB writes its memtables out first, and rocksdict holds the GIL for as long (184 ms for 40 MB). So they are
    written in the background before, which leaves about 25 ms, whatever the size.
    """
    make_private(path.parent)
    try:
        prepare(store, path.parent)
        capture(store, path)
        finish(path)
    except Exception as error:  # rocksdict raises bare Exception
        remove(path)
        raise StoreError(f"can't make the checkpoint {path}: {error}") from error


def prepare(store: RocksStore, parent: Path) -> None:
    """Write most of the memtables out, so that a checkpoint in `parent` takes little. Blocks as `create`; raises
    StoreError."""
    _check_room(store, parent)
    for family in store._families:
        family.flush(False)
    deadline = time.monotonic() + _FLUSH_SECONDS  # after which it is slower, not wrong
    while time.monotonic() < deadline and _is_flushing(store):
        time.sleep(_LOOK_SECONDS)
    store.sync()


def capture(store: RocksStore, path: Path) -> None:
    """Make the checkpoint, which is of this moment, and not durable yet. Raises what rocksdict raises."""
    Checkpoint(store._db).create_checkpoint(str(path))


def finish(path: Path) -> None:
    """Make the files of a checkpoint durable. Raises OSError."""
    for file in path.iterdir():  # RocksDB's own are durable; rocksdict puts one beside them
        if not file.name.endswith(".sst"):
            durable.sync(file)
    durable.sync(path)
    durable.sync(path.parent)


def remove(path: Path) -> None:
    """Remove a complete or incomplete checkpoint; an absent one is ignored."""
    for each in (path, path.with_name(f"{path.name}.tmp")):  # the name under which RocksDB begins
        shutil.rmtree(each, ignore_errors=True)


def _check_room(store: RocksStore, directory: Path) -> None:
    """Raise if a flush could fill the disk: memtables that can't be flushed leave the database read-only."""
    wanted = _ROOM_BYTES + sum(family.property_int_value(_MEMTABLES) or 0 for family in store._families)
    free = shutil.disk_usage(directory).free
    if free < wanted:
        raise StoreError(f"the disk has {free} bytes left, and the memtables may take {wanted}")


def _is_flushing(store: RocksStore) -> bool:
    counts = [family.property_int_value(_UNFLUSHED) for family in store._families]
    return any(counts)
