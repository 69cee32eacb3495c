"""Counts of what clients hold of each process, in memory that all processes share: limits are those of the server.

Each process writes its own counts and reads those of the others. Two that count a key in the same moment may both grant
what is left.
"""

import mmap
from hashlib import blake2b
from typing import Final

from topics_service.api.access.quota import KeyLimits, Usage
from topics_service.statistics import WatchStatistics

_CONNECTIONS, _IN_FLIGHT, _NBYTES, _STREAMS = range(4)
_KINDS: Final = 4
_CELLS: Final = 1 << 22  # of 8 bytes, in all; those that were never touched take no memory
_TOTAL: Final = "\0total"


class Ledger:
    """The counts of `processes` by key. Made before the processes are: they inherit it.

    Keys are distinguished by a hash; the counts of two with the same one are added up.
    """

    def __init__(self, processes: int) -> None:
        self.processes = processes
        pages = _CELLS * 8 // processes // mmap.PAGESIZE
        self._region = pages * mmap.PAGESIZE // 8
        self._memory = mmap.mmap(-1, self._region * 8 * processes)
        self._cells = memoryview(self._memory).cast("q")

    def row(self, key_id: str) -> int:
        """The place of a key in the region of each process."""
        digest = int.from_bytes(blake2b(key_id.encode(errors="surrogatepass"), digest_size=8).digest())
        return digest % (self._region // _KINDS) * _KINDS

    def clear(self, process: int) -> None:
        """Forget the counts of a process that has died."""
        self._memory.madvise(mmap.MADV_REMOVE, process * self._region * 8, self._region * 8)

    def own(self, process: int, at: int) -> int:
        """The count of a process in a place."""
        return self._cells[process * self._region + at]

    def put(self, process: int, at: int, value: int) -> None:
        """Set it."""
        self._cells[process * self._region + at] = value

    def elsewhere(self, process: int, at: int) -> int:
        """The count of the other processes in a place."""
        cells, region = self._cells, self._region
        return sum(cells[other * region + at] for other in range(self.processes) if other != process)


class _Cell:
    """An attribute that is a count of the object's process in the ledger, or (`elsewhere`) of the others."""

    def __init__(self, kind: int, *, elsewhere: bool = False) -> None:
        self._kind = kind
        self._elsewhere = elsewhere

    def __get__(self, owner: "SharedUsage | SharedWatchStatistics", _: type) -> int:
        read = owner.ledger.elsewhere if self._elsewhere else owner.ledger.own
        return read(owner.process, owner.row + self._kind)

    def __set__(self, owner: "SharedUsage | SharedWatchStatistics", value: int) -> None:
        if not self._elsewhere:
            owner.ledger.put(owner.process, owner.row + self._kind, value)


class SharedUsage(Usage):
    """See Usage."""

    __slots__ = ("ledger", "process", "row")

    connections = _Cell(_CONNECTIONS)
    in_flight = _Cell(_IN_FLIGHT)
    nbytes = _Cell(_NBYTES)
    streams = _Cell(_STREAMS)
    connections_elsewhere = _Cell(_CONNECTIONS, elsewhere=True)
    in_flight_elsewhere = _Cell(_IN_FLIGHT, elsewhere=True)
    nbytes_elsewhere = _Cell(_NBYTES, elsewhere=True)
    streams_elsewhere = _Cell(_STREAMS, elsewhere=True)

    def __init__(self, ledger: Ledger, process: int, key_id: str, limits: KeyLimits) -> None:
        self.ledger = ledger
        self.process = process
        self.row = ledger.row(key_id)
        super().__init__(limits)


class SharedWatchStatistics(WatchStatistics):
    """See WatchStatistics."""

    connections = _Cell(_CONNECTIONS)
    sessions = _Cell(_STREAMS)
    connections_elsewhere = _Cell(_CONNECTIONS, elsewhere=True)
    sessions_elsewhere = _Cell(_STREAMS, elsewhere=True)

    def __init__(self, ledger: Ledger, process: int) -> None:
        self.ledger = ledger
        self.process = process
        self.row = ledger.row(_TOTAL)
        super().__init__()
