"""An owner: it takes writes, has its uploader put them into the log, answers reads, and hands the shard over."""

import asyncio
from typing import TYPE_CHECKING
from unittest.mock import patch

from cluster.simulation.coordinator import Session
from cluster.simulation.oracle import hashed
from cluster.simulation.store import NodeStore

from topics_cluster import uploader as uploading
from topics_cluster.log import Position
from topics_cluster.objects import Row
from topics_cluster.takeover import Ownership
from topics_cluster.uploader import FencedError, Uploader
from topics_server.node.gate import LostShardError, ReadGate
from topics_server.node.peers import Standpoint
from topics_service.engine.errors import TopicsError
from topics_service.storage.store import StoreError

if TYPE_CHECKING:
    from cluster.simulation.life import Life
    from cluster.simulation.node import Node

NEVER = 1e18
PATIENCE = 10.0
"""Seconds until a handover is given up."""


class _NoThread:
    """In place of the uploader's thread: its loop is that of the life."""

    def __init__(self, **_: object) -> None: ...

    def start(self) -> None: ...


def _uploader(node: "Node", position: Position, nonce: bytes) -> Uploader:
    loop = asyncio.get_running_loop()
    with (
        patch.object(uploading.asyncio, "new_event_loop", lambda: loop),
        patch.object(uploading.threading, "Thread", _NoThread),
    ):
        return Uploader(node.bucket, node.shard, position, nonce, window=node.dice.choice((1, 4, 4, 8)))


class Owner:
    """A node that owns. `work` is what its clients do."""

    def __init__(self, life: "Life", node: "Node", store: NodeStore, ownership: Ownership, session: Session) -> None:
        self.life = life
        self.node = node
        self.store = store
        self.ownership = ownership
        self.acknowledged = ownership.position.ticket
        self.uploader = _uploader(node, ownership.position, ownership.nonce)
        self.is_finishing = False
        self._session = session
        self._lost = asyncio.Event()
        self._made: list[int] = []
        store.own(self.uploader)
        store.lasting = lambda: node.oracle.durable(ownership.epoch)
        add = self.uploader.add

        def made(batch: tuple[int, list[Row]]) -> None:
            self._made.append(hashed(batch[1]))
            add(batch)

        self.uploader.add = made  # type: ignore[assignment]
        self.gate = ReadGate(
            session, node.bucket, self.uploader, ownership.nonce, lambda: node.now if life.is_leased else NEVER
        )  # type: ignore[arg-type]
        self.work = life.make_work(self)
        publish = self.uploader.on_acknowledged

        def acknowledged(ticket: int) -> None:
            self._acknowledge(ticket)
            publish(ticket)

        self.uploader.on_acknowledged = acknowledged

    @property
    def is_lost(self) -> bool:
        """Return whether it owns no more, as far as it knows."""
        return self._lost.is_set()

    @property
    def can_write(self) -> bool:
        """Return whether its clients may call it."""
        return not (self.is_lost or self.is_finishing or self.node.is_asleep)

    async def run(self) -> "Node":
        """Own until the shard is to be handed over; returns the next owner. Raises LostShardError."""
        self.node.spawn(self._announce())
        try:
            await self._confirm()
            await self.work.begin()
            self.node.spawn(self.work.run())
            while self.node.hands_over_to is None:
                self.check()
                await self.node.pause(0.1)
            target = self.node.hands_over_to
            await self._finish()
            return target
        except TopicsError as error:
            raise LostShardError(str(error)) from error

    async def _confirm(self) -> None:
        """Return once the claim is this node's, with its fence in the log: while another one had it in between, that
        one may trust its lease."""
        while self.life.is_leased and not await self._session.keeps(self.node.shard):
            self.check()
            if await self._session.claim(self.node.shard):
                return
            if await self._session.sees_another(self.node.shard):
                raise LostShardError("another node has claimed it")
            await self.node.pause(0.1)

    async def _finish(self) -> None:
        """End as `Term.finish` does: everything is in the log, and the store is a follower's."""
        self.is_finishing = True
        await self.work.finish()
        try:
            async with asyncio.timeout(PATIENCE):
                while self.store.is_ahead:
                    self.check()
                    await self.node.pause(0.05)
        except TimeoutError:
            raise LostShardError("the object store does not answer") from None
        self.check()
        self._stop()
        self.store.disown()

    def check(self) -> None:
        """Raise LostShardError if it owns no more."""
        if self.is_lost:
            raise LostShardError("fenced")

    def end(self) -> None:
        """The process is dead, or owns no more."""
        self._stop()
        self.work.end()

    def _stop(self) -> None:
        self.uploader._stopping = True
        if self.uploader._timer is not None:
            self.uploader._timer.cancel()
        for task in self.uploader._tasks:
            task.cancel()
        self._lost.set()

    def fail(self, error: BaseException) -> None:
        """The uploader has failed."""
        if not isinstance(error, StoreError):
            self.life.failed(error)
        self.life.trace.meet("an owner that was fenced", isinstance(error, FencedError))
        self._lost.set()

    def _acknowledge(self, ticket: int) -> None:
        start = self.ownership.position.ticket
        self.node.oracle.has_acknowledged(
            self.node.name, ticket, self._made[self.acknowledged - start : ticket - start]
        )
        self.acknowledged = ticket

    async def _announce(self) -> None:
        """Renew the claim whenever its lease has ended: another node may have owned in between."""
        if not await self._session.keeps(self.node.shard):
            self.gate.doubt()
        while not self.is_lost:
            if self.node.now >= self._session.holds_until(self.node.shard) or self.gate._is_doubted:
                self.gate.doubt()
                if await self._session.claim(self.node.shard):
                    try:
                        await self.gate.trust()
                    except LostShardError:
                        self._lost.set()
                    except TopicsError:
                        pass
            await self.node.pause(0.25)

    async def standpoint(self) -> Standpoint | None:
        """See Term.standpoint. None where that raises."""
        if not self.gate.is_open:
            try:
                await self.gate.look()
            except TopicsError:
                return None
            except LostShardError:
                self._lost.set()
                return None
            self.life.trace.meet("a read after a look")
        return None if self.is_lost else Standpoint(epoch=self.ownership.epoch, ticket=self.store.ticket)

    async def read(self) -> None:
        """A client reads."""
        oracle, at_least = self.node.oracle, self.node.oracle.acknowledged
        if await self.standpoint() is not None and not self.node.is_asleep:
            oracle.is_whole(self.node.name, self.acknowledged, at_least)
            self.life.trace.meet("a read")
