"""The calls of routers for gRPC and HTTP (docs/contract.md, 7), and the wait of readers for pending copies."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from topics_service.api.access.auth import Principal
from topics_service.api.access.authorizer import check_names, check_owned
from topics_service.api.observers import NO_OBSERVERS, Facts, Observers
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.router.router import (
    DeleteRouterReply,
    ListRoutersReply,
    ListRoutersRequest,
    PutRouterReply,
    PutRouterRequest,
    RouterConfig,
    RouterState,
)
from topics_service.engine.router.routers import CatchUp

# Rounds of forwarding between requests before a router gets other ends: what comes in the last is forwarded at once.
_ROUNDS: Final = 3


class RoutersApi:
    """Runs router calls on the engine and answers when their effect is durable.

    Every method raises TopicsError. All of them run on the event loop that owns the engine. Cancelling a call ends its
    wait; forwarded records stay. A router belongs to callers with access to its name and both its ends.
    """

    def __init__(
        self,
        admit: Callable[[], Engine],
        settle: Callable[[int], Awaitable[None]],
        observers: Observers = NO_OBSERVERS,
    ) -> None:
        """`admit` gives the engine or refuses every call; `settle` waits until a ticket is durable."""
        self._observers = observers
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
            engine = self._admit()
            check_names(principal, _ends(request.config))
            self._check_owner(engine, request.router, principal)
            try:
                engine.routers.check(request)
                for _ in range(_ROUNDS):
                    catch_up = engine.routers.move(request)
                    if catch_up is None or catch_up.is_over:
                        break
                    await _drive(engine, catch_up)
                self._check_owner(self._admit(), request.router, principal)  # after a wait it may be another one
                reply, ticket = engine.routers.put(request)
            except TopicsError as error:
                raise _discreet(error, principal) from None
            await self._settle(ticket)
            facts["created"] = reply.created
        return reply

    async def get(self, name: str, *, principal: Principal) -> RouterState:
        """A router's state, once it has forwarded the records that its source held when the call began."""
        engine = self._admit()
        self._check_owner(engine, name, principal)
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
            engine = self._admit()
            self._check_owner(engine, name, principal)
            reply, ticket = engine.routers.delete(name)
            await self._settle(ticket)
            facts["deleted"] = reply.deleted
        return reply

    async def forwarded(self, topic: str) -> None:
        """Return when the topic has the records that its sources held when the call began: readers read their writes,
        one hop.

        A full destination, or a router that waits to retry, ends the wait. For a topic that is no
        destination, or has it all, this costs nothing.
        """
        engine = self._admit()
        for catch_up in engine.routers.behind(topic):
            await self._catch_up(engine, catch_up)

    # --------------------------------------------------------------- internals

    async def _catch_up(self, engine: Engine, catch_up: CatchUp) -> None:
        await _drive(engine, catch_up)
        with suppress(TopicsError):  # a failed fsync: the reader gets the visible records
            await self._settle(catch_up.router.ticket)

    def _check_owner(self, engine: Engine, name: str, principal: Principal) -> None:
        router = engine.routers.find(name)
        if router is not None:
            check_owned(principal, _ends(router.config))


async def _drive(engine: Engine, catch_up: CatchUp) -> None:
    while engine.routers.advance(catch_up):  # noqa: ASYNC110  # each turn does a slice of the work
        await asyncio.sleep(0)


def _discreet(error: TopicsError, principal: Principal) -> TopicsError:
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
