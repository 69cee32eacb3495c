"""Calls that tell the shard of partitions what groups of other shards have let go of; see `engine.offsets.mirrors`.

The shard of groups opens a *session* and makes one call after the other in it. A call of an earlier session has no
effect any more, however late it arrives.
"""

from collections.abc import Awaitable, Callable, Sequence
from random import getrandbits

from topics_service.engine.engine import Engine
from topics_service.engine.offsets.mirrors import Told
from topics_service.engine.offsets.positions import Place
from topics_service.engine.placement import home_of


class _Session:
    """A session with the shard of groups. `told` are the positions of its first round, which tells all of them."""

    def __init__(self) -> None:
        self.number = getrandbits(62) + 1
        self.told: set[tuple[str, Place]] | None = set()


class MirrorsApi:
    """The mirrors of one shard. Every method raises TopicsError."""

    def __init__(self, admit: Callable[[], Engine], settle: Callable[[int], Awaitable[None]]) -> None:
        self.renew: Callable[[int], None] = lambda _shard: None
        """Called with a shard that has started, and may have forgotten what it had learned."""
        self._admit = admit
        self._settle = settle
        self._sessions: dict[int, _Session] = {}

    async def begin(self, shard: int, is_new: bool = False) -> int:
        """Open a session for the groups of a shard, the first since its start if it `is_new`; the one before ends."""
        self._admit()
        if is_new:
            self.renew(shard)
        session = self._sessions[shard] = _Session()
        return session.number

    async def tell(self, shard: int, session: int, told: Sequence[Told]) -> list[Told] | None:
        """Take over positions, durably; returns those that can't be taken yet, None if the session has ended."""
        engine, known = self._admit(), self._known(shard, session)
        if known is None:
            return None
        refused, ticket = engine.groups.mirrors.tell(told)
        if known.told is not None:
            known.told.update((each.group, each.place) for each in told if each.from_seq is not None)
        await self._settle(ticket)
        return refused

    async def complete(self, shard: int, session: int, count: int) -> bool:
        """End the first round of a session: forget what groups of the shard, one of `count`, are not known to have.

        Returns False if the session has ended.
        """
        engine, known = self._admit(), self._known(shard, session)
        if known is None:
            return False
        if known.told is not None:
            ticket = engine.groups.mirrors.keep(known.told, lambda group: home_of(group, count) == shard)
            known.told = None
            await self._settle(ticket)
        return True

    def _known(self, shard: int, session: int) -> _Session | None:
        known = self._sessions.get(shard)
        return known if known is not None and known.number == session else None
