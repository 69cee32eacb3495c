"""Unclean ends of a server, counted, and the tails of logs that each of them took.

An end takes its tails by one row: what a log lost follows from its state, its ceiling and the count, whenever the log
is used next, so a start writes nothing for each log.
"""

import struct
from typing import NamedTuple, Protocol

from topics_service.engine.model import Durability
from topics_service.engine.snapshot import Gap, Snapshot
from topics_service.storage import keys
from topics_service.storage.store import Family, StoreOpenError

KEY = b"lives"
"""The META row of `Lives`; there is none before the first unclean end."""

_ROW = struct.Struct(">QQ")


class Ceiling(NamedTuple):
    """A seq up to which a log may have been written, and the number of unclean ends before it was."""

    seq: int = 0
    life: int = 0

    def encode(self) -> bytes:
        """The stored row."""
        return _ROW.pack(*self)


def decode_ceiling(row: bytes) -> Ceiling:
    """Read a ceiling; one of an earlier version has no life. Raises ValueError for a row of another length."""
    if len(row) == _ROW.size:
        return Ceiling(*_ROW.unpack(row))
    if len(row) != 8:
        raise ValueError(f"a ceiling of {len(row)} bytes")
    return Ceiling(keys.read_u64(row))


class Lives(NamedTuple):
    """The number of unclean ends, and its value at the last one that took the tail of the write-ahead log."""

    ends: int = 0
    cut: int = 0

    def encode(self) -> bytes:
        """The stored row."""
        return _ROW.pack(*self)

    def after(self, *, is_tail_lost: bool) -> "Lives":
        """Count one more unclean end."""
        ends = self.ends + 1
        return Lives(ends, ends if is_tail_lost else self.cut)

    def take(self, durability: Durability, ceiling: Ceiling) -> bool:
        """Return whether what a log wrote up to this ceiling was lost, unless its state row has it."""
        if durability == "fsync":
            return False
        return ceiling.life < (self.ends if durability == "ephemeral" else self.cut)


class _Rows(Protocol):
    """The part of a Reader that `read` needs."""

    def get(self, family: Family, key: bytes) -> bytes | None:
        """See Reader."""
        ...


def read(store: _Rows) -> Lives:
    """Read the count. Raises StoreOpenError for a damaged row."""
    row = store.get(Family.META, KEY)
    if row is None:
        return Lives()
    if len(row) != _ROW.size:
        raise StoreOpenError(f"the count of unclean ends is damaged: it has {len(row)} bytes")
    return Lives(*_ROW.unpack(row))


def lose_tail(s: Snapshot, log_id: int, ceiling: int) -> dict[bytes, bytes | None]:
    """Turn the seqs from the head up to the ceiling into an explicit loss.

    Return the changes of the log's rows of gaps, which belong into the batch that writes this state.
    """
    if ceiling <= s.head:
        return {}
    start, s.head = s.head + 1, ceiling
    if s.count:
        gap = Gap(start, ceiling, "cap")
        s.gaps = (*s.gaps, gap)
        return dict([gap.row(log_id)])
    owed: dict[bytes, bytes | None] = {keys.pair(log_id, gap.start): None for gap in s.gaps}
    s.earliest, s.evict_cap, s.gaps = ceiling + 1, ceiling, ()
    return owed
