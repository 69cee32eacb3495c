"""A node: for each of its shards it follows the log, takes over, owns, hands over, makes checkpoints and collects; it
sleeps and dies.

The store, reading, fencing, writing, the gate of reads and collection are the program's own; the role is a model.
"""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
from cluster.simulation.coordinator import Session
from cluster.simulation.objectstore import NodeBucket
from cluster.simulation.owner import Owner
from cluster.simulation.store import NodeDisk, NodeStore
from simulation.disk import CrashError

from support.log_model import OracleError, demand
from topics_backup.manifest import File, seal
from topics_cluster import checkpoint, collect, placement, reuse, takeover
from topics_cluster.bucket import BucketError
from topics_cluster.checkpoint import Checkpoint
from topics_cluster.coordinator import View
from topics_cluster.follower import BehindCheckpointError, Follower
from topics_cluster.log import START, OutOfOrderError, Position
from topics_cluster.placement import Layout
from topics_cluster.store import POSITION_KEY, read_position
from topics_cluster.takeover import GivenWayError, Ownership, StoreAheadError
from topics_server.node.gate import LostShardError
from topics_server.node.local import LocalTopics
from topics_service.storage.store import Family

if TYPE_CHECKING:
    from cluster.simulation.life import Life

FOLLOWERS = 1
SETTLED = 2.0
"""Seconds without a change after which a shard moves for the balance, and a spare replica goes."""


