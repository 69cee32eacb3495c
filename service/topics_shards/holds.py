"""Telling the shards of partitions what the groups of one shard have let go of, so that retention need not wait.

Only what is durable is sent, so retention can keep too much for a moment, never too little. A position that moves back
is sent before that is acknowledged. Each other shard has an outbox: positions are sent as they stand when it is their
turn, so one that moves often is sent rarely. After a fault, and at the start of either side, all are sent again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice
from typing import Final

from topics_net import background
from topics_net.rate_limited_logger import RateLimitedLogger
from topics_service.api.mirrors import MirrorsApi
from topics_service.api.topics import TopicsApi
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.offsets.mirrors import Told, revision_of
from topics_service.engine.offsets.positions import Group, Place
from topics_service.engine.placement import shard_of
from topics_service.engine.topic import Topic
from topics_shards.consumers import ShardedConsumers, ShardedPositions
from topics_shards.locating import Located

LINGER_SECONDS: Final = 0.02
PATIENCE_SECONDS: Final = 10.0
_A_CALL: Final = 1000
_MAX_PENDING: Final = 100_000
_FIRST_DELAY: Final = 0.05
_LONGEST_DELAY: Final = 2.0
_ASK_AGAIN_SECONDS: Final = 0.25

Key = tuple[str, Place]
"""A group, and the partition of its position."""


class _EndedError(Exception):
    """The other side knows nothing of the session."""


class _Outbox:
    """The positions that one other shard has yet to learn."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.pending: dict[Key, None] = {}
        self.session = 0  # none: all positions have to be sent
        self.is_complete = False  # all were sent in the session
        self.is_new = True  # no session was opened since the start
        self.noted = self.told = 0  # moves, counted
        self.work = asyncio.Event()
        self.urgent = asyncio.Event()
        self.progress = asyncio.Event()

    def add(self, key: Key, *, is_urgent: bool) -> int:
        """Note that a position has moved; returns the number of the move."""
        if len(self.pending) >= _MAX_PENDING and key not in self.pending:
            self.pending.clear()
            self.session, self.is_complete = 0, False
        self.pending[key] = None
        self.noted += 1
        self.work.set()
        if is_urgent:
            self.urgent.set()
        return self.noted

    def advance(self, told: int) -> None:
        """Note that the moves up to this number are known there."""
        self.told = told
        self.progress.set()
        self.progress = asyncio.Event()

    async def wait(self, number: int) -> None:
        """Return once the moves up to this number are known there."""
        while self.told < number:
            await self.progress.wait()


