"""Where the workers of one queue wait: claims in an open window, and push streams with room for more jobs.

All that wait share one pass over the queue, so polling and pushed workers are served alike (docs/contract.md, 10.2).
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
"""Most claims in one window; a full one is served at once."""
PASS_JOBS: Final = 4096
"""Most jobs that a pass asks for at a time, between turns of the loop."""
_TURNS: Final = 10_000  # workers whose last turn is remembered


class Timer(Protocol):
    """A call that was put off."""

    def cancel(self) -> None:
        """It is not wanted any more."""
        ...


CallLater = Callable[[float, Callable[[], None]], Timer]
"""Call something once on the loop, so many seconds from now."""


class Taker(Protocol):
    """A worker that takes part in a pass with what it asks for."""

    request: ClaimRequest

    @property
    def max_bytes(self) -> int:
        """How large the jobs may be that it takes now."""
        ...

    def room(self) -> int:
        """How many jobs it takes now."""
        ...

    def take(self, reply: ClaimReply, ticket: int) -> None:
        """Its jobs, maybe none; they may be shown once `ticket` is durable."""
        ...

    def fail(self, error: TopicsError) -> None:
        """The pass failed."""
        ...


class Stream(Taker, Protocol):
    """A taker that stays: a push stream. It has room only while it waits for its next frame."""

    leases: dict[int, str]
    """Seq to lease_id of what it was given and may still hold."""

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its next frame."""
        ...

    def recount(self) -> None:
        """Forget the leases that are over."""
        ...

    def stop(self) -> None:
        """From now on it takes no more jobs; drops from its leases what is not held any more."""
        ...

    def end(self, error: TopicsError) -> None:
        """There is nothing more to push, and this is why."""
        ...


class Claimer:
    """One claim that waits for its pass. `outcome` gives its jobs and the ticket that they wait for."""

    __slots__ = ("_reply", "_ticket", "max_bytes", "outcome", "request")

    def __init__(self, request: ClaimRequest) -> None:
        self.request = request
        self.max_bytes = request.max_bytes
        self.outcome: asyncio.Future[tuple[ClaimReply, int]] = asyncio.get_running_loop().create_future()
        self._reply: ClaimReply | None = None
        self._ticket = 0

    @property
    def leases(self) -> dict[int, str]:
        """What it was given so far."""
        return {} if self._reply is None else {job.seq: job.lease_id for job in self._reply.jobs}

    def room(self) -> int:
        """See Taker. Nothing for a client that has left."""
        if self.outcome.done() or self.max_bytes <= 0:
            return 0
        return self.request.max - (0 if self._reply is None else len(self._reply.jobs))

    def take(self, reply: ClaimReply, ticket: int) -> None:
        """See Taker. Who asks for much may be given it in parts."""
        self.max_bytes -= sum(job.nbytes for job in reply.jobs)
        if self._reply is not None:
            reply.jobs = sorted(self._reply.jobs + reply.jobs, key=lambda job: job.seq)
        self._reply, self._ticket = reply, max(self._ticket, ticket)

    def fail(self, error: TopicsError) -> None:
        """See Taker. What it was given before, it keeps."""
        if self._reply is None and not self.outcome.done():
            self.outcome.set_exception(error)
        self.finish()

    def finish(self) -> None:
        """The pass is over."""
        if self._reply is not None and not self.outcome.done():
            self.outcome.set_result((self._reply, self._ticket))


