"""A whole life from a seed: who is there, who has a turn, and the end, when everything must come to rest."""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

from simulation.actors.base import NAMES, Actor
from simulation.actors.chaos import Chaos
from simulation.actors.groups import Committer
from simulation.actors.jobs import Boss, Redriver, Worker
from simulation.actors.records import Configurer, Deleter, Reader, Reaper, Writer
from simulation.actors.routing import Forwarder, Routing
from simulation.actors.tables import Definer, RowReader, Statements
from simulation.actors.time import Clock, Fsync, Upkeep
from simulation.actors.watching import Watcher
from simulation.disk import CrashError
from simulation.oracle import reading
from simulation.world import CEILING_STEP, RefusedError, World
from support.log_model import demand
from support.trace import Trace
from topics_service.engine.router.router import Router

ACTORS: tuple[type[Actor], ...] = (
    Writer, Configurer, Deleter, Reaper, Reader, Watcher, Boss, Worker, Redriver, Routing, Forwarder, Committer,
    Clock, Fsync, Upkeep, Chaos,
)  # fmt: skip
TABLE_ACTORS: tuple[type[Actor], ...] = (Statements, Definer, RowReader)
MAY_BE_AWAY = frozenset({Deleter, Reaper, Routing, Committer, Redriver, Boss, Watcher, Upkeep, Configurer})
STEPS = 400
COMMAND = "PYTHONPATH=tests python -m simulation"
CHECK_EVERY = 25
SMALL: dict[str, Any] = {  # so that what takes thousands of records elsewhere happens after a handful
    "topics_service.engine.maintenance.SEAL_BLOCKS": 3,
    "topics_service.engine.maintenance._SMALL_RECORDS": 5,
    "topics_service.engine.maintenance._FULL_RECORDS": 9,
    "topics_service.engine.maintenance._RECLAIM_SEQS": 2,
    "topics_service.engine.reader.NEAR": 3,
    "topics_service.engine.reader.WORK": 400,
    "topics_service.engine.log.CEILING_STEP": CEILING_STEP,
    "topics_service.engine.queue.schedule.FOLD_ROWS": 3,
    "topics_service.engine.queue.alarms._SLACK": 4,
    "topics_service.engine.router.copies.RECORDS": 3,
    "topics_service.engine.router.forwarding._PRUNE_SEQS": 6,
    "topics_service.engine.watch.core._SILENT_MS": 1 << 60,
    "topics_service.engine.tables.messages.EPOCH_MS": 0,
    "topics_service.engine.tables.indexing._ROWS_A_SLICE": 3,
    "topics_service.engine.tables.removal._FEW_ROWS": 3,
    "topics_service.engine.tables.execution.CHANGES_A_SLICE": 2,
}


@dataclass
class Failure:
    """Where a run went wrong."""

    seed: int
    step: int
    error: BaseException
    last: list[str]
    tables: bool = False

    def __str__(self) -> str:
        lines = "\n".join(self.last)
        return (
            f"{lines}\nseed {self.seed} fails at step {self.step}: {self.error!r}\n"
            f"again: {COMMAND} {self.seed} --steps {self.step} {options(self.tables)}--trace"
        )


