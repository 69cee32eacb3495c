"""A node: it follows the log, takes over, owns, makes checkpoints and collects, sleeps and dies.

Reading, fencing, writing, the gate of reads and collection are the program's own; the store and the role are models.
"""

import asyncio
import hashlib
from collections.abc import Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import msgspec
from cluster.simulation.coordinator import Session
from cluster.simulation.objectstore import NodeBucket
from cluster.simulation.store import Disk, ModelStore, Write

from support.log_model import OracleError, demand
from topics_backup.manifest import File, seal
from topics_cluster import checkpoint, collect, takeover
from topics_cluster import uploader as uploading
from topics_cluster.bucket import BucketError
from topics_cluster.checkpoint import Checkpoint
from topics_cluster.follower import BehindCheckpointError, Follower
from topics_cluster.log import OutOfOrderError, Position
from topics_cluster.objects import LogObject
from topics_cluster.store import ShardStore
from topics_cluster.takeover import GivenWayError, Ownership, StoreAheadError
from topics_cluster.uploader import FencedError, Uploader
from topics_server.node.gate import LostShardError, ReadGate
from topics_service.engine.errors import TopicsError

if TYPE_CHECKING:
    from cluster.simulation.life import Life

SHARD = 0
NEVER = 1e18


class Node:
    """One machine with its disk. A life of its process has tasks, a session and a role."""

    def __init__(self, life: "Life", name: str, dice: Random) -> None:
        self.name = name
        self.disk: Disk | None = None
        self.is_alive = False
        self.is_cut_off = False
        """From the object store."""
        self.is_alone = False
        """Cut off from the coordinator."""
        self.owner: Owner | None = None
        self.store: ModelStore | None = None
        self.wants = False
        """Takes over next, whoever owns."""
        self.dice = dice
        self.bucket = NodeBucket(life.store, self, lambda: life.weather, dice)
        self._restored: int | None = None
        """The checkpoint that the local state begins with; 0 is none, and None unknown."""
        self._life = life
        self._drift = dice.uniform(0.98, 1.02)
        self._runs = asyncio.Event()
        self._runs.set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._session = Session(life.coordinator, self)

    # ------------------------------------------------------------ ends and starts

    def start(self) -> None:
        """Begin a life of its process."""
        self.is_alive = True
        self._session = Session(self._life.coordinator, self)
        self.spawn(self._session.run())
        self.spawn(self._run())

    def kill(self, *, power: bool = False) -> None:
        """End it; what it has sent arrives all the same."""
        self.is_alive = False
        self._session.is_dead = True
        self._runs.set()
        self._resign()
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        self.store = None
        self.wants = False
        if power and self.disk is not None:
            self.disk.cut_power(self.dice.randrange(8))

    def sleep(self) -> None:
        """Run no further."""
        self._runs.clear()

    def wake(self) -> None:
        """Continue."""
        self._runs.set()

    @property
    def is_asleep(self) -> bool:
        """Return whether its process does not run."""
        return not self._runs.is_set()

    async def awake(self) -> None:
        """See Sleeper."""
        await self._runs.wait()

    async def pause(self, seconds: float) -> None:
        """Sleep as a program does."""
        await asyncio.sleep(seconds)
        await self.awake()

    @property
    def now(self) -> float:
        """Its CLOCK_BOOTTIME: passes while it sleeps, and not at the pace of others."""
        return self._life.now * self._drift

    def spawn(self, what: Coroutine[Any, Any, None]) -> None:
        """Let its process do something."""
        task = asyncio.create_task(self._guarded(what))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, what: Coroutine[Any, Any, None]) -> None:
        try:
            await what
        except Exception as error:
            self._life.failed(error)

    def _resign(self) -> None:
        if self.owner is not None:
            self.owner.end()
            self.owner = None

    # -------------------------------------------------------------------- the roles

    async def _run(self) -> None:
        while True:
            try:
                if self.store is None:
                    self.store = await self._open()
                ownership = await self._follow(self.store)
                await self._own(self.store, ownership)
            except BucketError:
                await self.pause(self.dice.uniform(0.01, 0.3))
            except GivenWayError:
                self._life.trace.meet("a contender that gave way")
            except OutOfOrderError as error:
                self._life.trace.meet("a log that is out of order")
                await self._doubt(error)
                self.store, self.disk = None, None
            except (BehindCheckpointError, StoreAheadError, LostShardError) as error:
                self._life.trace.meet(f"a directory given up: {type(error).__name__}")
                self._life.tell(f"{self.name}: {error}")
                self._resign()
                self._session.give_up()
                self.store, self.disk = None, None

    async def _open(self) -> ModelStore:
        """Use the local directory, or restore the newest checkpoint."""
        if self.disk is not None:
            self._life.trace.meet("a directory used again")
            self._restored = None
        else:
            self.disk = await self._restore()
        return ModelStore(self.disk)

    async def _restore(self) -> Disk:
        while True:
            made = await checkpoint.entries(self.bucket, SHARD)
            for number, _ in made[:-3:-1]:
                found = await checkpoint.load(self.bucket, SHARD, number)
                data = None
                if found is not None:
                    data = await self.bucket.get(checkpoint.file_name(SHARD, found.files[0]))
                if found is not None and data is not None:
                    keys = tuple(msgspec.msgpack.decode(data, type=list[bytes]))
                    self._life.oracle.has_read(self.name, list(keys), 0)
                    self._life.trace.meet("a checkpoint restored")
                    self._restored = number
                    return Disk(Write(keys, found.position, found.applied))
            if not made:
                self._restored = 0
                return Disk()
            demand(await self._newest_number() > made[-1].number, "neither of two checkpoints is whole")

    async def _newest_number(self) -> int:
        made = await checkpoint.entries(self.bucket, SHARD)
        return made[-1].number if made else 0

    async def newest(self) -> Position | None:
        """See Newest."""
        return await checkpoint.newest_position(self.bucket, SHARD)

    async def _doubt(self, error: OutOfOrderError) -> None:
        """Tell a stretch that was deleted, and a directory that is none of the log, from damage."""
        while True:
            try:
                newest = await self._newest_number()
                break
            except BucketError:
                continue
        if self._restored is not None and newest <= self._restored:
            raise OracleError(f"{self.name} finds the log damaged: {error}")

    async def _follow(self, store: ModelStore) -> Ownership:
        """Read on until it owns."""
        follower = Follower(self.bucket, cast(ShardStore, store), SHARD, self.newest)
        follower.on_applied = lambda found: self._applied(store, found)
        while True:
            await follower.catch_up()
            if self.dice.random() < 0.3:
                await follower.check()
            if self.wants or await self._session.claim():
                self.wants = False
                return await self._take_over(store)
            await self.pause(self.dice.uniform(0.02, 0.3))

    def _applied(self, store: ModelStore, found: LogObject) -> None:
        keys = [batch.rows[0][2] for batch in found.batches]
        self._life.oracle.has_read(self.name, keys, len(store.disk.keys) - len(keys))

    async def _take_over(self, store: ModelStore) -> Ownership:
        nonce = self.dice.randbytes(16)
        found = await takeover.take_over(
            self.bucket, cast(ShardStore, store), SHARD, nonce, newest=self.newest
        )  # fmt: skip
        await self.awake()
        self._life.trace.meet("a takeover")
        self._life.tell(f"{self.name} owns epoch {found.epoch} from {found.position.number}")
        self._life.oracle.has_read(self.name, store.disk.keys, 0)
        self._life.oracle.owns(self.name, found.epoch, len(store.disk.keys))
        return found

    async def _own(self, store: ModelStore, ownership: Ownership) -> None:
        self.owner = owner = Owner(self._life, self, store, ownership, self._session)
        await owner.run()

    # --------------------------------------------------------------- housekeeping

    async def checkpoint(self) -> None:
        """Publish its state, once all of it is in the log."""
        store = self.store
        if store is None:
            return
        keys, row = list(store.disk.keys), store.disk.row
        content = msgspec.msgpack.encode(keys)
        file = File("CURRENT", len(content), hashlib.sha256(content).hexdigest())
        made = Checkpoint(
            format=checkpoint.FORMAT, shard=SHARD, number=row.position.number, epoch=row.position.epoch,
            ticket=row.position.ticket, applied=row.ticket, created_ms=0, node=self.name, server_version="",
            store_format="", files=[file],
        )  # fmt: skip
        name = checkpoint.name_of(SHARD, made.number)
        try:
            await checkpoint.in_the_log(cast(ShardStore, store), row.ticket)
            await self.bucket.put(checkpoint.file_name(SHARD, file), content)
            await self.pause(self.dice.choice((0, 0, 1)))
            if await self.bucket.create(name, [seal(msgspec.json.encode(made))]):
                self._life.trace.meet("a checkpoint")
                self._life.tell(f"{self.name} made the checkpoint {made.number} with {len(keys)} batches")
        except (BucketError, checkpoint.CheckpointError):
            self._life.trace.meet("a checkpoint that failed")

    async def collect(self) -> None:
        """Remove what nobody needs."""
        try:
            gone = await collect.collect(self.bucket, SHARD, self.dice.randbytes(4).hex())
        except BucketError:
            return
        self._life.tell(f"{self.name} collected {gone}")
        self._life.trace.meet("data of the log collected", gone.objects)
        self._life.trace.meet("a checkpoint collected", gone.checkpoints)
        self._life.trace.meet("a file collected", gone.files)