class Tasks:
    """Tasks of a process that end together; an error in one is the failure of the life."""

    def __init__(self, life: "Life", kill: Callable[[], None]) -> None:
        self._life = life
        self._kill = kill
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, what: Coroutine[Any, Any, None]) -> None:
        """Let its process do something."""
        task = asyncio.create_task(self._guarded(what))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: what.close())  # it may not have begun

    async def _guarded(self, what: Coroutine[Any, Any, None]) -> None:
        try:
            await what
        except CrashError:
            self._life.trace.meet("a crash between two writes of a node")
            self._kill()
        except Exception as error:
            self._life.failed(error)

    def end(self) -> None:
        """Cancel them."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()


class Machine:
    """One machine with its disks, and a process on it that keeps replicas of shards."""

    def __init__(self, life: "Life", name: str) -> None:
        self.name = name
        self.is_alive = False
        self.is_cut_off = False
        """From the object store."""
        self.is_alone = False
        """Cut off from the coordinator."""
        self.nodes: list[Node] = []
        """By shard."""
        self.drift = 1.0
        self.runs = asyncio.Event()
        self.runs.set()
        self.session = Session(life.coordinator, self)
        self._life = life
        self._tasks = Tasks(life, self.kill)
        self._spared: dict[int, float] = {}

    def start(self) -> None:
        """Begin a life of its process."""
        self.is_alive = True
        self.session = Session(self._life.coordinator, self)
        self._tasks.spawn(self.session.run())
        if len(self.nodes) > 1:
            self._tasks.spawn(self._keep())
        for node in self.nodes:
            if len(self.nodes) == 1 or node.disk is not None:
                node.begin()

    def kill(self, *, power: bool = False) -> None:
        """End it; what it has sent arrives all the same."""
        self.is_alive = False
        self.session.is_dead = True
        self.runs.set()
        self._tasks.end()
        for node in self.nodes:
            node.end()
            if power and node.disk is not None:
                disk = node.disk
                disk.cut_power(disk.writes - node.dice.randrange(1 + disk.writes - disk.synced))

    @property
    def now(self) -> float:
        """Its CLOCK_BOOTTIME: passes while it sleeps, and not at the pace of others."""
        return self._life.now * self.drift

    async def awake(self) -> None:
        """See Process."""
        await self.runs.wait()

    def owns(self, shard: int) -> bool:
        """See Process."""
        return self.nodes[shard].owner is not None

    async def _keep(self) -> None:
        """Keep the replicas that the placement names, as `Shards` does, and hand over what has its turn."""
        life, count, settled = self._life, len(self.nodes), 0.0
        before: object = None
        while True:
            warm = tuple(node.shard for node in self.nodes if node.is_warm)
            view = await self.session.look(warm)
            if view is not None and self.name in view.nodes:
                layout = placement.lay_out(count, view, FOLLOWERS)
                state = sorted(view.nodes), view.owners
                if state != before:
                    before, settled = state, life.now + SETTLED
                for node in self.nodes:
                    self._keep_or_end(node, view, layout)
                move = placement.next_move(count, view, layout, is_settled=life.now > settled)
                if move is not None and self.owns(move.shard) and life.dice.random() < 0.8:
                    life.trace.meet("a move for the balance")
                    self.nodes[move.shard].hands_over_to = life.machine(move.node).nodes[move.shard]
            await asyncio.sleep(0.2)
            await self.awake()

    def _keep_or_end(self, node: "Node", view: View, layout: Layout) -> None:
        if self.name in placement.holders(node.shard, view, layout):
            if not node.is_kept:
                self._life.trace.meet("a replica begun")
                node.begin()
            self._spared.pop(node.shard, None)
        elif not node.is_warm or node.owner is not None or not placement.is_spare(node.shard, self.name, view, layout):
            self._spared.pop(node.shard, None)
        elif self._life.now > self._spared.setdefault(node.shard, self._life.now) + SETTLED:
            self._life.trace.meet("a replica that was spare")
            node.end()
            node.disk = None


class Node:
    """The replica of one shard at one machine: a life of the process has tasks and a role for it."""

    def __init__(self, life: "Life", machine: Machine, shard: int, dice: Random) -> None:
        self.shard = shard
        self.machine = machine
        self.name = machine.name
        self.disk: NodeDisk | None = None
        self.owner: Owner | None = None
        self.store: NodeStore | None = None
        self.is_kept = False
        self.is_caught_up = False
        self.wants = False
        """Takes over next, whoever owns."""
        self.nonce = dice.randbytes(16)
        """That of its next takeover; also others know of it."""
        self.hands_over_to: Node | None = None
        self.dice = dice
        self.oracle = life.oracles[shard]
        self.bucket = NodeBucket(life.store, self, lambda: life.weather, dice)
        self._restored: int | None = None
        """The checkpoint that the local state begins with; 0 is none, and None unknown."""
        self._life = life
        if shard == 0:
            machine.drift = dice.uniform(0.98, 1.02)
        self._tasks = Tasks(life, self.kill)
        self.spawn = self._tasks.spawn

    # ------------------------------------------------------------ ends and starts

    def begin(self) -> None:
        """Keep a replica."""
        self.is_kept = True
        self.spawn(self._run())

    def end(self) -> None:
        """Keep it no longer."""
        self._resign()
        self._tasks.end()
        self.store = None
        self.is_kept = self.is_caught_up = False
        self.wants, self.hands_over_to = False, None

    def kill(self, *, power: bool = False) -> None:
        """End the process."""
        self.machine.kill(power=power)

    @property
    def is_alive(self) -> bool:
        """Return whether its process runs and keeps the replica."""
        return self.machine.is_alive and self.is_kept

    @property
    def is_warm(self) -> bool:
        """Return whether it owns the shard, or has caught up with it."""
        return self.store is not None and (self.owner is not None or self.is_caught_up)

    @property
    def is_cut_off(self) -> bool:
        """See Sleeper."""
        return self.machine.is_cut_off

    @property
    def is_asleep(self) -> bool:
        """Return whether its process does not run."""
        return not self.machine.runs.is_set()

    async def awake(self) -> None:
        """See Sleeper."""
        await self.machine.runs.wait()

    async def pause(self, seconds: float) -> None:
        """Sleep as a program does."""
        await asyncio.sleep(seconds)
        await self.awake()

    @property
    def now(self) -> float:
        """See Machine."""
        return self.machine.now

    @property
    def _session(self) -> Session:
        return self.machine.session

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
                self.store, self.disk, self.is_caught_up = None, None, False
            except (BehindCheckpointError, StoreAheadError, LostShardError) as error:
                self._life.trace.meet(f"a directory given up: {type(error).__name__}")
                self._life.tell(f"{self.name}: {error}")
                self._resign()
                self._session.give_up(self.shard)
                self.store, self.disk, self.is_caught_up = None, None, False

    async def _open(self) -> NodeStore:
        """Use the local directory, if its rows are a part of the log, or restore the newest checkpoint."""
        if self.disk is not None:
            self._restored = None
            store = NodeStore(self.disk)
            is_used = await reuse.is_of_log(self.bucket, store, self.shard, self.newest)
            if is_used and not store.is_ahead:  # the disk of this model has no write-ahead log to continue the log from
                self._life.trace.meet("a directory used again")
                self.oracle.has(self.name, store.ticket, self.disk)
                return store
            self._life.trace.meet("a directory that is no part of the log")
            self._life.tell(f"{self.name} has what is not in the log")
        self.disk = await self._restore()
        store = NodeStore(self.disk)
        self.oracle.has(self.name, store.ticket, self.disk)
        return store

    async def _restore(self) -> NodeDisk:
        while True:
            made = await checkpoint.entries(self.bucket, self.shard)
            for number, _ in made[:-3:-1]:
                found = await checkpoint.load(self.bucket, self.shard, number)
                data = None
                if found is not None:
                    data = await self.bucket.get(checkpoint.file_name(self.shard, found.files[0]))
                if data is not None:
                    self._life.trace.meet("a checkpoint restored")
                    self._restored = number
                    return NodeDisk(msgspec.msgpack.decode(data, type=list[tuple[Family, bytes, bytes]]))
            if not made:
                self._restored = 0
                return NodeDisk()
            demand(await self._newest_number() > made[-1].number, "neither of two checkpoints is whole")

    async def _newest_number(self) -> int:
        made = await checkpoint.entries(self.bucket, self.shard)
        return made[-1].number if made else 0

    async def newest(self) -> Position | None:
        """See Newest."""
        return await checkpoint.newest_position(self.bucket, self.shard)

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

    async def _follow(self, store: NodeStore) -> Ownership:
        """Read on until it owns."""
        follower = Follower(self.bucket, store, self.shard, self.newest)
        follower.on_applied = lambda _found: self._applied(store)
        while True:
            await follower.catch_up()
            self.is_caught_up = True
            if self.dice.random() < 0.3:
                await follower.check()
            if self.wants or await self._session.claim(self.shard):
                self.wants = False
                return await self._take_over(store)
            await self.pause(self.dice.uniform(0.02, 0.3))

    def _applied(self, store: NodeStore) -> None:
        if self.dice.random() < 0.1:
            self.oracle.has(self.name, store.ticket, store.disk)

    async def _take_over(self, store: NodeStore) -> Ownership:
        nonce, self.nonce = self.nonce, self.dice.randbytes(16)
        found = await takeover.take_over(self.bucket, store, self.shard, nonce, newest=self.newest)
        await self.awake()
        self._life.trace.meet("a takeover")
        self._life.tell(f"{self.name} owns epoch {found.epoch} from {found.position.number}")
        self.oracle.has(self.name, store.ticket, store.disk)
        self.oracle.owns(self.name, found.epoch, store.ticket)
        return found

    async def _own(self, store: NodeStore, ownership: Ownership) -> None:
        """Own until another node does, or is handed the shard. Raises LostShardError."""
        self.owner = owner = Owner(self._life, self, store, ownership, self._session)
        target = await owner.run()
        self.owner = None
        self._life.trace.meet("a shard that was made ready for a handover")
        self._life.tell(f"{self.name} hands over to {target.name}")
        self.hands_over_to = None
        target.wants = not self._life.is_leased
        try:
            if await takeover.hand_over(self.bucket, store, self.shard, target.nonce):
                self._life.trace.meet("a handover")
        finally:
            self._session.give_up(self.shard)

    async def read(self, owner: Owner) -> None:
        """A client reads at this node, which follows."""
        oracle, at_least, store = self.oracle, self.oracle.acknowledged, self.store
        wanted = await owner.standpoint()
        await self.awake()
        for _ in range(20):
            if wanted is None or store is None or store is not self.store or store.uploader is not None:
                return
            if LocalTopics._has(cast(LocalTopics, SimpleNamespace(store=store)), wanted):
                oracle.is_whole(self.name, store.ticket, at_least)
                self._life.trace.meet("a read at a follower")
                return
            await self.pause(0.05)

    # --------------------------------------------------------------- housekeeping

    async def checkpoint(self) -> None:
        """Publish its state, once all of it is in the log."""
        store = self.store
        if store is None:
            return
        rows, row = list(store.disk.rows()), store.disk.get(Family.META, POSITION_KEY)
        position, applied = (START, START.ticket) if row is None else read_position(row)
        content = msgspec.msgpack.encode(rows)
        file = File("CURRENT", len(content), hashlib.sha256(content).hexdigest())
        made = Checkpoint(
            format=checkpoint.FORMAT, shard=self.shard, number=position.number, epoch=position.epoch,
            ticket=position.ticket, applied=applied, created_ms=0, node=self.name, server_version="",
            store_format="", files=[file],
        )  # fmt: skip
        name = checkpoint.name_of(self.shard, made.number)
        try:
            await checkpoint.in_the_log(store, applied)
            await self.bucket.put(checkpoint.file_name(self.shard, file), content)
            await self.pause(self.dice.choice((0, 0, 1)))
            if await self.bucket.create(name, [seal(msgspec.json.encode(made))]):
                self._life.trace.meet("a checkpoint")
                self._life.tell(f"{self.name} made the checkpoint {made.number} with {applied} batches")
        except (BucketError, checkpoint.CheckpointError):
            self._life.trace.meet("a checkpoint that failed")

    async def collect(self) -> None:
        """Remove what nobody needs."""
        try:
            gone = await collect.collect(self.bucket, self.shard, self.dice.randbytes(4).hex())
        except BucketError:
            return
        self._life.tell(f"{self.name} collected {gone}")
        self._life.trace.meet("data of the log collected", gone.objects)
        self._life.trace.meet("a checkpoint collected", gone.checkpoints)
        self._life.trace.meet("a file collected", gone.files)
