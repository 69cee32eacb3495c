"""The store of a shard: a RocksStore whose writes also go to the shard's log."""

import secrets
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from topics_cluster.log import START, Position
from topics_cluster.objects import Kind, LogObject, Op, Row
from topics_cluster.uploader import Uploader
from topics_service.engine import stored_catalog
from topics_service.engine.stored_catalog import Change, StoredCatalog
from topics_service.storage import durable, keys, segments
from topics_service.storage.rocks import LOG_POSITION_KEY, RocksStore
from topics_service.storage.rocks_batch import RocksBatch
from topics_service.storage.store import (
    Family,
    StoreError,
    StoreLostError,
    StoreOpenError,
    StoreStalledError,
    WriteBatch,
)
from topics_service.storage.wal.batches import MOMENT_KEY

MAX_UNACKNOWLEDGED_BYTES: Final = 64 << 20
"""With more than that the object store is taken for away, and writes are refused until it answers."""

POSITION_KEY: Final = LOG_POSITION_KEY
"""The META row of `read_position`; it is of the directory and not in the log."""
CLUSTER_KEY: Final = b"cluster_id"
"""The META row of the id of the cluster whose log it follows; not in the log either."""
FENCE_KEY: Final = b"log_fence"
"""The META row of `ShardStore.fence`, of the directory as well."""

_ID: Final = "topics-directory"
_ROW: Final = struct.Struct(">4Q")
_SYNC_SECONDS: Final = 10.0
_PUT, _DELETE, _DELETE_RANGE = int(Op.PUT), int(Op.DELETE), int(Op.DELETE_RANGE)
_FAMILIES: Final = tuple(Family)
_META, _BLOCKS = Family.META, Family.BLOCKS


class Numbering(Protocol):
    """A source of tickets, of which `written` is the newest."""

    written: int


class _NoEngine:
    written = 0


_NO_ENGINE: Final = _NoEngine()


class LogBatch(RocksBatch):
    """A batch that also keeps its rows, for the log."""

    __slots__ = ("rows",)
    rows: list[Row]

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """See WriteBatch."""
        self.rows.append((_PUT, family, key, value))
        if family is _BLOCKS and segments.is_apart(value):
            value = self._place(key, value)
        self.raw.put(key, value, self._handles[family])

    def delete(self, family: Family, key: bytes) -> None:
        """See WriteBatch."""
        self.rows.append((_DELETE, family, key, b""))
        RocksBatch.delete(self, family, key)

    def apply(self, family: Family, changes: Mapping[bytes, bytes | None]) -> None:
        """See WriteBatch."""
        for key, value in changes.items():
            if value is None:
                self.delete(family, key)
            else:
                self.put(family, key, value)

    def delete_range(self, family: Family, start: bytes, stop: bytes) -> None:
        """See WriteBatch."""
        self.rows.append((_DELETE_RANGE, family, start, stop))
        RocksBatch.delete_range(self, family, start, stop)


