"""Batching of records, and the schedule of sends and retries.

No threads and no I/O: a producer calls it under its lock and carries out its decisions.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Final

from topics_client import retry_window
from topics_client.errors import TopicsError, UnavailableError
from topics_client.producer.batch import RECORD_OVERHEAD, Batch, Limits, Parts, TopicPartition, check_topic_partition
from topics_client.producer.delivery import Delivery, Outcome, Receipt
from topics_client.retry import Retry

# Rejections of a batch because of some of its records; _TOO_MANY depend on the server's configuration.
_TOO_MANY: Final = frozenset({"batch_too_large", "payload_too_large", "resource_exhausted"})
_TOO_LARGE: Final = _TOO_MANY | {"record_too_large"}
_SPLIT: Final = _TOO_LARGE | {"invalid_request"}


class _Lane:
    """The batches of one topic partition; the first may be in flight."""

    __slots__ = ("batches", "busy", "due", "pauses", "progress")

    def __init__(self, now: float) -> None:
        self.batches: deque[Batch] = deque()
        self.busy = False
        self.due = 0.0
        self.progress = now  # when the server last accepted or rejected one
        self.pauses: Iterator[float] | None = None  # while the first is being retried


class Batches:
    """All records without an outcome.

    A topic partition has one batch in flight at a time, which is retried under its key until it is stored or rejected:
    records keep their order, and none is stored twice. Meanwhile later records gather in few, large batches.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        name: str,
        retry: Retry,
        timeout: float,
        clock: Callable[[], float],
        jitter: Callable[[float], float] = lambda pause: random.uniform(0, pause),
    ) -> None:
        """`name`, a unique string, is the prefix of the idempotency keys. `timeout` is that of one append; times are in
        seconds."""
        self.limits = limits
        self.number = 0  # of the last opened batch
        self.buffered_bytes = 0
        self.room = limits.max_buffered_bytes  # records are accepted while fewer bytes are buffered; 0 if closed
        self.closed: str | None = None  # why
        self.in_flight = 0
        self.stirred = False  # True if a batch was scheduled since it was last reset
        self.trouble: TopicsError | None = None  # the last failure that is not a rejection; None after a success
        self.failures: list[tuple[Receipt, TopicsError]] = []  # to be taken by the sender
        self.delivered_records = self.failed_records = self.stored_batches = self.repeats = 0  # so far
        self._linger = limits.linger_ms / 1e3
        self._max_records = limits.max_batch_records
        self._max_bytes = limits.max_batch_bytes
        self._retry, self._timeout = retry, timeout
        self._clock, self._jitter = clock, jitter
        self._keys = map(f"{name}:{{}}".format, count(1))
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._open: dict[TopicPartition, Batch] = {}  # the last of a lane, while it accepts records
        self._due: list[tuple[float, int, TopicPartition]] = []  # a heap; an entry is valid if its lane's `due` matches
        self._ties = count()
        self._parts: dict[int, int] = {}  # parts of each batch without an outcome, by batch number, in order
        self._callbacks: list[Callable[[], None]] = []

    # ------------------------------------------------------------------- appending

    def add(self, topic: str, partition: int, data: bytes, parts: Parts | None = None) -> Delivery:
        """Add a record. Raises InvalidRequestError for an invalid topic name or partition number."""
        size = len(data) + RECORD_OVERHEAD
        if parts is not None:
            size += parts.size
        topic_partition = (topic, partition)
        batch = self._open.get(topic_partition)
        if batch is None or batch.nbytes + size > self._max_bytes:
            batch = self._opened(topic_partition)
        index = len(batch.data)
        batch.nbytes += size
        self.buffered_bytes += size
        if parts is not None:
            batch.parts[index] = parts
        batch.data.append(data)  # the first call here: a KeyboardInterrupt may follow it
        if index + 1 >= self._max_records:
            self._seal(batch)
        return Delivery(batch.receipt, index)

    @property
    def full(self) -> bool:
        """True if records must wait because the buffer is full. The last record accepted may exceed it."""
        return self.buffered_bytes >= self.room and not self.closed

    def close(self, why: str) -> None:
        """Stop accepting records."""
        self.room, self.closed = 0, self.closed or why

    def hurry(self) -> None:
        """Stop the lingering of batches that could be sent now."""
        for batch in [
            batch for topic_partition, batch in self._open.items() if self._lanes[topic_partition].batches[0] is batch
        ]:
            self._seal(batch)

    def flush(self) -> int:
        """Stop all lingering. Returns the number of the last batch."""
        for batch in list(self._open.values()):
            self._seal(batch)
        return self.number

    def settled(self, number: int) -> bool:
        """Return True if all batches up to this number have their outcomes."""
        return next(iter(self._parts), number + 1) > number

    def pending(self, number: int | None = None) -> int:
        """The number of records without an outcome, in all batches or those up to a number."""
        batches = (batch for lane in self._lanes.values() for batch in lane.batches)
        return sum(len(batch) for batch in batches if number is None or batch.number <= number)

    # --------------------------------------------------------------------- sending

    def wakes_at(self) -> float | None:
        """The time from which `take` returns batches; None until another event."""
        if self.in_flight >= self.limits.max_in_flight:
            return None
        while self._due:
            if self._counts(*self._due[0]):
                return self._due[0][0]
            heappop(self._due)
        return None

    def take(self) -> list[Batch]:
        """Return the batches to be sent now. Each must be passed to `stored` or `failed`."""
        now, taken = self._clock(), list[Batch]()
        while (at := self.wakes_at()) is not None and at <= now:
            _, _, topic_partition = heappop(self._due)
            lane = self._lanes[topic_partition]
            batch = lane.batches[0]
            lane.busy = True
            self.in_flight += 1
            if self._open.get(topic_partition) is batch:
                del self._open[topic_partition]
            taken.append(batch)
        return taken

    def stored(self, batch: Batch, first_seq: int) -> None:
        """Record that a taken batch is stored."""
        lane = self._returned(batch)
        lane.progress, lane.pauses = self._clock(), None
        self.trouble = None
        self.delivered_records += len(batch)
        self.stored_batches += 1
        self._settle(batch, first_seq)
        self._next(batch.topic_partition, lane)

    def failed(self, batch: Batch, error: TopicsError, lost_at: float | None = None) -> None:
        """Record that sending a taken batch failed. `lost_at` is the time it was sent, if it may be stored."""
        lane, now = self._returned(batch), self._clock()
        batch.lost_at = lost_at if batch.lost_at is None else batch.lost_at
        if isinstance(error, UnavailableError):
            self.trouble = error
            lane.pauses = lane.pauses or self._retry.pauses()
            pause = max(self._jitter(next(lane.pauses)), (error.retry_after_ms or 0) / 1e3)
            if now + pause <= max(batch.opened, lane.progress) + self._retry.seconds:
                self.repeats += 1
                self._schedule(batch.topic_partition, lane, now + pause)
                return
            self._fail(batch, error)
            # Batches that waited that long behind it fail without an attempt of their own, which may hang too.
            while lane.batches and lane.batches[0].opened < now - self._retry.seconds - self._timeout:
                self._fail(lane.batches[0], error)
        else:
            lane.progress, lane.pauses = now, None
            if self._is_split_for(batch, error):
                if error.reason in _TOO_MANY:
                    self._max_records = max(1, min(self._max_records, len(batch) // 2))
                self._split(batch, lane)
            else:
                self._fail(batch, error)
        self._next(batch.topic_partition, lane)

    def fail_all(self, error: TopicsError) -> None:
        """Fail every record without an outcome. Taken batches must not be returned afterwards."""
        for lane in list(self._lanes.values()):
            if lane.busy and lane.batches[0].lost_at is None:
                lane.batches[0].lost_at = self._clock()
            for batch in list(lane.batches):
                self._fail(batch, error)
        self._lanes.clear()
        self.in_flight = 0

    def take_callbacks(self) -> list[Callable[[], None]]:
        """Return the callbacks of outcomes since the last call, in order."""
        callbacks, self._callbacks = self._callbacks, []
        return callbacks

    def abandon(self, error: TopicsError) -> None:
        """Fail all records in the child of a fork, whose parent keeps them."""
        for lane in self._lanes.values():
            for batch in lane.batches:
                batch.receipt.abandon(error)

    # ------------------------------------------------------------------- internals

    def _opened(self, topic_partition: TopicPartition) -> Batch:
        """Open a new batch at the end of a lane."""
        lane, now = self._lanes.get(topic_partition), self._clock()
        if lane is None:
            check_topic_partition(topic_partition)
            lane = self._lanes[topic_partition] = _Lane(now)
        elif topic_partition in self._open:
            self._seal(self._open[topic_partition])
        if not lane.batches:
            self._schedule(topic_partition, lane, now + self._linger)
        self.number += 1
        batch = Batch(topic_partition, next(self._keys), self.number, Receipt(), now)
        self._parts[batch.number] = 1  # a KeyboardInterrupt can't separate these three lines
        self._open[topic_partition] = batch
        lane.batches.append(batch)
        return batch

    def _seal(self, batch: Batch) -> None:
        """Close an open batch to records, so that it need not linger."""
        del self._open[batch.topic_partition]
        lane = self._lanes[batch.topic_partition]
        if lane.batches[0] is batch:
            self._schedule(batch.topic_partition, lane, self._clock())

    def _schedule(self, topic_partition: TopicPartition, lane: _Lane, at: float) -> None:
        if len(self._due) > 1000 + 2 * len(self._lanes):  # most belong to batches that did not linger to the end
            self._due = sorted(entry for entry in self._due if self._counts(*entry))
        heappush(
            self._due, (at, next(self._ties), topic_partition)
        )  # as above: it stays scheduled until the next one is
        lane.due = at
        self.stirred = True

    def _counts(self, at: float, _: int, topic_partition: TopicPartition) -> bool:
        """Return True if an entry of the heap is the current schedule of its lane."""
        lane = self._lanes.get(topic_partition)
        return lane is not None and bool(lane.batches) and not lane.busy and lane.due == at

    def _returned(self, batch: Batch) -> _Lane:
        self.in_flight -= 1
        lane = self._lanes[batch.topic_partition]
        lane.busy = False
        return lane

    def _next(self, topic_partition: TopicPartition, lane: _Lane) -> None:
        """Continue with the batch that is now the first."""
        if not lane.batches:
            del self._lanes[topic_partition]
            return
        first = lane.batches[0]
        now = self._clock()
        self._schedule(
            topic_partition,
            lane,
            max(now, first.opened + self._linger) if self._open.get(topic_partition) is first else now,
        )

    def _settle(self, batch: Batch, outcome: Outcome) -> None:
        """Set the outcome of the first batch of a lane."""
        lane = self._lanes[batch.topic_partition]
        lane.batches.popleft()
        if self._open.get(batch.topic_partition) is batch:
            del self._open[batch.topic_partition]
        self.buffered_bytes -= batch.nbytes
        self._callbacks += batch.settle(outcome)
        self._parts[batch.number] -= 1
        if not self._parts[batch.number]:
            del self._parts[batch.number]

    def _fail(self, batch: Batch, error: TopicsError) -> None:
        topic, partition = batch.topic_partition
        lost = batch.lost_at is not None and not retry_window.proves_absence(error)
        detail = {"topic": topic, "partition": str(partition), "outcome": "unknown" if lost else "not_stored"}
        fate = "maybe stored" if lost else "not stored"
        text = f"{batch}, {fate}: {error.message}"
        error = type(error)(error.reason, text, error.detail | detail, error.retry_after_ms)
        self.failed_records += len(batch)
        self.failures.append((batch.receipt, error))
        self._settle(batch, error)

    def _is_split_for(self, batch: Batch, error: TopicsError) -> bool:
        """Return True if it was rejected because of some of its records, and none of it can be stored."""
        if len(batch) <= 1 or error.reason not in _SPLIT:
            return False
        # The errors in _TOO_LARGE may be new, after an attempt that was stored.
        return batch.lost_at is None or error.reason not in _TOO_LARGE

    def _split(self, batch: Batch, lane: _Lane) -> None:
        """Replace it by two halves with keys of their own, so that in the end only the bad records fail."""
        lane.batches.popleft()
        middle = len(batch) // 2
        for begin, end in ((middle, len(batch)), (0, middle)):
            lane.batches.appendleft(batch.part(begin, end, next(self._keys)))
        self._parts[batch.number] += 1
