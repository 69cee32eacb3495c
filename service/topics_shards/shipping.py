"""Dead letters on their way to topics in other shards, and back: see `engine.queue.shipments`."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from topics_net import background
from topics_net.rate_limited_logger import RateLimitedLogger
from topics_service.api.queues import HandBackReply, QueuesApi
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.queue.jobs import RedriveReply, RedriveRequest
from topics_service.engine.queue.queues import Queues
from topics_service.engine.queue.shipments import REMEMBERED_MS, Shipment
from topics_shards.locating import Located, is_unknown
from topics_shards.shards import LostCallError

_PATIENCE_SECONDS: Final = 2.0
_FIRST_DELAY: Final = 0.05
_LONGEST_DELAY: Final = 5.0
_REDRIVEN_AT_ONCE: Final = 500
_SWEEP_SECONDS: Final = 60.0
_SWEPT: Final = 500


class ShipmentSender:
    """Moves exhausted jobs of one shard's queues to dead letter topics in others, and hands dead letters back.

    It first asks whether there is room, so that a job that is refused stays in its queue, exhausted, as within one
    engine; only then does the job leave the queue for the outbox. Each queue has one shipment under way. Belongs to the
    event loop.
    """

    def __init__(self, located: Located, api: TopicsApi, queues: Queues, clock: Clock) -> None:
        """Of one shard of this process: its calls, and its queues."""
        self._located = located
        self._api = api
        self._mover = queues.mover
        self._shipments = queues.mover.shipments
        self._clock = clock
        self._moves: dict[str, asyncio.Task[None]] = {}
        self._stuck: set[str] = set()  # queues with a shipment that was refused
        self._tasks: set[asyncio.Task[Any]] = set()
        self._swept_to = b""
        self._is_over = False
        self._log = RateLimitedLogger(logging.getLogger("topics.queues"))

    def start(self) -> None:
        """Move from now on, first of all what the last life has left in the outbox. The queues are loaded."""
        self._api.queues.letters = self
        self._mover.on_elsewhere = self._begin
        for shipment in list(self._shipments.outbox()):
            self._start(self._deliver(shipment))
        self._start(self._sweep())

    async def stop(self) -> None:
        """End what is under way; it continues after the next start."""
        self._is_over = True
        self._mover.on_elsewhere = lambda _queue: None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def flush(self, queue: str) -> None:
        """Move the exhausted jobs of a queue, as far as that can be done soon."""
        if self._is_over:
            return
        task = self._begin(queue)
        if queue not in self._stuck:
            await asyncio.wait((task,), timeout=_PATIENCE_SECONDS)

    async def redrive(self, request: RedriveRequest, dead_letter: str) -> RedriveReply:
        """Bring the dead letters of a queue back from another shard, in slices."""
        self._check()
        reply = RedriveReply(topic=request.topic, dead_letter=dead_letter, redriven=0)
        start, stop = request.start, 0
        while start and (left := _REDRIVEN_AT_ONCE if not request.max else request.max - reply.redriven) > 0:
            part = await self._located.call(
                dead_letter,
                0,
                QueuesApi.hand_back,
                replace(request, start=start, max=min(left, _REDRIVEN_AT_ONCE)),
                dead_letter,
                stop,
            )
            reply.redriven += part.redriven
            start, stop = part.resume, part.stop
        return reply

    async def hand_back(self, request: RedriveRequest, dead_letter: str, stop: int) -> HandBackReply:
        """One slice of a redrive, at the shard of the dead letters."""
        stop = stop or self._mover.end_of(dead_letter)
        offer, resume = self._mover.due_back(dead_letter, request, stop, request.max)
        reply = HandBackReply(redriven=0, resume=resume, stop=stop)
        if offer is None:
            return reply
        count = await self._located.call(offer.dest, 0, QueuesApi.room, offer.dest, offer.sizes, may_create=False)
        self._check()
        if count < len(offer.seqs):
            reply.resume = offer.seqs[count]
        shipment = self._mover.ship_back(dead_letter, offer, count)
        if shipment is not None:
            reply.redriven = len(shipment.letters)
            await asyncio.wait((self._start(self._deliver(shipment)),), timeout=_PATIENCE_SECONDS)
        return reply

    # --------------------------------------------------------------- internals

    def _check(self) -> None:
        if self._is_over:
            raise TopicsError(Reason.SHUTTING_DOWN, "the shard is shutting down")

    def _begin(self, queue: str) -> asyncio.Task[None]:
        task = self._moves.get(queue)
        if task is None:
            task = self._moves[queue] = self._start(self._move(queue))
            task.add_done_callback(lambda _: self._moves.pop(queue, None))
        return task

    async def _move(self, queue: str) -> None:
        """Move the exhausted jobs of a queue until there are none, or they are refused."""
        while (offer := self._mover.due_elsewhere(queue)) is not None:
            try:
                count = await self._located.call(
                    offer.dest, 0, QueuesApi.room, offer.dest, offer.sizes, may_create=offer.may_create
                )
                shipment = self._mover.ship(queue, offer, count)
            except (TopicsError, LostCallError) as error:
                refused = error if isinstance(error, TopicsError) else _away(offer.dest)
                self._mover.refused_elsewhere(queue, offer, refused)
                return
            if shipment is None:
                return
            await self._deliver(shipment)

    async def _deliver(self, shipment: Shipment) -> None:
        """Send a shipment that is in the outbox until it has come."""
        delay = _FIRST_DELAY
        while True:
            try:
                await self._api.settled(self._shipments.written)
                arrives = await self._arrives(shipment)
                ticket = self._shipments.remove(shipment) if arrives else self._shipments.take_back(shipment)
                await self._api.settled(ticket)
            except (TopicsError, LostCallError) as error:
                self._log.warning('jobs of "%s" wait for topic "%s": %r', shipment.source, shipment.dest, error)
                self._stuck.add(shipment.source)
                await asyncio.sleep(delay)
                delay = min(2 * delay, _LONGEST_DELAY)
            else:
                self._stuck.discard(shipment.source)
                return

    async def _arrives(self, shipment: Shipment) -> bool:
        """Send a shipment; return False if its queue is gone. Raises what keeps some of it from coming."""
        try:
            count = await self._located.call(shipment.dest, 0, QueuesApi.receive, shipment)
        except TopicsError as error:
            if shipment.is_redrive and is_unknown(error, shipment.dest):
                return False
            raise
        if count < len(shipment.letters):
            raise TopicsError(Reason.TOPIC_FULL, f'topic "{shipment.dest}" is full', {"topic": shipment.dest})
        return True

    async def _sweep(self) -> None:
        """Forget what has come and is in no outbox any more."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            with suppress(TopicsError, LostCallError):
                await self.sweep_once()

    async def sweep_once(self) -> None:
        """One slice of it."""
        found = self._shipments.arrivals(self._swept_to, _SWEPT)
        self._swept_to = found[-1][0] if len(found) == _SWEPT else b""
        before = self._clock.now_ms() - REMEMBERED_MS
        by_shard: dict[int, list[bytes]] = defaultdict(list)
        for key, arrival in found:
            if arrival.ts < before:
                by_shard[arrival.shard].append(key)
        for shard, keys in by_shard.items():
            there = set(await self._located.shards.call(shard, QueuesApi.underway, keys))
            self._shipments.forget([key for key in keys if key not in there])

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = background.start(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _away(topic: str) -> TopicsError:
    return TopicsError(Reason.NOT_READY, f'the shard of topic "{topic}" does not answer')
