"""Group commit: one thread turns everything written so far durable and wakes the calls that wait for it."""

import asyncio
import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from topics_net import background
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.writer import Span
from topics_service.statistics import Histogram
from topics_service.storage.store import StoreLostError

log = logging.getLogger("topics.commit")

_LATENCY_BOUNDS_US = (50, 100, 250, 500, 1_000, 5_000, 10_000, 50_000, 100_000)
_GROUP_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(slots=True)
class CommitStatistics:
    """The fsyncs that succeeded: how long each took (us) and how many writes it covered. And its waiters."""

    latency: Histogram = field(default_factory=lambda: Histogram(_LATENCY_BOUNDS_US))
    group: Histogram = field(default_factory=lambda: Histogram(_GROUP_BOUNDS))
    waiting: int = 0
    waiting_peak: int = 0


class Commit(ABC):
    """The calls that wait until their writes are durable: what is the same wherever that is. Belongs to the loop.

    A subclass calls `publish` and `fail` on the loop. `on_synced(ticket)` and `on_failed(error)` run before any waiter
    is woken, so that durable writes are visible before they are acknowledged.
    """

    is_replicated = False
    """True where a durable write outlives the machine."""

    def __init__(self, on_synced: Callable[[int], None], on_failed: Callable[[BaseException], None]) -> None:
        self.statistics = CommitStatistics()
        self.span: Span | None = None
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._wanted = 0  # of a subclass that is asked only for what it was not asked for before
        self._published = 0
        self._failure: BaseException | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    @abstractmethod
    def want(self, ticket: int) -> None:
        """Request that `ticket` become durable soon, without waiting."""

    @abstractmethod
    def stop(self) -> None:
        """Make pending writes durable and end. Blocks; call it once, when no calls are left."""

    def covers(self, ticket: int) -> bool:
        """True if `ticket` is durable and visible, so that `wait` would return at once."""
        return ticket <= self._published

    async def wait(self, ticket: int) -> None:
        """Return once `ticket` is durable and visible. Cancelling the wait does not undo the write.

        Raises TopicsError when that failed, `internal` or, if another server has the data now, `not_ready`: the write
        may or may not survive, it is not acknowledged.
        """
        if ticket <= self._published:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        if self._failure is None:
            self._waiters.append((ticket, waiter))
            self._count_waiters()
            if ticket > self._wanted:
                self.want(ticket)
        else:
            waiter.set_exception(_failed(self._failure))
        if self.span is None:
            await waiter
        else:
            with self.span("topics.commit.wait", {}):
                await waiter

    async def settle(self, ticket: int) -> None:
        """Wait at the end of the server, as `wait` does; a subclass may give up at some time. Raises TopicsError."""
        await self.wait(ticket)

    def publish(self, upto: int) -> None:
        """Make everything up to a ticket, which is durable, visible, and wake its waiters."""
        self._on_synced(upto)
        self._published = upto
        waiting = []
        for ticket, waiter in self._waiters:
            if ticket > upto:
                waiting.append((ticket, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._waiters = waiting
        self._count_waiters()

    def fail(self, error: BaseException) -> None:
        """Note that nothing becomes durable any more, and fail every waiter."""
        self._on_failed(error)
        self.refuse(error)

    def refuse(self, error: BaseException) -> None:
        """Fail every waiter, and those that come."""
        self._failure = error
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(_failed(error))
        self._waiters = []
        self._count_waiters()

    def post(self, callback: Callable[..., None], argument: object) -> None:
        """Call something on the loop, from another thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: no waiters are left
            self._loop.call_soon_threadsafe(callback, argument)

    def _count_waiters(self) -> None:
        waiting = self.statistics.waiting = len(self._waiters)
        if waiting > self.statistics.waiting_peak:
            self.statistics.waiting_peak = waiting


class GroupCommit(Commit):
    """Shares each WAL fsync between all writes that came before it; there is no window to tune.

    `sync` blocks until everything written is durable and is called on the commit thread (it must release the GIL);
    `written` gives the newest ticket handed to the store. After the first failure nothing is synced again: a failed
    fsync may have dropped the pages it was asked to write.
    """

    def __init__(
        self,
        sync: Callable[[], None],
        written: Callable[[], int],
        on_synced: Callable[[int], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(on_synced, on_failed)
        self._sync = sync
        self._written = written
        self._condition = threading.Condition()
        self._is_waking = False
        self._stopping = False
        self._durable = 0  # by the commit thread; published by the loop, a moment later
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
        self._thread.start()

    @classmethod
    def for_engine(cls, engine: Engine, sync: Callable[[], None] | None = None) -> Self:
        """Return the group commit of the engine's writes, which asks it for its fsyncs from now on.

        `sync` stands in for that of the engine's store.
        """
        writer = engine.writer
        commit = cls(sync or writer.store.sync, lambda: writer.written, engine.synced, engine.sync_failed)
        writer.request_sync = commit.want
        commit.span = writer.span
        return commit

    def want(self, ticket: int) -> None:
        """See Commit. The thread is woken at the end of the loop's turn: what other requests write in it shares the
        fsync."""
        if ticket > self._wanted:
            self._wanted = ticket
            if not self._is_waking:
                self._is_waking = True
                background.call_soon(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        with self._condition:
            self._condition.notify()

    def stop(self) -> None:
        """See Commit."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                while self._wanted <= self._durable and not self._stopping:
                    self._condition.wait()
                if self._wanted <= self._durable:
                    return
            upto = self._written()
            began = time.perf_counter_ns()
            try:
                self._sync()
            except BaseException as error:
                log.critical("fsync failed, the server is read-only from now on: %s", error)
                self.post(self.fail, error)
                return
            self.statistics.latency.observe((time.perf_counter_ns() - began) // 1000)
            self.statistics.group.observe(upto - self._durable)
            self._durable = upto
            self.post(self.publish, upto)


def _failed(error: BaseException) -> TopicsError:
    if isinstance(error, StoreLostError):
        return TopicsError(Reason.NOT_READY, "another server has the data now: the write may be there or not")
    return TopicsError(Reason.INTERNAL, "the write could not be made durable; the server's log says why")