class Turns:
    """Whose turn it is when there are fewer jobs than workers: who was served longest ago comes first."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._count = 0

    def order(self, takers: list[Taker]) -> None:
        """Sort them; those that never had a turn come first, in the order they are in."""
        if len(takers) > 1:
            takers.sort(key=lambda taker: self._last.get((taker.request.topic, taker.request.node), 0))

    def had(self, request: ClaimRequest) -> None:
        """The worker was served."""
        self._count += 1
        key = (request.topic, request.node)
        self._last[key] = self._count
        self._last.move_to_end(key)
        if len(self._last) > _TURNS:
            self._last.popitem(last=False)


class Desk:
    """Serves those who wait for jobs of one queue; `on_idle` says that nobody does any more.

    A claim on a queue with `claim_jitter_ms` opens a window of exactly this length, and whoever is there at its end,
    push streams included, shares its pass. Without it a claim is served at once and streams as soon as there are jobs.
    Nothing polls: the log wakes the desk, `changed` tells of leases, a timer stands by for the next one that ends.
    `give_back` releases leases.
    """

    def __init__(
        self,
        engine: Engine,
        topic: Topic,
        turns: Turns,
        *,
        clock: Clock,
        call_later: CallLater,
        give_back: Callable[[str, Mapping[int, str]], None],
        on_idle: Callable[[], None],
    ) -> None:
        self.topic = topic
        self._engine = engine
        self._name = topic.name
        self._turns = turns
        self._clock = clock
        self._call_later = call_later
        self._give_back = give_back
        self._on_idle = on_idle
        self._window: list[Claimer] = []
        self._window_timer: Timer | None = None
        self._streams: dict[Stream, None] = {}
        self._hungry: OrderedDict[Stream, None] = OrderedDict()
        self._holders: dict[int, Stream] = {}  # who was pushed a job, by seq
        self._stale: set[Stream] = set()  # some of their leases may be over
        self._due_timer: Timer | None = None
        self._due_at = 0
        self._pause: Timer | None = None
        self._tick_is_due = False
        self._parts = 0  # passes that go on in the next turn of the loop

    # ----------------------------------------------------------------- claims

    def claim(self, claimer: Claimer) -> None:
        """Serve the claim, now or at the end of the window; its outcome tells."""
        self._window.append(claimer)
        jitter = self.topic.config.claim_jitter_ms
        if not jitter or len(self._window) >= COHORT:
            self._serve()
        else:
            self.topic.log.park(self._wake)
            if self._window_timer is None:
                self._window_timer = self._call_later(jitter / 1000, self._serve)

    def refuse(self, error: TopicsError) -> None:
        """End every wait: the server stops, or the queue is gone."""
        if self._window_timer is not None:
            self._window_timer.cancel()
            self._window_timer = None
        window, self._window = self._window, []
        for claimer in window:
            claimer.fail(error)
        for stream in list(self._streams):
            stream.end(error)
        self._rest()

    # ---------------------------------------------------------------- streams

    def attend(self, stream: Stream) -> None:
        """A stream opens."""
        self.topic.log.park(self._wake)
        self._streams[stream] = None

    def stop(self, node: str) -> int:
        """Let the streams of a worker take no more jobs. How many they hold."""
        streams = [stream for stream in self._streams if stream.request.node == node]
        for stream in streams:
            stream.stop()
            self._hungry.pop(stream, None)
        return sum(len(stream.leases) for stream in streams)

    def leave(self, stream: Stream) -> None:
        """A stream is over: what it still holds is given back at once."""
        del self._streams[stream]
        self._hungry.pop(stream, None)
        self._stale.discard(stream)
        for seq in stream.leases:
            self.lost(stream, seq)
        try:
            self._give_back(self._name, stream.leases)
        finally:
            self._rest()

    def wants(self, stream: Stream, *, first: bool = False) -> None:
        """The stream waits for its next frame; `first` puts it in front of the others."""
        if not stream.room():
            stream.recount()
        if stream.room():
            self._hungry[stream] = None
            if first:
                self._hungry.move_to_end(stream, last=False)
        self._wake()

    def wants_nothing(self, stream: Stream) -> None:
        """The stream does not wait any longer."""
        self._hungry.pop(stream, None)

    def got(self, stream: Stream, seq: int) -> None:
        """The stream holds the job now."""
        self._holders[seq] = stream

    def lost(self, stream: Stream, seq: int) -> None:
        """The stream holds the job no longer."""
        if self._holders.get(seq) is stream:
            del self._holders[seq]

    def changed(self, seqs: Iterable[int]) -> None:
        """These jobs were acked, nacked, extended or given back."""
        self._stale.update(holder for seq in seqs if (holder := self._holders.get(seq)) is not None)
        self._wake()

    # ----------------------------------------------------------------- waking

    def _wake(self) -> None:
        """There may be something for a stream, or the queue is gone: look once the loop has run what is ready now."""
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
            self._look()
        except Exception as error:
            self._failed(list(self._hungry), error)

    def _look(self) -> None:
        stale, self._stale = self._stale, set()
        for stream in stale:
            stream.recount()
            if stream.room():
                self._hungry[stream] = None
        if self._hungry and self._pause is None and self._ready():
            jitter = self.topic.config.claim_jitter_ms
            if not jitter:
                self._serve()
                return
            if self._window_timer is None:
                self._window_timer = self._call_later(jitter / 1000, self._serve)
        self._arm()

    def _is_gone(self) -> bool:
        """True once the queue was deleted; a queue with its name is another one then."""
        return self._engine.catalog.find(self._name) is not self.topic

    def _ready(self) -> int:
        return self._engine.queues.counters(self._name).ready

    def _arm(self) -> None:
        """Stand by for the next lease or delay that ends."""
        due = None
        if any(stream.is_waiting for stream in self._streams):
            due = self._engine.queues.next_due(self._name)
        if due is None:
            return  # a timer that runs goes on: somebody else may have seen what it is for
        if self._due_timer is not None:
            if self._due_at <= due:
                return
            self._due_timer.cancel()
        self._due_at = due
        self._due_timer = self._call_later(max(1, due - self._clock.now_ms()) / 1000, self._due)

    def _due(self) -> None:
        self._due_timer = None
        self._stale.update(stream for stream in self._streams if stream.is_waiting and stream not in self._hungry)
        self._wake()

    def _resume(self) -> None:
        self._pause = None
        self._wake()

    def _rest(self) -> None:
        if not self._streams and not self._window:
            self.topic.log.leave(self._wake)
        if not self._streams:
            for timer in (self._due_timer, self._pause):
                if timer is not None:
                    timer.cancel()
            self._due_timer = self._pause = None
            if not self._window and not self._parts:
                self._on_idle()

    # ----------------------------------------------------------------- passes

    def _serve(self) -> None:
        """One pass for all who wait now."""
        if self._window_timer is not None:
            self._window_timer.cancel()
            self._window_timer = None
        takers: list[Taker] = list(self._window)
        self._window = []
        try:
            if self._hungry and self._pause is None:
                takers += islice(self._hungry, min(self._ready(), COHORT))
            self._turns.order(takers)
            self._part(takers)
            if self._streams:
                self._arm()
        except Exception as error:
            self._failed(takers, error)
        self._rest()

    def _part(self, takers: list[Taker]) -> None:
        """Serve a part of what they ask for, everybody the same; a large cohort gets the rest in the next turns."""
        takers = [taker for taker in takers if taker.room()]
        if not takers:
            return
        if self._is_gone():
            raise topic_not_found(self._name)
        share = max(1, PASS_JOBS // len(takers))
        asked = [
            ClaimRequest(
                topic=self._name,
                node=taker.request.node,
                max=min(share, taker.room()),
                lease_ms=taker.request.lease_ms,
                max_bytes=taker.max_bytes,
            )
            for taker in takers
        ]
        replies, ticket = self._engine.queues.claim(asked)
        is_dry = False
        for taker, request, reply in zip(takers, asked, replies, strict=True):
            is_dry = is_dry or len(reply.jobs) < request.max
            if reply.jobs:
                self._turns.had(request)
            taker.take(reply, ticket)
        claimers = [taker for taker in takers if isinstance(taker, Claimer)]
        rest: list[Taker] = []
        for claimer in claimers:
            if is_dry or not claimer.room():
                claimer.finish()
            else:
                rest.append(claimer)
        if rest:
            self._parts += 1
            background.call_soon(self._next_part, rest)

    def _next_part(self, takers: list[Taker]) -> None:
        self._parts -= 1
        try:
            self._part(takers)
        except Exception as error:
            self._failed(takers, error)
        self._rest()

    def _failed(self, takers: Sequence[Taker], error: Exception) -> None:
        if not isinstance(error, TopicsError):
            log.error("claims on %s failed", self._name, exc_info=error)
            error = TopicsError(Reason.INTERNAL, "internal error")
        for taker in takers:
            taker.fail(error)
        if error.reason is Reason.THROTTLED and self._streams and self._pause is None:
            self._pause = self._call_later((error.retry_after_ms or 1000) / 1000, self._resume)
