"""The members of consumer groups over all shards: each group's are where the group is."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from topics_service.api.membership import (
    Claim,
    CommitOutcome,
    GroupLine,
    MembershipApi,
    MembershipCalls,
    PositionsReply,
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
from topics_shards.shards import LostCallError, Shards

T = TypeVar("T")


class ShardedMembers:
    """See Members. A call that was lost with its process is answered with `not_ready`: all of them may be repeated."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

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
        here = self._here(group)
        if here is not None:
            return here.commit(group, claim, items, partitions)
        shard, parts = self._home(group), list(partitions())
        return _repeatable(self._shards.call(shard, MembershipCalls.commit, group, claim, list(items), parts))

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

    async def listing(self, prefixes: tuple[str, ...] | None) -> list[GroupLine]:
        """See Members."""
        found = await asyncio.gather(*(self._listed(shard, prefixes) for shard in range(self._shards.count)))
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
        shard = self._shards.local.get(self._home(group))
        return None if shard is None else shard.api.membership


async def _repeatable(call: Coroutine[Any, Any, T]) -> T:
    try:
        return await call
    except LostCallError as error:
        raise TopicsError(Reason.NOT_READY, f"{error}: the coordinator of the group moves") from error
