"""The clients of a shard's owner: they write rows, or use the product's engine as those of a server do."""

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

from cluster.simulation.owner import Owner
from simulation.actors.producing import Producer
from simulation.disk import Disk
from simulation.scenario import Scenario
from simulation.world import World

from support.log_model import demand
from support.trace import Trace
from topics_cluster.commit import LogCommit
from topics_cluster.takeover import Ownership
from topics_service.engine.engine import Engine
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import AppendRequest, Batch
from topics_service.storage.memory import MemoryBatch
from topics_service.storage.store import Family, StoreError

if TYPE_CHECKING:
    from cluster.simulation.life import Life

MOST_BYTES = 4000
WITHOUT = ("chaos", "fsync")
"""Of a server, which has a disk of its own: a cluster has other faults."""


class Rows:
    """Writes of one row each."""

    written = 0

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._begin = owner.acknowledged
        owner.store.engine = self
        self._commit = LogCommit(owner.store, self._synced, owner.fail)

    async def begin(self) -> None:
        """Nothing to recover."""

    async def run(self) -> None:
        """Write as clients do."""
        owner, node, life = self._owner, self._owner.node, self._owner.life
        while not owner.is_lost and not owner.is_finishing:
            for _ in range(node.dice.choice((1, 1, 1, 2, 5))):
                if owner.uploader.unacknowledged_bytes < MOST_BYTES and life.is_busy and owner.can_write:
                    batch = owner.store.batch()
                    batch.put(Family.ROWS, life.new_key(), b"")
                    owner.store.write(batch)
                    self.written += 1
            await node.pause(node.dice.choice(life.pauses))

    async def finish(self) -> None:
        """Nothing to close."""

    def end(self) -> None:
        """The process is dead, or owns no more."""

    def _synced(self, ticket: int) -> None:
        made = self._owner.acknowledged - self._begin
        demand(ticket == made, f"the engine's ticket {ticket} is published, and {made} of its batches are in the log")


def boot_of(ownership: Ownership) -> str:
    """The boot that the engine is told of: another one in each epoch, whose first owner may lack what a former one had
    written."""
    return f"epoch {ownership.epoch}"


class Topics:
    """The engine of an owner, whose clients are those of the `Service` while it is the newest one."""

    def __init__(self, owner: Owner, service: "Service") -> None:
        self.owner = owner
        self.service = service
        self.engine: Engine = service.make_engine(owner.store, recover=False)
        self._commit = LogCommit.for_engine(self.engine, owner.store, owner.fail)
        self._commit.on_published = self._published
        self._is_open = False

    async def begin(self) -> None:
        """Recover as after a power cut. Clients come when all of that is in the log."""
        for _ in self.engine.recover(boot_of(self.owner.ownership)):
            pass
        await self._commit.settle(self.engine.writer.written)
        await self.owner.node.awake()
        self.owner.check()
        self._is_open = True
        self.service.recovered(self)

    async def run(self) -> None:
        """Go on with writes that are not acknowledged, as an owner does that knows of no other."""
        owner = self.owner
        while not owner.is_lost and not owner.is_finishing:
            await owner.node.pause(owner.node.dice.uniform(0.05, 0.5))
            if self._is_open and self.service.newest is not self and owner.can_write:
                self._write()

    def _write(self) -> None:
        names = [topic.name for topic in self.engine.catalog.each() if topic.config.type != "queue"]
        if names:
            request = AppendRequest(topic=self.owner.node.dice.choice(names), batch=Batch([b"of a former owner"]))
            try:
                self.engine.append(request)
                self.owner.life.trace.meet("a write of a former owner")
            except TopicsError:
                pass

    async def finish(self) -> None:
        """Close the engine, once everything is acknowledged."""
        self.service.left(self)
        await self._commit.settle(self.engine.writer.written)
        await self.owner.node.awake()
        try:
            self.engine.close()
        except StoreError as error:
            raise TopicsError(*error.args) from error
        if self.service.newest is self and self.engine.writer.failure is None:
            self.service.closed_at = self.owner.store.ticket

    def end(self) -> None:
        """The process is dead, or owns no more."""
        self.service.left(self)

    def _published(self) -> None:
        if self.service.newest is self:
            self.service.published()


class Service(World):
    """One server for its clients: the engine of the newest owner, whose disk is the log."""

    def __init__(self, seed: object, trace: Trace) -> None:
        super().__init__(seed, trace)
        self.newest: Topics | None = None
        """The newest that was there, also when it is dead."""
        self.is_there = False
        """Clients find an owner, which is the newest one."""
        self.closed_at = -1
        """The ticket at which the newest owner has closed its engine."""
        self._next: Engine = self.engine

    def recovered(self, work: Topics) -> None:
        """An owner begins to serve, with all that the newest one had in the log; others may have died recovering."""
        if self.newest is not None and self.newest.owner.ownership.epoch > work.owner.ownership.epoch:
            self.trace.meet("an engine recovered too late")
            return
        left = self.newest.owner.store.synced if self.newest is not None else 0
        is_closed = left == self.closed_at == work.owner.ownership.position.ticket
        if is_closed:
            self.topics.prune(left)
            self.trace.meet("an owner that finds a closed engine")
        self.trace.tell(f"  an engine recovers from ticket {left}")
        self.trace.meet("writes lost to a takeover", max(0, self.w - left) if self.newest is not None else 0)
        self.newest, self.disk, self._next = work, work.owner.store, work.engine  # type: ignore[assignment]
        self.closed_at = -1
        self.is_there = True
        self._recover("close" if is_closed else "crash", left, power=not is_closed)
        self.trace.meet("an engine recovered")

    def left(self, work: Topics) -> None:
        """An owner takes no calls any more."""
        if self.newest is work:
            self.is_there = False

    def move(self, rows: Iterator[tuple[Family, bytes, bytes]]) -> None:
        """The rows of a closed engine are a single server's from now on."""
        assert self.closed_at >= 0
        batch, left = MemoryBatch(), self.closed_at
        for family, key, value in rows:
            batch.put(family, key, value)
        self.disk = Disk()
        self.disk.write(batch)
        self.disk.sync()
        self.topics.prune(left)
        del self._next
        self._recover("close", left, power=False)

    def _open(self) -> Engine:
        if not hasattr(self, "_next"):
            return super()._open()
        self.clock.now = self.latest
        return self._next


class Clients(Scenario):
    """The clients of a `Service`."""

    def __init__(self, life: "Life", seed: int, service: Service) -> None:
        super().__init__(seed, without=WITHOUT, world=service, more=(Producer,))
        self._service = service
        self._life = life
        self._turns = count(1)
        self._has_begun = False

    def go_on(self) -> None:
        """Let one of them call the owner, if there is one."""
        service = self._service
        if service.newest is None or not service.is_there or not service.newest.owner.can_write:
            return
        if not self._has_begun:
            self._has_begun = True
            self.attempt(self.begin)
        self.turn(next(self._turns))

    def died(self) -> None:
        """See Scenario."""
        assert self._service.newest is not None
        self._life.trace.meet("a crash within a call")
        self._service.newest.owner.node.kill()
