"""The calls of routers for gRPC and HTTP (docs/contract.md, 7), and the wait of readers for pending copies."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from msgspec.structs import replace

from topics_service.api.access.auth import Principal
from topics_service.api.access.authorizer import check_names, check_owned
from topics_service.api.observers import NO_OBSERVERS, Facts, Observers
from topics_service.engine import config
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError, invalid, topic_recreated
from topics_service.engine.model import ConfigInput
from topics_service.engine.router.foreign import ForeignSource
from topics_service.engine.router.moves import router_moving
from topics_service.engine.router.places import RouterPlace
from topics_service.engine.router.router import (
    Arrival,
    DeleteRouterReply,
    Departure,
    ListRoutersReply,
    ListRoutersRequest,
    PutRouterReply,
    PutRouterRequest,
    Router,
    RouterConfig,
    RouterState,
)
from topics_service.engine.router.routers import CatchUp
from topics_service.engine.router.stretch import PullRequest, SourceEnd, SourceIdentity, Stretch

# Rounds of forwarding between requests before a router gets other ends: what comes in the last is forwarded at once.
# A reader asks a source so often, should its shard end in between.
_ROUNDS: Final = 3


class Pulls(Protocol):
    """The puller of records from sources in other shards."""

    async def head(self, topic: str, topic_id: str) -> int | None:
        """The head of a source at some moment after the call; None if its shard does not answer."""
        ...


class RoutersApi:
    """Runs router calls on the engine and answers when their effect is durable.

    Every method raises TopicsError. All of them run on the event loop that owns the engine. Cancelling a call ends its
    wait; forwarded records stay. A router belongs to callers with access to its name and both its ends.
    """

    def __init__(
        self,
        admit: Callable[[], Engine],
        settle: Callable[[int], Awaitable[None]],
        news: Callable[[str], Awaitable[None]],
        observers: Observers = NO_OBSERVERS,
    ) -> None:
        """`admit` gives the engine or refuses every call; `settle` waits until a ticket is durable, `news` for records
        of a topic."""
        self.pulls: Pulls | None = None
        """Set where sources can be in other shards."""
        self._observers = observers
        self._news = news
        self._admit = admit
        self._settle = settle

    async def put(self, request: PutRouterRequest, *, principal: Principal) -> PutRouterReply:
        """Create a router or replace its config; durable before it is acknowledged.

        A router that gets another end first forwards the records of its old source. A full destination ends that: a
        change of the source is then refused with its error (`topic_full`, `throttled`), since the rest would be lost;
        with a change of the destination only, the rest goes to the new one.
        """
        facts: Facts = {"router": request.router, "config": request.config}
        with self._observers("router.put", facts, principal):
            reply = await self.make(request, principal=principal)
            facts["created"] = reply.created
        return reply

    async def make(
        self, request: PutRouterRequest, *, principal: Principal, end: SourceEnd | None = None
    ) -> PutRouterReply:
        """`put` without its observers. `end` is the source if it is in another shard."""
        engine = self._admit()
        check_names(principal, _ends(request.config))
        self._check_owner(engine, request.router, principal)
        try:
            engine.routers.check(request, is_foreign=end is not None)
            await self._finish(engine, request)
            self._check_owner(self._admit(), request.router, principal)  # after a wait it may be another one
            reply, ticket = engine.routers.put(request, end)
        except TopicsError as error:
            raise discreet(error, principal) from None
        await self._settle(ticket)
        return reply

    async def get(self, name: str, *, principal: Principal) -> RouterState:
        """A router's state, once it has forwarded the records that its source held when the call began."""
        engine = self._admit()
        self._check_owner(engine, name, principal)
        router = engine.routers.find(name)
        if router is not None and router.foreign is not None:
            await self._pulled(engine, router)
        catch_up = engine.routers.catch_up(name)
        if catch_up is not None:
            await self._catch_up(engine, catch_up)
        return engine.routers.get(name)

    async def page(self, request: ListRoutersRequest, *, principal: Principal) -> ListRoutersReply:
        """One page, in name order, of the routers that the caller may know of. Does not wait for forwarding."""
        return self._admit().routers.page(request, principal.prefixes)

    async def delete(self, name: str, *, principal: Principal) -> DeleteRouterReply:
        """Remove a router; forwarding stops at once, and the copies stay."""
        facts: Facts = {"router": name}
        with self._observers("router.delete", facts, principal):
            reply = await self.remove(name, principal=principal)
            facts["deleted"] = reply.deleted
        return reply

    async def remove(self, name: str, *, principal: Principal) -> DeleteRouterReply:
        """`delete` without its observers."""
        engine = self._admit()
        self._check_owner(engine, name, principal)
        reply, ticket = engine.routers.delete(name)
        await self._settle(ticket)
        return reply

    async def forwarded(self, topic: str) -> None:
        """Return when the topic has the records that its sources held when the call began: readers read their writes,
        one hop.

        A full destination, or a router that waits to retry, ends the wait. For a topic that is no
        destination, or has it all, this costs nothing.
        """
        engine = self._admit()
        if self.pulls is not None:
            for router in engine.routers.foreign_feeders(topic):
                await self._pulled(engine, router)
        for catch_up in engine.routers.behind(topic):
            await self._catch_up(engine, catch_up)

    # ------------------------------------------------------------ among shards

    async def check(
        self, request: PutRouterRequest, *, principal: Principal, is_foreign: bool, moves: bool = False
    ) -> RouterConfig | None:
        """Raise the error that `make` would, as far as it is known here; `is_foreign` if the source is elsewhere.

        Returns the present config of the router, which is in another shard now if it `moves`.
        """
        engine = self._admit()
        check_names(principal, _ends(request.config))
        self._check_owner(engine, request.router, principal)
        try:
            engine.routers.check(request, is_foreign=is_foreign, moves=moves)
        except TopicsError as error:
            raise discreet(error, principal) from None
        router = engine.routers.find(request.router)
        return None if router is None else router.config

    async def check_owner(self, name: str, *, principal: Principal) -> None:
        """Raise `forbidden` unless the router belongs to the caller."""
        self._check_owner(self._admit(), name, principal)

    async def depart(
        self,
        request: PutRouterRequest,
        token: str,
        here: int,
        there: int,
        *,
        principal: Principal,
        is_foreign: bool,
        end: SourceEnd,
    ) -> Departure:
        """Forward what a PUT has to forward first, and then stop the router of this shard, durably.

        It goes from `here` to the shard `there`, which `is_foreign` to its source then, `end`.
        """
        engine = self._admit()
        check_names(principal, _ends(request.config))
        self._check_owner(engine, request.router, principal)
        await self._finish(engine, request)
        self._check_owner(self._admit(), request.router, principal)
        departure, ticket = engine.routers.moves.depart(request, token, here, there, is_foreign=is_foreign, end=end)
        await self._settle(ticket)
        return departure

    async def departed(self, name: str) -> Departure | None:
        """The way of a router that is to leave this shard."""
        router = self._admit().routers.find(name)
        if router is None or router.departure is None:
            return None
        await self._settle(router.written)
        return router.departure

    async def arrived(self, name: str) -> Arrival | None:
        """The way of a router that has come to this shard, and does not forward yet."""
        router = self._admit().routers.find(name)
        return None if router is None else router.arrival

    async def arrive(self, departure: Departure) -> None:
        """Make the router that departed in another shard; it does not forward yet. Raises the error of a PUT."""
        await self._settle(self._admit().routers.moves.arrive(departure))

    async def activate(self, name: str, token: str) -> None:
        """Let the router that has arrived here forward."""
        await self._settle(self._admit().routers.moves.activate(name, token))

    async def discard(self, name: str, token: str) -> None:
        """Remove the router that has arrived here."""
        await self._settle(self._admit().routers.moves.discard(name, token))

    async def leave(self, name: str, token: str) -> None:
        """Remove the router that has departed from here."""
        await self._settle(self._admit().routers.moves.leave(name, token))

    async def stay(self, name: str, token: str) -> None:
        """Let the router that has departed from here forward again."""
        await self._settle(self._admit().routers.moves.stay(name, token))

    async def source_end(self, name: str, *, create: bool) -> SourceEnd | None:
        """A topic of this shard as a source in the eyes of others; None if it does not exist, or `create` it."""
        engine = self._admit()
        topic = engine.catalog.find(name)
        if topic is None:
            if not create:
                return None
            topic = engine.catalog.create(name, config.resolve(name, ConfigInput()))
        if len(topic.logs) > 1:
            raise invalid(
                f'"{name}" has {len(topic.logs)} partitions: an end of a router has one',
                {"topic": name, "partition_count": len(topic.logs)},
            )
        await self._settle(engine.catalog.unsynced(topic))
        state = engine.get_topic(name, touch=False)
        identity = SourceIdentity(state.identity.topic_id, state.identity.epoch)
        return SourceEnd(identity=identity, earliest=state.earliest_seq, head=state.head_seq)

    async def upstream(self, topic: str, without: str) -> list[str]:
        """The topics that feed a topic by routers of this shard, directly and indirectly, as if the router `without`
        did not exist."""
        return self._admit().routers.feeders(topic, without)

    async def head(self, topic: str, topic_id: str) -> int:
        """The head of a topic as readers see it. Raises `topic_not_found`, also for another life of it."""
        found = self._admit().catalog.visible(topic)
        if found.topic_id != topic_id:
            raise topic_recreated(topic, found.topic_id)
        return found.log.view.head

    async def pull(self, request: PullRequest) -> AsyncGenerator[Stretch, None]:
        """Stretches of a topic, at once and then with each write; the first item is the present state."""
        upstream: list[str] | None = None
        is_first = True
        topic, pulled = request.topic, self._admit().routers.pulled
        pulled[topic] = pulled.get(topic, 0) + 1
        try:
            while True:
                stretch = self._admit().routers.stretch(request)
                if is_first or stretch.to > stretch.after:
                    is_first, request = False, replace(request, after=stretch.to)
                    if stretch.upstream == upstream:
                        stretch.upstream = None
                    else:
                        upstream = stretch.upstream
                    yield stretch
                else:
                    await self._news(topic)
        finally:
            pulled[topic] -= 1
            if not pulled[topic]:
                del pulled[topic]

    async def drop_source(self, topic: str, topic_id: str | None = None) -> list[str]:
        """Remove the routers from a topic of another shard that was deleted; return their names."""
        engine = self._admit()
        removed = engine.routers.of_foreign(topic, topic_id)
        ticket = max((engine.routers.delete(router.name)[1] for router in removed), default=0)
        await self._settle(ticket)
        return [router.name for router in removed]

    async def having(self, names: Sequence[str]) -> list[str]:
        """Those of the names that routers of this shard have."""
        engine = self._admit()
        return [name for name in names if engine.routers.find(name) is not None]

    async def place(self, name: str) -> RouterPlace | None:
        """The shard of the router; its name's home is here."""
        return self._admit().routers.places.find(name)

    async def set_place(
        self, name: str, shard: int, expected: RouterPlace | None, token: str | None = None
    ) -> RouterPlace:
        """Set the shard of the router, durably, unless another place than `expected` is known; return that."""
        place, ticket = self._admit().routers.places.put(name, shard, expected, token)
        await self._settle(ticket)
        return place

    async def remove_place(self, name: str, expected: RouterPlace) -> None:
        """Forget where the router is, if it is still this place."""
        await self._settle(self._admit().routers.places.remove(name, expected))

    # --------------------------------------------------------------- internals

    async def _finish(self, engine: Engine, request: PutRouterRequest) -> None:
        """Forward the records of the source before a PUT that changes an end of the router."""
        for _ in range(_ROUNDS):
            catch_up = engine.routers.move(request)
            if catch_up is None:
                break
            catch_up = await self._refreshed(catch_up)
            if catch_up.is_over:
                break
            await _drive(engine, catch_up)
            _check_moved(catch_up, request)

    async def _pulled(self, engine: Engine, router: Router) -> None:
        """Return when the router has forwarded what its source in another shard holds now, or that does not answer."""
        for _ in range(_ROUNDS):
            known = CatchUp(router)
            catch_up = await self._refreshed(known)
            await self._catch_up(engine, catch_up)
            if catch_up is known or catch_up.is_over or router.fault is not None:
                return

    async def _refreshed(self, catch_up: CatchUp) -> CatchUp:
        """The wait, up to what a source in another shard holds now."""
        router = catch_up.router
        if router.foreign is None or self.pulls is None:
            return catch_up
        head = await self.pulls.head(router.config.source, router.foreign.topic_id)
        return catch_up if head is None else CatchUp(router, head)

    async def _catch_up(self, engine: Engine, catch_up: CatchUp) -> None:
        await _drive(engine, catch_up)
        with suppress(TopicsError):  # a failed fsync: the reader gets the visible records
            await self._settle(catch_up.router.ticket)

    def _check_owner(self, engine: Engine, name: str, principal: Principal) -> None:
        router = engine.routers.find(name)
        if router is not None:
            check_owned(principal, _ends(router.config))
            if router.is_moving:
                raise router_moving(name)