class Scenario:
    """One life, with `tables` beside topics or not. `without` leaves actors out by name, and changes nothing in the
    dice of the others; `more` are there as well. `world` is one that is there already."""

    def __init__(
        self, seed: int, *, show: bool = False, without: Collection[str] = (), tables: bool = False,
        world: World | None = None, more: tuple[type[Actor], ...] = (),
    ) -> None:  # fmt: skip
        self.seed = seed
        self.tables = tables
        self._actors = (*ACTORS, *(TABLE_ACTORS if tables else ()), *more)
        self.world = world or World(seed, Trace(show=show))
        self.trace = self.world.trace
        dice = Random(f"{seed} who is there")
        away = {actor for actor in self._actors if actor in MAY_BE_AWAY and dice.random() < 0.15}
        self._weights = [actor.weight * dice.choice((0.4, 1, 1, 1, 2.5)) for actor in self._actors]
        self.actors = {actor: actor(self.world, seed) for actor in self._actors}
        self._absent = {actor for actor in self._actors if actor in away or actor.__name__.lower() in without}
        self._dice = Random(f"{seed} turns")

    def run(self, steps: int = STEPS) -> Failure | None:
        """Live for so many steps, and come to an end; what went wrong, if anything did."""
        try:
            self.begin()
            for step in range(1, steps + 1):
                self.trace.step = step
                self.turn(step)
            self.trace.step = steps + 1
            self.end()
        except Exception as error:
            return Failure(self.seed, self.trace.step, error, list(self.trace.last), self.tables)
        return None

    def begin(self) -> None:
        """Make the first topics."""
        configurer = self.actors[Configurer]
        assert isinstance(configurer, Configurer)
        for name in NAMES:
            if configurer.chance(0.7):
                configurer.configure(name)

    def check(self) -> None:
        """Everything that the engine shows is what it should be."""
        world = self.world
        world.look()
        for topic in world.visible():
            reading.check(world, topic)
        if not world.is_read_only:
            world.queues.check()
        world.routers.check()
        world.groups.check()
        world.tables.check()
        written = [log.written for _, _, log in world.topics.logs()]
        totals = (sum(s.count for s in written), sum(s.nbytes for s in written))
        found = (world.engine.writer.total_records, world.engine.writer.total_bytes)
        demand(found == totals, f"the totals are {found}, not {totals}")

    def turn(self, number: int) -> None:
        """Let one of the actors act, and check everything now and then."""
        self.attempt(self._act)
        if number % CHECK_EVERY == 0:
            self.attempt(self.check)

    def died(self) -> None:
        """The process has died within a call."""
        chaos = self.actors[Chaos]
        assert isinstance(chaos, Chaos)
        chaos.died()

    def _act(self) -> None:
        [kind] = self._dice.choices(self._actors, self._weights)
        if kind not in self._absent:
            self.actors[kind].act()

    def attempt(self, what: Callable[[], None]) -> None:
        """Do it, though the engine may refuse it, or die in it."""
        written = self.world.w
        try:
            what()
        except RefusedError as error:
            self.trace.tell(f"  refused: {error.code}")
        except CrashError:
            self.trace.meet("a crash between two writes of a step", self.world.w > written)
            self.died()

    def end(self) -> None:
        """Faults end, and all that is owed is done: forwarded, watched, worked off."""
        world = self.world
        world.disk.mend()
        if world.is_read_only:
            world.crash(power=False)
        world.sync()
        self.check()
        self._forward()
        watcher = self.actors[Watcher]
        assert isinstance(watcher, Watcher)
        watcher.drain()
        self._work_off()
        world.tables.come_to_rest()
        self.check()
        world.close()
        self.check()

    def _forward(self) -> None:
        world = self.world
        routers = world.engine.routers
        for _ in range(200):  # what goes round a cycle of the class fsync needs an fsync for each hop
            while routers.forward():
                pass
            world.sync()
            world.clock.advance(2001)
            world.latest = max(world.latest, world.now)
            world.look()
            world.engine.maintain()
            behind = [router for router in routers._routers.values() if router.lag and not _is_full(router)]
            if not behind and not routers._grown:
                return
        demand(False, f"routers do not get on: {[router.state() for router in behind]}")

    def _work_off(self) -> None:
        """Every job is claimed in the end, and none twice once it is acked."""
        world = self.world
        for topic in world.visible():
            if topic.config.type != "queue":
                continue
            for _ in range(100):
                if not topic.log.written.live:
                    break
                world.clock.advance(60_001)
                world.latest = max(world.latest, world.now)
                [reply] = world.queues.claim(topic, ("last", 100, None))
                for job in reply.jobs:
                    world.queues.settle("ack", topic, "last", [job.seq], [job.lease_id])
                    world.sync()
            jobs = world.queues.of(topic)
            left = [seq for seq in topic.log.written.live if not jobs.is_exhausted(seq)]
            demand(not left, f"jobs {left} of {topic.name} are given to nobody")


def _is_full(router: Router) -> bool:
    """Whether there is no room where it forwards to."""
    fault = router.fault
    return fault is not None and fault.error.reason.code in ("topic_full", "record_too_large")


def options(tables: bool) -> str:
    """The words behind the number of a seed that repeat its life."""
    return "--tables " if tables else ""


@contextmanager
def small_engine() -> Iterator[None]:
    """The engine as a simulation has it."""
    with ExitStack() as stack:
        for name, value in SMALL.items():
            stack.enter_context(patch(name, value))
        yield


def run(
    seed: int, steps: int = STEPS, *, show: bool = False, without: Collection[str] = (), tables: bool = False
) -> tuple[Scenario, Failure | None]:
    """One scenario, and what went wrong with it."""
    with small_engine():
        scenario = Scenario(seed, show=show, without=without, tables=tables)
        return scenario, scenario.run(steps)
