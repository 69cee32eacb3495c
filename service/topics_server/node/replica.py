"""A node's replica of a shard: it follows the log, takes the shard over, serves it, and hands it over."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from topics_cluster.bucket import Bucket, BucketError
from topics_cluster.checkpoint import CheckpointError
from topics_cluster.coordinator import Coordinator, Node, Owner, Session, boottime
from topics_cluster.follower import BehindCheckpointError, Follower
from topics_cluster.formats import FormatError
from topics_cluster.log import OutOfOrderError
from topics_cluster.objects import DamagedObjectError, LaterFormatError, LogObject
from topics_cluster.resume import resume
from topics_cluster.store import ShardStore
from topics_cluster.takeover import (
    BrokenLogError,
    Ownership,
    StoreAheadError,
    TakeoverError,
    hand_over,
    is_fence_of,
    new_nonce,
)
from topics_net import background
from topics_server.node.claims import Claims
from topics_server.node.directory import Directory
from topics_server.node.gate import LostShardError
from topics_server.node.peers import Followers, Notice, Peers, Standing, is_refused
from topics_server.node.place import Place
from topics_server.node.polls import Polls
from topics_server.node.reach import StoreReach
from topics_server.node.reads import FollowerReads
from topics_server.node.successors import Successors
from topics_server.node.surroundings import Connections, Surroundings
from topics_server.node.term import Term
from topics_server.node.views import Views
from topics_service.engine.errors import TopicsError
from topics_service.statistics import ShardStatistics
from topics_service.storage.store import StoreError

log: Final = logging.getLogger("topics.cluster")

_TICK_SECONDS: Final = 0.25
_PATIENCE_SECONDS: Final = 1.0  # for a node that is preferred to this one
_SILENT_SECONDS: Final = 2.5  # of the object store, before another node is preferred to this one
_RECENT_SECONDS: Final = 1.5  # of what comes once a second
_RETRY_SECONDS: Final = 1.0

_UNUSABLE: Final = (BehindCheckpointError, StoreAheadError, StoreError, TopicsError, OSError)
_DAMAGED: Final = (DamagedObjectError, LaterFormatError, FormatError, BrokenLogError, CheckpointError)


class Replica:
    """Runs the replica of one shard until `stop`. Belongs to the event loop."""

    def __init__(
        self,
        shard: int,
        me: Node,
        *,
        bucket: Bucket,
        coordinator: Coordinator,
        session: Session,
        views: Views,
        directory: Directory,
        peers: Peers,
        followers: Followers,
        place: Place,
        reads: FollowerReads,
        polls: Polls,
        surroundings: Surroundings,
        connections: Connections,
        make_term: Callable[[ShardStore, Ownership], Term],
        set_serving: Callable[[bool], None],
        leave: Callable[[Owner], Awaitable[None]],
        statistics: ShardStatistics,
    ) -> None:
        """`leave` ends what is under way at an owner that is lost."""
        self._shard = shard
        self._me = me
        self._bucket = bucket
        self._reach = StoreReach(bucket)
        self._views = views
        self._claims = Claims(shard, me, coordinator=coordinator, session=session, views=views)
        self._directory = directory
        self._peers = peers
        self._followers = followers
        self._place = place
        self._reads = reads
        self._polls = polls
        self._surroundings = surroundings
        self._connections = connections
        self._make_term = make_term
        self._set_serving = set_serving
        self._leave = leave
        self._statistics = statistics
        self._successors = Successors(
            shard,
            me.name,
            claims=self._claims,
            followers=followers,
            surroundings=surroundings,
            statistics=statistics,
        )
        self.was_ready = asyncio.Event()
        """Set once it has been ready for the first time."""
        self._wake = asyncio.Event()
        self._stopping = self._removes = False
        self._nonce = new_nonce()
        self._caught_up = False
        self._store: ShardStore | None = None
        self._heard = float("-inf")
        self._read: LogObject | None = None
        self._suspect: Owner | None = None
        self._replaced: Owner | None = None
        self._claiming: asyncio.Task[Owner | None] | None = None  # of a shard that was given to this node
        self._term: Term | None = None
        self._alone_since: float | None = None
        self._standing_changed = asyncio.Event()
        self._follower: Follower | None = None
        self._seen: Owner | None = None
        self._owned_epoch = 0  # of the newest owner; a fence that was read may be of a node that never owned
        self._leaving: asyncio.Task[None] | None = None
        followers.on_change = self.wake

    @property
    def is_warm(self) -> bool:
        """True for an owner, and for a follower that could take over at once: caught up, with its catalog ready."""
        return self._term is not None or (self._caught_up and self._has_catalog)

    @property
    def is_ready(self) -> bool:
        """True for an owner that serves, and for a follower that is caught up and can pass requests on."""
        return self._place.term is not None or (self._caught_up and not self._place.is_refused)

    @property
    def _has_catalog(self) -> bool:
        """True if the catalog of the topics need not be read at a takeover."""
        catalog = None if self._store is None else self._store.catalog
        return catalog is not None and catalog.is_complete

    def heard(self) -> None:
        """Look at a new view. Without a database calls are passed on all the same: to open one may take long."""
        if self._store is None:
            self._show(self._owner())
        self.wake()

    def wake(self) -> None:
        """Look at everything again: something has changed."""
        self._wake.set()

    def moves(self, node: str) -> None:
        """Take note that it is the shard's turn to move to a node. If to this one, tell the owner how far it is."""
        if node == self._me.name:
            self._standing_changed.set()
        self.wake()

    def stop(self, *, removes: bool = False) -> None:
        """Hand the shard over, if it is owned, and end; `removes` is whether the directory goes as well."""
        self._stopping = True
        self._removes = removes
        self.wake()

    async def run(self) -> None:
        """Follow, take over, serve and hand over, until stopped."""
        while not self._stopping:
            try:
                store = await self._open()
            except (BucketError, StoreError, OSError, *_DAMAGED) as error:
                log.error("can't open the replica, trying again: %s", error)
                await self._pause(_RETRY_SECONDS)
                continue
            if store is None:
                return
            is_kept = False
            self._store = store
            try:
                is_kept = await self._use(store)
            except _DAMAGED as error:
                is_kept = True
                log.error("can't read the log, an operator has to look: %s", error)
                await self._pause(5 * _RETRY_SECONDS)
            except OutOfOrderError as error:
                is_kept = not await self._is_superseded(store)
                log.log(
                    logging.ERROR if is_kept else logging.WARNING, "the local directory can't follow the log: %s", error
                )
                await self._pause(5 * _RETRY_SECONDS if is_kept else 0)
            except _UNUSABLE as error:
                log.warning("the local directory can't be used any more: %s", error)
                await self._pause(_RETRY_SECONDS)
            except Exception:
                log.exception("the replica of shard %d failed, it begins again", self._shard)
                await self._pause(_RETRY_SECONDS)
            finally:
                self._caught_up, self._store = False, None
                self._show(self._owner())
                self._reads.end()
                is_kept = is_kept and not self._removes  # a close writes out what the memory has
                await (self._directory.close if is_kept else self._directory.discard)(store)

    async def _open(self) -> ShardStore | None:
        """Open the directory, which takes as long as the object store is away. None: this node is stopped."""
        opening = background.start(self._directory.open())
        opening.add_done_callback(lambda _: self.wake())
        while not (opening.done() or self._stopping):
            await self._pause(_TICK_SECONDS)
        opening.cancel()
        await asyncio.wait((opening,))
        if self._stopping:
            if not opening.cancelled() and opening.exception() is None:
                await self._directory.close(opening.result())
            return None
        return opening.result()

    async def _is_superseded(self, store: ShardStore) -> bool:
        """Return whether the log has another continuation than the store, or a newer checkpoint: it is not damaged
        then."""
        with contextlib.suppress(BucketError, *_DAMAGED):
            newest = await self._directory.newest()
            return store.is_ahead or (newest is not None and newest.number > store.position.number)
        return store.is_ahead

    async def _use(self, store: ShardStore) -> bool:
        """Use an open store in all roles until it is stopped or of no use. Return whether the directory is kept."""
        self._reads.begin(store)
        while True:
            ownership = await self._follow(store)
            if ownership is None:
                return True
            can_follow = await self._own(store, ownership)
            if not self._stopping:
                self._surroundings.left()
            if not can_follow:
                return False
            if self._stopping:
                await self._claims.until_succeeded()
                return True

    # --------------------------------------------------------- following

    async def _follow(self, store: ShardStore) -> Ownership | None:
        """Follow the log until this node owns the shard. None: it is stopped."""
        while True:
            follower = self._follower = Follower(self._bucket, store, self._shard, self._directory.newest, store.fence)
            follower.patience = self._patience
            self._polls.begin(follower)
            self._set_role("following")
            tasks = [background.start(self._run(follower, store)), background.start(self._link(follower, store))]
            try:
                seen = await self._until_claimed(tasks[0])
            finally:
                self._polls.end(follower)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            if seen is None:
                return None
            ownership = await self._take_over(store, seen)
            if ownership is not None:
                return ownership

    async def _until_claimed(self, following: "asyncio.Task[None]") -> Owner | None:
        """Follow until this node may take over. Return its claim; None: it is stopped."""
        await self._connections.pass_on()
        while not self._stopping:
            if following.done():
                following.result()
            owner = self._owner()
            self._show(owner)
            if self._read is not None and self._is_given:
                return self._begin_given(owner, self._read.header.epoch)
            claim = await self._claims.make(owner) if self._may_claim(owner) else None
            if claim is not None:
                self._replaced = owner
                return claim
            await self._pause(_TICK_SECONDS)
        return None

    def _begin_given(self, owner: Owner | None, epoch: int) -> Owner:
        """Begin to claim a shard that the owner has given to this node, beside the takeover: the fence is there.
        Other nodes may send calls as soon as they hear of the claim."""
        self._replaced = owner
        self._place.coming()
        self._claiming = background.start(self._claims.make(owner, epoch))
        return self._claims.mine(epoch)

    def _may_claim(self, owner: Owner | None) -> bool:
        """Decide whether this node is to own the shard now, without having been given it."""
        is_owned = owner is not None and owner.node != self._me.name and owner != self._suspect
        if is_owned or not self._views.view.revision:
            self._alone_since = None
            return False
        now = boottime()
        if self._alone_since is None:
            self._alone_since = now
        wanted = self._claims.wanted
        others = {*self._surroundings.others(self._shard)} - {self._me.name, *([owner.node] if owner else [])}
        is_alive = owner is None and now - self._heard < _RECENT_SECONDS  # it will claim the shard again
        waits = is_alive or self._surroundings.is_reluctant(self._shard)
        is_preferred = wanted == self._me.name or (wanted not in others and not waits)
        if ((self._can_claim(others) and self._reaches_store(_SILENT_SECONDS)) or not others) and is_preferred:
            return True
        return now - self._alone_since > _PATIENCE_SECONDS

    def _can_claim(self, others: Collection[str]) -> bool:
        """Return whether the node is caught up, and none of the others would serve the shard earlier."""
        nodes = self._views.view.nodes
        is_first = self._has_catalog or not any(name in nodes and self._shard in nodes[name].warm for name in others)
        return self._caught_up and is_first

    def _reaches_store(self, seconds: float = _RECENT_SECONDS) -> bool:
        """Return whether this node, as a follower, has had an answer of the object store within so long."""
        if self._follower is None:
            return False
        return asyncio.get_running_loop().time() - max(self._follower.reached, self._polls.reached) < seconds

    def _patience(self) -> float:
        """The time until the follower looks into the log without a notice."""
        return self._polls.patience(self._shard) if boottime() - self._heard < _RECENT_SECONDS else _RETRY_SECONDS

    def _show(self, owner: Owner | None) -> None:
        """Tell the doors where the owner is."""
        if owner != self._seen:
            if self._seen is not None and self._is_dead(self._seen):
                self._leaving = background.start(_quietly(self._leave(self._seen)))
            self._seen = owner
        is_there = owner is not None and owner.epoch and owner.node != self._me.name and owner != self._suspect
        self._place.elsewhere(owner.addresses if owner is not None and is_there else None)
        if owner is not None:
            self._owned_epoch = max(self._owned_epoch, owner.epoch)
            self._statistics.epoch = max(self._statistics.epoch, owner.epoch)
        self._set_serving(self.is_ready)

    def _is_dead(self, owner: Owner) -> bool:
        """Return whether a former owner can't answer what is under way at it: its port refuses, or its lease ended."""
        return owner.node != self._me.name and (owner == self._suspect or owner.node not in self._views.view.nodes)

    async def _run(self, follower: Follower, store: ShardStore) -> None:
        """Catch up, then follow."""
        follower.on_applied = lambda found: self._applied(store, found)
        follower.on_prepared = self._prepared
        while not self._caught_up:
            try:
                await follower.catch_up()
                await follower.check()
                self._applied(store, follower.last)
                self._caught_up = True
                self.was_ready.set()
                self._standing_changed.set()
                self._surroundings.changed()
                log.info("caught up with the log of shard %d at %d", self._shard, store.position.number - 1)
                self.wake()
            except BucketError as error:
                log.warning("can't catch up with the log of shard %d, trying again: %s", self._shard, error)
                await asyncio.sleep(_RETRY_SECONDS)
        try:
            await follower.run()
        finally:
            self.wake()

    def _prepared(self) -> None:
        self._standing_changed.set()
        self._surroundings.changed()
        self.wake()

    def _applied(self, store: ShardStore, read: LogObject | None) -> None:
        self._read = read
        self._statistics.number = store.position.number - 1
        self._statistics.epoch = max(self._statistics.epoch, store.position.epoch)
        self._reads.applied()
        if self._is_given:
            self.wake()
        elif self._surroundings.target(self._shard) == self._me.name:
            self._standing_changed.set()

    @property
    def _is_given(self) -> bool:
        """True if the former owner has ended the log with the fence of this node."""
        return self._read is not None and is_fence_of(self._read, self._nonce)

    async def _link(self, follower: Follower, store: ShardStore) -> None:
        """Hear from the owner what is durable. When that ends, see whether its process is dead."""

        def standing() -> Standing:
            return Standing(
                shard=self._shard,
                node=self._me.name,
                number=store.position.number - 1,
                caught_up=self.is_warm,
                reaches_store=self._reaches_store(),
                nonce=self._nonce,
            )

        def notice(heard: Notice) -> None:
            self._heard = boottime()
            follower.notice(heard.number)
            self._statistics.behind = follower.behind

        while True:
            owner = self._owner()
            if owner is None or owner.node == self._me.name or owner == self._suspect:
                await asyncio.sleep(_TICK_SECONDS / 10)
                continue
            if owner.epoch:
                await self._peers.follow(owner.addresses.grpc, standing, self._standing_changed, notice)
                self._heard = float("-inf")
            if await is_refused(owner.addresses.grpc):
                log.info("the owner %s of shard %d refuses connections: it is dead", owner.node, self._shard)
                self._suspect = owner
                self.wake()
            else:
                await asyncio.sleep(_TICK_SECONDS / 10)

    # ------------------------------------------------------- taking over

    async def _take_over(self, store: ShardStore, claim: Owner) -> Ownership | None:
        """Fence the log. None: another node was first, or this one is stopped."""
        self._set_role("taking_over")
        log.info("taking over shard %d", self._shard)
        contending = background.start(
            resume(
                self._bucket,
                store,
                self._shard,
                self._nonce,
                newest=self._directory.newest,
                least_epoch=self._owned_epoch,
                last=self._read,
            )
        )
        contending.add_done_callback(lambda _: self.wake())
        ownership = None
        try:
            await self._until_done(contending, store)
            if contending.done():
                ownership = contending.result()
                self._caught_up = True
        except (StoreAheadError, BrokenLogError):
            raise
        except TakeoverError as error:
            log.info("shard %d was not taken over: %s", self._shard, error)
        finally:
            contending.cancel()
            await asyncio.wait((contending,))
            self._nonce = new_nonce()
            self._read = self._suspect = None
            if ownership is None:
                await self._unclaimed(claim)
        return ownership

    async def _unclaimed(self, claim: Owner) -> None:
        """Take back the claim of a takeover that came to nothing."""
        claiming, self._claiming = self._claiming, None
        if claiming is not None:
            await asyncio.wait((claiming,))
        self._place.elsewhere(None)
        await self._claims.give_up(claim)

    async def _until_done(self, contending: "asyncio.Task[Ownership]", store: ShardStore) -> None:
        """Return when the task is done, when another node has claimed the shard or this one is stopped, and when
        nothing was read for some seconds: then other nodes may reach the object store."""
        position, moved = store.position, boottime()
        while not (contending.done() or self._stopping or self._rival() is not None):
            if store.position != position:
                position, moved = store.position, boottime()
            elif self._reach.is_stuck(boottime() - moved) and len(self._views.view.nodes) > 1:
                log.warning("the object store does not answer: another node may take over shard %d", self._shard)
                self._alone_since = None
                self._caught_up = False
                return
            await self._pause(_TICK_SECONDS)

    # ------------------------------------------------------------ owning

    async def _own(self, store: ShardStore, ownership: Ownership) -> bool:
        """Serve the shard until it is lost or handed over. Return whether the store can follow: what is not in the log
        is the end of it until another node has fenced it."""
        owner = self._claims.mine(ownership.epoch)
        self._term = term = self._make_term(store, ownership)
        term.on_change = lambda: self._acknowledged(term)
        is_kept, can_follow = False, True
        self._seen = None
        self._place.coming()
        announcing = background.start(self._first_announced(term, owner))
        try:
            await term.start(self._set_serving)
            is_announced = await announcing
            await self._connections.serve(term)
            term.open()
            self._place.here(term, self._me.addresses)
            self._set_role("owning")
            self._statistics.takeovers += 1
            self._statistics.epoch = self._owned_epoch = ownership.epoch
            log.info("owning shard %d from %d on, in epoch %d", self._shard, ownership.position.number, ownership.epoch)
            self._acknowledged(term)
            target = await self._serve(term, owner, is_announced=is_announced)
            if target is not None:
                is_kept = await self._hand_over(term, store, owner, target)
        except LostShardError as error:
            log.warning("lost shard %d: %s", self._shard, error)
            can_follow = error.__cause__ is None  # it was given up
        finally:
            announcing.cancel()
            self._term = None
            self._show(self._owner())
            self._followers.tell(None)
            self._alone_since = None
            if not is_kept:
                self._caught_up = False
                self._statistics.fenced += 1
                await self._connections.pass_on(0.0)
                await term.abort()
                await self._claims.give_up(owner)
            await term.release()
            self._statistics.unacknowledged_bytes = self._statistics.followers = 0
        return can_follow

    async def _first_announced(self, term: Term, owner: Owner) -> bool:
        """Announce the owner, whose fence is in the log, before it serves. Return False if it is stopped before. Raises
        LostShardError."""
        claiming, self._claiming = self._claiming, None
        if claiming is not None and await claiming == owner:
            return True
        before = self._claims.mine() if claiming is None else self._replaced
        return await self._claims.announce_first(
            owner, term.gate, before, is_over=lambda: self._stopping or term.failure is not None
        )

    async def _serve(self, term: Term, owner: Owner, *, is_announced: bool) -> str | None:
        """Serve until there is a node to hand the shard to; "" if there is none, and this one is stopped.

        Raises LostShardError when the shard is lost, or when another node has to be given it.
        """
        announcing: asyncio.Task[bool] | None = None
        try:
            while True:
                self._measure(term)
                failure = term.failure or term.core.engine.writer.failure
                if failure is not None:
                    raise LostShardError(str(failure)) from failure
                if (rival := self._rival()) is not None:
                    raise LostShardError(f"the node {rival.node} has claimed it")
                if announcing is not None and announcing.done():
                    is_announced, announcing = announcing.result() or is_announced, None
                if announcing is None and (not is_announced or not self._claims.is_certain):
                    before = None if is_announced else self._claims.mine()
                    announcing = background.start(self._claims.announce(owner, term.gate, before))
                    announcing.add_done_callback(lambda _: self.wake())
                others = any(each.reaches_store for each in self._followers.standings.values())
                if self._reach.is_stuck(term.uploader.waiting_seconds(), others=others):
                    raise LostShardError("the object store does not answer this node, and answers others")
                target = await self._successors.find(stopping=self._stopping)
                if self._stopping or (target is not None and await self._claims.prefer(target)):
                    return target or ""
                await self._pause(_TICK_SECONDS)
        finally:
            if announcing is not None:
                announcing.cancel()

    async def _hand_over(self, term: Term, store: ShardStore, owner: Owner, target: str) -> bool:
        """Make everything durable and let the target take over; without a target only the former."""
        self._set_role("handing_over")
        log.info("handing shard %d over to %s", self._shard, target or "no node: no follower is caught up")
        standing = self._followers.standings.get(target)
        self._place.elsewhere(None)
        self._set_serving(False)
        preferring = background.start(self._claims.prefer(target)) if self._stopping else None
        await asyncio.gather(term.drain(), self._connections.pass_on())
        is_kept = term.failure is None and await term.finish()
        if is_kept and standing is not None:
            try:
                if await hand_over(self._bucket, store, self._shard, standing.nonce):
                    self._followers.tell(Notice(epoch=owner.epoch, number=store.position.number))
            except BucketError as error:
                log.warning("can't put the fence of %s, which will put one itself: %s", target, error)
            await self._claims.until_replaced(owner)
            self._show(self._owner())  # calls that are held go there, whatever is left to be done here
        if preferring is not None:
            await preferring
        if is_kept:
            await self._claims.give_up(owner)
            self._statistics.handovers += 1
        return is_kept

    def _acknowledged(self, term: Term) -> None:
        """Tell the followers what is durable now."""
        position = term.uploader.position
        self._statistics.number = position.number - 1
        if term.failure is not None:
            self.wake()
        elif self._term is term:
            self._followers.tell(Notice(epoch=position.epoch, number=position.number - 1))

    def _measure(self, term: Term) -> None:
        statistics = self._statistics
        statistics.followers = sum(each.caught_up for each in self._followers.standings.values())
        statistics.probes = term.gate.probes
        statistics.behind = 0

    # ------------------------------------------------------------ shared

    def _owner(self) -> Owner | None:
        return self._claims.owner

    def _rival(self) -> Owner | None:
        """The owner, if another node has claimed the shard after this one. What was there before may still be in the
        view."""
        owner = self._owner()
        return None if owner is None or owner.node == self._me.name or owner == self._replaced else owner

    def _set_role(self, role: str) -> None:
        self._statistics.role = role
        if self.is_ready:
            self.was_ready.set()
        self._surroundings.changed()

    async def _pause(self, seconds: float) -> None:
        """Wait for a change, or for so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()


async def _quietly(work: Awaitable[None]) -> None:
    with contextlib.suppress(Exception):
        await work
