"""Moves of routers between shards, as far as one of them takes part: a router goes where its destination is.

It departs: from then on it forwards nothing, and its row has all that it takes along. It arrives, and forwards nothing
either. The place of its name decides (`places`): that it has moved, and the one that arrived is activated and the other
one removed; or that it stays, the other way round. Each step can be repeated, and does nothing when it comes too late.
"""

from typing import TYPE_CHECKING

from topics_service.engine.catalog import Catalog
from topics_service.engine.errors import Reason, TopicsError, router_not_found, topic_not_found, topic_recreated
from topics_service.engine.router.router import Arrival, Departure, PutRouterRequest, Router, RouterRow
from topics_service.engine.router.stretch import SourceEnd, SourceIdentity
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage.store import Family

if TYPE_CHECKING:
    from topics_service.engine.router.routers import Routers

_MOVING = "router_moving"


class RouterMoves:
    """The routers of one engine that move. Methods that write return the ticket to wait for."""

    def __init__(self, routers: "Routers", catalog: Catalog, writer: Writer) -> None:
        self.routers: dict[str, Router] = {}
        """Those that have departed or arrived, by name."""
        self._all = routers
        self._catalog = catalog
        self._writer = writer

    def depart(
        self, request: PutRouterRequest, token: str, origin: int, shard: int, *, is_foreign: bool, end: SourceEnd
    ) -> tuple[Departure, int]:
        """Let a router forward its source as far as a PUT does, and then nothing any more. `end` is its new source."""
        self._writer.check()
        router, given = self._all.find(request.router), request.config
        if router is None:
            raise router_not_found(request.router)
        if router.is_moving:
            raise router_moving(router.name)
        is_other_source = given.source != router.config.source
        self._all.finish(router, must=is_other_source, max_slices=None)
        identity = router.source.identity
        departure = Departure(
            token=token,
            origin=origin,
            shard=shard,
            router=router.name,
            config=given,
            create_dest=request.create_dest,
            is_foreign=is_foreign,
            source=end.identity if is_other_source else SourceIdentity(identity.topic_id, identity.epoch),
            cursor=end.head if is_other_source else router.cursor,
            forwarded=router.forwarded,
            created_ts=router.created_ts,
        )
        return departure, self._set(router, departure, None)

    def arrive(self, departure: Departure) -> int:
        """Make the router that departed elsewhere, or raise the error of a PUT."""
        self._writer.check()
        router, given = self._all.find(departure.router), departure.config
        if router is not None:
            if router.arrival is None or router.arrival.token != departure.token:
                raise router_moving(router.name)
            return router.written
        request = PutRouterRequest(router=departure.router, config=given, create_dest=departure.create_dest)
        self._all.check(request, is_foreign=departure.is_foreign, moves=True)
        source = None if departure.is_foreign else self._catalog.find(given.source)
        if not departure.is_foreign:
            if source is None:
                raise topic_not_found(given.source)
            if source.identity.topic_id != departure.source.topic_id:
                raise topic_recreated(given.source, source.identity.topic_id)
        row = RouterRow(
            name=departure.router,
            config=given,
            created_ts=departure.created_ts,
            foreign=departure.source if departure.is_foreign else None,
            arrival=Arrival(departure.token, departure.origin),
        )
        return self._all.add(row, source, departure.cursor, departure.forwarded).written

    def activate(self, name: str, token: str) -> int:
        """Let the router that has arrived forward: it has moved."""
        router = self._arrived(name, token)
        return 0 if router is None else self._set(router, None, None)

    def stay(self, name: str, token: str) -> int:
        """Let the router that has departed forward again: it does not move."""
        router = self._departed(name, token)
        return 0 if router is None else self._set(router, None, None)

    def leave(self, name: str, token: str) -> int:
        """Remove the router that has departed: it has moved."""
        return 0 if self._departed(name, token) is None else self._all.delete(name)[1]

    def discard(self, name: str, token: str) -> int:
        """Remove the router that has arrived: it has not moved."""
        return 0 if self._arrived(name, token) is None else self._all.delete(name)[1]

    # --------------------------------------------------------------- internals

    def _departed(self, name: str, token: str) -> Router | None:
        router = self.routers.get(name)
        departure = None if router is None else router.departure
        return router if departure is not None and departure.token == token else None

    def _arrived(self, name: str, token: str) -> Router | None:
        router = self.routers.get(name)
        arrival = None if router is None else router.arrival
        return router if arrival is not None and arrival.token == token else None

    def _set(self, router: Router, departure: Departure | None, arrival: Arrival | None) -> int:
        self._writer.check()
        before = router.departure, router.arrival
        router.departure, router.arrival = departure, arrival
        try:
            with Transaction(self._writer) as tx:
                tx.batch.put(Family.ROUTERS, *router.config_row())
                tx.commit()
        except BaseException:
            router.departure, router.arrival = before
            raise
        router.written = tx.ticket
        self._writer.request_sync(tx.ticket)
        if router.is_moving:
            self.routers[router.name] = router
        else:
            self.routers.pop(router.name, None)
        self._all.relink(router)
        return tx.ticket


def router_moving(name: str) -> TopicsError:
    """The router is on its way to another shard: 429 `throttled`."""
    return TopicsError(
        Reason.THROTTLED,
        f'router "{name}" is on its way to another shard',
        {"router": name, "reason": _MOVING, "retry_after_ms": 1000},
        retry_after_ms=1000,
    )


def is_moving(error: TopicsError, name: str) -> bool:
    """Return whether the error says that a router is on its way to another shard."""
    detail = error.detail or {}
    return detail.get("reason") == _MOVING and detail.get("router") == name
