"""Claims of consumers: disjoint ranges of a partition for the workers of one group.

Claims are in memory, at the shard of the partition; the position, which follows the lowest offset that is not
acknowledged, is that of the group, as every protocol sees it. So a restart or a takeover ends all claims, and what was
not acknowledged below another range is handed out again.
"""

import asyncio
import hashlib
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from topics_net import background
from topics_service.api.scheduling.claim_waiters import CallLater, Timer
from topics_service.api.sql.requests import AckRequest, ConsumeReply, ConsumeRequest, Gap, GrantedClaim
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError, invalid, topic_not_found
from topics_service.engine.offsets.claims import ClaimedRanges
from topics_service.engine.offsets.positions import HeldPosition, Place
from topics_service.engine.topic import Topic
from topics_service.statistics import SqlStatistics

DEFAULT_VISIBILITY: Final = 60
MAX_VISIBILITY: Final = 86_400
_MAX_PARTITIONS: Final = 10_000
_LINGER_SECONDS: Final = 60.0
_LOOKED_AT: Final = 16
_TRIES: Final = 8
_CLAIM_ID: Final = re.compile(r"claim_([0-9]{1,19})_([0-9]{1,19})_([0-9a-f]{12})[0-9a-f]{12}\Z")


class Positions(Protocol):
    """The positions of groups, which may be in another shard than the topics; see PositionsApi."""

    async def position(self, name: str, topic: str, partition: int) -> HeldPosition | None:
        """The group's position in a partition, if it has one; the group counts as in use."""
        ...

    async def pin(self, name: str, place: Place, head: int) -> int | None:
        """Set the position of a group that has none to the head; returns where it is then, None for a topic that is not
        there (any more)."""
        ...

    async def advance(self, name: str, place: Place, from_seq: int) -> int | None:
        """Move a position forward, never back; returns where it is then, None for a topic that is not there."""
        ...

    async def move(self, name: str, place: Place, expected: int | None, from_seq: int) -> int | None:
        """Move a position forward if it is still `expected`; returns where it is then, -1 if there is none, None for a
        topic that is not there."""
        ...


class Page(Protocol):
    """Reads one page behind a seq, without waiting."""

    def __call__(self, engine: Engine, topic: Topic, request: ConsumeRequest, from_seq: int, /) -> ConsumeReply: ...


class Wakeable(Protocol):
    """An object that `set` wakes when the server drains."""

    def set(self) -> None:
        """Look at the state of the server."""
        ...


NotifyOnDrain = Callable[[Wakeable], AbstractContextManager[None]]
Key = tuple[str, Place]
"""A group, and the partition that it reads."""


class Token(NamedTuple):
    """A claim's range, half open, as its id says it."""

    start: int
    stop: int


class Claims:
    """The open claims of all groups on the partitions of one engine."""

    def __init__(
        self,
        admit: Callable[[], Engine],
        positions: Callable[[], Positions],
        page: Page,
        notify_on_drain: NotifyOnDrain,
        statistics: SqlStatistics,
        *,
        call_later: CallLater = background.call_later,
    ) -> None:
        """`admit` gives the engine or refuses every call, `positions` has those of groups, and `page` reads."""
        self.admit = admit
        self.page = page
        self.statistics = statistics
        self.call_later = call_later
        self._positions = positions
        self._notify_on_drain = notify_on_drain
        self._shared: OrderedDict[Key, SharedPartition] = OrderedDict()

    def __len__(self) -> int:
        return len(self._shared)

    @property
    def positions(self) -> Positions:
        """The positions of groups."""
        return self._positions()

    async def take(self, topic: Topic, request: ConsumeRequest, seconds: float) -> ConsumeReply:
        """Claim messages for a worker, which waits for a first one behind the workers that wait already.

        Cancelling the call gives back what it got.
        """
        assert request.group is not None
        shared = self._of(request.group, topic, request.partition)
        claimant = _Claimant(request, waits=seconds > 0)
        deadline = asyncio.get_running_loop().time() + seconds
        with self._notify_on_drain(shared):
            shared.join(claimant)
            try:
                async with asyncio.timeout_at(deadline if seconds > 0 else None):
                    await claimant.served.wait()
            except TimeoutError:
                pass
            except BaseException:
                shared.give_back(claimant)
                raise
            finally:
                shared.leave(claimant)
                self._forget(shared)
        return claimant.outcome() or shared.nothing()

    async def ack(self, topic: Topic, request: AckRequest) -> int | None:
        """Acknowledge a claim's range, or what an offset lies in where the group has claims; returns the last offset
        that is acknowledged now, -1 for none. None: the group has no claims here, and the request names none.

        Raises `claim_expired` if another worker holds some of the range.
        """
        partition = request.partition
        if request.claim_id is None:
            found = self._shared.get((request.group, Place(topic.name, topic.topic_id, partition)))
            if found is None or found.ranges is None:
                return None
            shared = found
        else:
            shared = self._of(request.group, topic, partition)
        try:
            return await shared.ack(topic, request)
        finally:
            self._forget(shared)

    def token(self, key: Key, claim_id: str) -> Token | None:
        """The range of a claim of this group and partition; None if it can't be one of theirs."""
        found = _CLAIM_ID.match(claim_id)
        if found is None or found[3] != _mark(key):
            return None
        return Token(int(found[1]), int(found[2]) + 1)

    def _of(self, group: str, topic: Topic, partition: int) -> "SharedPartition":
        """State that the workers of a group share. Raises `throttled` where too many partitions have open claims."""
        key = group, Place(topic.name, topic.topic_id, partition)
        shared = self._shared.get(key)
        if shared is None:
            if len(self._shared) >= _MAX_PARTITIONS:
                self._make_room()
            shared = self._shared[key] = SharedPartition(self, key, topic)
        else:
            self._shared.move_to_end(key)
        return shared

    def _make_room(self) -> None:
        """Forget one that is not in use, of those that were used longest ago."""
        for key, shared in list(self._shared.items())[:_LOOKED_AT]:
            if not shared.in_use:
                del self._shared[key]
                return
        raise TopicsError(
            Reason.THROTTLED,
            f"{_MAX_PARTITIONS} partitions have open claims of groups",
            {"limit": "max_claimed_partitions", "max": _MAX_PARTITIONS},
        )

    def _forget(self, shared: "SharedPartition") -> None:
        """Forget a partition in which all is acknowledged."""
        if shared.is_blank and self._shared.get(shared.key) is shared:
            del self._shared[shared.key]