async def _drive(engine: Engine, catch_up: CatchUp) -> None:
    while True:
        while engine.routers.advance(catch_up):  # noqa: ASYNC110  # each turn does a slice of the work
            await asyncio.sleep(0)
        if not engine.routers.awaits_source(catch_up):
            return
        arrived, log = asyncio.Event(), catch_up.router.source.log
        log.park(arrived.set)
        try:
            await arrived.wait()
        finally:
            log.leave(arrived.set)


def _check_moved(catch_up: CatchUp, request: PutRouterRequest) -> None:
    """Raise if the rest of a source in another shard would be lost by a change of the source."""
    router = catch_up.router
    if router.foreign is None or catch_up.is_over or request.config.source == router.config.source:
        return
    if isinstance(router.source, ForeignSource) and router.source.error is not None:
        raise router.source.error


def discreet(error: TopicsError, principal: Principal) -> TopicsError:
    """The error without names of other routers and topics that the caller may not know of."""
    if principal.prefixes is None:
        return error
    if error.reason is Reason.ROUTER_CYCLE:
        cycle = [name if principal.allows_name(name) else "…" for name in (error.detail or {}).get("cycle", ())]
        return TopicsError(error.reason, f"a cycle: {' -> '.join(cycle)}", {"cycle": cycle})
    if error.reason is Reason.TOPIC_EXISTS_INCOMPATIBLE:
        return TopicsError(error.reason, "another router feeds that destination from another source", error.detail)
    return error


def _ends(config: RouterConfig) -> tuple[str, str]:
    return config.source, config.dest
