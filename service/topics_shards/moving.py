"""Moves of routers to other shards, where their new destinations are: see `engine.router.moves`.

The place of a router's name decides whether it has moved, or stays: one write there ends what several callers, and the
shards in the background, may do at the same time. What has departed or arrived forwards nothing until then.
"""

import asyncio
import logging
import secrets
from contextlib import suppress
from typing import Final

from topics_net import background
from topics_net.rate_limited_logger import RateLimitedLogger
from topics_service.api.access.auth import Principal
from topics_service.api.routers import RoutersApi
from topics_service.engine.errors import Reason, TopicsError, topic_not_found
from topics_service.engine.placement import home_of
from topics_service.engine.router.places import RouterPlace
from topics_service.engine.router.router import Arrival, Departure, PutRouterRequest, RouterConfig
from topics_service.engine.router.routers import Routers
from topics_shards.locating import Located, is_unknown
from topics_shards.shards import LostCallError

_TRIES: Final = 3
_LOOK_SECONDS: Final = 2.0
_AT_ONCE: Final = 100


class RouterMoves:
    """The steps of a move over all shards. Each can be done again, by anyone."""

    def __init__(self, located: Located) -> None:
        self._located = located
        self._shards = located.shards

    async def move(self, request: PutRouterRequest, origin: int, shard: int, source: int, principal: Principal) -> None:
        """Move a router, with its new config, from the shard `origin` to that of its new destination.

        `source` is the shard of its source. Raises the error of a PUT; the router stays as it is then.
        """
        name, given, is_foreign = request.router, request.config, source != shard
        await self._shards.call(origin, RoutersApi.check_owner, name, principal=principal)
        await self._shards.call(
            shard, RoutersApi.check, request, principal=principal, is_foreign=is_foreign, moves=True
        )  # fmt: skip
        if not given.allow_cycle:
            await self.check_cycle(name, given)
        end = await self._shards.call(source, RoutersApi.source_end, given.source, create=True)
        assert end is not None
        departure = await self._shards.call(
            origin,
            RoutersApi.depart,
            request,
            secrets.token_hex(16),
            origin,
            shard,
            principal=principal,
            is_foreign=is_foreign,
            end=end,
        )
        if not await self._finished(departure):
            raise router_busy(name)

    async def settle(self, name: str, shard: int | None = None) -> None:
        """End the moves of a router that are not finished, at the shard of its place and at another one.

        A move that is refused has ended, too.
        """
        place = await self._place(name)
        shards = {each for each in (shard, None if place is None else place.shard) if each is not None}
        for each in shards:
            with suppress(TopicsError):
                await self.settle_at(each, name)

    async def settle_at(self, shard: int, name: str) -> None:
        """End the move of a router, as one shard that takes part knows it."""
        departure = await self._shards.call(shard, RoutersApi.departed, name)
        if departure is not None:
            await self._finished(departure)
        arrival = await self._shards.call(shard, RoutersApi.arrived, name)
        if arrival is not None:
            await self._settle_arrival(shard, name, arrival)

    async def check_cycle(self, name: str, config: RouterConfig) -> None:
        """Raise `router_cycle` if the router closes one: walk upstream, from shard to shard."""
        source, dest = config.source, config.dest
        path = [source]
        while True:
            home = await self.home_of_topic(path[-1])
            found = await self._shards.call(home, RoutersApi.upstream, path[-1], name)
            for feeder in found:
                if feeder in path:
                    return
                path.append(feeder)
                if feeder == dest:
                    cycle = [source, *reversed(path)]
                    raise TopicsError(Reason.ROUTER_CYCLE, f"a cycle: {' -> '.join(cycle)}", {"cycle": cycle})
            if not found:
                return

    async def home_of_topic(self, name: str) -> int:
        """The shard of a topic, also if that is not the one of its name."""
        try:
            await self._located.describe(name)
        except TopicsError as error:
            if not is_unknown(error, name):
                raise
        return self._located.home(name)

    # --------------------------------------------------------------- internals

    async def _finished(self, departure: Departure) -> bool:
        """Do what is left of a move; return False if the router stays. Raises the error for which it stays."""
        for _ in range(_TRIES - 1):
            with suppress(LostCallError):
                return await self._finish(departure)
        return await self._finish(departure)

    async def _finish(self, departure: Departure) -> bool:
        name, token = departure.router, departure.token
        place = await self._place(name)
        if place is not None and place.shard == departure.origin:
            if place.token != token:
                place = await self._arrive(departure, place)
            if place.token == token and place.shard == departure.origin:
                await self._shards.call(departure.origin, RoutersApi.stay, name, token)
                return False
        has_moved = place is not None and (place.shard, place.token) == (departure.shard, token)
        if has_moved:
            await self._shards.call(departure.shard, RoutersApi.activate, name, token)
        elif place is not None and place.shard == departure.origin:
            return False  # others have changed the place, and don't know of this move
        await self._shards.call(departure.origin, RoutersApi.leave, name, token)
        return has_moved

    async def _arrive(self, departure: Departure, place: RouterPlace) -> RouterPlace:
        """Make the router at its new shard, and decide at the place of its name."""
        name, source = departure.router, departure.config.source
        try:
            if departure.is_foreign and not await self._located.extend(source, departure.shard):
                raise topic_not_found(source)
            await self._shards.call(departure.shard, RoutersApi.arrive, departure)
            if not departure.config.allow_cycle:
                await self.check_cycle(name, departure.config)  # another call may have closed it meanwhile
        except TopicsError as refused:
            decided = await self._decide(departure, departure.origin, place)
            if (decided.shard, decided.token) != (departure.origin, departure.token):
                return decided
            await self._shards.call(departure.origin, RoutersApi.stay, name, departure.token)
            with suppress(TopicsError, LostCallError):
                await self.settle_at(departure.shard, name)
            raise refused
        return await self._decide(departure, departure.shard, place)

    async def _decide(self, departure: Departure, shard: int, place: RouterPlace) -> RouterPlace:
        home = home_of(departure.router, self._shards.count)
        return await self._shards.call(home, RoutersApi.set_place, departure.router, shard, place, departure.token)

    async def _settle_arrival(self, shard: int, name: str, arrival: Arrival) -> None:
        """Activate a router that has arrived, or remove it, once it is no longer about to depart."""
        departure = await self._shards.call(arrival.origin, RoutersApi.departed, name)
        if departure is not None and departure.token == arrival.token:
            await self._finished(departure)
            return
        place = await self._place(name)
        has_moved = place is not None and (place.shard, place.token) == (shard, arrival.token)
        method = RoutersApi.activate if has_moved else RoutersApi.discard
        await self._shards.call(shard, method, name, arrival.token)

    async def _place(self, name: str) -> RouterPlace | None:
        return await self._shards.call(home_of(name, self._shards.count), RoutersApi.place, name)