class HoldSender:
    """Sends the moves of the groups of one shard to the others. Belongs to the event loop."""

    def __init__(
        self,
        shard: int,
        engine: Engine,
        settle: Callable[[int], Awaitable[None]],
        located: Located,
        *,
        confirm: Callable[[], Awaitable[object]] | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """`settle` waits until a ticket of the engine is durable; a move back that can't be sent within
        `patience_seconds` is answered with `not_ready`.

        `confirm` raises unless this process owned the shard at a moment after the call. A former owner that does not
        know of the next one would tell positions that have moved back since.
        """
        self._shard = shard
        self._engine = engine
        self._settle = settle
        self._confirm = confirm
        self._located = located
        self.patience_seconds = patience_seconds
        self._outboxes = {each: _Outbox(each) for each in range(located.shards.count) if each != shard}
        self._moves: dict[int, int] = {}
        self._refused: dict[Key, None] = {}
        self._asking: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._limits: set[asyncio.Timeout] = set()
        self._is_over = False
        self._log = RateLimitedLogger(logging.getLogger("topics.shards"))

    @classmethod
    def serve(
        cls,
        shard: int,
        engine: Engine,
        api: TopicsApi,
        located: Located,
        confirm: Callable[[], Awaitable[object]] | None = None,
    ) -> "HoldSender":
        """Let the calls on groups and of consumers in a shard of this process reach the other shards, and start."""
        sender = api.positions.sender = cls(shard, engine, api.settled, located, confirm=confirm)
        api.consumers.positions = ShardedPositions(located)
        if api.sql is not None:
            api.sql.consumers = ShardedConsumers(located)
        api.mirrors.renew = sender.renew
        sender.start()
        return sender

    def start(self) -> None:
        """Tell from now on. The engine has recovered, and has taken no call yet."""
        self._engine.groups.index.on_moved = self._moved
        for outbox in self._outboxes.values():
            outbox.work.set()
            self._tasks.append(background.start(self._run(outbox)))

    async def stop(self) -> None:
        """End; what is not sent yet is sent after the next start. Calls that wait for that are refused at once."""
        self._is_over = True
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(0)
        tasks = self._tasks if self._asking is None else [*self._tasks, self._asking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

    def renew(self, shard: int) -> None:
        """Tell a shard everything again."""
        outbox = self._outboxes[shard]
        outbox.session, outbox.is_complete = 0, False
        outbox.work.set()

    def take(self) -> Mapping[int, int]:
        """See MoveSender."""
        moves, self._moves = self._moves, {}
        return moves

    async def told(self, moves: Mapping[int, int]) -> None:
        """See MoveSender."""
        late = [(self._outboxes[shard], number) for shard, number in moves.items()]
        try:
            async with asyncio.timeout(0 if self._is_over else self.patience_seconds) as limit:
                self._limits.add(limit)
                for outbox, number in late:
                    await outbox.wait(number)
        except TimeoutError:
            raise TopicsError(
                Reason.NOT_READY,
                "positions have moved back, but a shard that retains records for the group has not confirmed it yet;"
                " it learns of it as soon as it answers",
            ) from None
        finally:
            self._limits.discard(limit)

    @property
    def untold(self) -> int:
        """The number of moves that other shards have not confirmed yet, and of shards that do not know all yet."""
        boxes = self._outboxes.values()
        return sum(box.noted - box.told + (not box.is_complete) for box in boxes) + len(self._refused)

    # --- internals

    def _moved(self, group: Group, topic: Topic, partition: int, is_back: bool) -> None:
        """A position has moved in a partition of another shard that waits for the group."""
        key = group.name, Place(topic.name, topic.topic_id, partition)
        outbox = self._outboxes[self._shard_of(topic, partition)]
        number = outbox.add(key, is_urgent=is_back)
        if is_back:
            self._moves[outbox.shard] = number

    async def _run(self, outbox: _Outbox) -> None:
        delay = _FIRST_DELAY
        while True:
            await outbox.work.wait()
            try:
                await self._round(outbox)
                delay = _FIRST_DELAY
            except Exception as error:  # of any kind: another process, or node, may be gone
                if delay > _FIRST_DELAY and not isinstance(error, _EndedError):  # not one that moves
                    self._log.warning(
                        "shard %d does not learn what groups have acknowledged, trying again: %s", outbox.shard, error
                    )
                outbox.session, outbox.is_complete = 0, False
                outbox.work.set()
                await asyncio.sleep(delay)
                delay = min(2 * delay, _LONGEST_DELAY)

    async def _round(self, outbox: _Outbox) -> None:
        """Tell what is pending, all positions at the begin of a session."""
        if outbox.session and not outbox.urgent.is_set():
            try:
                async with asyncio.timeout(LINGER_SECONDS):
                    await outbox.urgent.wait()
            except TimeoutError:
                pass
        calls = self._located.shards
        is_first = not outbox.session
        if is_first:
            session = await calls.call(outbox.shard, MirrorsApi.begin, self._shard, outbox.is_new)
            if self._confirm is not None:
                await self._confirm()  # the session of a later owner ends this one
            outbox.session, outbox.is_new = session, False
            outbox.pending = self._all_of(outbox.shard)
        session = outbox.session
        noted = outbox.noted
        outbox.work.clear()
        outbox.urgent.clear()
        left = len(outbox.pending)
        while left > 0:
            keys = list(islice(outbox.pending, min(left, _A_CALL)))
            left -= len(keys)
            if not keys:
                break
            for key in keys:
                del outbox.pending[key]
            told = [self._told(*key) for key in keys]
            await self._settle(self._engine.writer.written)
            later = await calls.call(outbox.shard, MirrorsApi.tell, self._shard, session, told)
            if later is None:
                raise _EndedError("the session has ended")
            self._ask_again((each.group, each.place) for each in later)
        if is_first and not await calls.call(outbox.shard, MirrorsApi.complete, self._shard, session, calls.count):
            raise _EndedError("the session has ended")
        if outbox.session != session:
            outbox.work.set()  # there was more than it may hold: all are sent once more
            return
        outbox.is_complete = True
        outbox.advance(noted)

    def _all_of(self, shard: int) -> dict[Key, None]:
        """All positions that partitions of a shard retain records for."""
        return {
            (group.name, Place(topic.name, topic.topic_id, partition)): None
            for group, topic, partition in self._engine.groups.index.retained_elsewhere()
            if self._shard_of(topic, partition) == shard
        }

    def _told(self, name: str, place: Place) -> Told:
        """The position as it is now."""
        group, topic = self._engine.groups.find(name), self._engine.catalog.find(place.topic)
        if group is None or topic is None or topic.topic_id != place.topic_id:
            return Told(name, place, 0, None)
        position = group.position(topic, place.partition)
        return Told(name, place, revision_of(topic), None if position is None else position.from_seq)

    def _ask_again(self, keys: Iterable[Key]) -> None:
        """Tell positions later that a shard could not take: it did not know the topic, or another config of it."""
        self._refused.update(dict.fromkeys(keys))
        if self._refused and (self._asking is None or self._asking.done()):
            self._asking = background.start(self._redirect())

    async def _redirect(self) -> None:
        while self._refused:
            await asyncio.sleep(_ASK_AGAIN_SECONDS)
            refused, self._refused = self._refused, {}
            for group, topic, partition in self._engine.groups.index.retained_elsewhere():
                key = group.name, Place(topic.name, topic.topic_id, partition)
                outbox = self._outboxes.get(self._shard_of(topic, partition)) if key in refused else None
                if outbox is not None:
                    outbox.add(key, is_urgent=False)

    def _shard_of(self, topic: Topic, partition: int) -> int:
        """The shard of a partition."""
        return shard_of(topic.name, partition, self._located.shards.count, topic.placement)
