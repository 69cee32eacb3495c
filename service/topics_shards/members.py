"""The members of consumer groups over all shards: each group's are where the group is."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from topics_service.api.kafka import UnreachableError
from topics_service.api.membership import (
    Claim,
    CommitOutcome,
    GroupLine,
    MembershipApi,
    MembershipCalls,
    PositionsReply,
    settled,
)
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.membership.members import (
    Beat,
    BeatReply,
    GroupError,
    GroupView,
    JoinReply,
    JoinRequest,
    Leaving,
    Partition,
    PlainBeat,
    SyncReply,
    SyncRequest,
)
from topics_service.engine.offsets.positions import CommitItem, Target
from topics_service.engine.placement import home_of
from topics_shards.locating import Located
from topics_shards.shards import LostCallError

T = TypeVar("T")


class ShardedMembers:
    """See Members. A call that was lost with its process raises UnreachableError: all may be repeated."""

    def __init__(self, located: Located) -> None:
        self._located = located
        self._shards = located.shards

    def close(self) -> None:
        """See Members."""
        for shard in self._shards.local.values():
            if shard.api.membership is not None:
                shard.api.membership.close()

    async def join(self, request: JoinRequest) -> JoinReply:
        """See Members."""
        shard = self._home(request.group)
        return await _repeatable(self._shards.call(shard, MembershipCalls.join, request))

    async def sync(self, request: SyncRequest) -> SyncReply:
        """See Members."""
        shard = self._home(request.group)
        return await _repeatable(self._shards.call(shard, MembershipCalls.sync, request))

    def heartbeat(
        self, group: str, member_id: str, generation: int, instance_id: str | None
    ) -> GroupError | Awaitable[GroupError]:
        """See Members."""
        here = self._here(group)
        if here is not None:
            return here.heartbeat(group, member_id, generation, instance_id)
        calls, shard = self._shards, self._home(group)
        return _repeatable(calls.call(shard, MembershipCalls.heartbeat, group, member_id, generation, instance_id))

    def leave(self, group: str, members: Sequence[Leaving]) -> list[GroupError] | Awaitable[list[GroupError]]:
        """See Members."""
        here = self._here(group)
        if here is not None:
            return here.leave(group, members)
        return _repeatable(self._shards.call(self._home(group), MembershipCalls.leave, group, list(members)))

    def beat(self, beat: Beat, prefixes: tuple[str, ...] | None) -> BeatReply | Awaitable[BeatReply]:
        """See Members."""
        here = self._here(beat.group)
        if here is not None:
            return here.beat(beat)
        plain = PlainBeat(**{field: getattr(beat, field) for field in PlainBeat.__struct_fields__})
        return _repeatable(self._shards.call(self._home(beat.group), MembershipCalls.beat, plain, prefixes))

    def commit(
        self, group: str, claim: Claim, items: Sequence[CommitItem], partitions: Callable[[], Sequence[Partition]]
    ) -> CommitOutcome | Awaitable[CommitOutcome]:
        """See Members."""
        here, outcome = self._here(group), None
        if here is not None:
            outcome = here.commit(group, claim, items, partitions)
            if isinstance(outcome, CommitOutcome) and not any(map(_is_unknown, outcome.outcomes)):
                return outcome
        return self._committed(group, claim, list(items), list(partitions()), outcome)

    async def _committed(
        self,
        group: str,
        claim: Claim,
        items: list[CommitItem],
        partitions: list[Partition],
        outcome: CommitOutcome | Awaitable[CommitOutcome] | None,
    ) -> CommitOutcome:
        """The outcome of a commit, once the shard of the group knows all topics that there are."""
        shard = self._home(group)
        if outcome is None:
            outcome = _repeatable(self._shards.call(shard, MembershipCalls.commit, group, claim, items, partitions))
        found = await settled(outcome)
        again = [number for number, error in enumerate(found.outcomes) if _is_unknown(error)]
        topics = dict.fromkeys(items[number].topic for number in again)
        known = {topic for topic in topics if await self._located.extend(topic, shard)}
        again = [number for number in again if items[number].topic in known]
        if again:
            some = [items[number] for number in again]
            more = await _repeatable(self._shards.call(shard, MembershipCalls.commit, group, claim, some, partitions))
            if more.error:
                return more
            outcomes = dict(zip(again, more.outcomes, strict=True))
            found.outcomes = [outcomes.get(number, error) for number, error in enumerate(found.outcomes)]
        return found

    def positions(
        self, group: str, member_id: str | None, epoch: int, topics: Sequence[str] | None
    ) -> PositionsReply | Awaitable[PositionsReply]:
        """See Members."""
        here = self._here(group)
        if here is not None:
            return here.positions(group, member_id, epoch, topics)
        names = None if topics is None else list(topics)
        shard = self._home(group)
        return _repeatable(self._shards.call(shard, MembershipCalls.positions, group, member_id, epoch, names))

    async def delete_positions(self, group: str, topics: Sequence[str], targets: Sequence[Target]) -> list[GroupError]:
        """See Members."""
        shard, method = self._home(group), MembershipCalls.delete_positions
        return await _repeatable(self._shards.call(shard, method, group, list(topics), list(targets)))

    def look(self, group: str) -> tuple[GroupView | None, bool] | Awaitable[tuple[GroupView | None, bool]]:
        """See Members."""
        here = self._here(group)
        if here is not None:
            return here.look(group)
        return _repeatable(self._shards.call(self._home(group), MembershipCalls.look, group))

    async def listing(
        self, prefixes: tuple[str, ...] | None, *, shards: Collection[int] | None = None
    ) -> list[GroupLine]:
        """See Members."""
        wanted = range(self._shards.count) if shards is None else shards
        found = await asyncio.gather(*(self._listed(shard, prefixes) for shard in wanted))
        return sorted((line for lines in found for line in lines), key=attrgetter("name"))

    async def _listed(self, shard: int, prefixes: tuple[str, ...] | None) -> list[GroupLine]:
        lines: list[GroupLine] = []
        while True:
            after = lines[-1].name if lines else None
            page = await _repeatable(self._shards.call(shard, MembershipCalls.listing, prefixes, after))
            if not page:
                return lines
            lines += page

    def _home(self, group: str) -> int:
        return home_of(group, self._shards.count)

    def _here(self, group: str) -> MembershipApi | None:
        """The members of the group if they are in this process."""
        shard = self._shards.direct(self._home(group))
        return None if shard is None else shard.api.membership


def _is_unknown(error: TopicsError | None) -> bool:
    """Return whether the shard of the group may not know the topic, or all of its partitions, yet."""
    return error is not None and error.reason in (Reason.TOPIC_NOT_FOUND, Reason.PARTITION_NOT_FOUND)


async def _repeatable(call: Coroutine[Any, Any, T]) -> T:
    try:
        return await call
    except TopicsError as error:
        if error.reason is not Reason.NOT_READY:
            raise
        raise UnreachableError(error.message) from error
    except LostCallError as error:
        raise UnreachableError(f"{error}: the coordinator of the group moves") from error
