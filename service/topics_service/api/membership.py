"""The members of consumer groups: the coordinator on the engine's topics and store, with a timer of the event loop."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Final, NamedTuple, Protocol, TypeVar
from uuid import UUID

from msgspec import Struct
from ulid import ULID

from topics_net import background
from topics_service.api.catalog import Catalog, uuid_of
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.membership.coordinator import Coordinator
from topics_service.engine.membership.members import (
    Beat,
    BeatReply,
    GroupError,
    GroupSettings,
    GroupType,
    GroupView,
    JoinReply,
    JoinRequest,
    Leaving,
    Partition,
    PlainBeat,
    RefusedError,
    SyncReply,
    SyncRequest,
    TopicFacts,
    everything,
)
from topics_service.engine.offsets.positions import CommitItem, Membership, Position, Target

log: Final = logging.getLogger("topics.kafka")

_Reply = TypeVar("_Reply", JoinReply, SyncReply)
T = TypeVar("T")

_EMPTY: Final = "Empty"
_LINES: Final = 10_000
_Line = tuple[GroupType, str, str]


class Claim(NamedTuple):
    """The membership that a client claims when it commits. Without `knows_epochs` it knows no member epochs."""

    member_id: str
    epoch: int
    instance_id: str | None
    knows_epochs: bool


class CommitOutcome(Struct, kw_only=True):
    """The outcome of a commit: the error of the member, or those of the positions, where None is success."""

    error: GroupError = GroupError.NONE
    outcomes: list[TopicsError | None] = []


class TopicPositions(Struct, kw_only=True):
    """The positions of a group in one topic, by partition."""

    topic: str
    topic_id: str
    positions: dict[int, Position]


class PositionsReply(Struct, kw_only=True):
    """The positions of a group, or the error of the member."""

    error: GroupError = GroupError.NONE
    topics: list[TopicPositions] = []


class GroupLine(NamedTuple):
    """A line of a listing of groups."""

    name: str
    type: GroupType
    state: str
    protocol_type: str


class Members(Protocol):
    """The calls of group members and their positions. A reply that is not due yet is an awaitable of it.

    A reply is due once everything that it depends on is durable. Methods raise TopicsError, at once or when they are
    awaited, if the server accepts no work or the state of the group can't be stored; the next request of the group
    tries to store it again. Callers have authorized the call.
    """

    def close(self) -> None:
        """Stop: held requests fail with `shutting_down`, and no session expires any more."""
        ...

    async def join(self, request: JoinRequest) -> JoinReply:
        """See Coordinator. Cancellation discards the answer, not the membership."""
        ...

    async def sync(self, request: SyncRequest) -> SyncReply:
        """See Coordinator. Cancellation discards the answer, not the membership."""
        ...

    def heartbeat(
        self, group: str, member_id: str, generation: int, instance_id: str | None
    ) -> GroupError | Awaitable[GroupError]:
        """See Coordinator."""
        ...

    def leave(self, group: str, members: Sequence[Leaving]) -> list[GroupError] | Awaitable[list[GroupError]]:
        """See Coordinator."""
        ...

    def beat(self, beat: Beat, prefixes: tuple[str, ...] | None) -> BeatReply | Awaitable[BeatReply]:
        """See Coordinator; `prefixes` are those that `allowed` of the heartbeat stands for."""
        ...

    def commit(
        self, group: str, claim: Claim, items: Sequence[CommitItem], partitions: Callable[[], Sequence[Partition]]
    ) -> CommitOutcome | Awaitable[CommitOutcome]:
        """Set positions by Kafka's rules, each on its own, if the member may; `partitions` are theirs."""
        ...

    def positions(
        self, group: str, member_id: str | None, epoch: int, topics: Sequence[str] | None
    ) -> PositionsReply | Awaitable[PositionsReply]:
        """The positions of a group in these topics, None: all, if the member may see them; none without a group."""
        ...

    async def delete_positions(self, group: str, topics: Sequence[str], targets: Sequence[Target]) -> list[GroupError]:
        """Delete positions, durably, in those of the `topics` that may be; returns the error of each topic.

        NON_EMPTY_GROUP is that of all. Raises `group_not_found`.
        """
        ...

    def look(self, group: str) -> tuple[GroupView | None, bool] | Awaitable[tuple[GroupView | None, bool]]:
        """All about a group's members, None if it has had none lately; and whether there is such a group."""
        ...

    def listing(
        self, prefixes: tuple[str, ...] | None, *, shards: Collection[int] | None = None
    ) -> list[GroupLine] | Awaitable[list[GroupLine]]:
        """The groups whose names start with one of the prefixes; None: all. `shards`: those of some shards only."""
        ...


