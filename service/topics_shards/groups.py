"""Calls on consumer groups over all shards: a group is in one of them, its topics in any."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from heapq import merge
from itertools import islice
from typing import Final

from msgspec.structs import replace

from topics_service.api.access.auth import Principal
from topics_service.api.access.authorizer import check_names
from topics_service.api.groups import CommitReply, ConsumeReply, ConsumeRequest, GroupsApi, check_commit, check_targets
from topics_service.api.observers import Facts, Observers
from topics_service.api.positions import Ends, PositionsApi, Written
from topics_service.api.topics import TopicsApi
from topics_service.engine import names
from topics_service.engine.errors import Reason, TopicsError, partition_not_found, topic_not_found
from topics_service.engine.limits import Limits
from topics_service.engine.offsets.positions import (
    CommitItem,
    DeleteGroupReply,
    GroupState,
    HeldPosition,
    ListGroupsReply,
    ListGroupsRequest,
    Place,
    Position,
    PositionState,
    ResetRequest,
    Target,
    beyond_head,
    check_item,
    lag_of,
    state_of,
)
from topics_service.engine.parts import TopicDefinition
from topics_service.engine.placement import home_of
from topics_shards.ends import Found, ends_of, together
from topics_shards.locating import Located

_TRIES: Final = 3


class ShardedGroups:
    """See GroupsApi. The answers are those of one server, at the moment in which each shard was asked.

    Topics are looked at in their shards first; the shard of the group then learns which lives of them were seen, and
    refuses others with `topic_not_found`.
    """

    def __init__(self, located: Located, limits: Limits, observers: Observers) -> None:
        self._located = located
        self._shards = located.shards
        self._limits = limits
        self._observers = observers

    def home(self, name: str) -> int:
        """The shard of a group."""
        return home_of(name, self._shards.count)

    async def page(self, request: ListGroupsRequest, *, principal: Principal) -> ListGroupsReply:
        """See GroupsApi. A page is not of one moment over all shards."""
        pages = await self._shards.each(GroupsApi.page, request, principal=principal)
        lines = merge(*(page.groups for page in pages), key=lambda line: line.group)
        groups = list(islice(lines, request.page_size))
        is_last = next(lines, None) is None and all(page.next_after is None for page in pages)
        return ListGroupsReply(groups=groups, next_after=None if is_last else groups[-1].group)

    async def get(self, name: str, *, principal: Principal) -> GroupState:
        """See GroupsApi."""
        facts = await self._shards.call(self.home(name), PositionsApi.describe, name, principal=principal)
        return GroupState(
            group=name,
            created_ts=facts.created_ts,
            last_commit_ts=facts.last_commit_ts,
            membership=facts.membership,
            positions=await self._states(facts.held),
        )

    async def delete(self, name: str, *, principal: Principal) -> DeleteGroupReply:
        """See GroupsApi."""
        facts: Facts = {"group": name}
        with self._observers("group.delete", facts, principal):
            reply = await self._shards.call(self.home(name), PositionsApi.delete, name, principal=principal)
            facts["deleted"] = reply.deleted
        return reply

    async def consume(self, request: ConsumeRequest, *, principal: Principal) -> ConsumeReply:
        """See GroupsApi."""
        page, group = request.page, request.group
        check_names(principal, (page.topic,))
        names.check_group_name(group)
        held = await self._shards.call(self.home(group), PositionsApi.position, group, page.topic, page.partition)
        if held is None:
            committed, page = None, request.first_page()
        else:
            committed = held.position.from_seq
            page = replace(page, from_seq=committed, committed=True, topic_id=held.place.topic_id)
        reply = await self._located.call(page.topic, page.partition, TopicsApi.diff, page)
        return ConsumeReply(committed=committed, page=reply)

    async def commit(self, name: str, items: Sequence[CommitItem], *, principal: Principal) -> CommitReply:
        """See GroupsApi."""
        check_commit(items, principal, self._limits)
        names.check_group_name(name)
        found = await self._ends(items)
        for item in items:
            check_item(item, _ends_at(found, item.topic, item.partition).head_seq, kafka=False)
        topic_ids, home = _topic_ids(items, found), self.home(name)
        written = await self._with_parts(
            home, lambda: self._shards.call(home, PositionsApi.commit, name, items, topic_ids)
        )
        last = {(item.topic, item.partition): item for item in items}
        states = []
        for partition, item in sorted(last.items()):
            ends, place = _ends_at(found, *partition), Place(item.topic, "", item.partition)
            position = Position(item.from_seq, item.leader_epoch, item.metadata, written.ts)
            states.append(state_of(place, position, ends.earliest_seq, ends.head_seq))
        return CommitReply(group=name, created=written.created, positions=states)

    async def positions(self, name: str, topic: str | None, *, principal: Principal) -> list[PositionState]:
        """See GroupsApi."""
        held = await self._shards.call(self.home(name), PositionsApi.held, name, topic, principal=principal)
        return await self._states(held)

    async def reset(self, request: ResetRequest, *, principal: Principal) -> list[PositionState]:
        """See GroupsApi."""
        facts: Facts = {"group": request.group, "to": request.to, "ts": request.ts, "targets": request.targets}
        with self._observers("group.reset", facts, principal):
            check_names(principal, (target.topic for target in request.targets))
            home = self.home(request.group)
            places = await self._shards.call(home, PositionsApi.begin_reset, request, principal=principal)
            if request.targets:
                places = await self._places(request.targets)
            found = await ends_of(self._located, ((place.topic, place.partition) for place in places), request.ts)
            lives = [place for place in places if request.targets or _is_alive(found, place)]
            starts = [(place, _start(place, _ends_at(found, place.topic, place.partition), request)) for place in lives]
            written = await self._with_parts(
                home, lambda: self._shards.call(home, PositionsApi.reset, request.group, starts)
            )
            facts["moved"] = len(starts)
        moved = [HeldPosition(place, Position(from_seq, ts=written.ts)) for place, from_seq in starts]
        return _states(moved, found)

    async def delete_positions(self, name: str, targets: Sequence[Target], *, principal: Principal) -> int:
        """See GroupsApi."""
        facts: Facts = {"group": name, "targets": targets}
        with self._observers("group.delete_positions", facts, principal):
            check_names(principal, (target.topic for target in targets))
            check_targets(targets)
            home = self.home(name)
            await self._shards.call(home, PositionsApi.check_unused, name)
            places = await self._places(targets)
            gone = await self._shards.call(home, PositionsApi.delete_positions, name, places)
            facts["deleted"] = len(gone)
        return len(gone)

    async def lags(self, limit: int, allowed: tuple[str, ...] | None) -> list[tuple[str, str, int, int]]:
        """Group, topic, partition and lag of the first positions by name in partitions of other shards, for metrics.

        Raises for a shard that does not answer.
        """
        parts = await self._shards.each(PositionsApi.elsewhere, limit, allowed)
        held = sorted((each for part in parts for each in part), key=lambda each: (each.group, each.place))[:limit]
        found = await ends_of(self._located, ((each.place.topic, each.place.partition) for each in held))
        return [
            (each.group, each.place.topic, each.place.partition, lag_of(each.from_seq, ends.head_seq))
            for each in held
            if isinstance(ends := found[each.place.topic, each.place.partition], Ends)
            and ends.topic_id == each.place.topic_id
        ]

    # --- internals

    async def _ends(self, items: Iterable[CommitItem]) -> Found:
        return await ends_of(self._located, ((item.topic, item.partition) for item in items))

    async def _states(self, held: Sequence[HeldPosition]) -> list[PositionState]:
        places = (each.place for each in held)
        return _states(held, await ends_of(self._located, ((place.topic, place.partition) for place in places)))

    async def _places(self, targets: Sequence[Target]) -> list[Place]:
        """The partitions that are meant, by topic and partition. Raises for one that does not exist."""
        wanted = list(dict.fromkeys(target.topic for target in targets))
        topics = dict(zip(wanted, await together([self._described(name) for name in wanted]), strict=True))
        places: dict[Place, None] = {}
        for target in targets:
            topic = topics[target.topic]
            if topic is None:
                raise topic_not_found(target.topic)
            for partition in target.partitions or range(topic.partition_count):
                if not 0 <= partition < topic.partition_count:
                    raise partition_not_found(topic.name, partition, topic.partition_count)
                places[Place(topic.name, topic.topic_id, partition)] = None
        return list(places)

    async def _described(self, name: str) -> TopicDefinition | None:
        try:
            return await self._located.describe(name)
        except TopicsError as error:
            if error.reason is Reason.TOPIC_NOT_FOUND:
                return None
            raise

    async def _with_parts(self, shard: int, write: Callable[[], Awaitable[Written]]) -> Written:
        """Write positions in a shard, once that has parts of all the topics."""
        for _ in range(_TRIES):
            written = await write()
            if not written.missing:
                return written
            for topic in written.missing:
                if not await self._located.extend(topic, shard):
                    raise topic_not_found(topic)
        raise topic_not_found(written.missing[0])  # another life of it than was looked at


def _topic_ids(items: Iterable[CommitItem], found: Found) -> dict[str, str]:
    """The ids of the topics that were looked at. Raises for one that was recreated meanwhile."""
    topic_ids: dict[str, str] = {}
    for item in items:
        topic_id = _ends_at(found, item.topic, item.partition).topic_id
        if topic_ids.setdefault(item.topic, topic_id) != topic_id:
            raise topic_not_found(item.topic)
    return topic_ids


def _ends_at(found: Found, topic: str, partition: int) -> Ends:
    ends = found[topic, partition]
    if isinstance(ends, TopicsError):
        raise ends
    return ends


def _is_alive(found: Found, place: Place) -> bool:
    ends = found[place.topic, place.partition]
    return isinstance(ends, Ends) and ends.topic_id == place.topic_id


def _states(held: Iterable[HeldPosition], found: Found) -> list[PositionState]:
    """Positions with the state of their partitions, without those whose topic has been deleted meanwhile."""
    return [
        state_of(place, position, ends.earliest_seq, ends.head_seq)
        for place, position in held
        if isinstance(ends := found[place.topic, place.partition], Ends) and ends.topic_id == place.topic_id
    ]


def _start(place: Place, ends: Ends, request: ResetRequest) -> int:
    """The cursor that a reset means in a partition."""
    if ends.start is not None:
        return ends.start
    if request.to == "earliest":
        return ends.earliest_seq - 1
    if request.to == "latest":
        return ends.head_seq
    assert isinstance(request.to, int), "the request was checked"
    if not 0 <= request.to <= ends.head_seq:
        raise beyond_head(place.topic, place.partition, request.to, ends.head_seq)
    return request.to
