"""Space on the data directory's disk: the share that writes may still take, and reclaiming it when it is short.

The measured free space is not all writable. A byte of the write-ahead log is written once more when the memtables are,
before the log goes, and a compaction needs room for its output before its input goes. All of that must fit: after a
full disk the database takes no writes; so it counts as taken already.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from topics_client.units import human_size
from topics_net import background
from topics_server.disk import FreeSpace
from topics_service.engine.limits import NOWHERE, Elsewhere
from topics_service.statistics import SpaceStatistics
from topics_service.storage import properties
from topics_service.storage.reclaim import Reclaim
from topics_service.storage.rocks import RocksStore

log = logging.getLogger("topics.space")

_TICK_SECONDS: Final = 0.02
_CALM_SECONDS: Final = 0.2  # of a disk with room: writes count in between, so only other programs go unseen so long
_AGAIN_SECONDS: Final = 0.25
_RETRY_SECONDS: Final = 1.0
_NEWS_SECONDS: Final = 1.0
_SETTLED_SECONDS: Final = 10.0
_AMPLE: Final = 8  # this multiple of the reserve is ample space
_NEAR_BYTES: Final = 512 << 20  # this far above the limit nothing has to be checked
_MIN_FLUSH_BYTES: Final = 1 << 20
_SPARE_BYTES: Final = 2 << 20


class DiskSpace:
    """`reserve` is TOPICS_MIN_FREE_BYTES; `written` the bytes that were handed to the store since it was opened.
    `elsewhere` are the other stores on the disk."""

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
        elsewhere: Elsewhere = NOWHERE,
    ) -> None:
        self._disk = disk
        self._store = store
        self._reclaim = reclaim
        self._statistics = statistics
        self._reserve = reserve
        self._written = written
        self._is_writable = is_writable
        self._elsewhere = elsewhere
        self._measured_at = 0
        self._flushed_at = 0
        self._compaction = 0  # need of the next compaction
        self._next_round = 0.0
        self._refused = 0
        self._news = Crossings()

    def left(self) -> int:
        """The free bytes, less accepted writes still to be written, and the need of the next compaction beyond the
        reserve. Cheap: it is asked for with every write.
        """
        return self._disk.free_bytes - self.taken() - self._elsewhere.taken

    def taken(self) -> int:
        """The bytes that this store is still to write, which are as good as gone for others on the disk."""
        written = self._written()
        unflushed = min(written - self._flushed_at, self._store.max_unflushed + written - self._measured_at)
        return written - self._measured_at + 2 * unflushed + max(0, self._compaction - self._reserve)

    def measure(self) -> None:
        """Look at the disk. Raises OSError, as `FreeSpace.measure` does."""
        written = self._written()
        self._disk.measure()
        self._measured_at = written

    async def keep(self) -> None:
        """Look at the disk, often where it is nearly full, and make room when it is short.

        Ends when cancelled, or when the server is read-only. Errors are logged and retried.
        """
        loop = asyncio.get_running_loop()
        while self._is_writable():
            is_near = self.left() - self._reserve <= _NEAR_BYTES
            await asyncio.sleep(_TICK_SECONDS if is_near else _CALM_SECONDS)
            try:
                self.measure()
            except OSError:  # the check of the directory reports it
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
            self._report(now, short=False)
            return
        self._compaction = properties.compaction_bytes(self._store.merged)
        spare = self.left() - self._reserve
        refused, self._refused = self._refused, self._statistics.refused
        is_short = spare < 0 or self._refused > refused
        self._report(now, short=is_short)
        unflushed = self._written() - self._flushed_at
        if not is_short:  # then in time for it not to come to that
            is_low = spare < self._reserve // 4 and unflushed >= max(_MIN_FLUSH_BYTES, self._reserve // 16)
            if not is_low and not (spare < self._reserve and self._reclaim.is_due):
                return
        if now >= self._next_round and self._can_flush(unflushed):
            await self._room_made()
            if self.left() < self._reserve:
                pause = _AGAIN_SECONDS if self._reclaim.is_due else _RETRY_SECONDS
                self._next_round = asyncio.get_running_loop().time() + pause

    async def _room_made(self) -> None:
        """Make room in a thread. That may take long, and the log should explain the refused writes."""
        making = background.start(asyncio.to_thread(self._make_room))
        try:
            while not (await asyncio.wait((making,), timeout=_RETRY_SECONDS))[0]:
                self._report(asyncio.get_running_loop().time(), short=self.left() < self._reserve)
            making.result()
        except asyncio.CancelledError:
            making.cancel()
            raise

    def _make_room(self) -> None:
        written = self._written()
        if self._reclaim.run(self._free, self._is_enough):
            self._flushed_at = written
            self._statistics.rounds += 1
        self.measure()

    def _can_flush(self, unflushed: int) -> bool:
        """Return whether the memtables fit: if not, another program has filled the disk, and has to make room."""
        return self._disk.free_bytes > min(unflushed, self._store.max_unflushed) + _SPARE_BYTES

    def _free(self) -> int:
        self.measure()
        return self._disk.free_bytes

    def _is_enough(self) -> bool:
        self.measure()
        self._compaction = properties.compaction_bytes(self._store.merged)
        return self._disk.free_bytes > self._reserve * 4 + self._compaction

    def _report(self, now: float, *, short: bool) -> None:
        """Say so where writes begin to be refused, and where they are taken again."""
        before = self._news.is_reported
        self._news.look(now, short=short, ample=self.left() - self._reserve >= self._reserve // _AMPLE)
        self._statistics.short = short or self._news.is_reported
        if self._news.is_reported == before:
            return
        free, reserve = human_size(max(0, self._disk.free_bytes)), human_size(self._reserve)
        if self._news.is_reported:
            log.warning(
                "writes are refused until there is room: the disk has %s left, and TOPICS_MIN_FREE_BYTES keeps %s free "
                "(reads and deletes continue)",
                free,
                reserve,
            )
        else:
            log.warning("writes are taken again: the disk has %s left, TOPICS_MIN_FREE_BYTES is %s", free, reserve)


class Crossings:
    """Logs when the disk becomes short of space, and when it no longer is. Pure.

    The moments in which a burst waits for a flush are no news, so it has to be short for a second; but also when a
    client is refused now and then. It is over a second later where there is ample room, else after ten.
    """

    def __init__(self) -> None:
        self.is_reported = False
        """True if the last report says that the disk is short."""
        self._since: float | None = None
        self._last = 0.0

    def look(self, now: float, *, short: bool, ample: bool) -> None:
        """Update with the state at a time, in seconds."""
        if short:
            if self._since is None or now - self._last > _SETTLED_SECONDS:
                self._since = now
            self._last = now
            self.is_reported = self.is_reported or now - self._since > _NEWS_SECONDS
        elif self.is_reported and now - self._last > (_NEWS_SECONDS if ample else _SETTLED_SECONDS):
            self.is_reported, self._since = False, None
