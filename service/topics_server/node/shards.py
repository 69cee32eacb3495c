"""All shards of a cluster at one node: which of them it keeps a replica of, and which moves to another node next."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from topics_cluster.coordinator import CoordinatorError, Node, Owner, Session, View
from topics_cluster.placement import Layout, Move, holders, is_spare, lay_out, next_move
from topics_cluster.store import ShardStore
from topics_cluster.takeover import Ownership
from topics_net import background
from topics_server import collector
from topics_server.node.shard import Membership, NoConnections, NodeParts, NodeShard
from topics_server.node.surroundings import Connections
from topics_server.node.term import Term

log: Final = logging.getLogger("topics.cluster")

SETTLED_SECONDS: Final = 5.0
"""The time without a change of nodes and owners after which a shard moves for the balance."""
PAUSE_SECONDS: Final = 0.5
"""The time between two moves: what the first leaves to be done does not come into the way of the second."""
SPARED_SECONDS: Final = 5.0
"""The time for which a replica is kept that is needed no longer."""
_LOOK_SECONDS: Final = 1.0
_TELL_SECONDS: Final = 0.25  # between two changes of this node's entry


class Shards:
    """The shards by number; only the first is known before `begin`. Belongs to the event loop."""

    def __init__(
        self,
        parts: NodeParts,
        *,
        make_term: Callable[[NodeShard, ShardStore, Ownership], Term],
        connections: Connections,
        set_serving: Callable[[bool], None],
    ) -> None:
        """`connections` are those of the first shard; `set_serving` gets whether this node can serve or pass on."""
        self._parts = parts
        self._make_term = make_term
        self._connections = connections
        self._set_serving = set_serving
        self._shards = [NodeShard(0, parts)]
        parts.statistics.shards = [self._shards[0].statistics]
        self._serving: dict[int, bool] = {}
        self._membership: Membership | None = None
        self._followers = 0
        self._layout: Layout | None = None
        self._move: Move | None = None
        self._state: object = None
        self._changed_at = self._moved_at = 0.0
        self._owners: Mapping[int, Owner] = {}
        self._spared: dict[int, float] = {}  # the time since which a replica is not needed
        self._ending: dict[int, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._told = asyncio.Event()
        self._leftovers = collector.Leftovers()
        self._is_looking = self._is_stopping = False
        self.was_ready = asyncio.Event()
        """Set once the node has been ready for the first time."""
        self.on_view: Callable[[], None] = lambda: None
        """Called after each new view, when all shards have looked at it."""

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, number: int) -> NodeShard:
        return self._shards[number]

    def __iter__(self) -> Iterator[NodeShard]:
        return iter(self._shards)

    def find(self, number: int) -> NodeShard | None:
        """The shard with this number; None if there is no such."""
        return self._shards[number] if 0 <= number < len(self._shards) else None

    @property
    def is_ready(self) -> bool:
        """True while all replicas are ready, if it is known which those are: what is not owned here is passed on.

        A node with several shards stays so: replicas that come and go, and have to catch up, take it no calls. Owners
        that refuse it do.
        """
        kept = [shard for shard in self._shards if shard.is_kept]
        if len(self._shards) > 1 and self.was_ready.is_set():
            return not any(shard.place.is_refused for shard in kept)
        is_known = self._layout is not None or len(kept) == len(self._shards)
        return self._membership is not None and is_known and all(shard.is_ready for shard in kept)

    @property
    def layout(self) -> Layout | None:
        """The placement that the cluster is to come to; None before the first view."""
        return self._layout

    @property
    def lives(self) -> "list[asyncio.Task[None]]":
        """The tasks of the replicas."""
        return [shard.life for shard in self._shards if shard.life is not None]

    # --------------------------------------------------- begin and end

    def begin(self, me: Node, session: Session, followers: int) -> None:
        """Keep replicas as the cluster is laid out, with that number of followers of each shard."""
        self._membership = Membership(me=me, session=session)
        self._followers = followers
        for number in range(1, me.shards):
            shard = NodeShard(number, self._parts)
            self._shards.append(shard)
            self._parts.statistics.shards.append(shard.statistics)
        for shard in self._shards:
            # A directory may have writes that no other node has.
            if me.shards == 1 or shard.directory(self._membership, me.shards).is_there:
                self._keep(shard)
            else:
                shard.statistics.role = "absent"
        self._tasks = [
            background.start(self._parts.views.follow(self._parts.coordinator, self.heard)),
            background.start(self._keep_looking()),
            background.start(self._keep_telling(session)),
        ]

    async def stop(self) -> None:
        """Hand over what is owned here, and end. Raises what a replica failed of."""
        self._is_stopping = True
        ended = await asyncio.gather(
            *(shard.end() for shard in self._shards), *self._ending.values(), return_exceptions=True
        )
        for task in self._tasks:
            task.cancel()
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    async def close(self) -> None:
        """Close the connections to owners."""
        for shard in self._shards:
            await shard.close()

    # ------------------------------------------------------- the layout

    def heard(self) -> None:
        """Look at a new view."""
        self._look()
        for shard in self._shards:
            shard.heard()
        self.on_view()

    def changed(self) -> None:
        """See Surroundings."""
        self._told.set()
        if self.is_ready:
            self.was_ready.set()
        if not self._is_looking:
            self._look()

    def _look(self) -> None:
        """Lay the cluster out by the newest view, and begin and end replicas."""
        view, membership = self._parts.views.view, self._membership
        if membership is None or membership.me.name not in view.nodes:
            return
        self._is_looking = True
        try:
            self._lay_out(view)
            if len(self._shards) > 1 and not self._is_stopping:
                for shard in self._shards:
                    self._keep_or_end(shard, view, membership.me.name)
        finally:
            self._is_looking = False
        if self.is_ready:
            self.was_ready.set()

    def _lay_out(self, view: View) -> None:
        now = asyncio.get_running_loop().time()
        count, before = len(self._shards), self._move
        state = view.nodes.keys(), view.owners, view.drained, view.zones
        if view.owners != self._owners:
            self._owners, self._moved_at = view.owners, now
            background.call_later(PAUSE_SECONDS + 0.01, self._look)  # timers may be early
        if state != self._state:
            self._state, self._changed_at = state, now
        followers = self._followers if count > 1 else len(view.nodes)
        self._layout = lay_out(count, view, followers)
        is_settled = now - self._changed_at > SETTLED_SECONDS
        is_paused = now - self._moved_at < PAUSE_SECONDS
        self._move = None if is_paused else next_move(count, view, self._layout, is_settled=is_settled)
        if self._move is not None and self._move != before:
            self._leftovers.postpone()
            replica = self._shards[self._move.shard].replica
            if replica is not None:
                replica.moves(self._move.node)

    def _keep_or_end(self, shard: NodeShard, view: View, name: str) -> None:
        """Begin a replica that is needed; end one that has not been for a while, once those have it that need it."""
        assert self._layout is not None
        number = shard.number
        if name in holders(number, view, self._layout):
            if not shard.is_kept and number not in self._ending:
                self._keep(shard)
        elif shard.is_warm and self._may_end(number) and is_spare(number, name, view, self._layout):
            now = asyncio.get_running_loop().time()
            if now - self._spared.setdefault(number, now) <= SPARED_SECONDS:
                return
            self._ending[number] = background.start(self._end(shard))
        self._spared.pop(number, None)

    def _may_end(self, number: int) -> bool:
        """Return whether a replica may end now: one at a time, and none beside a move, which would wait."""
        return not self._ending and (self._move is None or self._move.shard == number)

    def _keep(self, shard: NodeShard) -> None:
        assert self._membership is not None
        shard.begin(
            self._membership,
            shard.directory(self._membership, len(self._shards)),
            surroundings=self,
            connections=self._connections if len(self._shards) == 1 else NoConnections(),
            make_term=self._make_term,
            set_serving=lambda serving: self._serves(shard.number, serving),
        )

    async def _end(self, shard: NodeShard) -> None:
        """End a replica, and remove its directory."""
        assert self._membership is not None
        log.info("shard %d has replicas enough: this node keeps none any more", shard.number)
        try:
            await shard.end(removes=True)
            shard.statistics.role = "absent"
            shard.heard()
            self._serving.pop(shard.number, None)
            await shard.directory(self._membership, len(self._shards)).remove()
        except OSError as error:
            log.warning("can't remove the directory of shard %d: %s", shard.number, error)
        finally:
            del self._ending[shard.number]
            self.changed()

    def _serves(self, number: int, serving: bool) -> None:
        self._serving[number] = serving
        self._set_serving(all(self._serving.values()) if len(self._shards) == 1 else self.is_ready)

    async def _keep_looking(self) -> None:
        """Look once a second: what waits for a while has no other sign."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._look()

    async def _keep_telling(self, session: Session) -> None:
        """Keep the shards that are warm here in the node's entry."""
        told: tuple[int, ...] = ()
        while True:
            await self._told.wait()
            self._told.clear()
            assert self._membership is not None
            warm = tuple(shard.number for shard in self._shards if shard.is_warm)
            if warm != told:
                try:
                    await session.register(replace(self._membership.me, warm=warm))
                    told = warm
                except CoordinatorError as error:  # the session puts it with its next renewal
                    log.debug("can't tell which shards are warm: %s", error)
                    self._told.set()
            await asyncio.sleep(_TELL_SECONDS)

    # ------------------------------------------------------ for replicas

    def left(self) -> None:
        """See Surroundings."""
        self._leftovers.left()

    def others(self, shard: int) -> Collection[str]:
        """See Surroundings. Where there is one shard, all nodes follow it, of any release."""
        nodes = self._parts.views.view.nodes
        return nodes.keys() if len(self._shards) == 1 else [name for name, node in nodes.items() if shard in node.warm]

    def is_reluctant(self, shard: int) -> bool:
        """See Surroundings."""
        view, membership = self._parts.views.view, self._membership
        assert membership is not None
        return membership.me.name in view.drained and not {*self.others(shard)} <= view.drained

    def target(self, shard: int) -> str | None:
        """See Surroundings. Where there is one shard, nothing but a wish moves it, or a drain."""
        if len(self._shards) == 1 and (wanted := self._parts.views.view.wanted.get(shard)) is not None:
            return wanted
        return self._move.node if self._move is not None and self._move.shard == shard else None
