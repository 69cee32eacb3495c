"""Consuming and acknowledging the messages of topics, once for HTTP, gRPC and the statements CONSUME and ACK."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final

from msgspec.structs import replace

from topics_service.api.access.auth import Principal
from topics_service.api.access.roles import Capability, require
from topics_service.api.observers import NO_OBSERVERS, Facts, Observers
from topics_service.api.positions import PositionsApi
from topics_service.api.sql.claims import MAX_VISIBILITY, Claims, NotifyOnDrain, Positions
from topics_service.api.sql.requests import AckRequest, ConsumeReply, ConsumeRequest, Gap, Message
from topics_service.engine import names
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, invalid, topic_not_found
from topics_service.engine.model import DiffReply, DiffRequest, Slice
from topics_service.engine.offsets.positions import Place
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.messages import NO_ENVELOPE, envelope_of
from topics_service.engine.topic import Topic
from topics_service.statistics import SqlStatistics

DEFAULT_LIMIT: Final = 100
_TOMBSTONE: Final = b"null"
_MAX_OFFSET: Final = (1 << 63) - 1


class ConsumeApi:
    """Reads messages for groups and moves their positions, which are those of every protocol.

    Every method raises TopicsError: `forbidden`, `topic_not_found`, `not_a_log` for a queue, `partition_not_found` and
    `invalid_request`.
    """

    def __init__(
        self,
        admit: Callable[[], Engine],
        settle: Callable[[int], Awaitable[None]],
        forwarded: Callable[[str], Awaitable[None]],
        expiry_durable: Callable[[str], Awaitable[None]],
        notify_on_drain: NotifyOnDrain,
        observers: Observers = NO_OBSERVERS,
        statistics: SqlStatistics | None = None,
    ) -> None:
        """`admit` gives the engine or refuses every call, `settle` waits until a ticket is durable; the other three are
        those of TopicsApi and RoutersApi."""
        self.default_timeout = 30.0
        """Seconds that a call waits which does not say; set by the composition root, as the maximum is."""
        self.max_timeout = 300.0
        self.positions: Positions = PositionsApi(admit, settle)  # replaced where there are several shards
        self._admit = admit
        self._settle = settle
        self._forwarded = forwarded
        self._expiry_durable = expiry_durable
        self._notify_on_drain = notify_on_drain
        self._observers = observers
        self.claims = Claims(admit, lambda: self.positions, _read, notify_on_drain, statistics or SqlStatistics())

    async def consume(self, request: ConsumeRequest, *, principal: Principal) -> ConsumeReply:
        """Read a page from where the group stands, or from an explicit offset; waits for a first message.

        Moves no position, but for that of a group without one that reads from the latest: it is noted, durably, before
        the wait. Cancelling the call ends the wait.
        """
        if request.visibility_seconds is not None:
            return await self.claim(request, principal=principal)
        engine, topic, seconds = self._checked(request, principal)
        deadline = asyncio.get_running_loop().time() + seconds
        await self._forwarded(topic.name)
        from_seq = await self._start(engine, topic, request)
        woken = asyncio.Event()
        parked = engine.park(topic.name, woken.set, request.partition)
        try:
            with self._notify_on_drain(woken):
                while True:
                    woken.clear()
                    reply = _read(engine, topic, request, from_seq)
                    await self._expiry_durable(topic.name)
                    if reply.messages or seconds <= 0 or engine.draining:
                        return reply
                    try:
                        async with asyncio.timeout_at(deadline):
                            await woken.wait()
                    except TimeoutError:
                        return reply
        finally:
            parked.leave()

    async def claim(self, request: ConsumeRequest, *, principal: Principal) -> ConsumeReply:
        """Read a page that no other worker of the group holds, and hold it until it is acknowledged, at most for
        `visibility_seconds`; waits for a first message behind those who wait already. See `Claims`.

        Cancelling the call gives the page back. Raises `throttled` where the group has too many open claims.
        """
        _, topic, seconds = self._checked(request, principal)
        if isinstance(request.start, int):
            raise invalid("claims begin where the group stands: an offset reads without a claim", {"field": "start"})
        if request.group is None:
            raise invalid("a claim is that of a group", {"field": "group_id"})
        visibility = request.visibility_seconds
        if visibility is None or not visibility > 0:
            raise invalid("visibility_seconds must be at least 1", {"visibility_seconds": visibility})
        await self._forwarded(topic.name)
        request = replace(request, visibility_seconds=min(visibility, MAX_VISIBILITY))
        reply = await self.claims.take(topic, request, seconds)
        await self._expiry_durable(topic.name)
        return reply

    async def ack_claim(self, request: AckRequest, *, principal: Principal) -> int:
        """Acknowledge the range of a claim, or its beginning up to an offset; returns as `ack`.

        Raises `claim_expired` if the claim has ended and another worker holds some of its messages.
        """
        return await self.ack(request, principal=principal)

    async def ack(self, request: AckRequest, *, principal: Principal) -> int:
        """Acknowledge all messages up to an offset; returns the offset that is acknowledged now, which may be higher.

        Where workers of the group hold claims it is the range that the offset lies in, and the position follows the
        lowest offset that is not acknowledged; -1 as long as there is no lower one.

        As durable as the topic before it is answered. Raises `invalid_request` beyond the last offset written.
        """
        facts: Facts = {
            "topic": request.topic,
            "group": request.group,
            "partition": request.partition,
            "upto_offset": request.upto_offset,
        }
        if request.claim_id is not None:
            facts["claim_id"] = request.claim_id
        with self._observers("topic.ack", facts, principal):
            engine = self._admit()
            topic = _topic(engine, request.topic, request.group, principal)
            _check_partition(topic, request.partition)
            last, upto = topic.partition(request.partition).view.head - 1, request.upto_offset
            if upto is None and request.claim_id is None:
                raise invalid("upto_offset is missing")
            if upto is not None and not 0 <= upto <= last:
                written = "no message is written yet" if last < 0 else f"the last one written is {last}"
                detail = {"topic": topic.name, "partition": request.partition, "upto_offset": upto, "last_offset": last}
                raise invalid(f"upto_offset is not the offset of a message: {written}", detail)
            acknowledged = None
            if len(self.claims) or upto is None or request.claim_id is not None:
                acknowledged = await self.claims.ack(topic, request)
            if acknowledged is None:
                assert upto is not None
                place = Place(topic.name, topic.topic_id, request.partition)
                position = await self.positions.advance(request.group, place, upto + 1)
                if position is None:
                    raise topic_not_found(request.topic)
                acknowledged = min(position, topic.partition(request.partition).view.head) - 1
            facts["acknowledged_offset"] = acknowledged
        return acknowledged

    def _checked(self, request: ConsumeRequest, principal: Principal) -> tuple[Engine, Topic, float]:
        """The topic of a read that is allowed and well-formed, and the seconds that it may wait."""
        engine = self._admit()
        topic = _topic(engine, request.topic, request.group, principal)
        if request.limit < 1:
            raise invalid("limit must be at least 1", {"limit": request.limit})
        if isinstance(request.start, int) and not 0 <= request.start <= _MAX_OFFSET:
            raise invalid("the offset must be from 0 to 2^63-1", {"offset": request.start})
        seconds = self.default_timeout if request.timeout_seconds is None else request.timeout_seconds
        if not seconds >= 0:
            raise invalid("timeout_seconds must not be negative", {"timeout_seconds": request.timeout_seconds})
        _check_partition(topic, request.partition)
        return engine, topic, min(seconds, self.max_timeout)

    async def _start(self, engine: Engine, topic: Topic, request: ConsumeRequest) -> int:
        """The seq behind which to read, which is the offset to begin with."""
        if isinstance(request.start, int):
            return request.start
        log, group = topic.partition(request.partition), request.group
        if group is not None:
            held = await self.positions.position(group, topic.name, request.partition)
            if held is not None and held.place.topic_id == topic.topic_id:
                return min(held.position.from_seq, log.view.head)
        if request.start == "earliest":
            return engine.locate(topic.name, 0, request.partition)[0] - 1
        if group is None:
            return log.view.head
        pinned = await self.positions.pin(group, Place(topic.name, topic.topic_id, request.partition), log.view.head)
        if pinned is None:
            raise topic_not_found(request.topic)
        return min(pinned, log.view.head)


def _topic(engine: Engine, name: str, group: str | None, principal: Principal) -> Topic:
    """The topic of this name or alias. Raises `forbidden` unless the caller may consume it with the group, and
    `not_a_log` for a queue."""
    require(principal, Capability.CONSUME, (name,) if group is None else (name, group))
    if group is not None:
        names.check_group_name(group)
    topic = engine.topic_catalog.find(name)
    if topic is None:
        raise topic_not_found(name)
    if not principal.allows_name(topic.name):
        raise sql_error(Reason.FORBIDDEN, "the topic of this alias is outside the prefixes of the caller", topic=name)
    if topic.config.type == "queue":
        message = f'topic "{topic.name}" is a queue: its jobs are claimed, not consumed'
        raise sql_error(Reason.NOT_A_LOG, message, topic=topic.name)
    return topic


def _check_partition(topic: Topic, partition: int) -> None:
    if partition < 0:
        raise invalid("partition_id must not be negative", {"partition_id": partition})
    topic.partition(partition)


def _read(engine: Engine, topic: Topic, request: ConsumeRequest, from_seq: int) -> ConsumeReply:
    """One page behind a seq, without waiting."""
    if engine.catalog.find(topic.name) is not topic:
        raise topic_not_found(request.topic)
    log = topic.partition(request.partition)
    if from_seq > log.view.head:  # an offset that is not written yet
        return ConsumeReply(messages=[], next_offset=from_seq, has_more=False)
    page = engine.diff(
        DiffRequest(
            topic=topic.name,
            partition=request.partition,
            from_seq=from_seq,
            limit=min(request.limit, engine.limits.max_limit),
        )
    )
    messages = list(_messages(topic, request.partition, page.slices))
    gap = _gap(page)
    if messages:
        next_offset = messages[-1].offset + 1
    else:
        next_offset = from_seq if gap is None else gap.to_offset + 1
    state = log.view
    return ConsumeReply(
        messages=messages,
        next_offset=next_offset,
        has_more=state.first_live(max(next_offset + 1, state.earliest)) <= state.head,
        gap=gap,
    )


def _gap(page: DiffReply) -> Gap | None:
    lost = page.tombstone
    if lost is None:
        return None
    return Gap(from_offset=lost.gap_from - 1, to_offset=lost.gap_to - 1, reason=lost.reason)


def _messages(topic: Topic, partition: int, slices: Iterable[Slice]) -> Iterator[Message]:
    topic_id = topic.topic_id
    for piece in slices:
        block, start, stop = piece.block, piece.start, piece.stop
        tags, metas = _part(block.tags, start, stop), _part(block.metas, start, stop)
        for i, tag, meta in zip(range(start, stop), tags, metas, strict=False):
            envelope = NO_ENVELOPE if meta is None else envelope_of(meta)
            data = block.record_data(i)
            yield Message(
                topic_id=topic_id,
                partition_id=partition,
                offset=block.base_seq + i - 1,
                message_id=envelope.message_id,
                source_table=envelope.source_table,
                op=envelope.op,
                ts=block.ts_at(i),
                payload_mode=envelope.payload_mode,
                payload=None if data == _TOMBSTONE else data,
                key=None if tag is None else tag.decode(),
            )


def _part(column: Sequence[bytes | None] | None, start: int, stop: int) -> Iterable[bytes | None]:
    return repeat(None) if column is None else column[start:stop]