class ShardStore(RocksStore):
    """The open database of a shard, the same in both roles of a node.

    The owner writes: each batch gets the next ticket, is written here and then handed to the uploader. A follower
    applies objects of the log. In both, a row of the same batch says where that is: the directory is at every moment
    the log up to some object, and of an owner also what it had not acknowledged. The first batch of each millisecond
    has its time by the owner's clock, as in the log of a single server.
    """

    _archives_log: ClassVar[bool] = True
    _uploader: Uploader | None = None
    whole = True
    """See FollowingStore: an object is applied as a whole."""

    def __init__(self, path: Path, **options: Any) -> None:
        """Open or create the database with the options of a RocksStore. Raises StoreOpenError."""
        self._is_opening = True
        super().__init__(path, **options)
        self._is_opening = False
        self.life = _life(path, options.get("boot_id", ""))
        """The name of an uninterrupted life of the directory: no kill of a process ends it, and each write is there.
        "" for unknown."""
        self.fence = self.get(Family.META, FENCE_KEY)
        """The nonce of a fence that this node may have put, while the store is ahead."""
        row = self.get(Family.META, POSITION_KEY)
        self._position, self.ticket = (START, START.ticket) if row is None else read_position(row)
        self.engine: Numbering = _NO_ENGINE
        """The engine's writer, whose own tickets begin at 1 in each life."""
        self.catalog: StoredCatalog | None = None
        """The catalog that a follower keeps ready for a takeover: `apply` tells it of each change."""
        self.on_written: Callable[[], None] = _nothing
        """Called after each write of an owner; `uploader.wake` has to follow."""
        self._offset = -1
        self._offsets: deque[tuple[int, int]] = deque()
        self._timed_ms = 0

    @property
    def is_of_cluster(self) -> bool:
        """Return whether it is new, or has followed a log: the rows of a single server are in none."""
        if self.get(Family.META, POSITION_KEY) is not None:
            return True
        return next(self.scan(Family.TOPICS, b"", b"\xff" * 16), None) is None

    def join(self, cluster: str, shard: int = 0) -> None:
        """Note the id of the cluster, and the shard whose log it follows. Raises StoreError if it has followed that of
        another one."""
        cluster = f"{cluster}/{shard}" if shard else cluster  # the first one has the bytes of a cluster with one
        found = self.get(Family.META, CLUSTER_KEY)
        if found is None:
            batch = RocksBatch(self._handles, self.usage)
            batch.put(Family.META, CLUSTER_KEY, cluster.encode())
            super().write(batch)
        elif found != cluster.encode():
            raise StoreError(
                f"it has the data of another {'shard' if b'/' in found or shard else 'cluster'}, "
                f"{found.decode(errors='replace')}, and this is {cluster}"
            )

    @property
    def position(self) -> Position:
        """The place in the log up to which the rows are known to be there."""
        return self._position if self._uploader is None else self._uploader.position

    @property
    def generation(self) -> int:
        """See FollowingStore. Rows do not change while `writing` is held."""
        return self.ticket

    def catch_up(self) -> None:
        """See FollowingStore. Do nothing: a Follower brings the rows."""

    @property
    def is_ahead(self) -> bool:
        """Return whether there may be rows that are not in the log."""
        return self.ticket > self.position.ticket

    @property
    def uploader(self) -> Uploader | None:
        """That of the owner; None for a follower."""
        return self._uploader

    def will_fence(self, nonce: bytes) -> bytes:
        """Note durably that a fence comes, with this nonce or one that was noted before: that fence may be on its way.
        Return the nonce. For a store that is ahead. Raises StoreError and StoreStalledError."""
        assert self._uploader is None, "the owner has fenced the log"
        if self.fence is None:
            batch = RocksBatch(self._handles, self.usage)
            batch.put(Family.META, FENCE_KEY, nonce)
            super().write(batch)
            super().sync()
            self.fence = nonce
        return self.fence

    def own(self, uploader: Uploader) -> None:
        """Write to the log from now on, as the owner of the uploader's epoch."""
        assert self._uploader is None, "a store has one uploader at a time"
        assert self.ticket == uploader.position.ticket, "the log continues where the rows end"
        self._uploader = uploader
        self._timed_ms = 0
        self._offset = -1
        self._offsets.clear()
        self.on_written = uploader.wake

    def disown(self) -> None:
        """Take no more writes. Unless it `is_ahead`, the store can be a follower's from now on."""
        self._position = self.position
        self._uploader = None
        self.engine, self.on_written = _NO_ENGINE, _nothing  # they would keep the owner's engine

    def batch(self) -> LogBatch:
        """See Store."""
        batch = LogBatch(self._handles, self.usage)
        batch.rows = []  # here, since a constructor of its own is 3 % of an append
        return batch

    def write(self, batch: WriteBatch) -> None:
        """See Store. Raises StoreLostError when another node owns the shard, and for a follower."""
        uploader = self._uploader
        if uploader is None:
            if not self._is_opening:  # when the row of the format is written, which is no part of the log
                raise StoreLostError("this node does not own the shard")
            super().write(batch)
            return
        if uploader.failure is not None:
            uploader.check()
        if uploader.unacknowledged_bytes > MAX_UNACKNOWLEDGED_BYTES:
            raise StoreStalledError("the object store does not keep up")
        assert isinstance(batch, LogBatch), "a batch belongs to the store that made it"
        now = now_ms()
        if now != self._timed_ms:
            batch.put(_META, MOMENT_KEY, keys.u64(now))
            self._timed_ms = 0  # until it is written
        rows, ticket = batch.rows, self.ticket + 1
        batch.rows = []  # what is put from here on is of the directory alone
        batch.raw.put(POSITION_KEY, uploader.position_bytes + ticket.to_bytes(8, "big"), self._handles[_META])
        self.rewrite(batch)
        self._timed_ms = now
        self.changes += 1
        self.ticket = ticket
        offset = ticket - self.engine.written
        if offset != self._offset:  # not every batch has a ticket of the engine
            self._offset = offset
            self._offsets.append((ticket, offset))
        uploader.add((ticket, rows))
        self.on_written()

    def durable(self, acknowledged: int) -> int:
        """The newest ticket of the engine that is durable once a ticket of the log is acknowledged. For the thread that
        writes."""
        if acknowledged >= self.ticket:
            return self.engine.written
        offsets, following = self._offsets, acknowledged + 1
        while len(offsets) > 1 and offsets[1][0] <= following:
            offsets.popleft()
        return following - offsets[0][1]

    def apply(self, found: LogObject, position: Position) -> None:
        """Apply an object that was read from the log, up to whose end `position` goes: all of it or nothing.

        For a follower, on any thread. Raises StoreError, and StoreStalledError: apply it again, a little later.
        """
        assert self._uploader is None, "an owner does not follow"
        batch = RocksBatch(self._handles, self.usage)
        changes: list[Change] = []
        for each in found.batches:
            for op, number, key, value in each.rows:
                if _FAMILIES[number] in stored_catalog.FAMILIES:
                    changes.append(_change(op, _FAMILIES[number], key, value))
                if op == _PUT:
                    batch.put(_FAMILIES[number], key, value)
                elif op == _DELETE:
                    batch.delete(_FAMILIES[number], key)
                else:
                    batch.delete_range(_FAMILIES[number], key, value)
        with self.writing:  # reads of several rows hold it too, so no longer than the write takes
            assert found.header.number == self._position.number, "objects are applied once and in order"
            ticket = max(self.ticket, position.ticket)
            batch.put(Family.META, POSITION_KEY, position.pack() + ticket.to_bytes(8, "big"))
            is_fenced = self.fence is not None and found.header.kind is Kind.FENCE
            if is_fenced:
                batch.delete(Family.META, FENCE_KEY)
            super().write(batch)
            self._position, self.ticket = position, ticket
            self.fence = None if is_fenced else self.fence
        if self.catalog is not None and changes:
            self.catalog.changed(changes)

    def take_catalog(self) -> StoredCatalog | None:
        """Return what was kept ready for a takeover, if anything was, for the engine of the owner."""
        catalog, self.catalog = self.catalog, None
        return catalog

    def sync(self) -> None:
        """See Store. An owner also waits until all is in the object store. Raises StoreError after 10 s, when the
        uploader is stopped, and when another node owns the shard."""
        super().sync()
        self.upload()

    def upload(self) -> None:
        """Wait until all of an owner is in the object store. Blocks; raises as `sync`."""
        if self._uploader is not None:
            self._uploader.wait(self.ticket, _SYNC_SECONDS)

    def close(self) -> None:
        """See Store. Does not wait for the object store; `sync` does."""
        self.disown()
        super().close()


def _nothing() -> None:
    """Do nothing."""


def _change(op: int, family: Family, key: bytes, value: bytes) -> Change:
    if op == _PUT:
        return Change(family, key, value)
    return Change(family, key, stop=None if op == _DELETE else value)


def now_ms() -> int:
    """The clock of this machine, in ms since 1970."""
    return time.time_ns() // 1_000_000


def _life(path: Path, boot_id: str) -> str:
    """See `ShardStore.life`. The id of a directory is in no copy of its rows, and the file of a copy is another one.

    Raises StoreOpenError.
    """
    if not boot_id:
        return ""
    file = path / _ID
    try:
        if not file.exists():
            durable.replace(file, secrets.token_hex(8).encode())
        return f"{file.read_text()} {file.stat().st_ino} {boot_id}"
    except OSError as error:
        raise StoreOpenError(f"can't open the data directory {path}: {error}") from error


def read_position(row: bytes) -> tuple[Position, int]:
    """The content of the row at POSITION_KEY: a place in the log, and the ticket of the newest batch here.

    Raises ValueError.
    """
    if len(row) != _ROW.size:
        raise ValueError(f"a place in the log of {len(row)} bytes")
    *place, ticket = _ROW.unpack(row)
    return Position(*place), ticket
