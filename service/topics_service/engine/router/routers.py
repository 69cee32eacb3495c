"""Routers: their control plane, and the scheduling of forwarding (docs/contract.md, 7)."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from sortedcontainers import SortedDict

from topics_service.engine import config, names
from topics_service.engine.catalog import Catalog
from topics_service.engine.clock import Clock
from topics_service.engine.errors import (
    Reason,
    TopicsError,
    invalid,
    router_not_found,
    topic_not_found,
    topic_recreated,
)
from topics_service.engine.limits import Limits
from topics_service.engine.model import ConfigInput
from topics_service.engine.router.foreign import ForeignSource, ForeignSources
from topics_service.engine.router.forwarding import Forwarding
from topics_service.engine.router.graph import RouterGraph
from topics_service.engine.router.moves import RouterMoves
from topics_service.engine.router.places import RouterPlaces
from topics_service.engine.router.rings import Rings
from topics_service.engine.router.router import (
    DeleteRouterReply,
    Fault,
    ListRoutersReply,
    ListRoutersRequest,
    PutRouterReply,
    PutRouterRequest,
    Router,
    RouterConfig,
    RouterRow,
    RouterState,
    config_key,
    cursor_key,
)
from topics_service.engine.router.stretch import PullRequest, SourceEnd, SourceIdentity, Stretch, read
from topics_service.engine.topic import Topic
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage.store import Family, StoreError

_RETRIES_A_POLL = 100
_SLICES_BEFORE_A_CHANGE = 8


class CatchUp:
    """A reader's wait for a router to forward everything that its source held when the wait began."""

    __slots__ = ("head", "router", "source")

    def __init__(self, router: Router, head: int | None = None) -> None:
        """`head` is that of a source in another shard, which is known there only."""
        self.router = router
        self.source = router.config.source
        self.head = router.source.log.view.head if head is None else head

    @property
    def is_over(self) -> bool:
        """Return whether nothing is left to forward, or the router no longer does."""
        router = self.router
        if router.gone or router.is_moving:
            return True
        return router.config.source != self.source or router.cursor >= self.head


