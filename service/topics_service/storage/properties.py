"""Properties of RocksDB: the state of its background work, and its use of space."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct


class StoreState(Struct, frozen=True, kw_only=True):
    """The database now. Sizes are bytes, over all column families.

    `level0_files` are those of the family that has most: from 40 on writes are slowed down, at 80 they stop.
    `write_stopped` says that they are stopped now. `background_errors` count since the database was opened.
    """

    level0_files: int = 0
    memtable_bytes: int = 0
    table_bytes: int = 0
    wal_bytes: int = 0
    block_cache_bytes: int = 0
    compactions: int = 0
    flushes: int = 0
    compaction_pending_bytes: int = 0
    write_stopped: bool = False
    background_errors: int = 0


def read(path: Path, families: Iterable[Any], merged: Iterable[Any]) -> StoreState:
    """The state of the open database at `path`, whose families these are. Compactions rewrite those that are
    `merged`. Microseconds: nothing is read from files."""
    each = list(families)
    if not each:
        return StoreState()

    def total(name: str) -> int:
        return sum(family.property_int_value(f"rocksdb.{name}") or 0 for family in each)

    def whole(name: str) -> int:
        return int(each[0].property_int_value(f"rocksdb.{name}") or 0)

    return StoreState(
        level0_files=max(int(family.property_value("rocksdb.num-files-at-level0") or 0) for family in each),
        memtable_bytes=total("cur-size-all-mem-tables"),
        table_bytes=total("total-sst-files-size"),
        wal_bytes=sum(_size(file) for file in path.glob("*.log")),
        block_cache_bytes=whole("block-cache-usage"),
        compactions=whole("num-running-compactions"),
        flushes=whole("num-running-flushes"),
        compaction_pending_bytes=sum(
            family.property_int_value("rocksdb.estimate-pending-compaction-bytes") or 0 for family in merged
        ),
        write_stopped=bool(whole("is-write-stopped")),
        background_errors=whole("background-errors"),
    )


def compaction_bytes(families: Iterable[Any]) -> int:
    """Bytes that the next compaction may write before its input goes: level 0 and the one below, of the family in which
    that is most. Those of lower levels are no larger than `RocksStore` allows. Microseconds."""
    highest = 0
    for family in families:
        levels = [
            tuple(map(float, line.split())) for line in family.property_value("rocksdb.levelstats").splitlines()[2:]
        ]
        sizes = [(int(size) + 1) << 20 for level, files, size in levels if level and files]
        if levels and levels[0][1]:
            highest = max(highest, ((int(levels[0][2]) + 1) << 20) + (sizes[0] if sizes else 0))
    return highest


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # dropped since
        return 0
