"""Calls on routers over all shards. A router lives in the shard of its destination, where it makes its copies.

The home of its name knows which one that is (`engine.router.places`): so names are unique, and calls find it.
"""

from itertools import chain

from topics_service.api.access.auth import Principal
from topics_service.api.observers import Facts, Observers
from topics_service.api.routers import RoutersApi, discreet
from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason, TopicsError, router_not_found
from topics_service.engine.placement import home_of
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
from topics_shards.locating import Located, is_unknown
from topics_shards.pulling import UNMADE_MS


class ShardedRouters:
    """See RoutersApi."""

    def __init__(self, located: Located, observers: Observers, clock: Clock) -> None:
        self._located = located
        self._shards = located.shards
        self._observers = observers
        self._clock = clock

    async def put(self, request: PutRouterRequest, *, principal: Principal) -> PutRouterReply:
        """See RoutersApi. A router does not move to a destination in another shard: `router_repoint_forbidden`.

        Of calls that would close a cycle together, without `allow_cycle`, one at least is refused.
        """
        facts: Facts = {"router": request.router, "config": request.config}
        with self._observers("router.put", facts, principal):
            try:
                reply = await self._put(request, principal)
            except TopicsError as error:
                raise discreet(error, principal) from None
            facts["created"] = reply.created
        return reply

    async def get(self, name: str, *, principal: Principal) -> RouterState:
        """See RoutersApi."""
        place = await self._place(name)
        if place is None:
            raise router_not_found(name)
        return await self._shards.call(place.shard, RoutersApi.get, name, principal=principal)

    async def page(self, request: ListRoutersRequest, *, principal: Principal) -> ListRoutersReply:
        """See RoutersApi. A page is not of one moment over all shards."""
        pages = await self._shards.each(RoutersApi.page, request, principal=principal)
        found = sorted(chain.from_iterable(page.routers for page in pages), key=lambda state: state.router)
        is_last = len(found) <= request.page_size and all(page.next_after is None for page in pages)
        found = found[: request.page_size]
        return ListRoutersReply(routers=found, next_after=None if is_last else found[-1].router)

    async def delete(self, name: str, *, principal: Principal) -> DeleteRouterReply:
        """See RoutersApi."""
        facts: Facts = {"router": name}
        with self._observers("router.delete", facts, principal):
            place = await self._place(name)
            reply = DeleteRouterReply(router=name, deleted=False)
            if place is not None:
                reply = await self._remove(name, place, principal)
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

    async def _put(self, request: PutRouterRequest, principal: Principal) -> PutRouterReply:
        name, given = request.router, request.config
        shard, source = await self._home_of_topic(given.dest), await self._home_of_topic(given.source)
        is_foreign = shard != source
        place = await self._place(name)
        if place is not None and place.shard != shard:
            await self._check_unmade(name, place, principal)
        before = await self._shards.call(
            shard, RoutersApi.check, request, principal=principal, is_foreign=is_foreign
        )  # fmt: skip
        end: SourceEnd | None = None
        if is_foreign:
            end = await self._shards.call(source, RoutersApi.source_end, given.source, create=False)
        checks_cycle = not given.allow_cycle and (before is None or may_close_a_cycle(before, given))
        if checks_cycle:
            await self._check_cycle(request)
        made = await self._shards.call(self._home(name), RoutersApi.set_place, name, shard, place)
        if made.shard != shard:
            raise _busy(name)
        if is_foreign:
            if end is None:
                end = await self._shards.call(source, RoutersApi.source_end, given.source, create=True)
            await self._located.extend(given.source, shard)
        reply = await self._shards.call(shard, RoutersApi.make, request, principal=principal, end=end)
        if checks_cycle and reply.created:
            try:
                await self._check_cycle(request)  # another call may have closed it meanwhile
            except TopicsError:
                await self._remove(name, made, principal)
                raise
        return reply

    async def _check_unmade(self, name: str, place: RouterPlace, principal: Principal) -> None:
        """Raise unless a router that is to be in another shard was never made, or is gone."""
        if await self._shards.call(place.shard, RoutersApi.having, [name]):
            await self._shards.call(place.shard, RoutersApi.check_owner, name, principal=principal)
            raise TopicsError(
                Reason.TOPIC_EXISTS_INCOMPATIBLE,
                f'router "{name}" has a destination in another shard: delete it first',
                {"router": name, "reason": "router_repoint_forbidden"},
            )
        if abs(self._clock.now_ms() - place.ts) < UNMADE_MS:
            raise _busy(name)

    async def _check_cycle(self, request: PutRouterRequest) -> None:
        """Raise `router_cycle` if the router closes one: walk upstream, from shard to shard."""
        source, dest = request.config.source, request.config.dest
        path = [source]
        while True:
            home = await self._home_of_topic(path[-1])
            found = await self._shards.call(home, RoutersApi.upstream, path[-1], request.router)
            for feeder in found:
                if feeder in path:
                    return
                path.append(feeder)
                if feeder == dest:
                    cycle = [source, *reversed(path)]
                    raise TopicsError(Reason.ROUTER_CYCLE, f"a cycle: {' -> '.join(cycle)}", {"cycle": cycle})
            if not found:
                return

    async def _remove(self, name: str, place: RouterPlace, principal: Principal) -> DeleteRouterReply:
        reply = await self._shards.call(place.shard, RoutersApi.remove, name, principal=principal)
        if reply.deleted:
            await self._shards.call(self._home(name), RoutersApi.remove_place, name, place)
        return reply

    async def _place(self, name: str) -> RouterPlace | None:
        return await self._shards.call(self._home(name), RoutersApi.place, name)

    def _home(self, name: str) -> int:
        return home_of(name, self._shards.count)

    async def _home_of_topic(self, name: str) -> int:
        """The shard of a topic, also if that is not the one of its name."""
        try:
            await self._located.describe(name)
        except TopicsError as error:
            if not is_unknown(error, name):
                raise
        return self._located.home(name)


def _busy(name: str) -> TopicsError:
    text = f'another call is making the router "{name}"'
    return TopicsError(Reason.THROTTLED, text, {"retry_after_ms": 1000}, retry_after_ms=1000)