class Routers:
    """All routers of one data directory. Methods that write return their reply and the ticket that it waits for."""

    def __init__(self, catalog: Catalog, writer: Writer, clock: Clock, limits: Limits, forwarding: Forwarding) -> None:
        self.on_due: Callable[[], None] = lambda: None  # set by the composition root: `forward` has something to do
        self._catalog = catalog
        self._writer = writer
        self._clock = clock
        self._limits = limits
        self.forwarding = forwarding
        self._routers: SortedDict[str, Router] = SortedDict()
        self._next_number = 1
        self._from: dict[str, dict[str, Router]] = {}  # by source, then by name
        self._to: dict[str, dict[str, Router]] = {}  # by destination, then by name
        self._wakes: dict[str, Callable[[], None]] = {}  # parked at the log of each source
        self._graph = RouterGraph()
        self.rings = Rings(self._graph, self._from)
        self.foreign = ForeignSources()
        self.places = RouterPlaces(writer, clock)
        self.moves = RouterMoves(self, catalog, writer)
        self.pulled: dict[str, int] = {}
        """The topics that routers in other shards copy from at the moment, and how many streams each has."""
        self._grown: dict[str, None] = {}  # sources with records that their routers have not seen
        self._due: deque[Router] = deque()
        self._blocked: dict[Router, None] = {}

    def __len__(self) -> int:
        return len(self._routers)

    @property
    def blocked(self) -> int:
        """Return the number of routers that an error has stopped."""
        return len(self._blocked)

    def load(self, found: Iterable[tuple[int, RouterRow, int, int]]) -> None:
        """Take over the routers that recovery found: number, row, cursor and forwarded_total."""
        for number, row, cursor, forwarded in found:
            source, dest = None, self._catalog.find(row.config.dest)
            if row.foreign is None:
                source = self._catalog.find(row.config.source)
                assert source is not None
                cursor = min(cursor, source.log.state.head)
            assert dest is not None
            router = Router(number, row, dest, cursor, forwarded)
            self._routers[router.name] = router
            self._next_number = max(self._next_number, number + 1)
            self._link(router, source)
        self.rings.find()

    # ---------------------------------------------------------- control plane

    def find(self, name: str) -> Router | None:
        """Return the router, even while its creation waits for an fsync."""
        router: Router | None = self._routers.get(name)
        return router

    def check(self, request: PutRouterRequest, *, is_foreign: bool = False, moves: bool = False) -> None:
        """Raise if a PUT can't be done now; the checks run in the order of docs/contract.md, 7.2.

        Of a source in another shard, `is_foreign`, nothing is checked. A router that `moves` here is none more.
        """
        names.check_router_name(request.router)
        given, catalog = request.config, self._catalog
        if given.source == given.dest:
            raise invalid("source and dest must differ")
        for name in (given.source, given.dest):
            if not names.is_name_of_any(name):
                names.check_topic_name(name)
        if not request.create_dest and catalog.find(given.dest) is None:
            raise topic_not_found(given.dest)
        for name in (given.source, given.dest):
            if (end := catalog.find(name)) is not None and end.partition_count > 1:
                raise invalid(
                    f'"{name}" has {end.partition_count} partitions: an end of a router has one',
                    {"topic": name, "partition_count": end.partition_count},
                )
        for other in self._to.get(given.dest, {}).values():
            if other.name != request.router and other.config.source != given.source:
                raise TopicsError(
                    Reason.TOPIC_EXISTS_INCOMPATIBLE,
                    f'topic "{given.dest}" is fed from "{other.config.source}" already, by router "{other.name}"',
                    {"topic": given.dest, "reason": "router_dest_fan_in"},
                )
        router = self.find(request.router)
        limit = self._limits.max_routers
        if router is None and not moves and limit and len(self) + self._limits.elsewhere.routers >= limit:
            raise TopicsError(
                Reason.THROTTLED, "the server has reached its limit of routers",
                {"limit": "max_routers", "max": self._limits.max_routers},
            )  # fmt: skip
        if not given.allow_cycle and (router is None or may_close_a_cycle(router.config, given)):
            old = None if router is None else (router.config.source, router.config.dest)
            cycle = self._graph.cycle(given.source, given.dest, without=old)
            if cycle is not None:
                raise TopicsError(Reason.ROUTER_CYCLE, f"a cycle: {' -> '.join(cycle)}", {"cycle": cycle})
        made_here = (given.dest,) if is_foreign else (given.source, given.dest)
        made = [name for name in made_here if catalog.find(name) is None]
        for name in made:
            names.check_topic_name(name)
        missing = len(made)
        if missing and not catalog.has_room_for(missing):
            raise TopicsError(
                Reason.THROTTLED, "the server has reached its limit of topics",
                {"limit": "max_topics", "max": self._limits.max_topics},
            )  # fmt: skip

    def put(self, request: PutRouterRequest, end: SourceEnd | None = None) -> tuple[PutRouterReply, int]:
        """Create the router or replace its config. See RoutersApi.put. `end` is a source in another shard.

        Visible records of the source are forwarded first, on the old terms, at once: a caller that serves others in
        between first calls `advance` (see `move`). If that fails, a change of the source is refused with the reason; a
        change of the destination is not, the rest goes to the new one. If the ends stay, a router that is far behind
        takes its backlog along.
        """
        self._writer.check()
        self.check(request, is_foreign=end is not None)
        router, given = self.find(request.router), request.config
        if router is None:
            return self._create(request, end)
        if given != router.config:
            self._change(router, given, end)
        return PutRouterReply(router=router.name, created=False, config=given), router.written

    def get(self, name: str) -> RouterState:
        """Return the router's current state. Raises `router_not_found`."""
        router = self.find(name)
        if router is None or not self._is_shown(router):
            raise router_not_found(name)
        return router.state()

    def page(self, request: ListRoutersRequest, allowed: tuple[str, ...] | None = None) -> ListRoutersReply:
        """One page in name order, only routers whose name and both ends start with one of `allowed`."""
        page: list[RouterState] = []
        for router in self._shown(request, allowed):
            if len(page) == request.page_size:
                return ListRoutersReply(routers=page, next_after=page[-1].router)
            page.append(router.state())
        return ListRoutersReply(routers=page, next_after=None)

    def delete(self, name: str) -> tuple[DeleteRouterReply, int]:
        """Remove the router; forwarding stops at once and the copies stay."""
        router = self.find(name)
        if router is None:
            return DeleteRouterReply(router=name, deleted=False), 0
        with Transaction(self._writer) as tx:
            self.remove([router], tx)
            tx.commit()
        self.removed([router])
        return DeleteRouterReply(router=name, deleted=True), tx.ticket

    def touching(self, topic: str) -> list[Router]:
        """The routers that have the topic as one of their ends, by name."""
        found = {**self._from.get(topic, {}), **self._to.get(topic, {})}
        return [found[name] for name in sorted(found)]

    def is_end(self, topic: str) -> bool:
        """Return whether a router, here or in another shard, has the topic as an end."""
        return topic in self._from or topic in self._to or topic in self.pulled

    def remove(self, routers: Iterable[Router], tx: Transaction) -> None:
        """Stage the removal of the routers' rows; `removed` must follow the commit."""
        for router in routers:
            tx.batch.delete(Family.ROUTERS, config_key(router.number))
            tx.batch.delete(Family.ROUTERS, cursor_key(router.number))

    def removed(self, routers: Iterable[Router]) -> None:
        """The removal was written: forget the routers."""
        for router in routers:
            del self._routers[router.name]
            router.gone = True
            self._unlink(router)
        if self.rings:
            self.rings.find()

    def sample(self, limit: int, allowed: tuple[str, ...] | None = None) -> Iterator[Router]:
        """The first routers by name, at most `limit`, with name and both ends under `allowed`, for metrics."""
        return islice(self._shown(ListRoutersRequest(), allowed), limit)

    # -------------------------------------------------------------- forwarding

    def forward(self) -> bool:
        """One slice for the router whose turn it is, if any is due; True if there is more to do at once."""
        if self._writer.failure is not None:
            return False
        self._tell_routers()
        if self._due:
            router = self._due.popleft()
            router.queued = False
            if not router.gone and self._step(router):
                self._queue(router)
        return bool(self._due or self._grown)

    def poll(self) -> None:
        """Let routers try again that stood still for long enough, or whose destination has changed. Call it often."""
        now = self._clock.now_ms()
        for router in list(islice(self._blocked, _RETRIES_A_POLL)):
            del self._blocked[router]
            self._blocked[router] = None  # the others come first next time
            if router.fault is not None and router.fault.is_over(now, router.dest.log.state):
                self._queue(router)
                self.on_due()

    def behind(self, topic: str) -> list[CatchUp]:
        """Return the catch-ups that a reader of the topic waits for: of routers behind the head of their source."""
        feeders = self._to.get(topic)
        if feeders is None:
            return []
        return [CatchUp(router) for router in feeders.values() if self._is_behind(router)]

    def may_be_behind(self, topic: str) -> bool:
        """Return whether a reader of the topic may have to wait: what another shard holds is known there only."""
        routers = self._to.get(topic, {}).values()
        return any(
            not router.is_moving and (router.foreign is not None or self._is_behind(router)) for router in routers
        )

    def foreign_feeders(self, topic: str) -> list[Router]:
        """The routers into the topic whose source is in another shard."""
        routers = self._to.get(topic, {}).values()
        return [router for router in routers if router.foreign is not None and not router.is_moving]

    def of_foreign(self, source: str, topic_id: str | None = None) -> list[Router]:
        """The routers from a topic in another shard: in one life (None: in any)."""
        found = [router for _, router in sorted(self._from.get(source, {}).items())]
        return [
            router for router in found if router.foreign and (topic_id is None or router.foreign.topic_id == topic_id)
        ]

    def feeders(self, topic: str, without: str) -> list[str]:
        """The direct and indirect sources of a topic within this engine, but for what one router adds."""
        found: dict[str, None] = {}
        at: str | None = topic
        while at is not None:
            routers = self._to.get(at, {}).values()
            at = next((router.config.source for router in routers if router.name != without), None)
            if at is None or at in found:
                break
            found[at] = None
        return list(found)

    def stretch(self, request: PullRequest) -> Stretch:
        """Stretches of a log, for routers in another shard. Raises `topic_not_found`, also for another life."""
        topic = self._catalog.visible(request.topic)
        if topic.topic_id != request.topic_id:
            raise topic_recreated(request.topic, topic.topic_id)
        s = topic.log.visible(topic.config, self._clock.now_ms())
        found = read(s, topic.log.blocks, request.after)
        found.hops = self.rings.of(topic.name).runs(found.after + 1, found.to)
        found.upstream = self.rings.upstream(topic.name)
        return found

    def catch_up(self, name: str) -> CatchUp | None:
        """Return the catch-up that a reader of the router's state waits for."""
        router = self.find(name)
        return CatchUp(router) if router is not None and self._is_behind(router) else None

    def move(self, request: PutRouterRequest) -> CatchUp | None:
        """Return the catch-up that precedes a PUT which changes an end of its router."""
        router, given = self.find(request.router), request.config
        if router is None or (given.source, given.dest) == (router.config.source, router.config.dest):
            return None
        return CatchUp(router)

    def advance(self, catch_up: CatchUp) -> bool:
        """Forward one slice of an awaited router; return True if the reader should wait on and call again.

        A blocked router ends the wait.
        """
        router = catch_up.router
        if catch_up.is_over or self._writer.failure is not None or self._lacks_records(router):
            return False
        fault = router.fault
        if fault is not None and not fault.is_over(self._clock.now_ms(), router.dest.log.state):
            return False
        if self._step(router):
            self._queue(router)
            self.on_due()
        return router.fault is None and not catch_up.is_over

    def rewind(self, source: ForeignSource, head: int) -> None:
        """Begin behind the head of a source that was put back to an earlier state: its next records are new ones."""
        name = source.name
        for router in [router for router in source.routers if router.cursor > head]:
            with Transaction(self._writer) as tx:
                self.forwarding.forget_copies(tx, router, head)
                tx.batch.put(Family.ROUTERS, *router.cursor_row(head, router.forwarded))
                tx.commit()
            router.cursor, router.dedup_to = head, None
            self.foreign.leave(source, router)
            router.source = self.foreign.join(name, source.identity, router, self._wakes[name])

    def awaits_source(self, catch_up: CatchUp) -> bool:
        """Return whether an awaited router needs records that are still to come from another shard."""
        router = catch_up.router
        if catch_up.is_over or not self._lacks_records(router) or router.fault is not None:
            return False
        return isinstance(router.source, ForeignSource) and router.source.error is None

    def _lacks_records(self, router: Router) -> bool:
        return router.foreign is not None and router.cursor >= router.source.log.view.head

    # --------------------------------------------------------------- internals

    def _create(self, request: PutRouterRequest, end: SourceEnd | None) -> tuple[PutRouterReply, int]:
        given = request.config
        source = self._source(given, end)
        row = RouterRow(name=request.router, config=given, created_ts=self._clock.now_ms(), foreign=_identity(end))
        if source is not None:
            s = source.log.visible(source.config, self._clock.now_ms()) if request.backfill else source.log.view
            earliest, cursor = s.earliest, s.head
        else:
            assert end is not None
            earliest, cursor = end.earliest, end.head
        router = self.add(row, source, earliest - 1 if request.backfill else cursor, 0)
        return PutRouterReply(router=router.name, created=True, config=given), router.written

    def add(self, row: RouterRow, source: Topic | None, cursor: int, forwarded: int) -> Router:
        """Make a router; `source` is None for one in another shard. Makes its destination if there is none."""
        given = row.config
        router = Router(self._next_number, row, self.end(given.dest), cursor, forwarded)
        with Transaction(self._writer) as tx:
            tx.batch.put(Family.ROUTERS, *router.config_row())
            tx.batch.put(Family.ROUTERS, *router.cursor_row(cursor, forwarded))
            tx.commit()
        self._next_number += 1
        self._routers[router.name] = router
        router.shown_after = router.written = tx.ticket
        self._writer.request_sync(tx.ticket)
        self._link(router, source)
        if given.allow_cycle:
            self.rings.find()
        return router

    def _change(self, router: Router, given: RouterConfig, end: SourceEnd | None) -> None:
        before = router.config
        ends_change = (given.source, given.dest) != (before.source, before.dest)
        max_slices = None if ends_change else _SLICES_BEFORE_A_CHANGE
        self.finish(router, must=given.source != before.source, max_slices=max_slices)
        source, dest, foreign = self._source(given, end), self.end(given.dest), _identity(end)
        cursor = router.cursor
        if source is None:
            assert end is not None
            cursor = cursor if router.foreign == foreign else end.head
        elif source is not router.source:
            cursor = source.log.view.head
        with Transaction(self._writer) as tx:
            row = RouterRow(name=router.name, config=given, created_ts=router.created_ts, foreign=foreign)
            tx.batch.put(Family.ROUTERS, config_key(router.number), row.encode())
            tx.batch.put(Family.ROUTERS, *router.cursor_row(cursor, router.forwarded))
            tx.commit()
        router.written = tx.ticket
        self._writer.request_sync(tx.ticket)
        self._unlink(router)
        router.config, router.foreign, router.dest, router.cursor = given, foreign, dest, cursor
        self._link(router, source)
        if ends_change and (self.rings or given.allow_cycle):
            self.rings.find()

    def finish(self, router: Router, *, must: bool, max_slices: int | None) -> None:
        """Forward all visible records of the source, in at most `max_slices` slices. If it `must`, raise its fault."""
        slices = 0
        while router.cursor < router.source.log.view.head and slices != max_slices:
            self._step(router)
            slices += 1
            if router.fault is not None:
                if must:
                    raise router.fault.error
                return

    def _source(self, given: RouterConfig, end: SourceEnd | None) -> Topic | None:
        """The source, which is made if it does not exist; None for one in another shard."""
        return self.end(given.source) if end is None else None

    def end(self, name: str) -> Topic:
        """A topic as an end of a router, which is made if it does not exist."""
        return self._catalog.find(name) or self._catalog.create(name, config.resolve(name, ConfigInput()))

    def _shown(self, request: ListRoutersRequest, allowed: tuple[str, ...] | None) -> Iterator[Router]:
        """The routers that a listing shows, in order of their names."""
        for router in self._candidates(request, allowed):
            ends = (router.config.source, router.config.dest)
            asked = request.source in ("", ends[0]) and request.dest in ("", ends[1])
            if asked and self._is_shown(router) and (allowed is None or all(end.startswith(allowed) for end in ends)):
                yield router

    def _candidates(self, request: ListRoutersRequest, allowed: tuple[str, ...] | None) -> Iterator[Router]:
        """The routers with names that a listing may show, in order; those with other ends may be left out."""
        prefixes, after = names.narrow(request.prefix, allowed), request.after
        ends: list[dict[str, Router]] = [
            by.get(end, {}) for by, end in ((self._from, request.source), (self._to, request.dest)) if end
        ]
        if ends:
            fewest = min(ends, key=len)
            for name in sorted(fewest):
                if name.startswith(tuple(prefixes)) and (after is None or name > after):
                    yield self._routers[name]
            return
        for prefix in prefixes:
            start = prefix if after is None else max(prefix, after)
            for name in self._routers.irange(minimum=start, inclusive=(start != after, True)):
                if not name.startswith(prefix):
                    break
                yield self._routers[name]

    def _is_shown(self, router: Router) -> bool:
        return router.shown_after <= self._writer.synced and router.arrival is None

    def _is_behind(self, router: Router) -> bool:
        if router.is_moving:
            return False
        return router.cursor < router.source.log.view.head or router.ticket > self._writer.synced

    def _link(self, router: Router, topic: Topic | None) -> None:
        """Let a router forward, from the topic or from another shard."""
        source, dest = router.config.source, router.config.dest
        siblings = self._from.setdefault(source, {})
        wake = self._wakes.setdefault(source, lambda: self._grow(source))
        if topic is None:
            assert router.foreign is not None
            router.source = self.foreign.join(source, router.foreign, router, wake)
        else:
            router.source = topic
            if not siblings:
                topic.log.park(wake)
        siblings[router.name] = router
        self._to.setdefault(dest, {})[router.name] = router
        self._graph.add(source, dest)
        router.dedup_to, router.dedup_from, router.pruned_at = None, 0, 0
        if router.is_moving:
            self.moves.routers[router.name] = router
        if router.fault is not None:
            router.fault = None
            self._blocked.pop(router, None)
        if router.lag:
            self._queue(router)
            self.on_due()

    def relink(self, router: Router) -> None:
        """Begin or end to leave a router out, which forwards nothing while it moves."""
        if isinstance(router.source, ForeignSource):
            name, identity = router.config.source, router.source.identity
            self.foreign.leave(router.source, router)
            router.source = self.foreign.join(name, identity, router, self._wakes[name])
        router.fault = None
        self._blocked.pop(router, None)
        self._queue(router)
        self.on_due()

    def _unlink(self, router: Router) -> None:
        source, dest = router.config.source, router.config.dest
        self.moves.routers.pop(router.name, None)
        for by, end in ((self._from, source), (self._to, dest)):
            del by[end][router.name]
            if not by[end]:
                del by[end]
        if isinstance(router.source, ForeignSource):
            self.foreign.leave(router.source, router)
        if source not in self._from:
            router.source.log.leave(self._wakes.pop(source))
            self._grown.pop(source, None)
        if dest not in self._to:
            self.rings.forget(dest)
        self._graph.remove(source, dest)
        self._blocked.pop(router, None)

    def _grow(self, source: str) -> None:
        self._grown[source] = None
        self.on_due()

    def _tell_routers(self) -> None:
        """Queue the routers of one source that has grown."""
        source = next(iter(self._grown), None)
        if source is None:
            return
        del self._grown[source]
        now = self._clock.now_ms()
        for router in self._from.get(source, {}).values():
            if router.fault is None or router.fault.is_over(now, router.dest.log.state):
                self._queue(router)

    def _queue(self, router: Router) -> None:
        if not router.queued:
            router.queued = True
            self._due.append(router)

    def _step(self, router: Router) -> bool:
        """One slice. True if there is more; a blocked router pauses for a while."""
        if router.is_moving:
            return False
        before = router.cursor
        try:
            more = self.forwarding.step(router, self.rings.hops(router))
        except Exception as error:
            self._block(router, error, moved=router.cursor > before)
            if not isinstance(error, (TopicsError, StoreError)):
                raise
            return False
        router.fault = None
        self._blocked.pop(router, None)
        self.rings.stepped(router)
        if isinstance(router.source, ForeignSource):
            router.source = self.foreign.stepped(router.source, router)
        return more

    def _block(self, router: Router, error: Exception, *, moved: bool) -> None:
        if not isinstance(error, TopicsError):
            error = TopicsError(Reason.INTERNAL, str(error))
        before = None if moved else router.fault
        router.fault = Fault(error, self._clock.now_ms(), router.dest.log.state, before)
        self._blocked[router] = None
        if isinstance(router.source, ForeignSource):
            router.source = self.foreign.blocked(router.source, router)


def _identity(end: SourceEnd | None) -> SourceIdentity | None:
    return None if end is None else end.identity


def may_close_a_cycle(before: RouterConfig, given: RouterConfig) -> bool:
    """Return whether to check for a cycle: not if the same edge existed before, on the same terms."""
    return before.allow_cycle or (before.source, before.dest) != (given.source, given.dest)