class _NoThread:
    """In place of the uploader's thread: its loop is that of the life."""

    def __init__(self, **_: object) -> None: ...

    def start(self) -> None: ...


def _uploader(node: Node, position: Position, nonce: bytes) -> Uploader:
    loop = asyncio.get_running_loop()
    with (
        patch.object(uploading.asyncio, "new_event_loop", lambda: loop),
        patch.object(uploading.threading, "Thread", _NoThread),
    ):
        return Uploader(node.bucket, SHARD, position, nonce, window=node.dice.choice((1, 4, 4, 8)))


class Owner:
    """A node that owns: takes batches, puts objects, acknowledges, answers reads."""

    def __init__(self, life: "Life", node: Node, store: ModelStore, ownership: Ownership, session: Session) -> None:
        self._life = life
        self._node = node
        self._store = store
        self._session = session
        self.acknowledged = ownership.position.ticket
        self.uploader = _uploader(node, ownership.position, ownership.nonce)
        self.uploader.on_acknowledged = self._acknowledge
        self.uploader.on_failed = self._fail
        store.own(self.uploader)
        self.gate = ReadGate(
            session, node.bucket, self.uploader, ownership.nonce, lambda: node.now if life.is_leased else NEVER
        )  # type: ignore[arg-type]
        self._lost = asyncio.Event()

    async def run(self) -> None:
        """Own until another one does. Raises LostShardError."""
        self._node.spawn(self._write())
        self._node.spawn(self._announce())
        await self._lost.wait()
        raise LostShardError("fenced")

    def end(self) -> None:
        """The process is dead, or owns no more."""
        self.uploader._stopping = True
        if self.uploader._timer is not None:
            self.uploader._timer.cancel()
        for task in self.uploader._tasks:
            task.cancel()
        self._lost.set()

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, FencedError):
            self._life.failed(error)
        self._life.trace.meet("an owner that was fenced")
        self._lost.set()

    def _acknowledge(self, ticket: int) -> None:
        keys = self._store.disk.keys[self.acknowledged : ticket]
        self._life.oracle.has_acknowledged(self._node.name, ticket, keys)
        self.acknowledged = ticket

    async def _announce(self) -> None:
        """Renew the claim whenever its lease has ended: another node may have owned in between."""
        if not await self._session.keeps():
            self.gate.doubt()
        while not self._lost.is_set():
            if self._node.now >= self._session.valid_until or self.gate._is_doubted:
                self.gate.doubt()
                if await self._session.claim():
                    try:
                        await self.gate.trust()
                    except LostShardError:
                        self._lost.set()
                    except TopicsError:
                        pass
            await self._node.pause(0.25)

    async def _write(self) -> None:
        """Write as clients do."""
        node = self._node
        while not self._lost.is_set():
            for _ in range(node.dice.choice((1, 1, 1, 2, 5))):
                if self.uploader.unacknowledged_bytes < 4000 and self._life.is_busy and not self._lost.is_set():
                    self._store.write(self._life.new_key())
            await node.pause(node.dice.choice(self._life.pauses))

    async def read(self) -> None:
        """A client reads."""
        oracle, at_least = self._life.oracle, self._life.oracle.acknowledged
        if not self.gate.is_open:
            try:
                await self.gate.look()
            except TopicsError:
                return
            except LostShardError:
                self._lost.set()
                return
            self._life.trace.meet("a read after a look")
        if not self._lost.is_set() and not self._node.is_asleep:
            oracle.is_whole(self._node.name, self.acknowledged, at_least)
            self._life.trace.meet("a read")