class _Claimant:
    """A worker that asks for a range, and what it got."""

    def __init__(self, request: ConsumeRequest, *, waits: bool) -> None:
        self.request = request
        self.waits = waits
        self.served = asyncio.Event()
        self.reply: ConsumeReply | None = None
        self._error: Exception | None = None

    def serve(self, reply: ConsumeReply) -> None:
        """End the wait with a page."""
        self.reply = reply
        self.served.set()

    def fail(self, error: Exception) -> None:
        """End the wait with an error."""
        if not self.served.is_set():
            self._error = error
            self.served.set()

    def outcome(self) -> ConsumeReply | None:
        """The page; None if there was nothing in time."""
        if self._error is not None:
            raise self._error
        return self.reply


class SharedPartition:
    """State that the workers of one group share for one partition: its ranges, and the waiting workers in their order.

    One pass at a time looks where the group stands, and serves all who wait. New records, ends of claims and new
    workers ask for it.
    """

    def __init__(self, claims: Claims, key: Key, topic: Topic) -> None:
        self.key = key
        self.ranges: ClaimedRanges | None = None
        self._claims = claims
        self._topic = topic
        self._group, self._place = key
        self._committed: int | None = None  # as last seen at the group
        self._began = 0  # of a group without a position
        self._counted = 0  # of its open claims
        self._claimants: dict[_Claimant, None] = {}
        self._pass: asyncio.Task[None] | None = None
        self._is_due = False
        self._parked: Callable[[], None] | None = None
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self._pushing = asyncio.Lock()
        self._pushes = 0

    @property
    def in_use(self) -> bool:
        """True while somebody waits, or holds a claim."""
        self._expire()
        return bool(self._claimants) or (self.ranges is not None and self.ranges.held > 0) or self._pushing.locked()

    @property
    def is_blank(self) -> bool:
        """True if there is nothing to remember."""
        return not (self._claimants or self._pushing.locked() or (self.ranges is not None and self.ranges.pieces))

    # --- workers

    def join(self, claimant: _Claimant) -> None:
        """Wait for a range behind those who wait already."""
        self._claimants[claimant] = None
        if self._parked is None:
            parked = self._claims.admit().park(self._place.topic, self.set, self._place.partition)
            self._parked = parked.leave
        self.set()

    def leave(self, claimant: _Claimant) -> None:
        """Wait no longer."""
        self._claimants.pop(claimant, None)
        if not self._claimants and self._parked is not None:
            self._parked()
            self._parked = None

    def give_back(self, claimant: _Claimant) -> None:
        """Release the claim of a worker that has left before it learned of it."""
        if claimant.reply is not None and claimant.reply.claim is not None:
            self._released(claimant.reply.claim.claim_id)
            self.set()

    def set(self) -> None:
        """Ask for a pass."""
        if self._claimants:
            self._is_due = True
            if self._pass is None or self._pass.done():
                self._pass = background.start(self._run())

    # --- acks

    async def ack(self, topic: Topic, request: AckRequest) -> int:
        """See `Claims.ack`."""
        head = topic.partition(self._place.partition).view.head
        token = None
        if request.claim_id is not None:
            token = self._claims.token(self.key, request.claim_id)
            if token is None or token.start >= token.stop:
                raise invalid("claim_id is not that of a claim of this group and partition", {"field": "claim_id"})
            if token.stop > head:
                raise _expired(request.claim_id)
        if self.ranges is None:
            await self._look("earliest")
        ranges = self.ranges
        assert ranges is not None
        self._expire()
        if token is not None:
            stop = token.stop if request.upto_offset is None else request.upto_offset + 1
            if not token.start < stop <= token.stop:
                detail = {"from_offset": token.start, "to_offset": token.stop - 1, "upto_offset": stop - 1}
                raise invalid("upto_offset is not in the range of the claim", detail)
            start = token.start
            if ranges.holder(start, stop) not in (None, request.claim_id):
                raise _expired(str(request.claim_id))
        else:
            assert request.upto_offset is not None
            stop = request.upto_offset + 1
            start = ranges.around(stop - 1) if self._is_shared() else ranges.base
            if ranges.is_acked(stop - 1):
                start = stop
        if ranges.pieces > 4 * self._claims.admit().limits.max_open_claims + 4:
            raise _too_many(self._claims.admit())
        ranges.ack(start, stop)
        self._note()
        position = await self._push(topic, start, stop)
        return min(position, topic.partition(self._place.partition).view.head) - 1

    def _is_shared(self) -> bool:
        """Return whether there are workers with claims, or were a moment ago."""
        ranges = self.ranges
        return ranges is not None and (
            ranges.held > 0 or asyncio.get_running_loop().time() - ranges.last_ended < _LINGER_SECONDS
        )

    async def _push(self, topic: Topic, start: int, stop: int) -> int:
        """Move the group's position to the lowest offset that is not acknowledged, now that a range is; returns where
        it is."""
        ranges = self.ranges
        assert ranges is not None
        async with self._pushing:
            for _ in range(_TRIES):
                committed, target = self._committed, ranges.base
                if target <= (self._began if committed is None else committed):
                    self._reconcile(topic, await self._position())
                    ranges.ack(start, stop)  # the position may have moved back before
                    if (self._committed, ranges.base) == (committed, target):
                        return 0 if committed is None else committed
                    continue
                self._pushes += 1
                found = await self._claims.positions.move(self._group, self._place, committed, target)
                if found is None:
                    raise topic_not_found(self._place.topic)
                if found == target:
                    self._committed = target
                    return target
                self._reconcile(topic, None if found < 0 else found)
                ranges.ack(start, stop)
        raise TopicsError(Reason.NOT_READY, "others move the position of the group all the time")

    # --- passes

    async def _run(self) -> None:
        while self._is_due and self._claimants:
            self._is_due = False
            try:
                await self._serve()
            except Exception as error:  # of any kind: the group may be at another process
                for claimant in self._claimants:
                    claimant.fail(error)

    async def _serve(self) -> None:
        """Look where the group stands, and give ranges to those who wait, one after the other."""
        await self._look(next(iter(self._claimants)).request.start)
        engine = self._claims.admit()
        self._expire()
        asked = list(self._claimants)
        for claimant in asked:
            if claimant in self._claimants and not claimant.served.is_set():
                try:
                    reply = self._claim(engine, claimant.request)
                except TopicsError as error:
                    claimant.fail(error)
                    continue
                if reply is None:
                    break
                claimant.serve(reply)
                await asyncio.sleep(0)  # a page takes a while to read
        for claimant in asked:
            if not claimant.served.is_set() and (engine.draining or not claimant.waits):
                claimant.serve(self.nothing())

    def nothing(self) -> ConsumeReply:
        """A page without messages, of a group that has no more to do."""
        offset = 0 if self.ranges is None else next(self.ranges.free())[0]
        return ConsumeReply(messages=[], next_offset=offset, has_more=False)

    def _claim(self, engine: Engine, request: ConsumeRequest) -> ConsumeReply | None:
        """The first page of a free range, which is held from now on; None if nothing is free."""
        ranges = self.ranges
        assert ranges is not None
        assert request.visibility_seconds is not None
        limit = min(request.limit, engine.limits.max_limit)
        while True:
            for start, stop in ranges.free():
                most = limit if stop is None else min(limit, stop - start)
                page = self._claims.page(engine, self._topic, replace(request, limit=most), start)
                messages, gap = page.messages, page.gap
                if stop is not None:
                    messages = [message for message in messages if message.offset < stop]
                    if gap is not None and gap.to_offset >= stop:
                        gap = Gap(from_offset=gap.from_offset, to_offset=stop - 1, reason=gap.reason)
                if messages or gap is not None:
                    break
                if stop is not None:  # all of it was deleted
                    ranges.ack(start, stop)
                    break
            else:
                return None
            if not messages and gap is None:
                continue
            if ranges.held >= engine.limits.max_open_claims:
                raise _too_many(engine)
            end = messages[-1].offset + 1 if messages else gap.to_offset + 1  # type: ignore[union-attr]
            claim_id = f"claim_{start}_{end - 1}_{_mark(self.key)}{secrets.token_hex(6)}"
            seconds = request.visibility_seconds
            ranges.claim(claim_id, start, end, asyncio.get_running_loop().time() + seconds)
            self._claims.statistics.claims += 1
            self._note()
            return ConsumeReply(
                messages=messages,
                next_offset=end,
                has_more=self._has_more(),
                gap=gap,
                claim=GrantedClaim(claim_id=claim_id, from_offset=start, to_offset=end - 1, visibility_seconds=seconds),
            )

    def _has_more(self) -> bool:
        """Return whether a message is free at this moment."""
        assert self.ranges is not None
        view = self._topic.partition(self._place.partition).view
        for start, stop in self.ranges.free():
            seq = view.first_live(max(start + 1, view.earliest))
            if seq <= view.head and (stop is None or seq <= stop):
                return True
        return False

    # --- positions

    async def _look(self, start: str | int) -> None:
        """Learn where the group stands; a new one that begins with the latest is noted at the head."""
        pushes, is_still = self._pushes, not self._pushing.locked()
        found = await self._position()
        if found is None and self.ranges is None and start == "latest":
            head = self._topic.partition(self._place.partition).view.head
            found = await self._claims.positions.pin(self._group, self._place, head)
            if found is None:
                raise topic_not_found(self._place.topic)
        # what was read beside a move of our own may be older than that
        if self.ranges is None or (is_still and pushes == self._pushes):
            self._reconcile(self._topic, found)

    async def _position(self) -> int | None:
        held = await self._claims.positions.position(self._group, self._place.topic, self._place.partition)
        return held.position.from_seq if held is not None and held.place.topic_id == self._place.topic_id else None

    def _reconcile(self, topic: Topic, found: int | None) -> None:
        """Take over a position that others have moved: forward, what is below it is acknowledged; back, all above it is
        to be read again, but what workers hold."""
        ranges = self.ranges
        if ranges is not None and found == self._committed:
            return
        partition = self._place.partition
        if found is None:
            base = self._began = self._claims.admit().locate(topic.name, 0, partition)[0] - 1
        else:
            base = min(found, topic.partition(partition).view.head)
        if ranges is None:
            self.ranges = ClaimedRanges(base)
        elif base > ranges.base:
            ranges.forward(base)
        elif base < ranges.base:
            ranges.back(base)
        self._committed = found
        self._note()

    # --- ends of claims

    def _released(self, claim_id: str) -> None:
        assert self.ranges is not None
        self.ranges.release(claim_id, asyncio.get_running_loop().time())
        self._note()

    def _expire(self) -> None:
        if self.ranges is not None:
            self._claims.statistics.expired_claims += self.ranges.expire(asyncio.get_running_loop().time())
            self._note()

    def _note(self) -> None:
        """Count what is held, and set the timer for the next end of a claim."""
        ranges = self.ranges
        assert ranges is not None
        self._claims.statistics.open_claims += ranges.held - self._counted
        self._counted = ranges.held
        due = ranges.next_deadline()
        if self._timer is not None and (due is None or due < self._timer_at):
            self._timer.cancel()
            self._timer = None
        if due is not None and self._timer is None:
            self._timer_at = due
            self._timer = self._claims.call_later(max(0.0, due - asyncio.get_running_loop().time()), self._due)

    def _due(self) -> None:
        self._timer = None
        self._expire()
        self.set()


def _mark(key: Key) -> str:
    """Hexadecimal digits of a group and its partition, in the ids of claims there."""
    group, place = key
    text = f"{group}\0{place.topic_id}\0{place.partition}"
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()


def _expired(claim_id: str) -> TopicsError:
    return TopicsError(
        Reason.CLAIM_EXPIRED,
        "the claim has ended, and another worker holds some of its messages",
        {"claim_id": claim_id},
    )


def _too_many(engine: Engine) -> TopicsError:
    most = engine.limits.max_open_claims
    return TopicsError(
        Reason.THROTTLED,
        f"the group has {most} open claims in this partition",
        {"limit": "max_open_claims", "max": most},
    )
