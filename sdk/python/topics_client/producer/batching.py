"""Records gathered into batches, and when each batch is to be sent, for the first time or again.

No threads and no I/O: a producer calls it under its lock and does what it says.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Final

from topics_client import retry_window
from topics_client.errors import TopicsError, UnavailableError
from topics_client.producer.batch import RECORD_OVERHEAD, Batch, Limits, Parts, Place, check_place
from topics_client.producer.delivery import Delivery, Outcome, Receipt
from topics_client.retry import Retry

# Refusals of a batch for the sake of some of its records, and those that hang on how the server is configured.
_TOO_MANY: Final = frozenset({"batch_too_large", "payload_too_large", "resource_exhausted"})
_TOO_LARGE: Final = _TOO_MANY | {"record_too_large"}
_SPLIT: Final = _TOO_LARGE | {"invalid_request"}


class _Lane:
    """The batches of one topic partition; the first may be under way."""

    __slots__ = ("batches", "busy", "due", "pauses", "progress")

    def __init__(self, now: float) -> None:
        self.batches: deque[Batch] = deque()
        self.busy = False
        self.due = 0.0
        self.progress = now  # when the server last took or refused one
        self.pauses: Iterator[float] | None = None  # while the first is being repeated


class Batches:
    """All records without an outcome.

    A topic partition has one batch under way at a time, which is repeated under its key until it is stored or refused:
    so the records keep their order, and none is there twice. Meanwhile those behind gather, in ever fewer batches.
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
        """`name`, unlike that of any other, begins the keys. `timeout` is that of one append; times are in seconds."""
        self.limits = limits
        self.number = 0  # of the last batch that was opened
        self.buffered_bytes = 0
        self.room = limits.max_buffered_bytes  # records are to be added while there are fewer bytes; 0: it is closed
        self.closed: str | None = None  # why
        self.in_flight = 0
        self.stirred = False  # whether a batch was scheduled since this was last set to False
        self.trouble: TopicsError | None = None  # the last failure that is no refusal; None once one was stored
        self.failures: list[tuple[Receipt, TopicsError]] = []  # for the sender to take out
        self.delivered_records = self.failed_records = self.stored_batches = self.repeats = 0  # so far
        self._linger = limits.linger_ms / 1e3
        self._max_records = limits.max_batch_records
        self._max_bytes = limits.max_batch_bytes
        self._retry, self._timeout = retry, timeout
        self._clock, self._jitter = clock, jitter
        self._keys = map(f"{name}:{{}}".format, count(1))
        self._lanes: dict[Place, _Lane] = {}
        self._open: dict[Place, Batch] = {}  # the last of a lane, while it takes records
        self._due: list[tuple[float, int, Place]] = []  # a heap; an entry counts if its lane agrees with it
        self._ties = count()
        self._parts: dict[int, int] = {}  # how many parts of each batch have no outcome, by number, in order
        self._heard: list[Callable[[], None]] = []

    # ------------------------------------------------------------- for who appends

    def add(self, topic: str, partition: int, data: bytes, parts: Parts | None = None) -> Delivery:
        """Take in a record. Raises InvalidRequestError for a bad name of a topic or number of a partition."""
        size = len(data) + RECORD_OVERHEAD
        if parts is not None:
            size += parts.size
        place = (topic, partition)
        batch = self._open.get(place)
        if batch is None or batch.nbytes + size > self._max_bytes:
            batch = self._opened(place)
        index = len(batch.data)
        batch.nbytes += size
        self.buffered_bytes += size
        if parts is not None:
            batch.parts[index] = parts
        batch.data.append(data)  # the first call here, behind which a KeyboardInterrupt may come
        if index + 1 >= self._max_records:
            self._seal(batch)
        return Delivery(batch.receipt, index)

    @property
    def full(self) -> bool:
        """Whether records have to wait for room. The one that fills the buffer may go beyond."""
        return self.buffered_bytes >= self.room and not self.closed

    def close(self, why: str) -> None:
        """No more records are to be added."""
        self.room, self.closed = 0, self.closed or why

    def hurry(self) -> None:
        """Let nothing linger that could go now."""
        for batch in [batch for place, batch in self._open.items() if self._lanes[place].batches[0] is batch]:
            self._seal(batch)

    def flush(self) -> int:
        """Let nothing linger. Returns the number of the last batch there is."""
        for batch in list(self._open.values()):
            self._seal(batch)
        return self.number

    def settled(self, number: int) -> bool:
        """Whether all batches up to this number have their outcomes."""
        return next(iter(self._parts), number + 1) > number

    def pending(self, number: int | None = None) -> int:
        """How many records have no outcome, in all batches or those up to a number."""
        batches = (batch for lane in self._lanes.values() for batch in lane.batches)
        return sum(len(batch) for batch in batches if number is None or batch.number <= number)

    # --------------------------------------------------------------- for who sends

    def wakes_at(self) -> float | None:
        """From when on `take` gives something; None: not before something else happens."""
        if self.in_flight >= self.limits.max_in_flight:
            return None
        while self._due:
            if self._counts(*self._due[0]):
                return self._due[0][0]
            heappop(self._due)
        return None

    def take(self) -> list[Batch]:
        """What is to be sent now. Each of them is to be given back to `stored` or `failed`."""
        now, taken = self._clock(), list[Batch]()
        while (at := self.wakes_at()) is not None and at <= now:
            _, _, place = heappop(self._due)
            lane = self._lanes[place]
            batch = lane.batches[0]
            lane.busy = True
            self.in_flight += 1
            if self._open.get(place) is batch:
                del self._open[place]
            taken.append(batch)
        return taken

    def stored(self, batch: Batch, first_seq: int) -> None:
        """A batch that was taken is stored."""
        lane = self._returned(batch)
        lane.progress, lane.pauses = self._clock(), None
        self.trouble = None
        self.delivered_records += len(batch)
        self.stored_batches += 1
        self._settle(batch, first_seq)
        self._next(batch.place, lane)

    def failed(self, batch: Batch, error: TopicsError, lost_at: float | None = None) -> None:
        """A batch that was taken is not known to be stored. `lost_at`: when it was sent, if it may be stored."""
        lane, now = self._returned(batch), self._clock()
        batch.lost_at = lost_at if batch.lost_at is None else batch.lost_at
        if isinstance(error, UnavailableError):
            self.trouble = error
            lane.pauses = lane.pauses or self._retry.pauses()
            pause = max(self._jitter(next(lane.pauses)), (error.retry_after_ms or 0) / 1e3)
            if now + pause <= max(batch.opened, lane.progress) + self._retry.seconds:
                self.repeats += 1
                self._schedule(batch.place, lane, now + pause)
                return
            self._fail(batch, error)
            # Whoever has waited that long behind it is not made to wait for an attempt of its own, which may hang too.
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
        self._next(batch.place, lane)

    def fail_all(self, error: TopicsError) -> None:
        """Every record without an outcome fails. None that was taken is to be given back."""
        for lane in list(self._lanes.values()):
            if lane.busy and lane.batches[0].lost_at is None:
                lane.batches[0].lost_at = self._clock()
            for batch in list(lane.batches):
                self._fail(batch, error)
        self._lanes.clear()
        self.in_flight = 0

    def heard(self) -> list[Callable[[], None]]:
        """What wants to be called about the outcomes since the last time, in their order."""
        heard, self._heard = self._heard, []
        return heard

    def abandon(self, error: TopicsError) -> None:
        """In the child of a fork, whose parent goes on with these records: here they have failed."""
        for lane in self._lanes.values():
            for batch in lane.batches:
                batch.receipt.abandon(error)

    # ------------------------------------------------------------------- internals

    def _opened(self, place: Place) -> Batch:
        """A new batch at the end of a lane."""
        lane, now = self._lanes.get(place), self._clock()
        if lane is None:
            check_place(place)
            lane = self._lanes[place] = _Lane(now)
        elif place in self._open:
            self._seal(self._open[place])
        if not lane.batches:
            self._schedule(place, lane, now + self._linger)
        self.number += 1
        batch = Batch(place, next(self._keys), self.number, Receipt(), now)
        self._parts[batch.number] = 1  # these three are done or not, whenever a KeyboardInterrupt comes
        self._open[place] = batch
        lane.batches.append(batch)
        return batch

    def _seal(self, batch: Batch) -> None:
        """An open batch takes no more records, so it need not linger."""
        del self._open[batch.place]
        lane = self._lanes[batch.place]
        if lane.batches[0] is batch:
            self._schedule(batch.place, lane, self._clock())

    def _schedule(self, place: Place, lane: _Lane, at: float) -> None:
        if len(self._due) > 1000 + 2 * len(self._lanes):  # most are of batches that did not linger to the end
            self._due = sorted(entry for entry in self._due if self._counts(*entry))
        heappush(self._due, (at, next(self._ties), place))  # as above: what is scheduled stays so until the next is
        lane.due = at
        self.stirred = True

    def _counts(self, at: float, _: int, place: Place) -> bool:
        """Whether an entry of the heap tells of a batch that is to be sent then."""
        lane = self._lanes.get(place)
        return lane is not None and bool(lane.batches) and not lane.busy and lane.due == at

    def _returned(self, batch: Batch) -> _Lane:
        self.in_flight -= 1
        lane = self._lanes[batch.place]
        lane.busy = False
        return lane

    def _next(self, place: Place, lane: _Lane) -> None:
        """Go on with the batch that is the first now."""
        if not lane.batches:
            del self._lanes[place]
            return
        first = lane.batches[0]
        now = self._clock()
        self._schedule(place, lane, max(now, first.opened + self._linger) if self._open.get(place) is first else now)

    def _settle(self, batch: Batch, outcome: Outcome) -> None:
        """The first batch of a lane has its outcome."""
        lane = self._lanes[batch.place]
        lane.batches.popleft()
        if self._open.get(batch.place) is batch:
            del self._open[batch.place]
        self.buffered_bytes -= batch.nbytes
        self._heard += batch.settle(outcome)
        self._parts[batch.number] -= 1
        if not self._parts[batch.number]:
            del self._parts[batch.number]

    def _fail(self, batch: Batch, error: TopicsError) -> None:
        topic, partition = batch.place
        lost = batch.lost_at is not None and not retry_window.proves_absence(error)
        detail = {"topic": topic, "partition": str(partition), "outcome": "unknown" if lost else "not_stored"}
        told = "maybe stored" if lost else "not stored"
        text = f"{batch}, {told}: {error.message}"
        error = type(error)(error.reason, text, error.detail | detail, error.retry_after_ms)
        self.failed_records += len(batch)
        self.failures.append((batch.receipt, error))
        self._settle(batch, error)

    def _is_split_for(self, batch: Batch, error: TopicsError) -> bool:
        """Whether it was refused for the sake of some of its records, and none of it can be stored."""
        if len(batch) <= 1 or error.reason not in _SPLIT:
            return False
        return batch.lost_at is None or error.reason not in _TOO_LARGE  # those the server may not have said before

    def _split(self, batch: Batch, lane: _Lane) -> None:
        """In its place two halves, under keys of their own, so that in the end only the bad records fail."""
        lane.batches.popleft()
        middle = len(batch) // 2
        for begin, end in ((middle, len(batch)), (0, middle)):
            lane.batches.appendleft(batch.part(begin, end, next(self._keys)))
        self._parts[batch.number] += 1
