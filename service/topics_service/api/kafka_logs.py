"""Calls of Kafka clients on the logs of one shard, for a process that does not have it.

A process calls the logs that it has on `TopicsApi`, without waiting. For those of others it makes one call for all that
a request wants of a shard. Such a call returns an outcome for each item.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from msgspec import Struct

from topics_net.loop_budget import SLICE_SECONDS
from topics_service.api.topics import TopicsApi
from topics_service.engine.batches import BatchReply, BatchRequest, FetchReply, FetchRequest
from topics_service.engine.errors import TopicsError, topic_recreated
from topics_service.engine.producers import Producer, SequenceError, SequenceFault

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
NO_OFFSET: Final = -1

T = TypeVar("T")
R = TypeVar("R")
OffsetOutcome = tuple[tuple[int, int] | None, TopicsError | None]
"""An offset and its time, or the error."""
ProducersOutcome = tuple[list[Producer] | None, TopicsError | None]
"""The producers of a partition, or the error."""


class NamedBatch(Struct, kw_only=True):
    """A batch for a topic that the client named, or for the one with `topic_id`; see `TopicsApi.append_batch`."""

    request: BatchRequest
    topic_id: str = ""
    acks_all: bool = False


class BatchOutcome(Struct, kw_only=True):
    """The reply to a batch, or its error; `fault` says that it does not follow the producer's batch before."""

    reply: BatchReply | None = None
    error: TopicsError | None = None
    fault: SequenceFault | None = None
    message: str = ""

    def result(self) -> BatchReply:
        """The reply. Raises the error: TopicsError or SequenceError."""
        if self.error is not None:
            raise self.error
        if self.fault is not None:
            raise SequenceError(self.fault, self.message)
        assert self.reply is not None, "there is one of the three"
        return self.reply


class FetchOutcome(Struct, kw_only=True):
    """The outcome of a read: records of a log, or the error."""

    reply: FetchReply | None = None
    error: TopicsError | None = None

    def result(self) -> FetchReply:
        """The reply. Raises the error."""
        if self.error is not None:
            raise self.error
        assert self.reply is not None, "it is one or the other"
        return self.reply


