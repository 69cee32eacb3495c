"""Room on the data directory's disk: how much of it writes may still take, and what makes more when it is short.

What is measured is not what may be written. A byte of the write-ahead log is written once more when the memtables are,
before the log goes, and a compaction needs room for its output before its input goes. All of that must fit, for a
database that meets a full disk takes no more writes; so it counts as taken already.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from topics_service.app.disk import FreeSpace
from topics_service.statistics import SpaceStatistics
from topics_service.storage import properties
from topics_service.storage.reclaim import Reclaim
from topics_service.storage.rocks import RocksStore

log = logging.getLogger("topics.space")

_TICK_SECONDS: Final = 0.02
_CALM_SECONDS: Final = 0.2  # of a disk with room: writes count in between, so only other programs go unseen so long
_AGAIN_SECONDS: Final = 0.25
_RETRY_SECONDS: Final = 1.0
_NEAR_BYTES: Final = 512 << 20  # so much above what is refused nothing has to be looked at
_LEAST_FLUSH_BYTES: Final = 1 << 20
_SPARE_BYTES: Final = 2 << 20


class DiskSpace:
    """`reserve` is TOPICS_MIN_FREE_BYTES; `written` the bytes that were handed to the store since it was opened."""

    def __init__(
        self,
        disk: FreeSpace,
        store: RocksStore,
        reclaim: Reclaim,
        statistics: SpaceStatistics,
        *,
        reserve: int,
        written: Callable[[], int],
        is_writable: Callable[[], bool] = lambda: True,
    ) -> None:
        self._disk = disk
        self._store = store
        self._reclaim = reclaim
        self._statistics = statistics
        self._reserve = reserve
        self._written = written
        self._is_writable = is_writable
        self._measured_at = 0
        self._flushed_at = 0
        self._compaction = 0  # what the next compaction may need
        self._next_round = 0.0
        self._refused = 0
        self._short_since: float | None = None
        self._is_told = False

    def left(self) -> int:
        """The free bytes, less what is written of what was taken in and what the next compaction needs beyond the
        reserve. Cheap: it is asked for with every write."""
        written = self._written()
        unflushed = min(written - self._flushed_at, self._store.most_unflushed + written - self._measured_at)
        taken = written - self._measured_at + 2 * unflushed
        return self._disk.free_bytes - taken - max(0, self._compaction - self._reserve)

    def measure(self) -> None:
        """Look at the disk. Raises OSError, as `FreeSpace.measure` does."""
        written = self._written()
        self._disk.measure()
        self._measured_at = written

    async def keep(self) -> None:
        """Look at the disk, often where it is nearly full, and make room when it is short.

        Ends when cancelled, or when the server is read-only: then nothing is to be written any more. What fails is
        logged, and tried again.
        """
        loop = asyncio.get_running_loop()
        while self._is_writable():
            is_near = self.left() - self._reserve <= _NEAR_BYTES
            await asyncio.sleep(_TICK_SECONDS if is_near else _CALM_SECONDS)
            try:
                self.measure()
            except OSError:  # who looks after the directory tells of it
                continue
            try:
                await self._look(loop.time())
            except Exception as error:  # rocksdict raises bare Exception
                log.warning("can't make room on the disk: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _look(self, now: float) -> None:
        spare = self.left() - self._reserve
        if spare > _NEAR_BYTES:
            self._compaction = 0
            self._tell(now, short=False)
            return
        self._compaction = properties.compaction_bytes(self._store.families)
        spare = self.left() - self._reserve
        refused, self._refused = self._refused, self._statistics.refused
        is_short = spare < 0 or self._refused > refused
        self._tell(now, short=is_short)
        unflushed = self._written() - self._flushed_at
        if not is_short:  # then in time for it not to come to that
            is_low = spare < self._reserve // 4 and unflushed >= max(_LEAST_FLUSH_BYTES, self._reserve // 16)
            if not is_low and not (spare < self._reserve and self._reclaim.is_due):
                return
        if now >= self._next_round and self._can_flush(unflushed):
            await asyncio.to_thread(self._make_room)
            if self.left() < self._reserve:
                pause = _AGAIN_SECONDS if self._reclaim.is_due else _RETRY_SECONDS
                self._next_round = asyncio.get_running_loop().time() + pause

    def _make_room(self) -> None:
        written = self._written()
        if self._reclaim.run(self._free, self._is_enough):
            self._flushed_at = written
            self._statistics.rounds += 1
        self.measure()

    def _can_flush(self, unflushed: int) -> bool:
        """Return whether the memtables fit: if not, another program has filled the disk, and has to make room."""
        return self._disk.free_bytes > min(unflushed, self._store.most_unflushed) + _SPARE_BYTES

    def _free(self) -> int:
        self.measure()
        return self._disk.free_bytes

    def _is_enough(self) -> bool:
        self.measure()
        self._compaction = properties.compaction_bytes(self._store.families)
        return self._disk.free_bytes > self._reserve * 4 + self._compaction

    def _tell(self, now: float, *, short: bool) -> None:
        """Say so, but not of the moments in which a burst waits for a flush."""
        self._statistics.short = short
        if short:
            self._short_since = now if self._short_since is None else self._short_since
            if not self._is_told and now - self._short_since > _RETRY_SECONDS:
                self._is_told = True
                log.warning("the disk has %d bytes left: writes are refused until there is room", self._disk.free_bytes)
        else:
            self._short_since = None
            if self._is_told:
                self._is_told = False
                log.info("the disk has room again")
