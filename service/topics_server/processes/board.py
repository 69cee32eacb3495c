"""Figures of all shards in memory that the processes share: each writes those of its own shards, and any reads all."""

import mmap
import time
from collections.abc import Callable
from typing import Final

from topics_server.core import Core
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.scheduling.pressure import Shortage
from topics_service.api.topics import TopicsApi
from topics_service.engine.engine import Engine
from topics_service.engine.limits import Elsewhere
from topics_service.engine.model import ReadyState
from topics_shards.health import together

_REASONS: Final = ("", "not_ready", "shutting_down", "read_only")
_AWAY: Final = 0  # a row that was never written
_MILLION: Final = 1_000_000
_MEETING_SECONDS: Final = 0.0005  # between two looks
_LIMIT: Final = "min_free_bytes"

# Positions in the row of a shard.
_STATE, _PROGRESS, _TOPICS, _FREE, _SHORT, _PARTITIONS, _ROUTERS, _GROUPS, _NBYTES, _TAKEN, _MEETING = range(11)
_FIELDS: Final = 16  # of 8 bytes: rows of different processes are in different lines of the cache


class Board:
    """The figures of `count` shards. Made before the processes are: they inherit it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._values = memoryview(mmap.mmap(-1, (count or 1) * _FIELDS * 8)).cast("q")

    def write(self, shard: int, api: TopicsApi) -> None:
        """Write the figures of a shard of this process."""
        at, values, state, shortage = shard * _FIELDS, self._values, api.ready(), api.shortage()
        values[at + _PROGRESS] = int(state.replay_progress * _MILLION)
        values[at + _TOPICS] = state.topics
        values[at + _FREE] = 0 if shortage is None else shortage.free_bytes
        values[at + _SHORT] = 0 if shortage is None else shortage.max
        values[at + _STATE] = 1 + _REASONS.index(state.reason)

    def measure(self, shard: int, engine: Engine) -> None:
        """Write how much is in a shard of this process."""
        at, values = shard * _FIELDS, self._values
        values[at + _TOPICS] = len(engine.catalog)
        values[at + _PARTITIONS] = engine.catalog.partitions
        values[at + _ROUTERS] = len(engine.routers)
        values[at + _GROUPS] = len(engine.groups)
        values[at + _NBYTES] = engine.writer.total_bytes

    def put_bytes(self, shard: int, nbytes: int) -> None:
        """Write the bytes of the records in a shard of this process."""
        self._values[shard * _FIELDS + _NBYTES] = nbytes

    def take(self, shard: int, nbytes: int) -> None:
        """Write the bytes that a shard of this process is still to write to the disk."""
        self._values[shard * _FIELDS + _TAKEN] = nbytes

    def elsewhere(self, field: int, shard: int) -> int:
        """The sum of a field over all shards but one."""
        return sum(self._values[field::_FIELDS].tolist()) - self._values[shard * _FIELDS + field]

    def leave(self, shard: int) -> None:
        """Note that no process serves a shard at present."""
        self._values[shard * _FIELDS + _STATE] = _AWAY

    def meet(self, process: int, processes: int, number: int, seconds: float) -> bool:
        """Block until all processes are here with the same number, which is not used again; False if that takes too
        long. Some may have gone on, should another one return False."""
        values, deadline = self._values, time.monotonic() + seconds
        values[process * _FIELDS + _MEETING] = number  # a process has a shard at least, so a row
        while True:
            there = values[_MEETING : processes * _FIELDS : _FIELDS].tolist()
            if all(each == number for each in there):
                return True
            if -number in there or time.monotonic() > deadline:
                values[process * _FIELDS + _MEETING] = -number
                return False
            time.sleep(_MEETING_SECONDS)

    def are_met(self, process: int, processes: int, number: int) -> bool:
        """Return whether all processes but one are in `meet` with this number, or some have given up."""
        there = self._values[_MEETING : processes * _FIELDS : _FIELDS].tolist()
        del there[process]
        return -number in there or all(each == number for each in there)

    def ready(self, shard: int) -> ReadyState:
        """The readiness of a shard."""
        at, values = shard * _FIELDS, self._values
        state = values[at + _STATE]
        reason = _REASONS[state - 1] if state != _AWAY else _REASONS[1]
        progress = values[at + _PROGRESS] / _MILLION
        return ReadyState(ready=not reason, reason=reason, topics=values[at + _TOPICS], replay_progress=progress)

    def shortage(self, shard: int) -> Shortage | None:
        """The cause for which a shard refuses all writes."""
        at, values = shard * _FIELDS, self._values
        return Shortage(_LIMIT, values[at + _SHORT], values[at + _FREE]) if values[at + _SHORT] else None


class ShardElsewhere(Elsewhere):
    """The figures of all shards but one, from the board."""

    def __init__(self, board: Board, shard: int) -> None:
        self._board = board
        self._shard = shard

    @property
    def partitions(self) -> int:  # type: ignore[override]  # a number that is counted now
        """See Elsewhere, as for the others."""
        return self._board.elsewhere(_PARTITIONS, self._shard)

    @property
    def routers(self) -> int:  # type: ignore[override]
        return self._board.elsewhere(_ROUTERS, self._shard)

    @property
    def groups(self) -> int:  # type: ignore[override]
        return self._board.elsewhere(_GROUPS, self._shard)

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return self._board.elsewhere(_NBYTES, self._shard)

    def tell_bytes(self, nbytes: int) -> None:
        """See Elsewhere."""
        self._board.put_bytes(self._shard, nbytes)

    @property
    def taken(self) -> int:  # type: ignore[override]
        return self._board.elsewhere(_TAKEN, self._shard)


class CountingCommit(GroupCommit):
    """Writes how much is in the shard before callers learn that their writes are durable."""

    on_published: Callable[[], None] = staticmethod(lambda: None)

    def publish(self, upto: int) -> None:
        """See Commit."""
        super().publish(upto)
        self.on_published()


class BoardHealth:
    """The state of all shards, those of this process as they are now; see `Health`."""

    def __init__(self, board: Board, cores: dict[int, Core]) -> None:
        self._board = board
        self._cores = cores

    def ready(self) -> ReadyState:
        """See Health."""
        board, cores = self._board, self._cores
        shards = range(board.count)
        return together([cores[each].api.ready() if each in cores else board.ready(each) for each in shards])

    def shortage(self) -> Shortage | None:
        """See Health."""
        board, cores = self._board, self._cores
        each = (cores[n].api.shortage() if n in cores else board.shortage(n) for n in range(board.count))
        return next((found for found in each if found is not None), None)

    def write(self) -> None:
        """Write the figures of all shards of this process."""
        for shard, core in self._cores.items():
            self._board.write(shard, core.api)
            self._board.measure(shard, core.engine)
            self._board.take(shard, core.taken())
