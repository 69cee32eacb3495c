"""The queue service: every call of docs/contract.md, 10, once, for gRPC and HTTP alike."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from msgspec.structs import replace

from topics_client.units import counted
from topics_net import background
from topics_service.api.access import check_names
from topics_service.api.auth import Principal
from topics_service.api.desk import CallLater, Claimer, Desk, Turns
from topics_service.api.together import Together
from topics_service.api.work import HEARTBEAT_SECONDS, WorkStream
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
from topics_service.engine.topic import Topic

log = logging.getLogger("topics.queues")

_REDRIVE_JOBS: Final = 500  # in one turn of the loop
_ACKS: Final = 64  # that are written together


class QueuesApi:
    """Runs queue calls on the engine and answers when their effect is as durable as promised.

    Every method raises TopicsError: `topic_not_found`, `not_a_queue`, `invalid_request`, `batch_too_large`. All of
    them run on the event loop that owns the engine. Cancelling a claim leaves nothing leased.
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
    ) -> None:
        """`admit` gives the engine or refuses every call, `settle` waits until a ticket is durable, `connection` holds
        a slot for a stream, and `forwarded` waits for what routers bring. `call_later` stands in for the loop's."""
        self._admit = admit
        self._settle = settle
        self._connection = connection
        self._forwarded = forwarded
        self._clock = clock or SystemClock()
        self._call_later = call_later or background.call_later
        self._heartbeat_seconds = heartbeat_seconds
        self._desks: dict[str, Desk] = {}
        self._turns = Turns()
        self._acks = Together(self._ack_together, _ACKS)

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        """Lease up to `max` jobs; waits for the cohort where the queue has `claim_jitter_ms` (docs/contract.md, 10.1).

        Beyond the contract it finishes other jobs first, those of `ack`, which are as good as acked when it returns.
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

    async def _claim(self, engine: Engine, topic: Topic, request: ClaimRequest) -> ClaimReply:
        desk = self._desks.get(topic.name)
        if desk is None and not topic.config.claim_jitter_ms:
            (reply,), ticket = engine.queues.claim([request])
            if ticket:
                await self._held(engine, reply, ticket)
            return reply
        claimer = Claimer(_clamped(engine, request))
        try:
            self._desk(engine, topic).claim(claimer)
            reply, ticket = await claimer.outcome
        except asyncio.CancelledError:
            claimer.outcome.cancel()
            self._give_back(engine, topic.name, claimer.leases)
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
        """Ack, together with those that come in the same turn of the loop; the reply is due with the ticket."""
        answer = self._acks.join(request.topic, request)
        settled = None if answer is None else await answer
        if settled is None:
            settled = self._admit().queues.ack(request)
            self._changed(request.topic, request.seqs)
        return settled

    def _ack_together(self, name: str, requests: Sequence[SettleRequest]) -> list[tuple[SettleReply, int]] | None:
        try:
            replies, ticket = self._admit().queues.ack_together(requests)
        except TopicsError:
            return None
        self._changed(name, [seq for request in requests for seq in request.seqs])
        return [(reply, ticket) for reply in replies]

    async def nack(self, request: SettleRequest) -> SettleReply:
        """Give jobs back, at once or after a delay (docs/contract.md, 10.5)."""
        engine = self._admit()
        reply, ticket = engine.queues.nack(request)
        self._changed(request.topic, request.seqs)
        if ticket:
            await self._settle(ticket)
        return reply

    async def extend(self, request: SettleRequest) -> SettleReply:
        """Set a new end for leases (docs/contract.md, 10.6)."""
        engine = self._admit()
        reply, ticket = engine.queues.extend(request)
        self._changed(request.topic, request.seqs)
        if ticket:
            await self._settle(ticket)
        return reply

    @contextmanager
    def work(self, request: ClaimRequest, *, principal: Principal) -> Iterator[WorkStream]:
        """A stream that leases jobs and pushes them, at most `max` at a time (docs/contract.md, 10.9).

        Leaving the context gives back at once what is still held. Entering raises, beside the usual, `throttled` when
        there are too many streams.
        """
        engine = self._admit()
        engine.queues.check_node(request.node)
        topic = engine.queues.topic(request.topic)
        with self._connection(principal):
            desk = self._desk(engine, topic)
            stream = WorkStream(
                engine,
                desk,
                _clamped(engine, request),
                settle=self._settle,
                clock=self._clock,
                call_later=self._call_later,
                heartbeat_seconds=self._heartbeat_seconds,
            )
            desk.attend(stream)
            try:
                yield stream
            finally:
                desk.leave(stream)

    def stop_work(self, name: str, node: str) -> int:
        """Let the push streams of a worker take no more jobs. How many they hold."""
        engine = self._admit()
        engine.queues.check_node(node)
        topic = engine.queues.topic(name)
        desk = self._desks.get(topic.name)
        return 0 if desk is None else desk.stop(node)

    async def redrive(self, request: RedriveRequest, *, principal: Principal) -> RedriveReply:
        """Move dead letters back into the queue, in slices: what was moved before a failure stays moved."""
        engine = self._admit()
        config = engine.queues.topic(request.topic).config
        if config.dead_letter is None:
            raise invalid("the queue has no dead_letter", {"topic": request.topic})
        check_names(principal, (config.dead_letter,))
        source = engine.catalog.find(config.dead_letter)
        left = 0 if source is None else source.log.view.count  # what fails again meanwhile is not moved twice
        left = min(left, request.max or left)
        reply = RedriveReply(topic=request.topic, dead_letter=config.dead_letter, redriven=0)
        start = 1
        while left:
            part, ticket = engine.queues.redrive(replace(request, max=min(left, _REDRIVE_JOBS), start=start))
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
        """A page of jobs in one state; touches none of them."""
        await self._forwarded(request.topic)
        engine = self._admit()
        page = engine.queues.jobs(replace(request, limit=min(max(1, request.limit), engine.limits.max_limit)))
        ticket = engine.expiry_ticket(request.topic)
        if ticket:
            await self._settle(ticket)
        return page

    def drain(self) -> None:
        """The server stops: waiting claims are refused, push streams are told and end."""
        for desk in list(self._desks.values()):
            desk.refuse(TopicsError(Reason.SHUTTING_DOWN, "the server is shutting down"))

    # --------------------------------------------------------------- internals

    def _desk(self, engine: Engine, topic: Topic) -> Desk:
        desk = self._desks.get(topic.name)
        if desk is not None and desk.topic is topic:
            return desk

        def idle() -> None:
            if self._desks.get(topic.name) is made:
                del self._desks[topic.name]

        made = self._desks[topic.name] = Desk(
            engine,
            topic,
            self._turns,
            clock=self._clock,
            call_later=self._call_later,
            give_back=lambda name, leases: self._give_back(engine, name, leases),
            on_idle=idle,
        )
        return made

    async def _held(self, engine: Engine, reply: ClaimReply, ticket: int) -> None:
        """Wait until leases are durable; a client that leaves meanwhile holds none."""
        try:
            await self._settle(ticket)
        except asyncio.CancelledError:
            self._give_back(engine, reply.topic, _leases(reply.jobs))
            raise

    def _give_back(self, engine: Engine, name: str, leases: Mapping[int, str]) -> None:
        if not leases:
            return
        try:
            engine.queues.release(name, leases)
        except TopicsError as error:  # the store fails: they end by themselves
            log.warning("%s of %s could not be given back: %s", counted(len(leases), "lease"), name, error.message)
        self._changed(name, leases)

    def _changed(self, name: str, seqs: Iterable[int]) -> None:
        desk = self._desks.get(name)
        if desk is not None:
            desk.changed(seqs)


def _leases(jobs: Iterable[Job]) -> dict[int, str]:
    return {job.seq: job.lease_id for job in jobs}


def _clamped(engine: Engine, request: ClaimRequest) -> ClaimRequest:
    limits = engine.limits
    most, most_bytes = min(max(1, request.max), limits.max_claim), request.max_bytes or limits.max_batch_bytes
    return replace(request, max=most, max_bytes=min(most_bytes, limits.max_batch_bytes))
