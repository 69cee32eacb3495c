"""A whole life of a cluster from a seed, and the end, when faults stop and everybody must come to the same log."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any
from unittest.mock import patch

from cluster.simulation.clients import Clients, Rows, Service, Topics
from cluster.simulation.coordinator import Coordinator
from cluster.simulation.loop import run_virtual
from cluster.simulation.node import FOLLOWERS, Machine, Node
from cluster.simulation.objectstore import CALM, ObjectStore, Weather
from cluster.simulation.oracle import Oracle
from cluster.simulation.owner import Owner
from cluster.simulation.store import RawBatch
from simulation.scenario import small_engine

from support.log_model import OracleError, demand
from support.trace import Trace
from topics_service.engine.errors import TopicsError

STEPS = 60
COMMAND = "PYTHONPATH=tests python -m cluster.simulation"
END_SECONDS = 120.0
SMALL: dict[str, Any] = {  # so that what takes hours elsewhere happens within a life
    "topics_cluster.collect.HOUR": 0.1,
    "topics_cluster.collect.DAY": 30.0,
    "topics_cluster.log.EARLY_BYTES": 300,
    "topics_cluster.log.MAX_OBJECT_BYTES": 400,
    "topics_cluster.store.MAX_UNACKNOWLEDGED_BYTES": 12_000,
    "topics_service.storage.rocks_batch.RawBatch": RawBatch,
}
ROUGH = Weather(lost=0.02, unanswered=0.03, late=0.03, twice=0.03, conflict=0.02, slow=0.05)
STORMY = Weather(lost=0.05, unanswered=0.1, late=0.1, twice=0.1, conflict=0.05, slow=0.2)


@dataclass
class Failure:
    """The fault that ended a life."""

    seed: int
    step: int
    error: BaseException
    last: list[str]
    topics: bool
    shards: int

    def __str__(self) -> str:
        lines = "\n".join(self.last)
        return (
            f"{lines}\nseed {self.seed} fails at step {self.step}: {self.error!r}\n"
            f"again: {COMMAND} {self.seed} --steps {self.step} {options(self.topics, self.shards)}--trace"
        )


def options(topics: bool, shards: int = 1) -> str:
    """The words behind the number of a seed that repeat its life."""
    return ("--topics " if topics else "") + (f"--shards {shards} " if shards > 1 else "")


class Life:
    """Two to four nodes, one object store, one coordinator. With `topics` owners have engines, else rows; several
    shards are placed on the nodes as by the program."""

    def __init__(self, seed: int, trace: Trace, *, topics: bool, shards: int = 1) -> None:
        assert shards == 1 or not topics, "the clients of engines know one shard"
        self.trace = trace
        self.dice = Random(f"{seed} life")
        self.oracles = [Oracle(shard, trace) for shard in range(shards)]
        self.oracle = self.oracles[0]
        self.store = ObjectStore(lambda: self.now, self._made)
        self.coordinator = Coordinator(lambda: self.now, Random(f"{seed} coordinator"))
        self.weather = self.dice.choice((CALM, ROUGH, ROUGH, STORMY))
        self.is_busy = True
        self.is_leased = self.dice.random() < 0.5
        """Return whether no node takes over before a lease ends."""
        self.pauses = self.dice.choice(((0.001, 0.05, 0.2), (0.3, 2.0)))
        """Between two writes of clients, in seconds."""
        self.machines = [Machine(self, name) for name in "abcd"[: self.dice.randint(2, 4)]]
        self.nodes: list[Node] = []
        for machine in self.machines:
            for shard in range(shards):
                dice = Random(f"{seed} {machine.name}{shard or ''}")
                machine.nodes.append(Node(self, machine, shard, dice))
            self.nodes += machine.nodes
        self.service: Service | None = None
        if topics:
            self.service = Service(seed, trace)
            self._clients = Clients(self, seed, self.service)
        self._keys = count(1)
        self._failure: asyncio.Future[None] | None = None
        self._actions: dict[Callable[[Node], None], float] = {
            self._kill: self.dice.random(),
            self._sleep: self.dice.random(),
            self._cut_off: self.dice.random() / 2,
            self._leave_alone: self.dice.random() / 2,
            self._contend: self.dice.random() * (not self.is_leased),
            self._hand_over: self.dice.random() / 2,
            self._trip: self.dice.random() / 3,
            self._checkpoint: 3 * self.dice.random(),
            self._collect: 3 * self.dice.random(),
            self._read: 3,
            self._change: self.dice.random() / 3,
            self._wait: 1,
        }

    @property
    def now(self) -> float:
        """The true time."""
        return asyncio.get_running_loop().time()

    def machine(self, name: str) -> Machine:
        """The machine of a name."""
        return next(machine for machine in self.machines if machine.name == name)

    def _made(self, name: str, data: bytes) -> None:
        for oracle in self.oracles:
            oracle.made(name, data)

    def new_key(self) -> bytes:
        """The key of a row, which is written once."""
        return b"%d" % next(self._keys)

    def make_work(self, owner: Owner) -> Rows | Topics:
        """Calls that an owner has its clients make."""
        return Rows(owner) if self.service is None else Topics(owner, self.service)

    def tell(self, text: str) -> None:
        """A line of the trace."""
        self.trace.tell(f"{self.now:8.3f} {text}")

    def failed(self, error: BaseException) -> None:
        """Something went wrong in a node."""
        assert self._failure is not None
        if not self._failure.done():
            self._failure.set_exception(error)

    async def run(self, steps: int) -> None:
        """All of it. Raises what went wrong."""
        loop = asyncio.get_running_loop()
        self._failure = loop.create_future()
        loop.set_exception_handler(
            lambda _, context: self.failed(context.get("exception") or OracleError(str(context)))
        )
        acts = asyncio.create_task(self._act(steps))
        try:
            await asyncio.wait((acts, self._failure), return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            acts.result()
        finally:
            acts.cancel()
            for machine in self.machines:
                machine.kill()
            await asyncio.sleep(0)
            self._failure.cancel()

    async def _act(self, steps: int) -> None:
        for machine in self.machines:
            if machine is self.machines[0] or self.dice.random() < 0.8:  # others join later
                machine.start()
        for step in range(1, steps + 1):
            self.trace.step = step
            await self._call()
            await asyncio.sleep(self.dice.choice((0.005, 0.02, 0.1, 0.5, 2)) * self.dice.random())
            [action] = self.dice.choices(list(self._actions), list(self._actions.values()))
            owners = [node for node in self.nodes if node.owner is not None]
            action(self.dice.choice(owners if owners and self.dice.random() < 0.5 else self.nodes))
        self.trace.step = steps + 1
        await self._end()

    async def _call(self) -> None:
        """Let clients call, with objects under way."""
        if self.service is not None:
            for _ in range(self.dice.randrange(8)):
                self._clients.go_on()
                await asyncio.sleep(self.dice.choice((0, 0.001, 0.02)))

    async def _end(self) -> None:
        """Faults end, somebody owns, and everybody reads the log to its end."""
        self.weather = replace(CALM)
        self.coordinator.is_away = False
        for machine in self.machines:
            machine.is_cut_off = machine.is_alone = False
            for node in machine.nodes:
                node.wants, node.hands_over_to = False, None
                if node.disk is not None:
                    node.disk.mend()
            machine.runs.set()
            if not machine.is_alive:
                machine.start()
        self.tell("faults end")
        before = [oracle.acknowledged for oracle in self.oracles]
        until = self.now + END_SECONDS
        while not (self._is_served(before) and self._is_placed()):
            demand(
                self.now < until, "nothing is acknowledged any more, or by several, or shards are not where they belong"
            )
            await self._call()
            self._read(self.nodes[0])
            await asyncio.sleep(0.5)
        self.is_busy = False
        while not self._is_at_rest():
            demand(self.now < until, f"no rest: {[(n.name, n.shard, n.store and n.store.ticket) for n in self.nodes]}")
            self._read(self.nodes[0])
            await self._close()
            await asyncio.sleep(0.5)
        for node in self.nodes:
            if node.is_kept:
                assert node.store is not None
                node.oracle.has(node.name, len(node.oracle.facts), node.store.disk)
        if self.service is not None:
            self.service.move(self.nodes[0].store.disk.rows())
            self._clients.end()

    async def _close(self) -> None:
        """Let the owner close its engine: another one may have taken over meanwhile."""
        service = self.service
        if service is not None and service.is_there:
            assert service.newest is not None
            service.newest.owner.is_finishing = True
            with suppress(TopicsError):
                await service.newest.finish()

    def _is_served(self, before: list[int]) -> bool:
        """Return whether each shard has one owner, who has acknowledged something."""
        owned = Counter(node.shard for node in self.nodes if node.owner is not None)
        return all(
            oracle.acknowledged > least + 3 and owned[shard] == 1
            for shard, (oracle, least) in enumerate(zip(self.oracles, before, strict=True))
        )

    def _is_placed(self) -> bool:
        """Return whether each of several shards has its followers, and each node its share."""
        if len(self.oracles) == 1:
            return True
        warm = Counter(node.shard for node in self.nodes if node.is_warm)
        owned = Counter(node.name for node in self.nodes if node.owner is not None)
        share = len(self.oracles) / len(self.machines)
        return all(warm[shard] > FOLLOWERS for shard in range(len(self.oracles))) and all(
            math.floor(share) <= owned[machine.name] <= math.ceil(share) for machine in self.machines
        )

    def _is_at_rest(self) -> bool:
        is_closed = self.service is None or self.service.closed_at == len(self.oracle.facts)
        return is_closed and all(
            node.store is not None and node.store.ticket == len(node.oracle.facts) and not node.store.is_ahead
            for node in self.nodes
            if node.is_kept
        )

    # ---------------------------------------------------------------- what happens

    def _of_shard(self, node: Node) -> list[Node]:
        """The nodes of one's shard."""
        return [each for each in self.nodes if each.shard == node.shard]

    def _kill(self, node: Node) -> None:
        machine = node.machine
        if not machine.is_alive:
            machine.start()
            self.tell(f"{node.name} starts")
            return
        how = self.dice.choice(("kill", "power cut", "new disk"))
        self.trace.meet(f"a {how}")
        self.trace.meet("a kill of an owner", sum(each.owner is not None for each in machine.nodes))
        self.tell(f"{node.name}: {how}")
        machine.kill(power=how == "power cut")
        if how == "new disk":
            for each in machine.nodes:
                each.disk = None
        if self.dice.random() < 0.5:
            machine.start()

    def _sleep(self, node: Node) -> None:
        if node.is_asleep:
            node.machine.runs.set()
            self.tell(f"{node.name} wakes")
        elif node.machine.is_alive:
            node.machine.runs.clear()
            self.trace.meet("a sleep of an owner", node.owner is not None)
            self.tell(f"{node.name} sleeps")

    def _cut_off(self, node: Node) -> None:
        node.machine.is_cut_off = not node.is_cut_off
        self.trace.meet("a node cut off from the store", node.is_cut_off)
        self.tell(f"{node.name} {'is cut off from' if node.is_cut_off else 'reaches'} the store")

    def _leave_alone(self, node: Node) -> None:
        machine = node.machine
        machine.is_alone = not machine.is_alone
        self.trace.meet("a node cut off from the coordinator", machine.is_alone)
        self.tell(f"{node.name} {'is cut off from' if machine.is_alone else 'reaches'} the coordinator")

    def _contend(self, node: Node) -> None:
        for each in {node, *(other for other in self._of_shard(node) if self.dice.random() < 0.3)}:
            each.wants = True
        self.trace.meet("a contest")

    def _hand_over(self, node: Node) -> None:
        if node.owner is not None:
            others = [each for each in self._of_shard(node) if each is not node and each.is_alive]
            node.hands_over_to = self.dice.choice(others) if others else None

    def _trip(self, node: Node) -> None:
        if node.is_alive and node.disk is not None:
            node.disk.fuse = self.dice.randrange(6)
            self.tell(f"{node.name} will die before write {node.disk.fuse}")

    def _checkpoint(self, node: Node) -> None:
        if node.is_alive:
            node.spawn(node.checkpoint())

    def _collect(self, node: Node) -> None:
        if node.is_alive:
            node.spawn(node.collect())

    def _read(self, _node: Node) -> None:
        for node in self.nodes:
            if node.owner is not None and not node.is_asleep and self.dice.random() < 0.7:
                node.spawn(node.owner.read())
                other = self.dice.choice(self._of_shard(node))
                if other.is_alive and other.owner is None:
                    other.spawn(other.read(node.owner))

    def _change(self, _node: Node) -> None:
        self.weather = self.dice.choice((CALM, ROUGH, STORMY))
        self.coordinator.is_away = self.dice.random() < 0.2

    def _wait(self, _node: Node) -> None:
        """Nothing."""


@contextmanager
def small_cluster() -> Iterator[None]:
    """The cluster as a simulation has it."""
    with ExitStack() as stack:
        stack.enter_context(small_engine())
        for name, value in SMALL.items():
            stack.enter_context(patch(name, value))
        stack.enter_context(patch.object(logging.getLogger("topics.cluster"), "disabled", True))
        yield


def run(
    seed: int, steps: int = STEPS, *, topics: bool = False, shards: int = 1, show: bool = False
) -> tuple[Trace, Failure | None]:
    """One life, and what went wrong with it."""
    trace = Trace(show=show)

    async def main() -> None:
        await Life(seed, trace, topics=topics, shards=shards).run(steps)

    with small_cluster():
        try:
            run_virtual(main)
        except Exception as error:
            return trace, Failure(seed, trace.step, error, list(trace.last), topics, shards)
        return trace, None
