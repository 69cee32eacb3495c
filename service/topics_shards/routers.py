"""Calls on routers over all shards. A router lives in the shard of its destination, where it makes its copies.

The home of its name knows which one that is (`engine.router.places`): so names are unique, and calls find it.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import chain
from typing import Final, TypeVar

from topics_service.api.access.auth import Principal
from topics_service.api.observers import Facts, Observers
from topics_service.api.routers import RoutersApi, discreet
from topics_service.engine.clock import Clock
from topics_service.engine.errors import TopicsError, router_not_found
from topics_service.engine.placement import home_of
from topics_service.engine.router.moves import is_moving
from topics_service.engine.router.places import RouterPlace
from topics_service.engine.router.router import (
    DeleteRouterReply,
    ListRoutersReply,
    ListRoutersRequest,
    PutRouterReply,
    PutRouterRequest,
    RouterState,
)
from topics_service.engine.router.routers import may_close_a_cycle
from topics_service.engine.router.stretch import SourceEnd
from topics_shards.locating import Located
from topics_shards.moving import RouterMoves, router_busy
from topics_shards.pulling import UNMADE_MS

R = TypeVar("R")
_TRIES: Final = 4


class ShardedRouters:
    """See RoutersApi."""

    def __init__(self, located: Located, observers: Observers, clock: Clock) -> None:
        self._located = located
        self._shards = located.shards
        self._observers = observers
        self._clock = clock
        self._moves = RouterMoves(located)

    async def put(self, request: PutRouterRequest, *, principal: Principal) -> PutRouterReply:
        """See RoutersApi. A router with a new destination in another shard moves there.

        Of calls that would close a cycle together, without `allow_cycle`, one at least is refused.
        """
        facts: Facts = {"router": request.router, "config": request.config}
        with self._observers("router.put", facts, principal):
            try:
                dest = await self._moves.home_of_topic(request.config.dest)
                reply = await self._settled(request.router, lambda: self._put(request, dest, principal), dest)
            except TopicsError as error:
                raise discreet(error, principal) from None
            facts["created"] = reply.created
        return reply

    async def get(self, name: str, *, principal: Principal) -> RouterState:
        """See RoutersApi."""

        async def get() -> RouterState:
            place = await self._place(name)
            if place is None:
                raise router_not_found(name)
            return await self._shards.call(place.shard, RoutersApi.get, name, principal=principal)

        return await self._settled(name, get)

    async def page(self, request: ListRoutersRequest, *, principal: Principal) -> ListRoutersReply:
        """See RoutersApi. A page is not of one moment over all shards."""
        pages = await self._shards.each(RoutersApi.page, request, principal=principal)
        states = {state.router: state for state in chain.from_iterable(page.routers for page in pages)}
        if len(states) < sum(len(page.routers) for page in pages):
            await self._prefer_moved(states, pages)
        found = [states[name] for name in sorted(states)]
        is_last = len(found) <= request.page_size and all(page.next_after is None for page in pages)
        found = found[: request.page_size]
        return ListRoutersReply(routers=found, next_after=None if is_last else found[-1].router)

    async def delete(self, name: str, *, principal: Principal) -> DeleteRouterReply:
        """See RoutersApi."""
        facts: Facts = {"router": name}
        with self._observers("router.delete", facts, principal):
            reply = await self._settled(name, lambda: self._delete(name, principal))
            facts["deleted"] = reply.deleted
        return reply

    async def forwarded(self, topic: str) -> None:
        """See RoutersApi."""
        await self._shards.call(self._located.home(topic), RoutersApi.forwarded, topic)

    async def forget(self, names: list[str]) -> None:
        """Forget the places of routers that were removed with a topic."""
        for name in names:
            place = await self._place(name)
            if place is not None and not await self._shards.call(place.shard, RoutersApi.having, [name]):
                await self._shards.call(self._home(name), RoutersApi.remove_place, name, place)

    # --------------------------------------------------------------- internals

    async def _settled(self, name: str, work: Callable[[], Awaitable[R]], shard: int | None = None) -> R:
        """Run a call on a router, once the moves of it that are not finished are. It may be in `shard`, too."""
        for _ in range(_TRIES):
            try:
                return await work()
            except TopicsError as error:
                if not is_moving(error, name):
                    raise
            await self._moves.settle(name, shard)
        raise router_busy(name)

    async def _put(self, request: PutRouterRequest, shard: int, principal: Principal) -> PutRouterReply:
        name, given = request.router, request.config
        source = await self._moves.home_of_topic(given.source)
        is_foreign = shard != source
        place = await self._place(name)
        if place is not None and place.shard != shard:
            if await self._shards.call(place.shard, RoutersApi.having, [name]):
                await self._moves.move(request, place.shard, shard, source, principal)
                return PutRouterReply(router=name, created=False, config=given)
            if abs(self._clock.now_ms() - place.ts) < UNMADE_MS:
                raise router_busy(name)
        before = await self._shards.call(
            shard, RoutersApi.check, request, principal=principal, is_foreign=is_foreign
        )  # fmt: skip
        end: SourceEnd | None = None
        if is_foreign:
            end = await self._shards.call(source, RoutersApi.source_end, given.source, create=False)
        checks_cycle = not given.allow_cycle and (before is None or may_close_a_cycle(before, given))
        if checks_cycle:
            await self._moves.check_cycle(name, given)
        made = await self._shards.call(self._home(name), RoutersApi.set_place, name, shard, place)
        if made.shard != shard:
            raise router_busy(name)
        if is_foreign:
            if end is None:
                end = await self._shards.call(source, RoutersApi.source_end, given.source, create=True)
            await self._located.extend(given.source, shard)
        reply = await self._shards.call(shard, RoutersApi.make, request, principal=principal, end=end)
        if checks_cycle and reply.created:
            try:
                await self._moves.check_cycle(name, given)  # another call may have closed it meanwhile
            except TopicsError:
                await self._remove(name, made, principal)
                raise
        return reply

    async def _delete(self, name: str, principal: Principal) -> DeleteRouterReply:
        place = await self._place(name)
        if place is None:
            return DeleteRouterReply(router=name, deleted=False)
        return await self._remove(name, place, principal)

    async def _remove(self, name: str, place: RouterPlace, principal: Principal) -> DeleteRouterReply:
        reply = await self._shards.call(place.shard, RoutersApi.remove, name, principal=principal)
        if reply.deleted:
            await self._shards.call(self._home(name), RoutersApi.remove_place, name, place)
        return reply

    async def _prefer_moved(self, states: dict[str, RouterState], pages: list[ListRoutersReply]) -> None:
        """Of routers that two shards have, as the end of a move is under way, take that of the place."""
        counts = Counter(state.router for page in pages for state in page.routers)
        for name, count in counts.items():
            place = await self._place(name) if count > 1 else None
            if place is not None:
                states.update((name, state) for state in pages[place.shard].routers if state.router == name)

    async def _place(self, name: str) -> RouterPlace | None:
        return await self._shards.call(self._home(name), RoutersApi.place, name)

    def _home(self, name: str) -> int:
        return home_of(name, self._shards.count)
