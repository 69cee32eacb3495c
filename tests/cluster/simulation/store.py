"""The program's ShardStore on a model of a disk: what RocksDB does is done by sorted dictionaries."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from simulation.disk import Disk

from support.shards import LOCAL
from topics_cluster.store import ShardStore
from topics_service.storage.memory import MemoryBatch, MemorySnapshot
from topics_service.storage.rocks_batch import RocksBatch
from topics_service.storage.store import Family, StoreStalledError, WriteBatch

Rows = Iterable[tuple[Family, bytes, bytes]]
MOST_LOST = 8
"""The disk is synced so often that a power cut takes fewer writes."""


class RawBatch:
    """In place of rocksdict's: a batch whose families are their own handles."""

    def __init__(self, *, raw_mode: bool) -> None:
        assert raw_mode
        self.batch = MemoryBatch()

    def put(self, key: bytes, value: bytes, family: Family) -> None:
        self.batch.put(family, key, value)

    def delete(self, key: bytes, family: Family) -> None:
        self.batch.delete(family, key)

    def delete_range(self, start: bytes, stop: bytes, family: Family) -> None:
        self.batch.delete_range(family, start, stop)

    def is_empty(self) -> bool:
        return self.batch.is_empty()

    def size_in_bytes(self) -> int:
        return self.batch.nbytes


class NodeDisk(Disk):
    """The disk of a node. Survives a kill as it is, and a power cut as a prefix of its writes."""

    def __init__(self, rows: Rows = ()) -> None:
        super().__init__()
        batch = MemoryBatch()
        for family, key, value in rows:
            batch.put(family, key, value)
        super().write(batch)
        self.sync_to(self.writes)

    def write(self, batch: WriteBatch) -> None:
        """See Store."""
        super().write(batch)
        self.sync_to(max(self.synced, self.writes - MOST_LOST))

    def flush_wal(self, _sync: bool) -> None:
        """See Rdict."""
        self.sync()

    def rows(self) -> Iterator[tuple[Family, bytes, bytes]]:
        """Every row."""
        for family in Family:
            yield from ((family, key, value) for key, value in self._rows[family].items())

    def state(self) -> int:
        """A hash of all rows that are in the log."""
        found = 0
        for family, key, value in self.rows():
            if family is not Family.META or key not in LOCAL:
                found ^= hash((family, key, value))
        return found


class NodeStore(ShardStore):
    """The open store of one life of a node; also the disk of the world of a `Service`, with the log in place of an
    fsync."""

    def __init__(self, disk: NodeDisk) -> None:
        self.lasting: Callable[[], int] = lambda: 0
        """Returns the ticket up to which each later owner has the batches."""
        self.disk = disk
        self.breaks = -1
        self._stalls = 0
        super().__init__(Path())

    def _open_at(self, *_: Any) -> None:
        self._db = self.disk
        self._handles = list(Family)
        self.get, self.floor = self.disk.get, self.disk.floor
        self.scan, self.scan_back = self.disk.scan, self.disk.scan_back

    def write(self, batch: WriteBatch) -> None:
        """See Store."""
        try:
            super().write(batch)
        except StoreStalledError:
            self._stalls += 1
            raise

    def rewrite(self, batch: WriteBatch) -> None:
        """See RocksStore."""
        assert isinstance(batch, RocksBatch)
        self.disk.write(batch.raw.batch)

    def snapshot(self) -> MemorySnapshot:
        """See Store."""
        return self.disk.snapshot()

    def sync(self) -> None:
        """See Store. Does not wait for the log, since it is called by what would block: who calls that, waits."""
        self.disk.sync()

    # ------------------------------------------------------- as a world's disk

    @property
    def writes(self) -> int:
        """The ticket of the newest batch."""
        return self.ticket

    @property
    def synced(self) -> int:
        """The ticket up to which each later owner has the batches."""
        return self.lasting()

    @property
    def fuse(self) -> int:
        """See Disk."""
        return self.disk.fuse

    @property
    def refused(self) -> int:
        """The number of writes that were refused for a stall."""
        return self._stalls

    def mend(self) -> None:
        """See Disk."""
        self.disk.mend()
