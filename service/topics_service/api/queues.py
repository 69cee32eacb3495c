"""Queue calls, shared by gRPC and HTTP (docs/contract.md, 10)."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from topics_client.units import counted
from topics_net import background
from topics_service.api.access.auth import Principal
from topics_service.api.access.authorizer import check_names
from topics_service.api.observers import NO_OBSERVERS, Facts, Observers
from topics_service.api.scheduling.batcher import WriteBatcher
from topics_service.api.scheduling.claim_waiters import CallLater, Claimer, ClaimWaiters, LeastRecentlyServed
from topics_service.api.work import HEARTBEAT_SECONDS, WorkFrame, WorkStream
from topics_service.engine.clock import Clock, SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.queue.jobs import (
    ClaimReply,
    ClaimRequest,
    Job,
    ListJobsReply,
    ListJobsRequest,
    RedriveReply,
    RedriveRequest,
    SettleReply,
    SettleRequest,
)
from topics_service.engine.queue.shipments import Shipment
from topics_service.engine.topic import Topic

log = logging.getLogger("topics.queues")

_MAX_REDRIVE_JOBS: Final = 500  # per iteration of the event loop
_MAX_ACKS: Final = 64  # per write


class HandBackReply(Struct, kw_only=True):
    """One slice of a redrive from another shard: `resume` is the next seq, 0 at the end, `stop` that end."""

    redriven: int
    resume: int
    stop: int


class Letters(Protocol):
    """The sender of jobs to dead letter topics in other shards, and back."""

    async def flush(self, queue: str) -> None:
        """Move the exhausted jobs of a queue, as far as that can be done soon."""
        ...

    async def redrive(self, request: RedriveRequest, dead_letter: str) -> RedriveReply:
        """Bring the dead letters of a queue back from another shard, in slices."""
        ...

    async def hand_back(self, request: RedriveRequest, dead_letter: str, stop: int) -> HandBackReply:
        """One slice of a redrive, at the shard of the dead letters."""
        ...


class QueuesApi:
    """Runs queue calls on the engine and replies when their effect is as durable as promised.

    Every method raises TopicsError: `topic_not_found`, `not_a_queue`, `invalid_request`, `batch_too_large`. All of
    them run on the event loop that owns the engine. Cancelling a claim releases its leases.
    """

    def __init__(
        self,
        admit: Callable[[], Engine],
        settle: Callable[[int], Awaitable[None]],
        connection: Callable[[Principal], AbstractContextManager[None]],
        forwarded: Callable[[str], Awaitable[None]],
        *,
        clock: Clock | None = None,
        call_later: CallLater | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        observers: Observers = NO_OBSERVERS,
    ) -> None:
        """`admit` returns the engine or refuses the call, `settle` waits until a ticket is durable, `connection` holds
        a slot for a stream, and `forwarded` waits for pending copies of routers. `call_later` replaces the loop's."""
        self.letters: Letters | None = None
        """Set where dead letter topics can be in other shards."""
        self._admit = admit
        self._settle = settle
        self._connection = connection
        self._forwarded = forwarded
        self._clock = clock or SystemClock()
        self._call_later = call_later or background.call_later
        self._heartbeat_seconds = heartbeat_seconds
        self._observers = observers
        self._claim_waiters: dict[str, ClaimWaiters] = {}
        self._fairness = LeastRecentlyServed()
        self._acks = WriteBatcher(self._ack_batched, _MAX_ACKS)

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        """Lease up to `max` jobs; waits for the cohort if the queue has `claim_jitter_ms` (docs/contract.md, 10.1).

        Beyond the contract, it first finishes the jobs of `ack`, as durably as `ack` itself.
        """
        await self._forwarded(request.topic)
        engine = self._admit()
        topic = engine.queues.topic(request.topic)
        engine.queues.check_node(request.node)
        if request.ack is None:
            return await self._claim(engine, topic, request)
        settled, ticket = await self._ack(request.ack)
        engine = self._admit()
        reply = await self._claim(engine, engine.queues.topic(request.topic), request)
        if ticket:
            began = time.perf_counter()
            await self._held(engine, reply, ticket)
            settled.fsync_ms = (time.perf_counter() - began) * 1e3
        reply.settled = settled
        return reply

    async def hand_over(self, request: ClaimRequest) -> AsyncGenerator[ClaimReply, None]:
        """`claim` for a worker at another process: one reply, and its end, which says that the worker was found there.

        Closed before that, it releases the leases: no worker has got them.
        """
        reply = await self.claim(request)
        is_taken = False
        try:
            yield reply
            is_taken = True
        finally:
            if not is_taken:
                self._release_leases(self._admit(), reply.topic, _leases(reply.jobs))

    async def _claim(self, engine: Engine, topic: Topic, request: ClaimRequest) -> ClaimReply:
        waiters = self._claim_waiters.get(topic.name)
        if waiters is None and not topic.config.claim_jitter_ms:
            (reply,), ticket = engine.queues.claim([request])
            if ticket:
                await self._held(engine, reply, ticket)
            return reply
        claimer = Claimer(_clamped(engine, request))
        try:
            self._waiters_for(engine, topic).claim(claimer)
            reply, ticket = await claimer.outcome
        except asyncio.CancelledError:
            claimer.outcome.cancel()
            self._release_leases(engine, topic.name, claimer.leases)
            raise
        if ticket:
            await self._held(engine, reply, ticket)
        return reply

    async def ack(self, request: SettleRequest) -> SettleReply:
        """Finish jobs: delete them, as durably as the queue promises (docs/contract.md, 10.4)."""
        reply, ticket = await self._ack(request)
        if ticket:
            began = time.perf_counter()
            await self._settle(ticket)
            reply.fsync_ms = (time.perf_counter() - began) * 1e3
        return reply

    async def _ack(self, request: SettleRequest) -> tuple[SettleReply, int]:
        """Ack, batched with acks of the same loop iteration; the reply is due once the ticket is durable."""
        answer = self._acks.join(request.topic, request)
        settled = None if answer is None else await answer
        if settled is None:
            settled = self._admit().queues.settlement.ack(request)
            self._changed(request.topic, request.seqs)
        return settled

    def _ack_batched(self, name: str, requests: Sequence[SettleRequest]) -> list[tuple[SettleReply, int]] | None:
        try:
            replies, ticket = self._admit().queues.settlement.ack_many(requests)
        except TopicsError:
            return None
        self._changed(name, [seq for request in requests for seq in request.seqs])
        return [(reply, ticket) for reply in replies]

    async def nack(self, request: SettleRequest) -> SettleReply:
        """Release jobs, immediately or after a delay (docs/contract.md, 10.5)."""
        engine = self._admit()
        reply, ticket = engine.queues.settlement.nack(request)
        self._changed(request.topic, request.seqs)
        if ticket:
            await self._settle(ticket)
        if reply.exhausted and self.letters is not None:
            await self.letters.flush(request.topic)
            reply.dead_lettered += engine.queues.mover.left(request.topic, reply.exhausted)
            reply.exhausted = [seq for seq in reply.exhausted if seq not in reply.dead_lettered]
        return reply

    async def extend(self, request: SettleRequest) -> SettleReply:
        """Extend leases (docs/contract.md, 10.6)."""
        engine = self._admit()
        reply, ticket = engine.queues.settlement.extend(request)
        self._changed(request.topic, request.seqs)
        if ticket:
            await self._settle(ticket)
        return reply

    @contextmanager
    def work(self, request: ClaimRequest, *, principal: Principal, slot: bool = True) -> Iterator[WorkStream]:
        """Open a stream that leases and pushes jobs, at most `max` at a time (docs/contract.md, 10.9).

        Leaving the context releases the jobs still held. With `slot` it takes a connection slot: entering also raises
        `throttled` when there are too many streams.
        """
        engine = self._admit()
        engine.queues.check_node(request.node)
        topic = engine.queues.topic(request.topic)
        with self._connection(principal) if slot else nullcontext():
            waiters = self._waiters_for(engine, topic)
            stream = WorkStream(
                engine,
                waiters,
                _clamped(engine, request),
                settle=self._settle,
                clock=self._clock,
                call_later=self._call_later,
                heartbeat_seconds=self._heartbeat_seconds,
            )
            waiters.register(stream)
            try:
                yield stream
            finally:
                waiters.unregister(stream)

    async def push(
        self, request: ClaimRequest, *, principal: Principal, slot: bool = True
    ) -> AsyncGenerator[WorkFrame, None]:
        """The frames of `work`: closing it releases the jobs still held. The first one says that the stream is open."""
        with self.work(request, principal=principal, slot=slot) as stream:
            async for frame in stream:
                yield frame

    async def stop_work(self, name: str, node: str) -> int:
        """Stop the push streams of a worker from taking jobs; returns the number of jobs they hold."""
        engine = self._admit()
        engine.queues.check_node(node)
        topic = engine.queues.topic(name)
        waiters = self._claim_waiters.get(topic.name)
        return 0 if waiters is None else waiters.stop(node)

    async def redrive(self, request: RedriveRequest, *, principal: Principal) -> RedriveReply:
        """Move dead letters back into the queue, in slices: slices moved before a failure stay moved."""
        facts: Facts = {"topic": request.topic, "match": request.match, "max": request.max}
        with self._observers("queue.redrive", facts, principal):
            reply = await self._redrive(request, principal)
            facts |= {"dead_letter": reply.dead_letter, "redriven": reply.redriven}
        return reply

    async def _redrive(self, request: RedriveRequest, principal: Principal) -> RedriveReply:
        engine = self._admit()
        config = engine.queues.topic(request.topic).config
        if config.dead_letter is None:
            raise invalid("the queue has no dead_letter", {"topic": request.topic})
        check_names(principal, (config.dead_letter,))
        if self.letters is not None and engine.queues.mover.is_elsewhere(config.dead_letter):
            return await self.letters.redrive(request, config.dead_letter)
        source = engine.catalog.find(config.dead_letter)
        left = 0 if source is None else source.log.view.count  # jobs that fail again meanwhile are not moved twice
        left = min(left, request.max or left)
        reply = RedriveReply(topic=request.topic, dead_letter=config.dead_letter, redriven=0)
        start = 1
        while left:
            part, ticket = engine.queues.mover.redrive(replace(request, max=min(left, _MAX_REDRIVE_JOBS), start=start))
            reply.redriven += part.redriven
            left -= part.redriven
            if ticket:
                await self._settle(ticket)
            start = part.resume
            if not start:
                break
            await asyncio.sleep(0)
            engine = self._admit()
        return reply

    async def jobs(self, request: ListJobsRequest) -> ListJobsReply:
        """List a page of jobs in one state, without changing any."""
        await self._forwarded(request.topic)
        engine = self._admit()
        page = engine.queues.jobs(replace(request, limit=min(max(1, request.limit), engine.limits.max_limit)))
        ticket = engine.expiry_ticket(request.topic)
        if ticket:
            await self._settle(ticket)
        return page

    # ------------------------------------------------------------ among shards

    async def room(self, name: str, sizes: Sequence[int], *, may_create: bool) -> int:
        """See `Shipments.room`."""
        return self._admit().queues.mover.shipments.room(name, sizes, may_create=may_create)

    async def receive(self, shipment: Shipment) -> int:
        """Take in jobs from another shard, durably; return how many of the shipment are here. It may come again."""
        engine = self._admit()
        count, ticket, topic = engine.queues.mover.shipments.receive(shipment)
        engine.queues.touched(topic.log)
        await self._settle(ticket)
        return count

    async def hand_back(self, request: RedriveRequest, dead_letter: str, stop: int) -> HandBackReply:
        """One slice of a redrive: dead letters of this shard go back to their queue in another one."""
        self._admit()
        if self.letters is None:
            raise TopicsError(Reason.NOT_READY, "the other shards are not connected yet")
        return await self.letters.hand_back(request, dead_letter, stop)

    async def underway(self, shipments: Sequence[bytes]) -> list[bytes]:
        """Those of the keys whose shipments are still in the outbox of this shard."""
        return self._admit().queues.mover.shipments.underway(shipments)

    def drain(self) -> None:
        """Refuse waiting claims and end push streams, as the server is stopping."""
        for waiters in list(self._claim_waiters.values()):
            waiters.refuse(TopicsError(Reason.SHUTTING_DOWN, "the server is shutting down"))

    # --------------------------------------------------------------- internals

    def _waiters_for(self, engine: Engine, topic: Topic) -> ClaimWaiters:
        waiters = self._claim_waiters.get(topic.name)
        if waiters is not None and waiters.topic is topic:
            return waiters

        def idle() -> None:
            if self._claim_waiters.get(topic.name) is made:
                del self._claim_waiters[topic.name]

        made = self._claim_waiters[topic.name] = ClaimWaiters(
            engine,
            topic,
            self._fairness,
            clock=self._clock,
            call_later=self._call_later,
            release_leases=lambda name, leases: self._release_leases(engine, name, leases),
            on_idle=idle,
        )
        return made

    async def _held(self, engine: Engine, reply: ClaimReply, ticket: int) -> None:
        """Wait until leases are durable, and release them if the client leaves meanwhile."""
        try:
            await self._settle(ticket)
        except asyncio.CancelledError:
            self._release_leases(engine, reply.topic, _leases(reply.jobs))
            raise

    def _release_leases(self, engine: Engine, name: str, leases: Mapping[int, str]) -> None:
        if not leases:
            return
        try:
            engine.queues.settlement.release(name, leases)
        except TopicsError as error:  # the store failed: leases will expire
            log.warning("could not release %s of %s: %s", counted(len(leases), "lease"), name, error.message)
        self._changed(name, leases)

    def _changed(self, name: str, seqs: Iterable[int]) -> None:
        waiters = self._claim_waiters.get(name)
        if waiters is not None:
            waiters.changed(seqs)


def _leases(jobs: Iterable[Job]) -> dict[int, str]:
    return {job.seq: job.lease_id for job in jobs}


def _clamped(engine: Engine, request: ClaimRequest) -> ClaimRequest:
    limits = engine.limits
    max_jobs, max_bytes = min(max(1, request.max), limits.max_claim), request.max_bytes or limits.max_batch_bytes
    return replace(request, max=max_jobs, max_bytes=min(max_bytes, limits.max_batch_bytes))
