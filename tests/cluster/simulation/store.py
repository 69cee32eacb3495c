"""The store of a shard as a model: the keys of its batches, in order, on a disk that may lose the last writes."""

from collections.abc import Sequence
from typing import NamedTuple

from topics_cluster.log import START, Position
from topics_cluster.objects import Batch, LogObject, Op
from topics_cluster.uploader import Uploader
from topics_service.storage.store import Family


class Write(NamedTuple):
    """One atomic write: keys of batches, and the row that says where the store stands."""

    keys: tuple[bytes, ...]
    position: Position
    ticket: int


NOTHING = Write((), START, START.ticket)


class Disk:
    """Survives a kill as it is, and a power cut as a prefix of its writes. `first` is what a checkpoint had."""

    def __init__(self, first: Write = NOTHING) -> None:
        self._writes = [first]
        self.keys = list(first.keys)
        """The batches, by ticket from 1 on."""

    @property
    def row(self) -> Write:
        """The newest row."""
        return self._writes[-1]

    def write(self, write: Write) -> None:
        """Write at once."""
        self._writes.append(write)
        self.keys += write.keys

    def cut_power(self, lost: int) -> None:
        """Lose the last writes, up to so many."""
        for _ in range(min(lost, len(self._writes) - 1)):
            gone = self._writes.pop()
            if gone.keys:
                del self.keys[-len(gone.keys) :]


class ModelStore:
    """The part of a ShardStore that a Follower, `take_over` and an owner use."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.uploader: Uploader | None = None
        self._position, self.ticket = disk.row.position, disk.row.ticket

    @property
    def position(self) -> Position:
        """See ShardStore."""
        return self._position if self.uploader is None else self.uploader.position

    @property
    def is_ahead(self) -> bool:
        """See ShardStore."""
        return self.ticket > self.position.ticket

    def own(self, uploader: Uploader) -> None:
        """See ShardStore."""
        assert self.uploader is None
        assert self.ticket == uploader.position.ticket
        self.uploader = uploader

    def write(self, key: bytes) -> None:
        """A batch of one row, by the owner."""
        assert self.uploader is not None
        self.uploader.check()
        self.ticket += 1
        self.disk.write(self._row((key,), self.position, self.ticket))
        self.uploader.add((self.ticket, [(Op.PUT, Family.LOGS, key, b"")]))
        self.uploader.wake()

    def apply(self, found: LogObject, position: Position) -> None:
        """See ShardStore."""
        assert self.uploader is None
        ticket = max(self.ticket, position.ticket)
        self.disk.write(self._row(self._keys(found.batches), position, ticket))
        self._position, self.ticket = position, ticket

    def _row(self, keys: tuple[bytes, ...], position: Position, ticket: int) -> Write:
        return Write(keys, position, ticket)

    def _keys(self, batches: Sequence[Batch]) -> tuple[bytes, ...]:
        return tuple(batch.rows[0][2] for batch in batches)
