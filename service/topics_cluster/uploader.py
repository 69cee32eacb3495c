"""The thread that makes the objects of a shard's log in the object store, for the owner of an epoch."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from topics_cluster import objects
from topics_cluster.bucket import Bucket, BucketError
from topics_cluster.log import Appender, Position, Put
from topics_cluster.objects import Row
from topics_service.statistics import Histogram
from topics_service.storage.store import StoreError, StoreLostError

log = logging.getLogger("topics.cluster")

_FIRST_RETRY_SECONDS: Final = 0.02
_LAST_RETRY_SECONDS: Final = 0.25
_ATTEMPT_SECONDS: Final = 5.0
_SLOWEST_BYTES: Final = 1 << 20  # a second, of a store that is not taken for dead
_LATENCY_BOUNDS_US = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 5_000_000)


class FencedError(StoreLostError):
    """Another node owns the shard: what this one has not acknowledged is not in the log."""


@dataclass(slots=True)
class UploadStatistics:
    """Objects that were made: how long each took (us), their number and bytes; and attempts that failed."""

    latency: Histogram = field(default_factory=lambda: Histogram(_LATENCY_BOUNDS_US))
    objects: int = 0
    bytes: int = 0
    retries: int = 0


class Uploader:
    """Makes the objects of one epoch, several at once, and tries each until it is there or another owner is met.

    `on_acknowledged(ticket)` and `on_failed(error)` are called on the thread, the latter once, with a FencedError or
    an unexpected error; nothing is acknowledged after it.
    """

    def __init__(
        self,
        bucket: Bucket,
        shard: int,
        position: Position,
        nonce: bytes,
        *,
        version: int = 1,
        window: int = 4,
        linger: float = 0.0,
    ) -> None:
        """Start the thread. `position` is that behind the epoch's fence; for the rest see Appender."""
        self.statistics = UploadStatistics()
        self.on_acknowledged: Callable[[int], None] = lambda _ticket: None
        self.on_failed: Callable[[Exception], None] = lambda _error: None
        self.position = position
        """The end of what is acknowledged."""
        self.position_bytes = position.pack()
        self.failure: Exception | None = None
        self._bucket = bucket
        self._appender = Appender(
            shard, position.epoch, position.number, nonce, version=version, window=window, linger=linger
        )
        self._added: deque[tuple[int, Sequence[Row]]] = deque()
        self.add: Callable[[tuple[int, Sequence[Row]]], None] = self._added.append
        """Takes a batch, in order of tickets, which grow by one. `wake` has to follow. For any thread."""
        self.unacknowledged_bytes = 0
        """The bytes of batches that are not acknowledged, as far as the thread has seen them."""
        self._changed = threading.Condition()
        self._is_waking = False
        self._stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_complaint = float("-inf")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="log-uploader", daemon=True)
        self._thread.start()

    @property
    def shard(self) -> int:
        """The number of the shard."""
        return self._appender.shard

    @property
    def next(self) -> int:
        """The number of the next object, whose PUT has not begun; also for other threads."""
        return self._appender.next

    def wake(self) -> None:
        """Look for batches, soon."""
        if not self._is_waking:
            self._is_waking = True
            self._call(self._begin)

    def hurry(self) -> None:
        """Begin each object at once from now on, for an epoch that ends when all of it is there."""
        self._appender.hurries = True
        self.wake()

    def waiting_seconds(self) -> float:
        """The time for which the oldest object that is not acknowledged has been under way; 0 if there is none."""
        began = self._appender.waiting_since
        return 0.0 if began is None else max(0.0, self._loop.time() - began)

    def wait(self, ticket: int, seconds: float) -> None:
        """Block until a ticket is acknowledged. Raises StoreError if that fails, is stopped or takes longer than
        `seconds`. Not for the uploader's own thread."""
        self.wake()
        with self._changed:
            self._changed.wait_for(lambda: self.position.ticket >= ticket or self._is_over, seconds)
            if self.position.ticket >= ticket:
                return
        self.check()
        why = "the upload was stopped" if self._stopping else f"no answer for {seconds:g} s"
        raise StoreError(f"the log is not in the object store: {why}")

    def check(self) -> None:
        """Raise FencedError when another node owns the shard, StoreLostError when uploads failed otherwise."""
        failure = self.failure
        if isinstance(failure, FencedError):
            raise FencedError(str(failure))
        if failure is not None:
            raise StoreLostError(f"the log can't be written: {failure}") from failure

    def stop(self) -> None:
        """End the thread at once: what is under way may or may not be made. Calls of `wait` fail."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._call(self._loop.stop)
        self._thread.join()

    @property
    def _is_over(self) -> bool:
        return self._stopping or self.failure is not None

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            assert self._is_over, "the loop is closed at the end only"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            for task in self._tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _begin(self) -> None:
        """Begin all objects that may begin, and look again when a further one may."""
        self._is_waking = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while not self._is_over:
            while self._added:
                ticket, rows = self._added.popleft()
                parts = objects.batch_parts(ticket, rows)
                self._appender.add(ticket, parts, sum(map(len, parts)))
            self.unacknowledged_bytes = self._appender.unacknowledged_bytes
            put = self._appender.begin(self._loop.time())
            if put is None:
                at = self._appender.begins_at
                self._timer = None if at is None else self._loop.call_at(at, self._begin)
                return
            task = self._loop.create_task(self._put(put))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _put(self, put: Put) -> None:
        began = self._loop.time()
        try:
            await self._make(put)
        except Exception as error:
            self._fail(error)
            return
        now = self._loop.time()
        self.statistics.latency.observe((now - began) * 1e6)
        self.statistics.objects += 1
        self.statistics.bytes += put.nbytes
        ticket = self._appender.created(put.number, now)
        if ticket is not None:
            with self._changed:
                self.position = Position(self.position.epoch, self._appender.oldest, ticket)
                self.position_bytes = self.position.pack()
                self._changed.notify_all()
            self.on_acknowledged(ticket)
        self._begin()

    async def _make(self, put: Put) -> None:
        """Return once the object is there. Raises FencedError if another one is."""
        delay = _FIRST_RETRY_SECONDS
        while True:
            try:
                async with asyncio.timeout(_ATTEMPT_SECONDS + put.nbytes / _SLOWEST_BYTES):
                    if await self._bucket.create(put.name, put.parts):
                        return
                    found = await self._bucket.get(put.name)
            except (BucketError, TimeoutError) as error:
                self._complain(put, error)
            else:
                verdict = self._appender.exists(put.number, found)
                if verdict == "ours":
                    return
                if verdict == "fenced":
                    raise FencedError(f"another node owns shard {self.shard}: the object {put.name} is not this node's")
            self.statistics.retries += 1
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LAST_RETRY_SECONDS)

    def _complain(self, put: Put, error: Exception) -> None:
        now = self._loop.time()
        if now - self._last_complaint >= 1.0:
            self._last_complaint = now
            log.warning("can't make the object %s, trying again: %s", put.name, str(error) or "no answer in time")

    def _fail(self, error: Exception) -> None:
        with self._changed:
            if self._is_over:
                return
            self._appender.fenced = True
            self.failure = error
            self._changed.notify_all()
        log.error("shard %d is read-only: %s", self.shard, error)
        self.on_failed(error)
