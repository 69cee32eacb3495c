"""Calls on groups at the shard that has them, for callers that have looked at the topics elsewhere.

A server of one shard answers with GroupsApi, which looks at both. Here topics are named with their id: one that was
recreated meanwhile has no position of the former.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from topics_service.api.access.auth import Principal
from topics_service.api.access.authorizer import check_owned
from topics_service.engine.engine import Engine
from topics_service.engine.errors import TopicsError
from topics_service.engine.offsets.positions import (
    CommitItem,
    DeleteGroupReply,
    HeldPosition,
    Membership,
    Place,
    ResetRequest,
    check_reset,
)


class Ends(Struct):
    """The ends of a partition and the id of its topic; `start` is the cursor in front of the time, if one was given."""

    topic_id: str
    earliest_seq: int
    head_seq: int
    start: int | None = None


class GroupPosition(Struct, frozen=True):
    """A position of the group that is named."""

    group: str
    place: Place
    from_seq: int


class GroupFacts(Struct, kw_only=True):
    """All about a group, as far as its shard knows."""

    created_ts: int
    last_commit_ts: int | None
    membership: Membership
    held: list[HeldPosition]


class Written(Struct, kw_only=True):
    """The outcome of a write of positions: its time, and whether the group is new.

    Nothing was written if topics are `missing`: the shard of the group has no part of them yet.
    """

    ts: int = 0
    created: bool = False
    missing: Sequence[str] = ()


class MoveSender(Protocol):
    """Sends the shards of partitions what groups have let go of; see `topics_shards.holds`."""

    def take(self) -> Mapping[int, int]:
        """The moves back since the last call, which `told` waits for."""
        ...

    async def told(self, moves: Mapping[int, int]) -> None:
        """Return once the shards know of the moves. Raises `not_ready` if they can't be reached in time."""
        ...