async def settled(reply: T | Awaitable[T]) -> T:
    """The reply, once it is due."""
    return await reply if isinstance(reply, Awaitable) else reply


class VisibleTopics:
    """Topics for the coordinator: those that are visible to readers."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def facts(self, name: str) -> TopicFacts | None:
        """See TopicsView."""
        topic = self._catalog.find(name)
        if topic is None:
            return None
        return TopicFacts(uuid_of(topic.identity.topic_id).bytes, topic.identity.partition_count)

    def name_of(self, topic_id: bytes) -> str | None:
        """See TopicsView."""
        topic = self._catalog.find(None, UUID(bytes=topic_id))
        return None if topic is None else topic.name

    def names(self) -> Iterable[str]:
        """See TopicsView."""
        return [topic.name for topic in self._catalog.within(None)]


class Moves(Protocol):
    """The moves back of positions, which other shards have to know of; see PositionsApi."""

    def moves_back(self) -> Mapping[int, int]:
        """The moves since the last call."""
        ...

    async def told(self, moves: Mapping[int, int]) -> None:
        """Return once the other shards know of the moves."""
        ...


class MembershipApi:
    """The members of groups on one engine, for Kafka, the only protocol that has members. See Members."""

    def __init__(
        self,
        engine: Engine,
        catalog: Catalog,
        settled: Callable[[int], Awaitable[None]],
        is_durable: Callable[[int], bool],
        settings: GroupSettings,
        moves: Moves | None = None,
    ) -> None:
        """Load the stored groups; from now on `engine.groups` asks this for members.

        Other shards learn of positions that move back by `moves`, if there are any.
        """
        self._moves = moves
        self._engine = engine
        self._groups = engine.groups
        self._settled = settled
        self._is_durable = is_durable
        self._tickets: dict[str, int] = {}
        self._unstored: set[str] = set()
        self._held: set[asyncio.Future[JoinReply] | asyncio.Future[SyncReply]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0
        self._is_closed = False
        self._coordinator = Coordinator(
            VisibleTopics(catalog),
            now=_now_ms,
            new_id=lambda: str(ULID()).lower(),
            settings=settings,
            changed=self._changed,
            admit=self._admit,
            exists=lambda name: self._groups.find(name) is not None,
        )
        self._load()
        catalog.on_changed.append(self._coordinator.topics_changed)
        self._groups.on_deleted.append(self._deleted)
        self._groups.coordinator = self

    def close(self) -> None:
        """Stop: held requests fail with `shutting_down`, and no session expires any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for future in self._held:
            if not future.done():
                future.set_exception(TopicsError(Reason.SHUTTING_DOWN, "the server is shutting down"))

    # --- called by the engine

    def is_empty(self, group: str) -> bool:
        """See `positions.Coordinator`."""
        return self._coordinator.is_empty(group)

    def membership(self, group: str) -> Membership:
        """See `positions.Coordinator`."""
        return self._coordinator.membership(group)

    # --- requests

    async def join(self, request: JoinRequest) -> JoinReply:
        """See Members."""
        return await self._answer(request.group, lambda respond: self._coordinator.join(request, respond))

    async def sync(self, request: SyncRequest) -> SyncReply:
        """See Members."""
        return await self._answer(request.group, lambda respond: self._coordinator.sync(request, respond))

    def heartbeat(self, group: str, member_id: str, generation: int, instance_id: str | None) -> GroupError:
        """See Members."""
        self._check(group)
        error = self._coordinator.heartbeat(group, member_id, generation, instance_id)
        self._arm()
        return error

    def leave(self, group: str, members: Sequence[Leaving]) -> list[GroupError] | Awaitable[list[GroupError]]:
        """See Members. Raises RefusedError without a group."""
        self._check(group)
        errors = self._coordinator.leave(group, members)
        self._arm()
        return self._stored(group, errors)

    def beat(self, beat: Beat, prefixes: tuple[str, ...] | None = None) -> BeatReply | Awaitable[BeatReply]:
        """See Members."""
        self._check(beat.group)
        reply = self._coordinator.consumer_heartbeat(beat)
        self._arm()
        return self._stored(beat.group, reply)

    # --- positions, as far as members decide on them

    def commit(
        self, group: str, claim: Claim, items: Sequence[CommitItem], partitions: Callable[[], Sequence[Partition]]
    ) -> CommitOutcome | Awaitable[CommitOutcome]:
        """See Members."""
        self._check(group)
        check = partial(self._coordinator.check_commit, knows_epochs=claim.knows_epochs)
        error = check(group, claim.member_id, claim.epoch, claim.instance_id)
        if error is GroupError.STALE_MEMBER_EPOCH:
            error = check(group, claim.member_id, claim.epoch, claim.instance_id, partitions())
        if error:
            return CommitOutcome(error=error)
        outcomes, ticket = self._groups.commit(group, items, kafka=True)
        outcome = CommitOutcome(outcomes=outcomes)
        moves = None if self._moves is None else self._moves.moves_back()
        if moves:
            return self._later(outcome, ticket, moves)
        return outcome if self._is_durable(ticket) else self._later(outcome, ticket)

    def positions(self, group: str, member_id: str | None, epoch: int, topics: Sequence[str] | None) -> PositionsReply:
        """See Members; the group counts as in use."""
        self._check(group)
        error = self._coordinator.check_fetch(group, member_id, epoch)
        if error:
            return PositionsReply(error=error)
        self._groups.touch(group)
        found = self._groups.find(group)
        if found is None:
            return PositionsReply()
        wanted = found.positions if topics is None else map(self._engine.catalog.find, topics)
        return PositionsReply(
            topics=[
                TopicPositions(topic=topic.name, topic_id=topic.topic_id, positions=found.positions[topic])
                for topic in wanted
                if topic is not None and topic in found.positions
            ]
        )

    async def delete_positions(self, group: str, topics: Sequence[str], targets: Sequence[Target]) -> list[GroupError]:
        """See Members."""
        self._check(group)
        self._groups.get(group)
        errors = {topic: self._coordinator.check_delete(group, topic) for topic in topics}
        known = self._engine.catalog.topics  # a shard that does not know a topic has no position in it
        deletable = [target for target in targets if target.topic in known and not errors[target.topic]]
        if deletable and GroupError.NON_EMPTY_GROUP not in errors.values():
            _, ticket = self._groups.delete_positions(group, deletable, in_use=True)
            await self._later(None, ticket, None if self._moves is None else self._moves.moves_back())
        return [errors[topic] for topic in topics]

    # --- all groups

    def describe(self, group: str) -> GroupView | None:
        """See Coordinator."""
        self._check()
        return self._coordinator.describe(group)

    def look(self, group: str) -> tuple[GroupView | None, bool]:
        """See Members."""
        return self.describe(group), self._groups.find(group) is not None

    def listing(
        self,
        prefixes: tuple[str, ...] | None,
        after: str | None = None,
        limit: int = 0,
        *,
        shards: Collection[int] | None = None,
    ) -> list[GroupLine]:
        """See Members; at most `limit` groups after a name, unless it is 0. All are of one shard."""
        self._check()
        known: dict[str, _Line] = {name: rest for name, *rest in self._coordinator.summaries()}  # type: ignore[misc]
        names = self._groups.index.under("", prefixes, after)
        return [
            GroupLine(name, *known.get(name, ("classic", _EMPTY, "")))
            for name in (islice(names, limit) if limit else names)
        ]

    # --- internals

    def _stored(self, group: str, reply: T) -> T | Awaitable[T]:
        """The reply, once the state of the group that it reports is durable."""
        ticket = self._stored_ticket(group)
        return self._later(reply, ticket) if ticket else reply

    async def _later(self, reply: T, ticket: int, moves: Mapping[int, int] | None = None) -> T:
        await self._settled(ticket)
        if moves and self._moves is not None:
            await self._moves.told(moves)
        return reply

    def _stored_ticket(self, group: str) -> int:
        """The ticket of the write that an answer about the group must wait for; 0 if there is none."""
        if group in self._unstored:
            raise TopicsError(Reason.NOT_READY, "the state of the group can't be stored")
        ticket = self._tickets.get(group, 0)
        if ticket and self._is_durable(ticket):
            del self._tickets[group]
            return 0
        return ticket

    def _check(self, group: str = "") -> None:
        """Raise TopicsError if the server accepts no work, or none of this group."""
        if self._engine.draining or self._is_closed:
            raise TopicsError(Reason.SHUTTING_DOWN, "the server is shutting down")
        if self._engine.recovered < 1.0:
            raise TopicsError(Reason.NOT_READY, "the server is starting")
        if group in self._unstored:
            self._store(group)

    async def _answer(self, group: str, ask: Callable[[Callable[[_Reply], None]], None]) -> _Reply:
        self._check(group)
        future: asyncio.Future[_Reply] = asyncio.get_running_loop().create_future()

        def respond(reply: _Reply) -> None:
            if not future.done():
                future.set_result(reply)

        ask(respond)
        self._arm()
        self._held.add(future)
        try:
            reply = await future
        except (asyncio.CancelledError, TopicsError):
            self._coordinator.forget(respond)
            self._arm()
            raise
        finally:
            self._held.discard(future)
        await self._settled(self._stored_ticket(group))
        return reply

    # --- the store

    def _load(self) -> None:
        for name, row in self._groups.states():
            try:
                self._coordinator.load(name, row)
            except ValueError:
                log.exception("could not load the members of group %r: they must rejoin", name)
        self._arm()

    def _admit(self, name: str) -> None:
        """Create the group. Permanent errors become errors that clients do not retry."""
        try:
            self._groups.create(name)
        except TopicsError as error:
            if error.reason is Reason.INVALID_REQUEST:
                raise RefusedError(GroupError.INVALID_GROUP_ID, error.message) from error
            if (error.detail or {}).get("limit") == "max_groups":
                raise RefusedError(GroupError.GROUP_MAX_SIZE_REACHED, error.message) from error
            raise

    def _changed(self, name: str) -> None:
        try:
            self._store(name)
        except TopicsError as error:
            log.warning("could not store the state of group %r: %s", name, error.message)
            self._unstored.add(name)

    def _store(self, name: str) -> None:
        self._tickets[name] = self._groups.put_state(name, self._coordinator.dump(name))
        self._unstored.discard(name)

    def _deleted(self, name: str) -> None:
        self._coordinator.delete(name)
        self._tickets.pop(name, None)
        self._unstored.discard(name)

    # --- time

    def _arm(self) -> None:
        """Set the timer to the next due time. A timer that fires early does nothing."""
        due = self._coordinator.next_due()
        if due is None or self._is_closed or (self._timer is not None and self._timer_due <= due):
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # still starting: the first request arms the timer
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = background.call_later(max(due - _now_ms(), 0) / 1e3, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if not self._engine.draining:
            self._coordinator.tick()
            self._arm()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class MembershipCalls:
    """The calls of Members, for other processes: each is awaited where the group is."""

    def __init__(self, served: Callable[[], MembershipApi | None]) -> None:
        """`served` gives the members; None while they are not served yet."""
        self._served = served

    @property
    def _members(self) -> MembershipApi:
        members = self._served()
        if members is None:
            raise TopicsError(Reason.NOT_READY, "the coordinator of groups is starting")
        return members

    async def join(self, request: JoinRequest) -> JoinReply:
        """See Members."""
        return await self._members.join(request)

    async def sync(self, request: SyncRequest) -> SyncReply:
        """See Members."""
        return await self._members.sync(request)

    async def heartbeat(self, group: str, member_id: str, generation: int, instance_id: str | None) -> GroupError:
        """See Members."""
        return self._members.heartbeat(group, member_id, generation, instance_id)

    async def leave(self, group: str, members: list[Leaving]) -> list[GroupError]:
        """See Members."""
        return await settled(self._members.leave(group, members))

    async def beat(self, beat: PlainBeat, prefixes: tuple[str, ...] | None) -> BeatReply:
        """See Members."""
        fields = {field: getattr(beat, field) for field in PlainBeat.__struct_fields__}
        return await settled(self._members.beat(Beat(**fields, allowed=_within(prefixes))))

    async def commit(
        self, group: str, claim: Claim, items: list[CommitItem], partitions: list[Partition]
    ) -> CommitOutcome:
        """See Members."""
        return await settled(self._members.commit(group, claim, items, lambda: partitions))

    async def positions(
        self, group: str, member_id: str | None, epoch: int, topics: list[str] | None
    ) -> PositionsReply:
        """See Members."""
        return self._members.positions(group, member_id, epoch, topics)

    async def delete_positions(self, group: str, topics: list[str], targets: list[Target]) -> list[GroupError]:
        """See Members."""
        return await self._members.delete_positions(group, topics, targets)

    async def look(self, group: str) -> tuple[GroupView | None, bool]:
        """See Members."""
        return self._members.look(group)

    async def listing(self, prefixes: tuple[str, ...] | None, after: str | None = None) -> list[GroupLine]:
        """A page of what Members says, in name order; an empty one is behind the last."""
        return self._members.listing(prefixes, after, _LINES)


@lru_cache(maxsize=1024)
def _within(prefixes: tuple[str, ...] | None) -> Callable[[str], bool]:
    """The check that a name starts with one of the prefixes: always the same object, which keys what patterns find."""
    return everything if prefixes is None else lambda name: name.startswith(prefixes)