class Mover:
    """Ends the moves of one shard's routers that their callers did not. Belongs to the event loop."""

    def __init__(self, located: Located, shard: int, routers: Routers) -> None:
        self._shard = shard
        self._moves = RouterMoves(located)
        self._routers = routers
        self._seen: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._log = RateLimitedLogger(logging.getLogger("topics.forwarder"))

    def start(self) -> None:
        """Begin, with what the last life has left. The routers are loaded."""
        self._seen = set(self._routers.moves.routers)
        self._task = background.start(self._run())

    async def stop(self) -> None:
        """End what is under way; it continues after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self) -> None:
        """End the moves that were there at the last look, too: callers have had their time."""
        due = [name for name in self._routers.moves.routers if name in self._seen][:_AT_ONCE]
        for name in due:
            try:
                await self._moves.settle_at(self._shard, name)
            except (TopicsError, LostCallError) as error:
                self._log.warning('router "%s" did not move to another shard: %r', name, error)
        self._seen = set(self._routers.moves.routers)

    async def _run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_SECONDS)


def router_busy(name: str) -> TopicsError:
    """Another call changes the router: 429 `throttled`."""
    text = f'another call is making the router "{name}"'
    return TopicsError(Reason.THROTTLED, text, {"retry_after_ms": 1000}, retry_after_ms=1000)