class PositionsApi:
    """Positions of the groups of one shard, and the ends of its partitions, in calls that shards make to each other.

    Every method raises TopicsError. Callers have checked the caller's access, unless there is a `principal`.
    """

    def __init__(self, admit: Callable[[], Engine], settle: Callable[[int], Awaitable[None]]) -> None:
        self.sender: MoveSender | None = None  # of one shard among several
        self._admit = admit
        self._settle = settle

    # --- at the shard of a group

    async def describe(self, name: str, *, principal: Principal) -> GroupFacts:
        """All about a group, as far as the topics are the caller's to know."""
        groups = self._admit().groups
        group = groups.get(name)
        facts = GroupFacts(
            created_ts=group.created_ts,
            last_commit_ts=group.last_commit_ts,
            membership=groups.membership(name, principal.prefixes),
            held=groups.held(name, None, principal.prefixes),
        )
        await self._settle(0)
        return facts

    async def held(self, name: str, topic: str | None, *, principal: Principal) -> list[HeldPosition]:
        """The group's positions, all or those in one topic, as far as the topics are the caller's to know."""
        return self._admit().groups.held(name, topic, principal.prefixes)

    async def position(self, name: str, topic: str, partition: int) -> HeldPosition | None:
        """The group's position in a partition, if it has one; the group counts as in use."""
        engine = self._admit()
        engine.groups.touch(name)
        position = engine.groups.position(name, topic, partition)
        if position is None:
            return None
        return HeldPosition(Place(topic, engine.catalog.topics[topic].topic_id, partition), position)

    async def commit(self, name: str, items: Sequence[CommitItem], topic_ids: Mapping[str, str]) -> Written:
        """Set positions that were checked at their partitions; as durable as their topics. See `Groups.commit`."""
        engine = self._admit()
        missing = _missing(engine, (Place(item.topic, topic_ids[item.topic], item.partition) for item in items))
        if missing:
            return Written(missing=missing)
        created = engine.groups.find(name) is None
        ts, ticket = engine.groups.commit_checked(name, items, topic_ids)
        await self._done(ticket)
        return Written(ts=ts, created=created)

    async def advance(self, name: str, place: Place, from_seq: int) -> int | None:
        """Move a position forward, never back; returns where it is then. None: the topic is missing here."""
        engine = self._admit()
        if _missing(engine, (place,)):
            return None
        position, ticket = engine.groups.advance(name, place, from_seq)
        await self._done(ticket)
        return position

    async def move(self, name: str, place: Place, expected: int | None, from_seq: int) -> int | None:
        """Move a position forward if it is still `expected` (None: there is none); returns where it is then, or -1.

        None: the topic is missing here.
        """
        engine = self._admit()
        if _missing(engine, (place,)):
            return None
        position, ticket = engine.groups.move(name, place, expected, from_seq)
        await self._done(ticket)
        return -1 if position is None else position

    async def pin(self, name: str, place: Place, head: int) -> int | None:
        """Set the position of a group that has none to the head, durably; returns where it is then.

        None: the topic is missing here.
        """
        engine = self._admit()
        if _missing(engine, (place,)):
            return None
        position, ticket = engine.groups.pin(name, place, head)
        await self._done(ticket)
        return position

    async def begin_reset(self, request: ResetRequest, *, principal: Principal) -> list[Place]:
        """Check a reset before its cursors are looked for; returns where the group has positions if no targets are
        given."""
        groups = self._admit().groups
        if not request.targets:
            check_owned(principal, groups.topics(request.group))
        check_reset(request)
        groups.without_members(request.group)
        return [] if request.targets else [held.place for held in groups.held(request.group)]

    async def reset(self, name: str, starts: Sequence[tuple[Place, int]]) -> Written:
        """Move positions to cursors that were found at their partitions, all or none; durable before it returns."""
        engine = self._admit()
        missing = _missing(engine, (place for place, _ in starts))
        if missing:
            return Written(missing=missing)
        held, ticket = engine.groups.reset_checked(name, starts)
        await self._done(ticket)
        return Written(ts=held[0].position.ts if held else 0)

    async def check_unused(self, name: str) -> None:
        """Raise `group_not_found`, and `group_not_empty` while the group has members."""
        self._admit().groups.without_members(name)

    async def delete_positions(
        self, name: str, places: Sequence[Place], *, in_use: bool = False
    ) -> list[tuple[str, int]]:
        """Forget positions in partitions that were found to exist; returns those that were there. See `Groups`."""
        gone, ticket = self._admit().groups.delete_checked(name, places, in_use=in_use)
        await self._done(ticket)
        return gone

    async def delete(self, name: str, *, principal: Principal) -> DeleteGroupReply:
        """Remove a group and its positions; durable before it returns."""
        groups = self._admit().groups
        check_owned(principal, groups.topics(name))
        reply, ticket = groups.delete(name)
        await self._done(ticket)
        return reply

    async def elsewhere(self, limit: int, allowed: tuple[str, ...] | None) -> list[GroupPosition]:
        """The first positions, by name, that groups of this shard have in partitions of others."""
        return [
            GroupPosition(name, Place(topic.name, topic.topic_id, partition), position.from_seq)
            for name, topic, partition, position in self._admit().groups.index.elsewhere(limit, allowed)
        ]

    # --- at the shard of a partition

    async def ends(self, partitions: Sequence[tuple[str, int]], ts: int | None = None) -> list[Ends | None]:
        """The ends of partitions of this shard, with the cursor in front of the first record of a time (ms) or later.

        None for one that is not here: `ends_of` has the reason.
        """
        engine = self._admit()
        found: list[Ends | None] = []
        for topic, partition in partitions:
            try:
                found.append(_ends(engine, topic, partition, ts))
            except TopicsError:
                found.append(None)
        return found

    async def ends_of(self, topic: str, partition: int, ts: int | None = None) -> Ends:
        """As `ends`, of one. Raises `topic_not_found` or `partition_not_found`."""
        return _ends(self._admit(), topic, partition, ts)

    # --- moves back

    def moves_back(self) -> Mapping[int, int]:
        """The moves back of positions that other shards have to know of, since the last call; for `told`.

        Call it in the same turn of the loop as the write.
        """
        return {} if self.sender is None else self.sender.take()

    async def told(self, moves: Mapping[int, int]) -> None:
        """Return once the partitions that positions moved back in hold their records again."""
        if moves and self.sender is not None:
            await self.sender.told(moves)

    # --- internals

    async def _done(self, ticket: int) -> None:
        """Wait for a write, and for what `told` says."""
        moves = self.moves_back()
        await self._settle(ticket)
        await self.told(moves)


def _ends(engine: Engine, topic: str, partition: int, ts: int | None) -> Ends:
    state = engine.get_topic(topic, touch=False, partition=partition)
    start = None if ts is None else engine.locate(topic, ts, partition)[0] - 1
    return Ends(state.identity.topic_id, state.earliest_seq, state.head_seq, start)


def _missing(engine: Engine, places: Iterable[Place]) -> list[str]:
    """The topics of which no part is here that is of this life and knows these partitions."""
    missing: dict[str, None] = {}
    for place in places:
        topic = engine.catalog.find(place.topic)
        if (
            topic is None
            or topic.topic_id != place.topic_id
            or place.partition >= topic.partition_count
            or engine.catalog.unsynced(topic)
        ):
            missing[place.topic] = None
    return list(missing)
