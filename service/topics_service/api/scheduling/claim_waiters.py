"""Waiting workers of one queue: claims in an open window, and push streams with capacity for more jobs.

All of them share one pass over the queue, so polling and pushed workers are treated alike (docs/contract.md, 10.2).
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

from topics_net import background
from topics_service.engine.clock import Clock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError, topic_not_found
from topics_service.engine.queue.jobs import ClaimReply, ClaimRequest
from topics_service.engine.topic import Topic

log = logging.getLogger("topics.queues")

COHORT: Final = 1000
"""Maximum claims in one window; a full window is served at once."""
PASS_JOBS: Final = 4096
"""Maximum jobs that a pass claims in one iteration of the event loop."""
_MAX_REMEMBERED: Final = 10_000  # workers


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""
        ...


CallLater = Callable[[float, Callable[[], None]], Timer]
"""Schedules a call on the event loop after a delay in seconds."""


class Consumer(Protocol):
    """A worker that takes part in a pass."""

    request: ClaimRequest

    @property
    def max_bytes(self) -> int:
        """Maximum total size of the jobs that it takes now."""
        ...

    def capacity(self) -> int:
        """Number of jobs that it takes now."""
        ...

    def deliver(self, reply: ClaimReply, ticket: int) -> None:
        """Receive jobs, possibly none; they may be sent once `ticket` is durable."""
        ...

    def fail(self, error: TopicsError) -> None:
        """Receive the error of a failed pass."""
        ...


class Stream(Consumer, Protocol):
    """A consumer that stays: a push stream. It has capacity only while it waits for its next frame."""

    leases: dict[int, str]
    """Seq to lease_id of the jobs that it was given and may still hold."""

    @property
    def is_waiting(self) -> bool:
        """True while it waits for its next frame."""
        ...

    def recount(self) -> None:
        """Drop leases that have ended."""
        ...

    def stop(self) -> None:
        """Stop taking jobs, and drop leases that have ended."""
        ...

    def end(self, error: TopicsError) -> None:
        """End the stream with `error`."""
        ...


class Claimer:
    """A claim waiting for its pass. `outcome` gives its jobs and the ticket that must be durable first."""

    __slots__ = ("_reply", "_ticket", "max_bytes", "outcome", "request")

    def __init__(self, request: ClaimRequest) -> None:
        self.request = request
        self.max_bytes = request.max_bytes
        self.outcome: asyncio.Future[tuple[ClaimReply, int]] = asyncio.get_running_loop().create_future()
        self._reply: ClaimReply | None = None
        self._ticket = 0

    @property
    def leases(self) -> dict[int, str]:
        """Leases granted so far, seq to lease_id."""
        return {} if self._reply is None else {job.seq: job.lease_id for job in self._reply.jobs}

    def capacity(self) -> int:
        """See Consumer. Zero once the client has left."""
        if self.outcome.done() or self.max_bytes <= 0:
            return 0
        return self.request.max - (0 if self._reply is None else len(self._reply.jobs))

    def deliver(self, reply: ClaimReply, ticket: int) -> None:
        """See Consumer. A large claim may be served in parts."""
        self.max_bytes -= sum(job.nbytes for job in reply.jobs)
        if self._reply is not None:
            reply.jobs = sorted(self._reply.jobs + reply.jobs, key=lambda job: job.seq)
        self._reply, self._ticket = reply, max(self._ticket, ticket)

    def fail(self, error: TopicsError) -> None:
        """See Consumer. Jobs delivered earlier are kept."""
        if self._reply is None and not self.outcome.done():
            self.outcome.set_exception(error)
        self.finish()

    def finish(self) -> None:
        """Complete the claim at the end of its pass."""
        if self._reply is not None and not self.outcome.done():
            self.outcome.set_result((self._reply, self._ticket))


class LeastRecentlyServed:
    """Order of service when there are fewer jobs than workers: least recently served first."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._count = 0

    def order(self, consumers: list[Consumer]) -> None:
        """Sort in place. Workers that were never served come first, in their present order."""
        if len(consumers) > 1:
            consumers.sort(key=lambda consumer: self._last.get((consumer.request.topic, consumer.request.node), 0))

    def record(self, request: ClaimRequest) -> None:
        """Record that the worker was served."""
        self._count += 1
        key = (request.topic, request.node)
        self._last[key] = self._count
        self._last.move_to_end(key)
        if len(self._last) > _MAX_REMEMBERED:
            self._last.popitem(last=False)