class KafkaApi:
    """Calls on the logs of one shard by other processes, whose gateways have checked the batches and the access."""

    def __init__(self, api: TopicsApi) -> None:
        self._api = api
        self._appending = asyncio.Lock()

    async def append(self, batches: Sequence[NamedBatch], *, settle: bool = True) -> list[BatchOutcome]:
        """Append batches; return once they are durable, or taken in without `settle`.

        Calls take effect one after the other, in the order in which they come.
        """
        api = self._api
        outcomes: list[BatchOutcome] = []
        tickets: list[int] = []
        async with self._appending:
            ends = time.perf_counter() + SLICE_SECONDS
            for batch in batches:
                outcome, ticket = self._append(batch)
                outcomes.append(outcome)
                tickets.append(ticket)
                if time.perf_counter() >= ends:
                    await asyncio.sleep(0)
                    ends = time.perf_counter() + SLICE_SECONDS
        ticket = max(tickets, default=0)
        if settle and not api.is_durable(ticket):
            try:
                await api.settled(ticket)
            except TopicsError as error:
                return [
                    BatchOutcome(error=error) if each and not api.is_durable(each) else outcome
                    for outcome, each in zip(outcomes, tickets, strict=True)
                ]
        return outcomes

    def _append(self, batch: NamedBatch) -> tuple[BatchOutcome, int]:
        try:
            if batch.topic_id:
                self._check_id(batch.request.topic, batch.topic_id)
            reply, ticket = self._api.append_batch(batch.request, acks_all=batch.acks_all)
        except SequenceError as error:
            return BatchOutcome(fault=error.kind, message=str(error)), 0
        except TopicsError as error:
            return BatchOutcome(error=error), 0
        return BatchOutcome(reply=reply), ticket

    def _check_id(self, name: str, topic_id: str) -> None:
        """Raise `topic_not_found` if another topic has the name now."""
        topic = self._api.catalog.find(name)
        if topic is not None and topic.identity.topic_id != topic_id:
            raise topic_recreated(name, topic.identity.topic_id)

    async def fetch(
        self, requests: Sequence[FetchRequest], *, max_bytes: int, min_bytes: int = 0, wait_ms: int = 0
    ) -> list[FetchOutcome]:
        """Read logs from their cursors, in the given order until there are `max_bytes`.

        Waits up to `wait_ms` for `min_bytes`, or until the wait makes no sense: a log is gone or has more than fits.
        Cancelling the call ends the wait.
        """
        loop = asyncio.get_running_loop()
        due = loop.time() + wait_ms / 1000
        woken = asyncio.Event()
        parked = []
        try:
            if wait_ms > 0:
                for request in requests:
                    try:
                        parked.append(self._api.park(request.topic, woken.set, request.partition))
                    except TopicsError:
                        woken.set()
            with self._api.notify_on_drain(woken):
                while True:
                    outcomes, is_enough = await self._read(requests, max_bytes, min_bytes)
                    left = due - loop.time()
                    if is_enough or left <= 0 or self._api.draining:
                        break
                    try:
                        await asyncio.wait_for(woken.wait(), left)
                    except TimeoutError:
                        break
                    woken.clear()
        finally:
            for each in parked:
                each.leave()
        await self._api.expiry_durable()
        return outcomes

    async def _read(
        self, requests: Sequence[FetchRequest], max_bytes: int, min_bytes: int
    ) -> tuple[list[FetchOutcome], bool]:
        """Read once; the outcomes, and whether there is nothing to wait for."""
        outcomes: list[FetchOutcome] = []
        nbytes, is_due = 0, False
        ends = time.perf_counter() + SLICE_SECONDS
        for request in requests:
            limit = min(request.max_bytes, max_bytes - nbytes)
            asked = FetchRequest(
                topic=request.topic,
                partition=request.partition,
                from_seq=request.from_seq,
                max_bytes=limit,
            )
            try:
                reply = self._api.fetch(asked)
            except TopicsError as error:
                outcomes.append(FetchOutcome(error=error))
                is_due = True
                continue
            if nbytes and reply.nbytes > limit:  # only the first batch of a response may exceed the limit
                is_due = True
                reply.parts.clear()
                reply.is_hole, reply.nbytes, reply.passed_over = False, 0, 0
                reply.next_from_seq = request.from_seq
            nbytes += reply.nbytes
            is_due = is_due or reply.lost or reply.is_hole or reply.next_from_seq < reply.head_seq
            outcomes.append(FetchOutcome(reply=reply))
            if time.perf_counter() >= ends:
                await asyncio.sleep(0)
                ends = time.perf_counter() + SLICE_SECONDS
        return outcomes, is_due or nbytes >= min_bytes

    async def offsets(self, asked: Sequence[tuple[str, int, int]]) -> list[OffsetOutcome]:
        """See `offset_of`, for topics, partitions and times. Includes what the sources of routers hold now."""
        for topic in dict.fromkeys(topic for topic, _, _ in asked):
            try:
                await self._api.routers.forwarded(topic)
            except TopicsError:  # reported for each partition
                continue
        outcomes = await self._each(asked, lambda item: offset_of(self._api, *item))
        await self._api.expiry_durable()
        return outcomes

    async def producers(self, asked: Sequence[tuple[str, int]]) -> list[ProducersOutcome]:
        """The idempotent producers of partitions; see TopicsApi."""
        return await self._each(asked, lambda item: list(self._api.producers(*item)))

    async def sizes(self, asked: Sequence[tuple[str, int]]) -> list[int]:
        """Bytes of the records in partitions; 0 for one that is gone."""
        return [size or 0 for size, _ in await self._each(asked, lambda item: size_of(self._api, *item))]

    async def new_producer_id(self) -> int:
        """A producer id that no other call returns, on this shard."""
        producer_id, ticket = self._api.new_producer_id()
        await self._api.settled(ticket)
        return producer_id

    async def cluster_id(self) -> str:
        """See `cluster.cluster_id`; durable."""
        return self._api.cluster_id()

    async def _each(self, asked: Iterable[T], answer: Callable[[T], R]) -> list[tuple[R | None, TopicsError | None]]:
        """The outcome for each item, found in slices between other calls."""
        outcomes: list[tuple[R | None, TopicsError | None]] = []
        ends = time.perf_counter() + SLICE_SECONDS
        for item in asked:
            try:
                outcomes.append((answer(item), None))
            except TopicsError as error:
                outcomes.append((None, error))
            if time.perf_counter() >= ends:
                await asyncio.sleep(0)
                ends = time.perf_counter() + SLICE_SECONDS
        return outcomes


def offset_of(api: TopicsApi, topic: str, partition: int, ts: int) -> tuple[int, int]:
    """An offset of Kafka's ListOffsets and the time of its record; -1 if there is none. Raises TopicsError."""
    if ts >= 0:
        found = api.offset_at(topic, partition, ts)
    elif ts == MAX_TIMESTAMP:
        found = api.newest_time(topic, partition)
    else:
        earliest, head = api.extent(topic, partition)
        if ts in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):  # there is no tiered storage
            return NO_OFFSET, NO_OFFSET
        return (head if ts == LATEST else earliest - 1), NO_OFFSET
    if found is None:
        return NO_OFFSET, NO_OFFSET
    seq, time_ = found
    return seq - 1, time_


def size_of(api: TopicsApi, topic: str, partition: int) -> int:
    """Bytes of the records in a partition; 0 if it is gone."""
    found = api.catalog.find(topic)
    return 0 if found is None else found.partition_bytes(partition)