class ClaimWaiters:
    """Serves the workers that wait for jobs of one queue; calls `on_idle` when none is left.

    A claim on a queue with `claim_jitter_ms` opens a window of exactly that length, and all workers present at its end,
    push streams included, share one pass. Without `claim_jitter_ms`, a claim is served at once and streams as soon as
    there are jobs. Nothing polls: the log wakes the waiters, `changed` reports settled leases, and a timer fires when
    the next lease or delay ends. `release_leases` gives leases back to the queue.
    """

    def __init__(
        self,
        engine: Engine,
        topic: Topic,
        fairness: LeastRecentlyServed,
        *,
        clock: Clock,
        call_later: CallLater,
        release_leases: Callable[[str, Mapping[int, str]], None],
        on_idle: Callable[[], None],
    ) -> None:
        self.topic = topic
        self._engine = engine
        self._name = topic.name
        self._fairness = fairness
        self._clock = clock
        self._call_later = call_later
        self._release_leases = release_leases
        self._on_idle = on_idle
        self._window: list[Claimer] = []
        self._window_timer: Timer | None = None
        self._streams: dict[Stream, None] = {}
        self._ready: OrderedDict[Stream, None] = OrderedDict()
        self._holders: dict[int, Stream] = {}  # stream that holds a pushed job, by seq
        self._stale: set[Stream] = set()  # some of their leases may have ended
        self._due_timer: Timer | None = None
        self._due_at = 0
        self._pause: Timer | None = None
        self._tick_is_due = False
        self._pending_parts = 0  # passes that continue in the next iteration of the loop

    # ----------------------------------------------------------------- claims

    def claim(self, claimer: Claimer) -> None:
        """Serve the claim, immediately or at the end of the window, and set its outcome."""
        self._window.append(claimer)
        jitter = self.topic.config.claim_jitter_ms
        if not jitter or len(self._window) >= COHORT:
            self._serve()
        else:
            self.topic.log.park(self._wake)
            if self._window_timer is None:
                self._window_timer = self._call_later(jitter / 1000, self._serve)

    def refuse(self, error: TopicsError) -> None:
        """Fail all waiters: the server is stopping or the queue was deleted."""
        if self._window_timer is not None:
            self._window_timer.cancel()
            self._window_timer = None
        window, self._window = self._window, []
        for claimer in window:
            claimer.fail(error)
        for stream in list(self._streams):
            stream.end(error)
        self._stop_if_idle()

    # ---------------------------------------------------------------- streams

    def register(self, stream: Stream) -> None:
        """Add a stream."""
        self.topic.log.park(self._wake)
        self._streams[stream] = None

    def stop(self, node: str) -> int:
        """Stop the streams of a worker from taking jobs; returns the number of jobs they hold."""
        streams = [stream for stream in self._streams if stream.request.node == node]
        for stream in streams:
            stream.stop()
            self._ready.pop(stream, None)
        return sum(len(stream.leases) for stream in streams)

    def unregister(self, stream: Stream) -> None:
        """Remove a stream and release its leases."""
        del self._streams[stream]
        self._ready.pop(stream, None)
        self._stale.discard(stream)
        for seq in stream.leases:
            self.lease_removed(stream, seq)
        try:
            self._release_leases(self._name, stream.leases)
        finally:
            self._stop_if_idle()

    def request_more(self, stream: Stream, *, first: bool = False) -> None:
        """Note that the stream waits for its next frame; `first` puts it ahead of the others."""
        if not stream.capacity():
            stream.recount()
        if stream.capacity():
            self._ready[stream] = None
            if first:
                self._ready.move_to_end(stream, last=False)
        self._wake()

    def withdraw_request(self, stream: Stream) -> None:
        """Note that the stream no longer waits."""
        self._ready.pop(stream, None)

    def lease_added(self, stream: Stream, seq: int) -> None:
        """Note that the stream holds the job."""
        self._holders[seq] = stream

    def lease_removed(self, stream: Stream, seq: int) -> None:
        """Note that the stream no longer holds the job."""
        if self._holders.get(seq) is stream:
            del self._holders[seq]

    def changed(self, seqs: Iterable[int]) -> None:
        """Note that these jobs were acked, nacked, extended or released."""
        self._stale.update(holder for seq in seqs if (holder := self._holders.get(seq)) is not None)
        self._wake()

    # ----------------------------------------------------------------- waking

    def _wake(self) -> None:
        """Schedule a check for new jobs and for deletion of the queue, after callbacks that are ready now."""
        if (self._streams or self._window) and not self._tick_is_due:
            self._tick_is_due = True
            background.call_soon(self._tick)

    def _tick(self) -> None:
        self._tick_is_due = False
        if self._is_gone():
            self.refuse(topic_not_found(self._name))
            return
        if not self._streams:
            return
        try:
            self._serve_streams()
        except Exception as error:
            self._failed(list(self._ready), error)

    def _serve_streams(self) -> None:
        stale, self._stale = self._stale, set()
        for stream in stale:
            stream.recount()
            if stream.capacity():
                self._ready[stream] = None
        if self._ready and self._pause is None and self._ready_jobs():
            jitter = self.topic.config.claim_jitter_ms
            if not jitter:
                self._serve()
                return
            if self._window_timer is None:
                self._window_timer = self._call_later(jitter / 1000, self._serve)
        self._arm()

    def _is_gone(self) -> bool:
        """True once the queue was deleted, even if there is a new one of the same name."""
        return self._engine.catalog.find(self._name) is not self.topic

    def _ready_jobs(self) -> int:
        return self._engine.queues.counters(self._name).ready

    def _arm(self) -> None:
        """Set the timer for the next end of a lease or delay."""
        due = None
        if any(stream.is_waiting for stream in self._streams):
            due = self._engine.queues.next_due(self._name)
        if due is None:
            return  # keep a running timer: its event may have been noticed by another caller
        if self._due_timer is not None:
            if self._due_at <= due:
                return
            self._due_timer.cancel()
        self._due_at = due
        self._due_timer = self._call_later(max(1, due - self._clock.now_ms()) / 1000, self._due)

    def _due(self) -> None:
        self._due_timer = None
        self._stale.update(stream for stream in self._streams if stream.is_waiting and stream not in self._ready)
        self._wake()

    def _resume(self) -> None:
        self._pause = None
        self._wake()

    def _stop_if_idle(self) -> None:
        if not self._streams and not self._window:
            self.topic.log.leave(self._wake)
        if not self._streams:
            for timer in (self._due_timer, self._pause):
                if timer is not None:
                    timer.cancel()
            self._due_timer = self._pause = None
            if not self._window and not self._pending_parts:
                self._on_idle()

    # ----------------------------------------------------------------- passes

    def _serve(self) -> None:
        """Run one pass for all waiters."""
        if self._window_timer is not None:
            self._window_timer.cancel()
            self._window_timer = None
        consumers: list[Consumer] = list(self._window)
        self._window = []
        try:
            if self._ready and self._pause is None:
                consumers += islice(self._ready, min(self._ready_jobs(), COHORT))
            self._fairness.order(consumers)
            self._serve_part(consumers)
            if self._streams:
                self._arm()
        except Exception as error:
            self._failed(consumers, error)
        self._stop_if_idle()

    def _serve_part(self, consumers: list[Consumer]) -> None:
        """Serve an equal share to each; a large cohort gets the rest in later iterations of the loop."""
        consumers = [consumer for consumer in consumers if consumer.capacity()]
        if not consumers:
            return
        if self._is_gone():
            raise topic_not_found(self._name)
        share = max(1, PASS_JOBS // len(consumers))
        asked = [
            ClaimRequest(
                topic=self._name,
                node=consumer.request.node,
                max=min(share, consumer.capacity()),
                lease_ms=consumer.request.lease_ms,
                max_bytes=consumer.max_bytes,
            )
            for consumer in consumers
        ]
        replies, ticket = self._engine.queues.claim(asked)
        is_dry = False
        for consumer, request, reply in zip(consumers, asked, replies, strict=True):
            is_dry = is_dry or len(reply.jobs) < request.max
            if reply.jobs:
                self._fairness.record(request)
            consumer.deliver(reply, ticket)
        claimers = [consumer for consumer in consumers if isinstance(consumer, Claimer)]
        rest: list[Consumer] = []
        for claimer in claimers:
            if is_dry or not claimer.capacity():
                claimer.finish()
            else:
                rest.append(claimer)
        if rest:
            self._pending_parts += 1
            background.call_soon(self._serve_next_part, rest)

    def _serve_next_part(self, consumers: list[Consumer]) -> None:
        self._pending_parts -= 1
        try:
            self._serve_part(consumers)
        except Exception as error:
            self._failed(consumers, error)
        self._stop_if_idle()

    def _failed(self, consumers: Sequence[Consumer], error: Exception) -> None:
        if not isinstance(error, TopicsError):
            log.error("claims on %s failed", self._name, exc_info=error)
            error = TopicsError(Reason.INTERNAL, "internal error")
        for consumer in consumers:
            consumer.fail(error)
        if error.reason is Reason.THROTTLED and self._streams and self._pause is None:
            self._pause = self._call_later((error.retry_after_ms or 1000) / 1000, self._resume)
